#!/usr/bin/env python3
"""Tests and measures a GPU in four sections of less than nine minutes: gpu.py T|A|B|C cuda|host BUILD DIR; gpu.sh calls it
and says what for. PARTS names the parts to run, all unless told.

Every program that is timed runs alone, once per figure, so that what one leaves behind cannot help the next. DIR/SECTION.json
has every figure as soon as it is known; ends with RESULT lines, and with 1 if something failed."""
import os
import signal
import sys

import gpu_checks as checks
import gpu_machine as machine
import gpu_model as model
import gpu_training as training
import gpu_update as update
from gpu_run import Section

# The seconds of each part of a whole section; parts that run alone share all of its time. What one does not need, later ones
# may use; none can use what later ones are to have. The first says on what machine the others ran.
SECTIONS = {
    "T": [("machine", 40, machine.measure_machine), ("alone", 60, checks.check_alone), ("tests", 420, checks.check_all)],
    "A": [("machine", 20, machine.measure_facts), ("operations", 80, model.measure_operations), ("passes", 80, model.measure_passes),
          ("torch", 240, model.measure_torch), ("profile", 100, model.measure_kernels)],
    "B": [("machine", 20, machine.measure_facts), ("zero3", 90, training.policy("zero3")),
          ("twinflow", 90, training.policy("twinflow")), ("dos", 90, training.policy("dos")),
          ("storage", 230, training.measure_storage)],
    "C": [("machine", 20, machine.measure_facts), ("link", 25, update.measure_link), ("adamw", 25, update.measure_adamw),
          ("rates", 40, update.measure_rates), ("updates", 140, update.measure_updates)],
}
MOST_SECONDS = 520  # of nine minutes; the rest is for starting and for what has to be killed


def results(figures):
    """The RESULT lines, of what was measured; those of the emulated device have a name of their own."""
    device = "emulated" if figures["emulated"] else "gpu"
    found = {"T": lambda _: {}, "A": model.results, "B": training.results, "C": update.results}[figures["section"]](figures)
    return {f"{device}_{name}": round(value, 3) for name, value in found.items()}


def chosen(name):
    """The section's first part and those that PARTS names, in their order. Exits with 64 if the section has no such part."""
    parts = SECTIONS[name]
    names = [part for part, *_ in parts]
    wanted = os.environ.get("PARTS", " ".join(names)).split()
    unknown = [part for part in wanted if part not in names]
    if unknown or not wanted:
        print(f"perf/gpu.sh: PARTS={' '.join(wanted)}; the parts of {name} are {' '.join(names)}", file=sys.stderr)
        sys.exit(64)
    return [part for part in parts if part[0] in (names[0], *wanted)]


def main():
    if len(sys.argv) != 5 or sys.argv[1] not in SECTIONS or sys.argv[2] not in ("cuda", "host"):
        sys.exit(__doc__)
    # So that what runs is ended too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    name, device, build, folder = sys.argv[1:]
    parts = chosen(name)
    section = Section(name, folder, device, build)
    slower = float(os.environ.get("SECONDS_LEFT", MOST_SECONDS)) / sum(seconds for _, seconds, _ in parts)
    for part, seconds, measure in parts:
        section.measure(part, slower * seconds, measure)
        section.keep("results", results(section.figures))
    for problem in section.figures["problems"]:
        print(f"perf/gpu.sh: {problem}", file=sys.stderr)
    for result, value in section.figures["results"].items():
        section.say(f"RESULT {result} {value}")
    sys.exit(1 if section.figures["problems"] else 0)


if __name__ == "__main__":
    main()
