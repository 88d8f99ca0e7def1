"""The runs whose file operations the sweep lets fail: what was there before, the command, and what it ends with."""
import os
import random
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
os.environ.setdefault("OFFSTAGE", str(ROOT / "build/release/offstage"))
sys.path.insert(0, str(ROOT / "tests/e2e"))
# pylint: disable=wrong-import-position
from harness import MPI, OFFSTAGE, OPEN_MPI, TINY, as_alone  # noqa: E402

PATIENCE = 240  # seconds until a run counts as stuck
KEEP = 2

COMMON = {
    **TINY, "update.subgroup-size": 12288,  # three of them
    "optimizer.schedule": "constant", "checkpoint.every": 1, "checkpoint.keep": KEEP, "checkpoint.overlap": "off",
}
NAMED = 2  # the step that a rollback goes back to


@dataclass(frozen=True)
class Scenario:
    """Steps that were done before the run that fails, and how many it does; its options; how many ranks it has, and
    which one fails. rollback: beyond step NAMED another run went on, with other weights, and the command goes back.
    killed: the (kind, path) of a file operation at which the same command was killed before."""
    name: str
    options: dict = field(default_factory=dict)
    before: int = 0
    steps: int = 2
    ranks: int = 1
    rank: int = 0
    rollback: bool = False
    killed: tuple = ()

    def last(self):
        return self.before + self.steps

    def arguments(self, work, **extra):
        """The run's options in a folder, KEY=VALUE of `extra` last; a.b-c is written a__b_c there."""
        keys = {**COMMON, "run.dir": work / "run", "data.train": work / "train.txt", "train.steps": self.last(),
                **self.options, **self.resume(work),
                **{key.replace("__", ".").replace("_", "-"): value for key, value in extra.items()}}
        texts = {key: str(value).replace("WORK", str(work)) for key, value in keys.items()}
        return [f"--{key}={part}" for key, text in texts.items() for part in text.split("|")]

    def command(self, work, **extra):
        launcher = [MPI, str(self.ranks)] if self.ranks > 1 else []
        return [*launcher, OFFSTAGE, "train", *self.arguments(work, **extra)]

    def resume(self, work):
        return {"checkpoint.resume": step_directory(work, NAMED)} if self.rollback else {}


def step_name(step):
    return f"step-{step:09d}"


def step_directory(work, step):
    return work / "run/checkpoints" / step_name(step)


STORAGE = {"tiers.path": "WORK/storage"}
PERSISTENT = {"tiers.path": "WORK/storage,persistent"}
OVERLAP = {**STORAGE, "checkpoint.overlap": "on"}
DRAIN = {**OVERLAP, "checkpoint.rate": "400KB/s"}  # a third of a second for each of three extents
NODE = {**OVERLAP, "checkpoint.files": "node"}
PERSISTENT_OVERLAP = {**PERSISTENT, "checkpoint.overlap": "on"}
# Parameters and gradients on storage too, over two paths.
EVERYTHING = {"tiers.path": "WORK/storage/a|WORK/storage/b", "tiers.split": "1:1", "parameters.home": "storage",
              "update.gradients": "flush-fp32", "run.trace": "on"}


# The last step's checkpoint is saved before its validation, and then told of it.
VALIDATED = {"data.valid": "WORK/train.txt", "train.valid-batches": 1}

# Node storage: level 1 after each step, level 2 after every other.
LOCAL = "local/level-1-0123456789abcdef"
LEVELS = {**STORAGE, "checkpoint.local": "WORK/local", "checkpoint.local-every": 1, "checkpoint.every": 2}
LEVELS_OVERLAP = {**LEVELS, "checkpoint.overlap": "on"}
LEVELS_MEMORY = {key: value for key, value in LEVELS.items() if key != "tiers.path"}

# Where a run is killed: when its first slot is made, and before the commit of the first save after NAMED.
HOST = re.sub("[^A-Za-z0-9._]", "_", socket.gethostname())
SPILL = f"storage/offstage-nojob-run-{HOST}-PID-0"
NEXT_LOCAL = ("mkdir", f"{LOCAL}/{step_name(NAMED + 2)}")  # level 1 has a step more than level 2
COMMIT = ("rename", f"run/checkpoints/{step_name(NAMED + 1)}/master.h5.tmp")


def start(name, options, **more):
    return Scenario(f"{name}-start", options, **more)


def resume(name, options, steps=1, **more):
    return Scenario(f"{name}-resume", options, before=NAMED, steps=steps, **more)


def rollback(name, options, **more):
    return Scenario(name, options, before=NAMED, rollback=True, **more)


def second(make, name, options, **more):
    """One of two ranks fails, the first or the second. A trial of locks would make as many operations as there is time for."""
    options = {**options, "tiers.exclusive": "true"}
    return [make(f"{name}-rank{rank}of2", options, ranks=2, rank=rank, **more) for rank in (0, 1)]


# A resumed run meets in one step a restart, a save and the removal of an old checkpoint. A save under the next step, and
# what one of every so many steps has of its own, takes more.
SCENARIOS = {scenario.name: scenario for scenario in [
    start("memory", {}), resume("memory", {}),
    start("storage", STORAGE), resume("storage", STORAGE),
    start("persistent", PERSISTENT), resume("persistent", PERSISTENT),
    start("overlap", OVERLAP), resume("overlap", OVERLAP, steps=2),
    start("persistent-overlap", PERSISTENT_OVERLAP), resume("persistent-overlap", PERSISTENT_OVERLAP, steps=2),
    start("drain", DRAIN, steps=3), *second(resume, "drain", DRAIN, steps=3),
    start("everything", EVERYTHING), resume("everything", EVERYTHING),
    *second(start, "packed", NODE), *second(resume, "packed", NODE, steps=2),
    resume("keep-every", {"checkpoint.keep-every": 2}, steps=3),
    resume("validated", VALIDATED),
    start("killed-persistent", PERSISTENT, killed=("rename", f"{SPILL}/extents")),
    resume("killed-persistent", PERSISTENT, killed=COMMIT),
    rollback("killed-rollback", {}, killed=COMMIT),
    rollback("rollback", {}), rollback("rollback-persistent", PERSISTENT), rollback("rollback-overlap", OVERLAP),
    start("levels", LEVELS, steps=3), start("levels-overlap", LEVELS_OVERLAP, steps=3),
    start("levels-memory", LEVELS_MEMORY, steps=3),
    resume("levels", LEVELS, steps=3, killed=NEXT_LOCAL),
    *second(resume, "levels-overlap", LEVELS_OVERLAP, steps=3, killed=NEXT_LOCAL),
    *second(start, "persistent-overlap", PERSISTENT_OVERLAP),
    *second(resume, "persistent-overlap", PERSISTENT_OVERLAP),
    *second(resume, "memory", {}),
    *second(rollback, "rollback", {}),
]}


def is_local(path):
    """Whether a checkpoint is one of level 1."""
    return Path(path).parent.name.startswith("level-1-")


class Result:
    """What a command said and how it ended; code None: it had to be killed."""
    def __init__(self, code, out, err):
        self.code = code if code is None or code >= 0 else 128 - code  # a signal, as a shell says it
        self.out, self.err = out, as_alone(err)
        self.errors = [line for line in self.err.splitlines() if line.startswith("offstage: error: ")]
        said = [(int(step), Path(path)) for step, path in
                re.findall(r"^\S+Z step +(\d+)  saved (\S+) in ", out, re.MULTILINE)]
        self.saved = [(step, path) for step, path in said if not is_local(path)]
        self.saved_local = [step for step, path in said if is_local(path)]

    def __str__(self):
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class World:
    """A folder in which runs work: `work` has their files, `tmp` what MPI puts beside, and nothing else has any."""
    def __init__(self, folder):
        self.folder = Path(folder).resolve()
        self.work, self.tmp = self.folder / "work", self.folder / "tmp"

    def make(self, template=None):
        self.tmp.mkdir(parents=True)
        if template is not None:
            shutil.copytree(template.work, self.work, symlinks=True)
            if (self.checkpoints() / "level-1").exists():
                self.name_local()
            return
        (self.work / "local").mkdir(parents=True)
        for path in "a", "b":
            (self.work / "storage" / path).mkdir(parents=True)
        (self.work / "train.txt").write_bytes(text())

    def checkpoints(self):
        return self.work / "run/checkpoints"

    def local(self):
        return self.work / LOCAL

    def name_local(self):
        """Names the directory of level 1, which a run would give a name that no case could name."""
        self.checkpoints().mkdir(parents=True, exist_ok=True)
        (self.checkpoints() / "level-1").write_text(
            2 * f"{self.local().name}\n{self.local().parent}\n{self.checkpoints().resolve()}\n")

    def environment(self, extra):
        return {**os.environ, "TMPDIR": str(self.tmp), "OMPI_MCA_btl_vader_backing_directory": str(self.tmp),
                "OMPI_MCA_osc_sm_backing_directory": str(self.tmp),
                "OMPI_MCA_ess_singleton_isolated": "1", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive",
                **{key: str(value) for key, value in extra.items()}}

    def call(self, command, **environment):
        """Runs it in a session of its own, so that a run that hangs can be ended with all its processes."""
        with subprocess.Popen([str(word) for word in command], cwd=self.folder, env=self.environment(environment),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, errors="replace", start_new_session=True) as process:
            try:
                out, err = process.communicate(timeout=PATIENCE)
                return Result(process.returncode, out, err)
            except subprocess.TimeoutExpired:
                for pid in self.processes():
                    os.kill(pid, 9)
                out, err = process.communicate()
                return Result(None, out, err)

    def offstage(self, *arguments):
        return self.call([OFFSTAGE, *arguments])

    def processes(self):
        """Those that have this folder in their environment."""
        mark = f"TMPDIR={self.tmp}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:  # it has ended, or is another user's
                pass
        return found

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def text():
    """Words that a tiny model learns something of; the same each time."""
    numbers = random.Random(1)
    words = [bytes(numbers.choices(range(97, 123), k=numbers.randint(2, 7))) for _ in range(40)]
    return b" ".join(numbers.choices(words, k=1500))
