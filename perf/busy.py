#!/usr/bin/env python3
"""Steps on a machine that is never idle: busy.py OFFSTAGE DIRECTORY

Trains a LLaMA of 125 M parameters and one of 3 M on all cores, alone and beside one busy loop per core, three times in turn;
with the environment as it comes, and with OpenMP's default (threads that spin for long). Two equal loads on a core leave each
half of it: 2 is the fair slowdown. Ends with RESULT lines, medians."""
import array
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import steps_of

MODELS = {
    "125 M": {"model.layers": 12, "model.hidden": 768, "model.heads": 12, "model.kv-heads": 4, "model.ffn-hidden": 2048,
              "model.vocab": 32000, "train.sequence": 256, "train.micro-batch": 2, "train.global-batch": 2, "train.steps": 8},
    "3 M": {"model.layers": 4, "model.hidden": 256, "model.heads": 8, "model.kv-heads": 4, "model.ffn-hidden": 704,
            "model.vocab": 256, "train.sequence": 256, "train.micro-batch": 1, "train.global-batch": 1, "train.steps": 60},
}
WAITING = {"as it comes": {}, "OpenMP's default": {"GOMP_SPINCOUNT": "300000"}}
ROUNDS = 3


def step_seconds(program, folder, data, model, waiting):
    """The median of a run's steps but the first two."""
    keys = MODELS[model] | {"model.family": "llama", "numerics.dtype": "bf16", "device.kind": "host", "run.dir": folder / "run",
                            "data.train": data, "checkpoint.every": 0}
    clean = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")}
    done = subprocess.run([program, "train", *(f"--{key}={value}" for key, value in keys.items())], env=clean | WAITING[waiting],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{program} train failed:\n{done.stdout}{done.stderr}")
    steps = steps_of(folder / "run")
    shutil.rmtree(folder / "run")
    return statistics.median([step["step_seconds"] for step in steps[2:]])


def main():
    program, directory = sys.argv[1:]
    cores = len(os.sched_getaffinity(0))
    found = {(model, waiting, busy): [] for model in MODELS for waiting in WAITING for busy in (0, 1, cores)}
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        data = Path(folder) / "tokens.bin"
        data.write_bytes(array.array("H", random.Random(1).choices(range(256), k=100_000)).tobytes())
        for _ in range(ROUNDS):
            for model, waiting, busy in found:
                loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
                try:
                    found[model, waiting, busy].append(step_seconds(program, Path(folder), data, model, waiting))
                finally:
                    for loop in loops:
                        loop.kill()
                        loop.wait()
    median = {key: statistics.median(values) for key, values in found.items()}
    print(f"{'model':<7}{'waiting':<19}{'alone':>9}{'1 busy loop':>13}{f'{cores} loops':>9}   slowdown")
    for model in MODELS:
        for waiting in WAITING:
            alone, one, all_of_them = (median[model, waiting, busy] for busy in (0, 1, cores))
            print(f"{model:<7}{waiting:<19}{alone:>7.4f} s{one:>11.4f} s{all_of_them:>7.4f} s   {all_of_them / alone:.2f}")
    ours, small, spinning = ("125 M", "as it comes"), ("3 M", "as it comes"), ("125 M", "OpenMP's default")
    print(f"RESULT busy_slowdown {median[(*ours, cores)] / median[(*ours, 0)]:.2f}")
    print(f"RESULT busy_slowdown_small {median[(*small, cores)] / median[(*small, 0)]:.2f}")
    print(f"RESULT busy_idle_cost {median[(*ours, 0)] / median[(*spinning, 0)]:.3f}")


if __name__ == "__main__":
    main()
