#!/usr/bin/env python3
"""Fewer bytes of state against all of them, where they wait on storage: bytes.py BUILD DIRECTORY

Trains a LLaMA of 302 M parameters with its state on DIRECTORY, and one of 20 M with it on two paths that are as slow as
Testbed-1 of MLP-Offload (Table 1), divided by SCALE. Nothing is cached, and no update overlaps with backward. All kinds of
state take turns, and fio takes its turn on DIRECTORY, with as many bytes read as written.
Ends with RESULT lines, medians over the rounds of each round's ratio: an update phase with 12 bytes over one with fewer, and
bytes per second over the opponent's, the worst kind's."""
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import steps_of

ROUNDS = int(os.environ.get("ROUNDS", "3"))
SCALE = 40
PAGES = Path("/proc/sys/vm/nr_hugepages")
KINDS = {
    "fp32": {},
    "split": {"tiers.split-parameters": "on"},
    "bf16": {"optimizer.moments": "bf16"},
    "8bit": {"optimizer.moments": "8bit"},
    "8bit_split": {"optimizer.moments": "8bit", "tiers.split-parameters": "on"},
}
COMMON = {
    "model.family": "llama", "model.heads": 12, "model.kv-heads": 4, "model.vocab": 256, "train.sequence": 16,
    "train.micro-batch": 1, "train.global-batch": 1, "numerics.dtype": "bf16", "device.kind": "host", "tiers.cache": 0,
    "tiers.split-parameters": "off", "update.overlap": "off", "update.device-share": 0, "checkpoint.every": 0,
    "train.steps": 6, "optimizer.warmup-steps": 1,
}
DISK = {"model.layers": 48, "model.hidden": 768, "model.ffn-hidden": 2048, "update.subgroup-size": "16M"}
TESTBED = {"model.layers": 3, "model.hidden": 768, "model.ffn-hidden": 2048, "update.subgroup-size": "1M"}
RATES = {"nvme": (6.9e9 / SCALE, 5.3e9 / SCALE), "pfs": (3.6e9 / SCALE, 3.6e9 / SCALE)}


def phase(program, folder, keys, paths):
    """(seconds, bytes read and written) of an update phase: medians over the steps but the first two."""
    arguments = [f"--{key}={value}" for key, value in keys.items()] + [f"--tiers.path={path}" for path in paths]
    done = subprocess.run([program, "train", *arguments, f"--run.dir={folder / 'run'}", f"--data.train={folder / 'text.txt'}"],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{program} train {' '.join(arguments)} failed:\n{done.stdout[-1000:]}{done.stderr}")
    steps = steps_of(folder / "run")[2:]
    shutil.rmtree(folder / "run")
    return (statistics.median(step["update_seconds"] for step in steps),
            statistics.median(step["read_bytes"] + step["write_bytes"] for step in steps))


class Opponent:
    """Reads and writes in equal parts: fio, its buffers on huge pages as ours are, or without fio or the right to reserve
    such pages Offstage's own I/O engine."""

    def __init__(self, build, folder):
        self.engine = [f"{build}/perf/perf_update", "engine", folder]
        self.folder = folder
        self.pages_before = PAGES.read_text()
        self.request, self.depth = map(int, subprocess.run([f"{build}/perf/perf_update", "shape"], capture_output=True,
                                                           text=True, check=True).stdout.split()[1:])
        self.name = "fio" if shutil.which("fio") and os.access(PAGES, os.W_OK) else "Offstage's I/O engine"

    def __enter__(self):
        if self.name == "fio":
            PAGES.write_text(str(int(self.pages_before) + 2 * (self.request * self.depth // 2**21 + 4)))
            self.rate()  # its file is there from now on
        return self

    def __exit__(self, *_):
        if self.name == "fio":
            PAGES.write_text(self.pages_before)

    def rate(self):
        """Bytes per second."""
        if self.name != "fio":
            return float(subprocess.run(self.engine, capture_output=True, text=True, check=True).stdout.split()[-1])
        fields = subprocess.run(
            ["fio", "--name=job", f"--filename={self.folder}/fio", "--size=1g", "--io_size=4g", "--rw=rw", "--rwmixread=50",
             f"--bs={self.request}", f"--iodepth={self.depth}", "--ioengine=libaio", "--direct=1", "--overwrite=1",
             "--iomem=mmaphuge", "--minimal"], capture_output=True, text=True, check=True).stdout.split(";")
        return (float(fields[5]) + float(fields[46])) * 1024 / (max(float(fields[8]), float(fields[49])) / 1000)


def main():
    build, directory = sys.argv[1:]
    program = f"{build}/offstage"
    on_disk, on_testbed, rates = ({kind: [] for kind in KINDS} for _ in range(3))
    with tempfile.TemporaryDirectory(dir=directory) as name, Opponent(build, name) as opponent:
        folder = Path(name)
        (folder / "text.txt").write_bytes(bytes(random.Random(1).choices(range(97, 123), k=100_000)))
        emulated = []
        for path, (read, write) in RATES.items():
            (folder / path).mkdir()
            emulated.append(f"{folder / path},emulate-read={read:.0f},emulate-write={write:.0f}")
        (folder / "disk").mkdir()
        for number in range(ROUNDS):
            theirs = opponent.rate()
            print(f"round {number + 1}: {opponent.name} {theirs / 1e9:.2f} GB/s", flush=True)
            for kind, keys in KINDS.items():
                seconds, moved = phase(program, folder, COMMON | DISK | keys, [folder / "disk"])
                slow, _ = phase(program, folder, COMMON | TESTBED | keys, emulated)
                on_disk[kind].append(seconds)
                on_testbed[kind].append(slow)
                rates[kind].append(moved / seconds / theirs)
                print(f"  {kind:<11} disk {seconds:6.3f} s, {moved / 1e9:5.2f} GB, {moved / seconds / 1e9:5.2f} GB/s    "
                      f"emulated testbed {slow:6.3f} s", flush=True)

    def speedup(times, kind):
        return statistics.median(all_of_it / fewer for all_of_it, fewer in zip(times["fp32"], times[kind]))

    for kind in [kind for kind in KINDS if kind != "fp32"]:
        print(f"RESULT bytes_{kind}_speedup {speedup(on_disk, kind):.2f}")
        print(f"RESULT bytes_{kind}_speedup_testbed {speedup(on_testbed, kind):.2f}")
    for kind in KINDS:
        print(f"RESULT bytes_{kind}_vs_fio {statistics.median(rates[kind]):.2f}")


if __name__ == "__main__":
    main()
