#!/usr/bin/env python3
"""From the start of the process to the end of the first step: start.py OFFSTAGE DIRECTORY TORCH-PYTHON

A LLaMA of 134 M parameters, its state in host memory, by Offstage and by PyTorch (eager) in turn, five times. Prints when each stood
where, and ends with a RESULT line, the ratio of the medians. An empty TORCH-PYTHON: there is no PyTorch, and no such line."""
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers_model import environment, offstage_arguments, torch_arguments, write_tokens

ROUNDS = 5
# Marks by the first words of a line that says so.
OURS = {"memory is made": "offstage ", "first weights": "starting at step", "first step": "step      1"}
THEIRS = {"first step": "step 1 "}


def times(command, marks, env):
    """Seconds from the start of the process to each mark."""
    began = time.monotonic()
    found = {}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            found |= {mark: time.monotonic() - began for mark, words in marks.items() if mark not in found and re.sub(r"^\S+Z ", "", line).startswith(words)}
        if process.wait() != 0 or len(found) < len(marks):
            sys.exit(f"{command} failed:\n{''.join(lines)}")
    return found


def main():
    program, directory, python = sys.argv[1:]
    threads = len(os.sched_getaffinity(0))
    theirs = [python, str(Path(__file__).with_name("torch_peer.py")), "eager", json.dumps(torch_arguments(1, threads))]
    rows = {"offstage": [], "torch": []}
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        data = write_tokens(Path(folder) / "tokens.bin")
        for number in range(ROUNDS):
            ours = offstage_arguments(program, f"{folder}/run-{number}", data, 1, checkpoint__dir=f"{folder}/saved-{number}")
            rows["offstage"].append(times(ours, OURS, environment()))
            if python:
                rows["torch"].append(times(theirs, THEIRS, environment()))
            subprocess.run(["rm", "-rf", f"{folder}/run-{number}", f"{folder}/saved-{number}"], check=True)
    for who, found in rows.items():
        for mark in found[0] if found else ():
            seconds = sorted(row[mark] for row in found)
            print(f"{who:<9} {mark:<15} {statistics.median(seconds):6.2f} s   ({seconds[0]:.2f} to {seconds[-1]:.2f})")
    if not python:
        print("no comparison: no PyTorch here (perf/peers.sh makes an environment that has it, PEERS_PYTHON names another)")
        return
    first = {who: statistics.median(row["first step"] for row in found) for who, found in rows.items()}
    print(f"RESULT start_vs_torch {first['torch'] / first['offstage']:.2f}")


if __name__ == "__main__":
    main()
