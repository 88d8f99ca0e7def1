"""Runs the job scripts as they are on a Slurm of three nodes that each test class starts for itself, and
compares what they leave with a run that nothing interrupted."""
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))
# pylint: disable=wrong-import-position
from harness import MPI, OFFSTAGE, OPEN_MPI, PATIENCE, TINY, OffstageTest, Result  # noqa: E402,F401

STEPS = 50
# Steps of 0.4 s on two ranks: a job is not done before a test has done to it what it is about.
KEYS = {"train.steps": STEPS, "train.global-batch": 16, "checkpoint.every": 10, "device.emulate": "compute=100M"}
END = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")


class Replay(unittest.TestResult):
    """Keeps what a test tells its result, for another one later."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __getattribute__(self, name):
        if name in ("addSuccess", "addFailure", "addError", "addSkip", "addSubTest"):
            return lambda *arguments: self.calls.append((name, arguments))
        return super().__getattribute__(name)


class Together(unittest.TestSuite):
    """Runs the tests of a class at the same time: mostly they wait."""

    def run(self, result, debug=False):
        tests = [test for test in self if isinstance(test, SlurmTest)]
        if len(tests) != self.countTestCases() or not tests or tests[0].AT_ONCE == 1:
            return super().run(result, debug)

        def run_one(test):
            replay = Replay()
            test.run(replay)
            return replay

        cls = type(tests[0])
        try:
            cls.setUpClass()
            with ThreadPoolExecutor(cls.AT_ONCE) as pool:
                for test, replay in zip(tests, pool.map(run_one, tests)):
                    result.startTest(test)
                    for name, arguments in replay.calls:
                        getattr(result, name)(*arguments)
                    result.stopTest(test)
        finally:
            cls.doClassCleanups()
        return result


class SlurmTest(OffstageTest):
    NODES = 3
    KIND = ()  # options of start.sh
    AT_ONCE = 6  # tests
    reach = ()  # what begins a command that asks Slurm
    lock = threading.Lock()

    @classmethod
    def setUpClass(cls):
        start = subprocess.run([ROOT / "slurm/test-cluster/start.sh", *cls.KIND, str(cls.NODES), str(os.getpid())],
                               stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE)
        cls.cluster = Path(start.stdout.strip())
        cls.addClassCleanup(subprocess.run, [ROOT / "slurm/test-cluster/stop.sh", cls.cluster], check=True)
        foreign = ("SLURM_", "SBATCH_", "OFFSTAGE_", "OMPI_", "TMPDIR")
        cls.environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
        cls.environment |= {
            "SLURM_CONF": str(cls.cluster / "slurm.conf"), "OFFSTAGE": OFFSTAGE, "OFFSTAGE_HOME": str(ROOT),
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if sleeping_yield := os.environ.get("SLEEPING_YIELD"):  # as tests/mpi.sh: ranks that wait sleep
            cls.environment |= {"LD_PRELOAD": sleeping_yield, "OMPI_MCA_mpi_yield_when_idle": "1"}
        cls.straight = None

    def setUp(self):
        super().setUp()
        keys = {**TINY, **KEYS, "data.train": self.text, "run.dir": self.folder / "run"}
        self.config = self.write("run.cfg", "".join(f"{key} = {value}\n" for key, value in keys.items()))

    # Slurm

    def slurm(self, *command, expect=0, **environment):
        done = subprocess.run([str(c) for c in (*self.reach, *command)], env=self.environment | environment, cwd=self.folder,
                              capture_output=True, text=True, timeout=PATIENCE, check=False)
        if expect is not None:
            self.assertEqual(expect, done.returncode, f"{command}\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    def submit(self, script, *options, size=("--nodes=2", "--ntasks-per-node=1"), sbatch=(), **environment):
        """A job of one of the job scripts; its output goes to the test's folder. Returns its number."""
        job = self.slurm("sbatch", "--parsable", *size, "--cpus-per-task=1", "--time=30",
                         f"--output={self.folder}/%A.out", *sbatch, ROOT / "jobs" / script, self.config, *options,
                         **environment)
        self.addCleanup(self.slurm, "scancel", "--quiet", job, expect=None)
        return job

    def output(self, job):
        path = self.folder / f"{job}.out"
        return path.read_text() if path.exists() else ""

    def show(self, job):
        """What Slurm says of a job, or of the first task of an array."""
        text = self.slurm("scontrol", "--oneliner", "show", "job", job).split("\n")[0]
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def wait_for_slurm(self, condition, what):
        """The same as wait_until for conditions that ask Slurm, whose commands take processor time."""
        self.wait_until(lambda: condition() or time.sleep(0.2), what=what)

    def wait_for_job_end(self, job):
        """Its end in good order or bad, past all requeues: Slurm's state and the script's exit code."""
        try:
            self.wait_for_slurm(lambda: self.show(job)["JobState"] in END, what="the end of the job")
        except AssertionError as late:
            self.fail_with_job(late, job)
        shown = self.show(job)
        return shown["JobState"], int(shown["ExitCode"].split(":")[0])

    def wait_for_job_step(self, job, step):
        """Until the run has done that step and its job goes on."""
        try:
            self.wait_until(lambda: any(r["step"] >= step for r in self.steps("run")), what=f"step {step}")
        except AssertionError as late:
            self.fail_with_job(late, job)
        self.assertEqual("RUNNING", self.show(job)["JobState"], self.output(job))

    def wait_for_text(self, job, text):
        try:
            self.wait_until(lambda: text in self.output(job), what=f"'{text}'")
        except AssertionError as late:
            self.fail_with_job(late, job)

    def fail_with_job(self, why, job):
        self.fail(f"{why}\n{self.slurm('scontrol', 'show', 'job', job)}\n{self.output(job)}")

    # Looking

    def straight_run(self):
        """The checkpoints of a run without Slurm, on one rank, that nothing interrupts."""
        cls = type(self)
        with cls.lock:
            if cls.straight is None:
                folder = tempfile.TemporaryDirectory(prefix="offstage-straight-")
                cls.addClassCleanup(folder.cleanup)
                self.offstage("train", "--config", self.config, f"--run.dir={folder.name}")
                cls.straight = Path(folder.name)
        return cls.straight / "checkpoints"

    def assert_completed(self, job, attempts=None):
        self.straight_run()  # by the first test that gets here, while Slurm lets its job wait
        self.assertEqual(("COMPLETED", 0), self.wait_for_job_end(job), self.output(job))
        if attempts:
            self.assertEqual(attempts, int(self.show(job)["Restarts"]) + 1, self.output(job))
        self.assert_run_is_whole(self.output(job))

    def assert_run_is_whole(self, output=""):
        """Every step once, and the bits of a run that nothing interrupted."""
        self.assertEqual(list(range(1, STEPS + 1)), [r["step"] for r in self.steps("run")], output)
        self.assert_same_state(self.straight_run(), self.folder / "run/checkpoints")


def main():
    unittest.TestLoader.suiteClass = Together
    unittest.main()
