#!/usr/bin/env python3
"""Validation loss with fp32, bf16 and 8-bit moments, over several seeds: moments.py OFFSTAGE DIRECTORY

Trains the model of CONFIG (configs/models/bytes-3m.cfg) on headers of this machine, a byte a token, for STEPS (3000) steps
with each of SEEDS (3) seeds and each kind of moments. Ends with
RESULT moments_KIND_loss_gap: the mean of the last validation loss minus that of fp32, in standard deviations of fp32's over
its seeds. Keeps each run's losses in DIRECTORY/moments, and draws them there if matplotlib is at hand."""
import concurrent.futures
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

STEPS = int(os.environ.get("STEPS", "3000"))
SEEDS = int(os.environ.get("SEEDS", "3"))
JOBS = int(os.environ.get("JOBS", str(os.cpu_count())))
CONFIG = os.environ.get("CONFIG", "configs/models/bytes-3m.cfg")
KINDS = ["fp32", "bf16", "8bit"]
KEYS = {
    "train.sequence": 256, "train.micro-batch": 4, "train.global-batch": 4, "train.steps": STEPS,
    "train.valid-every": max(100, STEPS // 12), "train.valid-batches": 40, "train.log-every": 100,
    "optimizer.lr": "1e-3", "optimizer.min-lr": "1e-4", "optimizer.warmup-steps": max(1, STEPS // 30),
    "numerics.dtype": "bf16", "device.kind": "host", "run.threads": 1, "checkpoint.every": 0,
}


def run(program, place, kind, seed):
    """[(step, validation loss)] of one run, from its file if it was done before."""
    kept = place / f"{Path(CONFIG).stem}-{STEPS}-{kind}-{seed}.json"
    if not kept.exists():
        folder = place / kept.stem
        shutil.rmtree(folder, ignore_errors=True)
        keys = KEYS | {"run.dir": folder, "data.train": place / "train.txt", "data.valid": place / "valid.txt",
                       "train.seed": seed, "optimizer.moments": kind}
        done = subprocess.run([program, "train", "--config", CONFIG, *(f"--{key}={value}" for key, value in keys.items())],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{kept.stem} failed with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr}")
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        kept.write_text(json.dumps([(r["step"], r["valid_loss"]) for r in records if "valid_loss" in r]))
        shutil.rmtree(folder)
    losses = json.loads(kept.read_text())
    print(f"{kept.stem}: {losses[-1][1]:.4f} nats per byte after {losses[-1][0]} steps", flush=True)
    return losses


def draw(curves, file):
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no picture: matplotlib is missing")
        return
    for (kind, seed), losses in curves.items():
        steps, values = zip(*losses)
        pyplot.plot(steps, values, color=f"C{KINDS.index(kind)}", alpha=0.7, label=kind if seed == 1 else None)
    pyplot.xlabel("step")
    pyplot.ylabel("validation loss, nats per byte")
    pyplot.legend(title="moments")
    pyplot.savefig(file, dpi=120)


def main():
    program, directory = sys.argv[1:]
    place = Path(directory) / "moments"
    place.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "jobs/header_text.py", place], check=True)
    wanted = [(kind, seed) for seed in range(1, SEEDS + 1) for kind in KINDS]
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        curves = dict(zip(wanted, pool.map(lambda w: run(program, place, *w), wanted)))
    draw(curves, place / "moments.png")
    last = {kind: [curves[kind, seed][-1][1] for seed in range(1, SEEDS + 1)] for kind in KINDS}
    spread = statistics.stdev(last["fp32"])
    for kind in KINDS:
        print(f"{kind:<4}  mean {statistics.mean(last[kind]):.4f}, each {', '.join(f'{loss:.4f}' for loss in last[kind])}")
    print(f"standard deviation of fp32 over {SEEDS} seeds: {spread:.4f}")
    for kind in KINDS[1:]:
        gap = (statistics.mean(last[kind]) - statistics.mean(last["fp32"])) / spread
        print(f"RESULT moments_{kind}_loss_gap {gap:.2f}")


if __name__ == "__main__":
    main()
