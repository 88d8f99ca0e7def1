#!/usr/bin/env python3
"""Steps whose norm is above optimizer.clip, each of them: clipped.py OFFSTAGE DIRECTORY

A LLaMA of 134 M parameters trains with most of its state on storage in DIRECTORY, in turns with update.overlap=off, on and auto. An update
that begins under backward is in vain there: on does each again, and auto is to keep away from it. Ends with RESULT lines: the median
step of auto, and that of on, over off's."""
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import steps_of
from peers_model import environment, offstage_arguments, write_tokens

ROUNDS, STEPS, WARM = 2, 8, 2


def times_of(program, folder, data, overlap):
    """Seconds of the steps but the first two, and how many updates were done again."""
    (folder / "storage").mkdir(parents=True)
    command = offstage_arguments(program, folder / "run", data, STEPS, optimizer__clip=0.001, update__overlap=overlap,
                                 update__subgroup_size="8M", tiers__path=folder / "storage", tiers__host_memory="900MiB")
    done = subprocess.run([str(word) for word in command], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"{program} failed:\n{done.stdout}")
    steps = steps_of(folder / "run")
    return [step["step_seconds"] for step in steps[WARM:]], sum(step.get("overlap") == "redone" for step in steps)


def main():
    program, directory = sys.argv[1:]
    seconds = {"off": [], "on": [], "auto": []}
    for number in range(ROUNDS):
        for overlap, all_steps in seconds.items():
            with tempfile.TemporaryDirectory(dir=directory) as folder:
                steps, redone = times_of(program, Path(folder), write_tokens(Path(folder) / "tokens.bin"), overlap)
            all_steps += steps
            print(f"round {number + 1}, update.overlap={overlap}: a step takes {statistics.median(steps):.2f} s, "
                  f"{redone} of {STEPS} updates done again", flush=True)
    median = {overlap: statistics.median(steps) for overlap, steps in seconds.items()}
    print(f"RESULT clipped_auto_vs_off {median['auto'] / median['off']:.3f}")
    print(f"RESULT clipped_on_vs_off {median['on'] / median['off']:.3f}")


if __name__ == "__main__":
    main()
