#!/usr/bin/env python3
"""Training steps beside peers: peers.py OFFSTAGE DIRECTORY PYTHON

A LLaMA of 134 M parameters in bf16 with FP32 state, AdamW and a norm that never reaches its limit, on all cores that this process may
use: PyTorch eager and compiled, DeepSpeed's ZeRO-3 with all state in host memory and ZeRO-Infinity with the optimizer's on storage, and
Offstage with its state where the peer has it, in turns. Before each run the machine must be idle. A peer that does not run here is named with
its reason and gets no RESULT. Ends with a table and RESULT lines: the peer's median step over Offstage's, of all steps but a run's first
three."""
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import steps_of
from peers_model import BATCH, SEQUENCE, environment, offstage_arguments, torch_arguments, write_tokens

ROUNDS, STEPS, WAIT = (int(os.environ.get(name, value)) for name, value in (("ROUNDS", 3), ("STEPS", 8), ("WAIT", 600)))
WARM_UP = 3
LONGEST = 900
NAMES = {"host": "Offstage, state in host memory", "storage": "Offstage, state on storage", "eager": "PyTorch, eager",
         "compile": "PyTorch, torch.compile", "ds_zero3": "DeepSpeed ZeRO-3, state in host memory",
         "ds_infinity": "DeepSpeed ZeRO-Infinity, state on storage"}
OPPONENTS = {"torch_compile": ("compile", "host"), "torch_eager": ("eager", "host"), "ds_zero3": ("ds_zero3", "host"),
             "ds_infinity": ("ds_infinity", "storage")}


class NotHere(Exception):
    """Why a peer does not run on this machine."""


def busy_share(seconds=2.0):
    """The share of the cores that others keep busy."""
    def read():
        numbers = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(numbers), numbers[3] + numbers[4]

    all_before, idle_before = read()
    time.sleep(seconds)
    all_after, idle_after = read()
    return 1.0 - (idle_after - idle_before) / max(1, all_after - all_before)


def wait_for_idle(noted):
    end = time.monotonic() + WAIT
    share = busy_share()
    while share > 0.05 and time.monotonic() < end:
        share = busy_share()
    if share > 0.05:
        noted.append(share)


def run_offstage(program, folder, data, where):
    """Seconds of the steps that count, and the peak of resident memory."""
    stored = {"tiers__path": folder / "tier", "tiers__cache": 0} if where == "storage" else {}
    (folder / "tier").mkdir(exist_ok=True)
    command = offstage_arguments(program, folder / "run", data, STEPS, **stored)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment(), stdout=log, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"{command} failed:\n{(folder / 'log').read_text()}")
    steps = steps_of(folder / "run")
    shutil.rmtree(folder / "run")
    return [step["step_seconds"] for step in steps[WARM_UP:]], usage.ru_maxrss * 1024


def run_peer(python, folder, kind, threads):
    """As run_offstage."""
    place = folder / "peer"
    place.mkdir(exist_ok=True)
    arguments = torch_arguments(STEPS, threads, directory=str(place), port=random.randrange(20000, 60000))
    command = [python, str(Path(__file__).with_name("torch_peer.py")), kind, json.dumps(arguments)]
    try:
        done = subprocess.run(command, env=environment(OMP_NUM_THREADS=str(threads)), capture_output=True, text=True, check=False,
                              timeout=LONGEST)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotHere(str(error)) from error
    finally:
        shutil.rmtree(place)
    words = [line.split() for line in done.stdout.splitlines()]
    seconds = [float(w[2]) for w in words if len(w) == 5 and w[0] == "step"]
    if done.returncode != 0 or len(seconds) != STEPS:
        raise NotHere((done.stderr.strip().splitlines() or ["no reason given"])[-1])
    return seconds[WARM_UP:], next(int(w[1]) for w in words if w[:1] == ["peak"])


def versions(python):
    script = ("import importlib.metadata as m\nfor p in ('torch', 'deepspeed'):\n"
              "  try: print(p, m.version(p))\n  except m.PackageNotFoundError: print(p, 'is not there')")
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[:-1]


def main():
    program, directory, python = sys.argv[1:]
    threads = len(os.sched_getaffinity(0))
    found, missing, busy = {name: [] for name in NAMES}, {}, []
    peaks = dict.fromkeys(NAMES, 0)
    print(f"{threads} threads; {', '.join(versions(python))}; {ROUNDS} rounds of {STEPS} steps", flush=True)
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        data = write_tokens(Path(folder) / "tokens.bin")
        for _ in range(ROUNDS):
            for name in NAMES:
                if name in missing:
                    continue
                wait_for_idle(busy)
                try:
                    seconds, peak = (run_offstage(program, Path(folder), data, name) if name in ("host", "storage")
                                     else run_peer(python, Path(folder), name, threads))
                except NotHere as reason:
                    missing[name] = reason
                    continue
                found[name] += seconds
                peaks[name] = max(peaks[name], peak)
    median = {name: statistics.median(seconds) for name, seconds in found.items() if seconds and name not in missing}
    print(f"{'':<44}{'step':>9}{'tokens/s':>10}{'peak memory':>14}")
    for name, seconds in median.items():
        print(f"{NAMES[name]:<44}{seconds:>7.3f} s{BATCH * SEQUENCE / seconds:>10.0f}{peaks[name] / 2**30:>10.2f} GiB")
    for name, reason in missing.items():
        print(f"{NAMES[name]} does not run here: {reason}")
    if busy:
        print(f"the machine was not idle before {len(busy)} runs: up to {100 * max(busy):.0f} % of the cores were taken")
    for result, (peer, ours) in OPPONENTS.items():
        if peer in median:
            print(f"RESULT peers_{result} {median[peer] / median[ours]:.2f}")


if __name__ == "__main__":
    main()
