"""Steps of LLaMA 3.2 1B on a small device with everything on storage: perf/large.sh runs it with the program, a directory and the
number of steps. Prints what the run says of its memory, then what the process had, and ends with RESULT lines."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from measure import steps_of

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 3 * 2**30
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
KEYS = {
    "train.micro-batch": 8, "train.global-batch": 8, "train.sequence": 1024, "train.log-every": 1, "numerics.dtype": "bf16",
    "device.kind": "host", "device.memory": "3GiB", "tiers.host-memory": "3GiB",
    "parameters.home": "storage", "train.activations": "storage",
    "update.overlap": "off",  # second versions of the state would take as much storage again
    "checkpoint.every": 0, "data.format": "text",
}


# A model that takes nothing: what is resident then is the program and its libraries, which tiers.host-memory does not count.
TINY = {"model.family": "llama", "model.layers": 1, "model.hidden": 32, "model.heads": 2, "model.vocab": 256, "train.micro-batch": 1,
        "train.global-batch": 1, "train.sequence": 16, "train.steps": 1, "numerics.dtype": "bf16", "device.kind": "host", "data.format": "text"}


class Memory(threading.Thread):
    """Largest resident memory of a process until it ends."""
    def __init__(self, pid):
        super().__init__(daemon=True)
        self.status, self.peak = pathlib.Path(f"/proc/{pid}/status"), 0

    def run(self):
        while True:
            try:
                found = re.search(r"VmHWM:\s+(\d+) kB", self.status.read_text())
            except OSError:
                return
            if not found:
                return  # it has ended
            self.peak = max(self.peak, 1024 * int(found[1]))
            time.sleep(0.02)


def write_text(path):
    """Some megabytes of text: the sources."""
    with open(path, "wb") as out:
        for source in sorted([*ROOT.glob("src/**/*.?pp"), *ROOT.glob("kernels/**/*.?pp")]):
            out.write(source.read_bytes())


def train(program, folder, keys, *options):
    """What a run in this folder prints, its records, and the most memory that it had."""
    folder.mkdir()
    write_text(folder / "text.txt")
    keys = {**keys, "data.train": folder / "text.txt", "data.format": "text", "run.header": "full", "run.dir": folder / "run"}
    command = [program, "train", *options, *[f"--{key}={value}" for key, value in keys.items()]]
    environment = {"OMP_WAIT_POLICY": "passive", **os.environ}
    with open(folder / "out", "w") as out, open(folder / "err", "w") as err:
        run = subprocess.Popen(command, stdout=out, stderr=err, env=environment)
        memory = Memory(run.pid)
        memory.start()
        code = run.wait()
    memory.join()
    printed = (folder / "out").read_text()
    if code != 0:
        sys.exit(f"the run ended with {code}:\n{printed}{(folder / 'err').read_text()}")
    return printed, steps_of(folder / "run"), memory.peak


def main():
    program, directory, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    folder = pathlib.Path(tempfile.mkdtemp(prefix="offstage-large-", dir=directory))
    (folder / "tier").mkdir()
    try:
        *_, bare = train(program, folder / "tiny", TINY)
        printed, records, resident = train(program, folder / "large", {**KEYS, "train.steps": steps, "tiers.path": folder / "tier"},
                                           "--config", ROOT / "configs/models/llama3.2-1b.cfg")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table = re.search(r"(?ms)^  memory, per rank.*?^  limit.*?$", printed)
    print(table[0])
    for record in records:
        print(f"step {record['step']}: loss {record['loss']:.4f}, {record['step_seconds']:.0f} s, of which forward "
              f"{record['forward_seconds']:.0f}, backward {record['backward_seconds']:.0f}, update {record['update_seconds']:.0f}")
    print(*re.findall(r"(?m)^.*: peak .*, limit .*$", printed), sep="\n")
    peak = re.search(r"device memory per rank: peak ([0-9.]+) (\w+), limit", printed)
    device = float(peak[1]) * UNITS[peak[2]]
    host = resident - device - bare
    print(f"resident at most {resident / 2**30:.3f} GiB: {device / 2**30:.3f} of the device, {bare / 2**30:.3f} of a program that trains "
          f"next to nothing, {host / 2**30:.3f} beside; limits {LIMIT / 2**30:.0f} GiB for the device, {LIMIT / 2**30:.0f} for the last")
    print(f"RESULT large_peak_device_gib {device / 2**30:.2f}")
    print(f"RESULT large_peak_host_gib {host / 2**30:.2f}")
    print(f"RESULT large_step_seconds {sorted(record['step_seconds'] for record in records)[len(records) // 2]:.0f}")


if __name__ == "__main__":
    main()
