#!/usr/bin/env python3
"""Saves beside many steps: stage.py OFFSTAGE DIRECTORY [PYTHON [STEPS]]

Two ranks train a LLaMA of 23 M parameters whose state has four times the host memory that the run may take, on two storage paths, and save
every STEPS steps (24) to a parallel file system. Paths and file system are token buckets, so that other work matters less. Rows:
  drain     checkpoint.rate=20%, the state on two local paths
  shared    the same, the second path is the file system itself
  local     drain, and level 1 (checkpoint.local) on a local path after the same steps
  blocking  the paths of drain, checkpoint.overlap=off
  torch     torch.save of as many bytes to a token bucket of the same rate, by PYTHON
A cycle is what lies between the steps after which two saves begin. Training stands still for what is in a cycle and in no step, as the clock of
this script says, less what lies between steps without a save. Steps under a save are compared with the others of their cycle. Ends with RESULT
lines: medians of the cycles."""
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import steps_of

RANKS = 2
PARAMETERS = 23_077_376
STATE = 12 * PARAMETERS
LOCAL, SHARED = 400_000_000, 100_000_000  # bytes per second of a local path and of the parallel file system
SHARE = 20  # per cent
KEYS = {
    "model.family": "llama", "model.layers": 8, "model.hidden": 512, "model.heads": 8, "model.kv-heads": 8,
    "model.ffn-hidden": 1024, "model.vocab": 4096, "model.tied-head": "true",
    "train.sequence": 64, "train.micro-batch": 1, "train.global-batch": 2, "train.seed": 7, "train.log-every": 1,
    "optimizer.warmup-steps": 1, "checkpoint.keep": 2, "device.kind": "host", "numerics.dtype": "bf16", "run.threads": 1,
    "update.subgroup-size": 524288, "tiers.host-memory": STATE // 4, "tiers.split-parameters": "off", "tiers.allow-tmpfs": "true",
}
STEP = re.compile(r"^\S+Z step +(\d+)/\d+ ")
SAVED = re.compile(r"^\S+Z step +(\d+)  saved (\S+) in .*?(, level 1)?$")
TORCH = """
import io, os, sys, time
import torch
class Bucket(io.RawIOBase):
    def __init__(self, path, rate):
        self.file, self.rate, self.due = open(path, "wb", buffering=0), rate, time.monotonic()
    def writable(self):
        return True
    def write(self, data):
        size = len(memoryview(data).cast("B"))
        self.file.write(data)
        self.due = max(self.due, time.monotonic() - 0.005) + size / self.rate
        time.sleep(max(0.0, self.due - time.monotonic()))
        return size
path, count, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
state = {name: torch.ones(count) for name in ("parameter", "momentum", "variance")}
began = time.monotonic()
file = Bucket(path, rate)
torch.save(state, file)
os.fsync(file.file.fileno())
print(time.monotonic() - began)
"""


def path(folder, rate):
    folder.mkdir(parents=True, exist_ok=True)
    return f"{folder},emulate-read={rate},emulate-write={rate}"


def run(program, folder, steps, options):
    """When each step and each save was said to be done, the seconds of each step, the bytes of each checkpoint, and when it was at
    level 1."""
    local = [path(folder / name, LOCAL) for name in ("a", "b")]
    shared = path(folder / "shared", SHARED)
    keys = KEYS | {"run.dir": folder / "run", "data.train": folder / "train.txt", "data.format": "text", "train.steps": 3 * steps,
                   "checkpoint.dir": folder / "shared/checkpoints", "checkpoint.every": steps}
    # A path of weight 0 has no part of the state: checkpoint.dir alone lies on it.
    split, paths = ("auto", [local[0], shared]) if options.pop("shared") else ("1:1:0", [*local, shared])
    keys |= {"tiers.split": split} | options
    if "checkpoint.local-every" in keys:
        keys["checkpoint.local"] = folder / "a"
    command = ["mpirun", "-n", str(RANKS), program, "train", *(f"--{key}={value}" for key, value in keys.items()),
               *(f"--tiers.path={each}" for each in paths)]
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_WAIT_POLICY="passive",
                       OMPI_MCA_mpi_yield_when_idle="1", OMPI_MCA_rmaps_base_oversubscribe="1")
    done, saved, sizes, local_level, out = {}, {}, {}, {}, []
    with subprocess.Popen(list(map(str, command)), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout:
            now = time.monotonic()
            out.append(line)
            if found := STEP.match(line):
                done[int(found[1])] = now
            elif (found := SAVED.match(line)) and found[3]:
                local_level[int(found[1])] = now
            elif found:
                saved[int(found[1])] = now
                sizes[int(found[1])] = sum(file.stat().st_size for file in Path(found[2]).iterdir())
    if process.returncode != 0:
        sys.exit(f"{program} train failed:\n{''.join(out)}")
    return done, saved, {step["step"]: step["step_seconds"] for step in steps_of(folder / "run")}, sizes, local_level


def cycles(program, name, steps, options):
    """Of each cycle: stood still / time, steps under the save / others, bytes at the rate / time until complete, time."""
    rows = []
    with tempfile.TemporaryDirectory(dir=DIRECTORY) as folder:
        (Path(folder) / "train.txt").write_bytes(TEXT)
        done, saved, seconds, sizes, _ = run(program, Path(folder), steps, options)
    between = {step: done[step] - done[step - 1] - seconds[step] for step in done if step - 1 in done}
    usual = statistics.median(between.values())
    for first in (steps, 2 * steps):
        last = first + steps
        time_of_it = done[last] - done[first]
        inside = [seconds[step] for step in range(first + 1, last + 1)]
        under = [seconds[step] for step in range(first + 1, last + 1) if done[step] <= saved[first]]
        alone = [seconds[step] for step in range(first + 1, last + 1) if done[step - 1] > saved[first]]
        until = saved[first] - done[first]
        still = max(0.0, sum(between[step] - usual for step in range(first + 1, last + 1)))
        slowdown = statistics.median(under) / statistics.median(alone) if under and alone else None
        row = (still / time_of_it, slowdown, sizes[first] / (SHARE / 100 * SHARED) / until, time_of_it)
        rows.append(row)
        print(f"{name:<9}step {first}: {sizes[first] / 1e6:.0f} MB complete after {until:.1f} s, {len(under)} steps; of {time_of_it:.1f} s training "
              f"stood still for {still:.2f} s; a step takes {statistics.median(inside):.2f} s"
              + (f", under the save {slowdown:.3f} times one alone" if slowdown else "")
              + f" (load {os.getloadavg()[0]:.1f})", flush=True)
    return rows


def local_seconds(program, steps, options):
    """From the end of a step until its checkpoint is complete at level 1: the median of those that a step follows."""
    with tempfile.TemporaryDirectory(dir=DIRECTORY) as folder:
        (Path(folder) / "train.txt").write_bytes(TEXT)
        done, _, _, _, local_level = run(program, Path(folder), steps, options)
    found = [local_level[step] - done[step] for step in (steps, 2 * steps)]
    print(f"local    complete at level 1 after {', '.join(f'{each:.2f}' for each in found)} s (load {os.getloadavg()[0]:.1f})", flush=True)
    return statistics.median(found)


def median(rows, column):
    found = [row[column] for row in rows if row[column] is not None]
    return statistics.median(found) if found else float("nan")


def main():
    program = sys.argv[1]
    python = sys.argv[3] if len(sys.argv) > 3 else ""
    steps = int(sys.argv[4]) if len(sys.argv) > 4 else 24
    rate = {"checkpoint.rate": f"{SHARE}%"}
    drain = cycles(program, "drain", steps, {**rate, "shared": False})
    shared = cycles(program, "shared", steps, {**rate, "shared": True})
    local = local_seconds(program, steps, {**rate, "shared": False, "checkpoint.local-every": steps})
    blocking = cycles(program, "blocking", steps, {"checkpoint.overlap": "off", "shared": False})
    print(f"RESULT stage_stall {median(drain, 0):.3f}")
    print(f"RESULT stage_stall_shared {median(shared, 0):.3f}")
    print(f"RESULT stage_step_slowdown {median(drain, 1):.3f}")
    print(f"RESULT stage_step_slowdown_shared {median(shared, 1):.3f}")
    print(f"RESULT stage_durable_vs_rate {median(drain, 2):.3f}")
    print(f"RESULT stage_durable_vs_rate_shared {median(shared, 2):.3f}")
    print(f"RESULT stage_local_seconds {local:.2f}")
    print(f"RESULT stage_stall_blocking {median(blocking, 0):.3f}")
    if not python:
        print("torch    is missing: PEERS_PYTHON names a Python that has PyTorch")
        return
    with tempfile.TemporaryDirectory(dir=DIRECTORY) as folder:
        took = float(subprocess.run([python, "-c", TORCH, f"{folder}/state.pt", str(PARAMETERS), str(SHARED)],
                                    check=True, capture_output=True, text=True).stdout)
    between = median(drain, 3) * (1 - median(drain, 0))
    print(f"torch    {STATE / 1e6:.0f} MB complete after {took:.1f} s, all of which training stands still")
    print(f"RESULT stage_stall_torch {took / (took + between):.3f}")


if __name__ == "__main__":
    DIRECTORY = sys.argv[2]
    TEXT = bytes(random.Random(1).choices(range(97, 123), k=400_000))
    main()
