"""Runs offstage on tiny models in a temporary directory and looks at what it leaves behind.

$OFFSTAGE is the program. Every process that a test starts has the test's directory on its command line,
so leftovers are found by it, and nothing else is ever touched.
"""
import contextlib
import fcntl
import itertools
import json
import os
import pty
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
from pathlib import Path
from unittest import mock

OFFSTAGE = os.environ["OFFSTAGE"]
# Files that CMake names to tests. A build of some targets may lack them.
for name in ("OFFSTAGE", "FAULTY_FILES", "NCCL_ON_CPU", "SCARCE_THREADS", "SINGLE_THREADED_MPI"):
    if name in os.environ and not Path(os.environ[name]).exists():
        target = Path(OFFSTAGE).name if name == "OFFSTAGE" else name.lower()
        sys.exit(f"{os.environ[name]} is not built; build its target: ninja -C BUILD {target}")

MPI = str(Path(__file__).resolve().parent.parent / "mpi.sh")
ALL = os.environ.get("OFFSTAGE_TESTS") == "all"  # tests/campaign.sh whole: all combinations in place of a choice of them
PATIENCE = 300  # seconds until a run counts as stuck
os.environ.setdefault("OMPI_MCA_pml", "ob1")  # as tests/mpi.sh, for runs without mpirun

# 34,976 parameters in layers of two or three chunks: with four ranks some own nothing of a layer.
TINY = {
    "model.family": "llama", "model.layers": 2, "model.hidden": 32, "model.heads": 4,
    "model.kv-heads": 2, "model.ffn-hidden": 64, "model.vocab": 256,
    "train.steps": 6, "train.sequence": 24, "train.micro-batch": 2, "train.global-batch": 8,
    "device.kind": "host",  # what a test says of a GPU it says itself
    "train.seed": 7, "run.threads": 1, "train.log-every": 1,
    "optimizer.lr": 0.01, "optimizer.warmup-steps": 1, "update.subgroup-size": 4096,
    "tiers.allow-tmpfs": "true",  # the temporary directory may be one
    "tiers.cache": 0,  # all of so small a state would stay in host memory, and tiers.path unused
}


# mpirun says so where the daemon of a pretended node has begun before its parent looks, on a busy machine.
SETPGID = re.compile(r"^\[.*\] plm:rsh: Warning: setpgid\(.*\) failed in parent .*\n", re.MULTILINE)
# What the mpirun of Open MPI 5 says of exit codes but 0, and cannot be told to keep to itself.
BANNER = re.compile(r"^-+\nprterun detected that one or more processes exited with non-zero status,\n(.*\n)*?-+\n", re.M)
# What a run of some seconds says of a busy machine; tests/train/crowding_test.cpp has when.
CROWDED = re.compile(r"^offstage: warning: .*: in the last \d+ s the main thread waited \d+ % of the time for a core .*\n", re.M)
OPEN_MPI = int(re.search(r"\) (\d+)\.", subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True).stdout)[1])


def as_alone(err):
    """What is said on a machine that has nothing else to do, without what mpirun says by itself; Open MPI 5 ends that with a byte of 0."""
    return CROWDED.sub("", BANNER.sub("", SETPGID.sub("", err.replace("\0", ""))))


def in_turn(*factors):
    """Combinations of one value of each factor: all of them where ALL, else so few that each value comes up."""
    if ALL:
        return list(itertools.product(*factors))
    return [tuple(values[i % len(values)] for values in factors) for i in range(max(map(len, factors)))]


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, as_alone(err)
        lines = self.err.splitlines()
        self.errors = [line for line in lines if line.startswith("offstage: error: ")]
        self.warnings = [line for line in lines if line.startswith("offstage: warning: ")]

    def __str__(self):
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class OffstageTest(unittest.TestCase):
    maxDiff = None
    patience = PATIENCE

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="offstage-e2e-")).resolve()
        self.addCleanup(self.clean)
        numbers = random.Random(1)
        words = [bytes(numbers.choices(range(97, 123), k=numbers.randint(2, 7))) for _ in range(40)]
        self.text = self.write("train.txt", b" ".join(numbers.choices(words, k=1500)))
        self.valid = self.write("valid.txt", b" ".join(numbers.choices(words, k=100)))

    def clean(self):
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, name, contents):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
        return path

    # Starting

    def command(self, name, *options, ranks=1):
        """The command line of a run in folder/name; an option "key=value" replaces a default, "key="
        alone removes it, and everything else is passed on as it is."""
        keys = dict(TINY)
        keys["run.dir"] = self.folder / name
        keys["data.train"] = self.text
        rest = []
        for option in options:
            key, equals, value = option.partition("=")
            if equals and not key.startswith("-"):
                keys[key] = value
            else:
                rest.append(option)
        arguments = [f"--{key}={value}" for key, value in keys.items() if value != ""]
        launcher = [MPI, str(ranks)] if ranks > 1 else []
        return [*launcher, OFFSTAGE, "train", *rest, *arguments]

    def start(self, name, *options, ranks=1):
        """The running command, its output in files beside folder/name."""
        return self.begin(name, self.command(name, *options, ranks=ranks))

    def begin(self, name, command):
        """As start, any command."""
        with open(self.folder / f"{name}.out", "wb") as out, open(self.folder / f"{name}.err", "wb") as err:
            return subprocess.Popen(command, stdout=out, stderr=err, cwd=self.folder)

    def finish(self, name, process):
        code = process.wait(PATIENCE)
        return Result(code, (self.folder / f"{name}.out").read_text(), (self.folder / f"{name}.err").read_text())

    def shown(self, command, columns=100, **environment):
        """The bytes that a command writes to a terminal."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen(command, stdout=theirs, cwd=self.folder, env={**os.environ, **environment})
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(ours, 65536):
                text += data
        os.close(ours)
        self.assertEqual(0, process.wait(self.patience))
        return text

    def call(self, *command):
        done = subprocess.run([str(c) for c in command], cwd=self.folder, capture_output=True, text=True,
                              timeout=PATIENCE, check=False)
        return Result(done.returncode, done.stdout, done.stderr)

    def train(self, name, *options, ranks=1, expect=0):
        result = self.call(*self.command(name, *options, ranks=ranks))
        self.assertEqual(expect, result.code, result)
        return result

    def train_once(self, name, *options):
        """A run that others are compared with, unless it is there."""
        if not (self.folder / name).exists():
            self.train(name, *options)

    def offstage(self, *arguments, ranks=1, expect=0):
        """Any command of the program."""
        launcher = [MPI, str(ranks)] if ranks > 1 else []
        result = self.call(*launcher, OFFSTAGE, *arguments)
        self.assertEqual(expect, result.code, result)
        return result

    def faulty(self, path, **more):
        """An environment in which calls on files below a path fail, in every process: tests/sweep/faulty_files.cpp says
        what `more` may have. The calls stand in the file `log`."""
        self.log = self.folder / "calls"
        self.log.unlink(missing_ok=True)
        variables = {"LD_PRELOAD": os.environ["FAULTY_FILES"], "FAULT_PATH": str(path), "FAULT_LOG": str(self.log)}
        return mock.patch.dict(os.environ, {**variables, **{f"FAULT_{key.upper()}": str(value) for key, value in more.items()}})

    def export(self, name, target, *options):
        """The newest checkpoint of a run as a Hugging Face directory."""
        return self.offstage("export", "--from", self.folder / name / "checkpoints", "--to", self.folder / target,
                             *options)

    # Looking

    def processes(self, of=""):
        """Processes of this test, by the run directory on their command lines; ranks before launchers."""
        mark = str(self.folder / of) if of else str(self.folder)
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if any(word.endswith(mark) or mark + "/" in word for word in words):
                found.append((Path(words[0]).name != "offstage", int(entry.name)))
        return [pid for _, pid in sorted(found)]

    def ranks_of(self, name):
        """Process ids of the ranks of a run."""
        def is_rank(pid):
            try:
                return os.path.samefile(f"/proc/{pid}/exe", OFFSTAGE)
            except OSError:
                return False
        return [pid for pid in self.processes(name) if is_rank(pid)]

    def wait_until(self, condition, process=None, what="the condition"):
        deadline = time.monotonic() + self.patience
        while not condition():
            self.assertLess(time.monotonic(), deadline, f"{what} did not come")
            if process is not None and process.poll() is not None:
                self.fail(f"the run ended with {process.returncode} before {what}")
            time.sleep(0.02)

    def wait_for_step(self, name, step, process):
        self.wait_until(lambda: any(r["step"] >= step for r in self.steps(name)), process, f"step {step}")

    def records(self, name):
        path = self.folder / name / "metrics.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]]

    def steps(self, name):
        return [r for r in self.records(name) if "loss" in r]

    def starts(self, name):
        return [r for r in self.records(name) if "start" in r]

    def checkpoints(self, name):
        """Directories of a run's checkpoints, oldest first."""
        return sorted((self.folder / name / "checkpoints").glob("step-*"))

    def step_of(self, checkpoint):
        return int(checkpoint.name.split("-")[1])

    def assert_same_state(self, a, b):
        """p, m and v of two checkpoints, or of the newest of two runs, have the same bits."""
        paths = [self.folder / x / "checkpoints" if isinstance(x, str) else x for x in (a, b)]
        result = self.call(OFFSTAGE, "checkpoint", "diff", *paths)
        self.assertEqual(0, result.code, f"{a} and {b} differ\n{result}")

    def assert_no_process_left(self):
        self.wait_until(lambda: not self.processes(), what="the end of all processes")

    def snapshot(self):
        """All files and directories of the test, with size and time of change. A lock's contents only
        inform who had it last."""
        return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) if p.is_file() and p.name != "lock" else None
                for p in sorted(self.folder.rglob("*"))}


def main():
    unittest.main()
