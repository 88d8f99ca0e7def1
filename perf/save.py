#!/usr/bin/env python3
"""Checkpoints under the next step against checkpoints between steps: save.py OFFSTAGE DIRECTORY

Trains a GPT-2 of 124 M parameters, its state of 1.4 GiB in host memory, and saves after every other step; three times with
checkpoint.overlap on and off in turn. A save can be hidden up to the commit, and at most for as long as forward and backward
take. Prints for each save that a step follows how long it took and training stood still for it, and how much longer the
step was under which it went on; ends with RESULT lines: medians."""
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import steps_of

KEYS = {
    "model.family": "gpt2", "model.layers": 12, "model.hidden": 768, "model.heads": 12, "model.vocab": 50257,
    "train.sequence": 256, "train.micro-batch": 1, "train.global-batch": 1, "train.steps": 7, "train.seed": 7,
    "optimizer.warmup-steps": 1, "checkpoint.every": 2, "checkpoint.keep": 2, "device.kind": "host", "numerics.dtype": "bf16",
}
PAIRS = 3


def run(program, folder, text, overlap):
    """(seconds, stood still) of each save that a step follows, and the steps' seconds by step."""
    keys = KEYS | {"run.dir": folder, "data.train": text, "data.format": "text", "checkpoint.overlap": overlap}
    done = subprocess.run([program, "train", *(f"--{key}={value}" for key, value in keys.items())],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{program} train failed:\n{done.stdout}{done.stderr}")
    saves = re.findall(r"saved \S+ in ([\d.]+) s(?:, training stood still for ([\d.]+) s)?", done.stdout)
    steps = {step["step"]: step["step_seconds"] for step in steps_of(folder)}
    shutil.rmtree(folder)
    return [(float(all_of_it), float(still or all_of_it)) for all_of_it, still in saves[:-1]], steps


def main():
    program, directory = sys.argv[1:]
    rows = {"off": [], "on": []}
    longer = []
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        text = Path(folder) / "train.txt"
        text.write_bytes(bytes(random.Random(1).choices(range(97, 123), k=100_000)))
        for _ in range(PAIRS):
            for overlap, found in rows.items():
                saves, steps = run(program, Path(folder) / "run", text, overlap)
                found += saves
                under, alone = [3, 5, 7], [2, 4, 6]  # the first step is no measure
                if overlap == "on":
                    longer.append(statistics.median(steps[s] for s in under) / statistics.median(steps[s] for s in alone))
                print(f"checkpoint.overlap={overlap:<3}  saves " +
                      ", ".join(f"{whole:.1f} s (stood still {still:.1f} s)" for whole, still in saves) +
                      f"; steps {', '.join(f'{seconds:.2f}' for seconds in steps.values())} s", flush=True)
    blocking = statistics.median(still for _, still in rows["off"])
    hidden = statistics.median(still for _, still in rows["on"])
    print(f"training stands still for {hidden:.1f} s of a save instead of {blocking:.1f} s; the step under it takes "
          f"{statistics.median(longer):.2f} times as long as one alone")
    print(f"RESULT save_stall_vs_blocking {hidden / blocking:.3f}")
    print(f"RESULT save_step_slowdown {statistics.median(longer):.3f}")


if __name__ == "__main__":
    main()
