#!/usr/bin/env python3
"""A run inside a Slurm job, as its environment and squeue tell it: no Slurm is needed."""
import os
import re
import subprocess
import time
from datetime import datetime, timezone

from harness import OFFSTAGE, OffstageTest, main

ENDLESS = ["train.steps=1000000", "optimizer.schedule=constant"]


class Job(OffstageTest):
    def setUp(self):
        super().setUp()
        before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        for name in [name for name in os.environ if name.startswith("SLURM")]:
            del os.environ[name]

    def squeue(self, script):
        """A program that stands in for squeue and counts how often it is called."""
        self.write("bin/squeue", f"#!/bin/sh\necho called >> {self.folder}/calls\n{script}\n").chmod(0o755)
        os.environ["PATH"] = f"{self.folder}/bin:{os.environ['PATH']}"

    def check_stopped_in_time(self, result, end):
        saved = self.checkpoints("run")[-1] / "master.h5"
        self.assertLess(saved.stat().st_mtime, end - 1, "most of the margin is kept, on a busy machine too")
        self.assertRegex(result.out, r"the job ends at \d\d:\d\d:\d\d [+-]\d{4}; a step takes .*, a save .*: stopping after step \d+")
        newest = self.step_of(self.checkpoints("run")[-1])
        self.assertEqual(newest, self.steps("run")[-1]["step"])
        self.assertIn(f"stopping after step {newest}", result.out)
        self.assertIn(f"stopped after step {newest} of 1000000 because the end of the job is near", result.out)

    def test_the_end_of_the_job_ends_the_run(self):
        end = int(time.time()) + 9
        self.squeue("exit 1")
        os.environ.update(SLURM_JOB_ID="4711", SLURM_JOB_END_TIME=str(end))
        result = self.train("run", *ENDLESS, "train.time-margin=5s", ranks=2, expect=75)
        self.check_stopped_in_time(result, end)

    def test_squeue_is_asked_for_the_end_at_the_start_and_before_the_stop(self):
        end = int(time.time()) + 9
        self.squeue(f"echo 4711 {datetime.fromtimestamp(end, timezone.utc):%Y-%m-%dT%H:%M:%S}")
        os.environ.update(SLURM_JOB_ID="4711")
        result = self.train("run", *ENDLESS, "train.time-margin=5s", "train.max-time=1h", ranks=2, expect=75)
        self.check_stopped_in_time(result, end)
        self.assertEqual("called\n" * 2, (self.folder / "calls").read_text())

    def test_a_job_whose_limit_was_raised_goes_on(self):
        os.environ.update(SLURM_JOB_ID="4711", SLURM_JOB_END_TIME=str(int(time.time()) + 600))
        self.squeue("echo 4711 2099-01-02T03:04:05")
        result = self.train("more", "train.steps=3", "train.time-margin=1h", ranks=2)
        self.assertEqual(1, result.out.count("the job has more time now: it ends at 2099-01-0"), result)
        self.assertRegex(result.out, r"it ends at 2099-01-0\d \d\d:\d\d:\d\d [+-]\d{4}\n", "lines begin with the time in UTC")
        for answer in "NONE", "UNLIMITED":
            self.squeue(f"echo 4711 {answer}")
            result = self.train(answer, "train.steps=3", "train.time-margin=1h", ranks=2)
            self.assertEqual(1, result.out.count("the job has no time limit any more"), result)
        for answer in "echo 4711 2001-01-02T03:04:05", "echo 4711 N/A", "exit 1":
            self.squeue(answer)
            result = self.train("run", "train.steps=9", "train.time-margin=1h", ranks=2, expect=75)
            self.assertIn("because the end of the job is near", result.out)

    def test_a_job_whose_limit_was_raised_makes_its_first_validation(self):
        os.environ.update(SLURM_JOB_ID="4711", SLURM_JOB_END_TIME=str(int(time.time()) + 600))
        self.squeue("echo 4711 2099-01-02T03:04:05")
        result = self.train("run", "train.steps=3", "train.time-margin=1h", f"data.valid={self.valid}", "train.valid-every=3",
                            "train.valid-first=on")
        self.assertNotIn("is left out", result.out)

    def test_a_max_time_before_the_end_of_the_job_wins(self):
        os.environ.update(SLURM_JOB_ID="4711", SLURM_JOB_END_TIME=str(int(time.time()) + 3600))
        result = self.train("run", *ENDLESS, "train.max-time=1s", expect=75)
        self.assertIn("because train.max-time is near; the same command goes on", result.out)

    def test_a_run_that_begins_at_a_named_place_says_how_to_go_on(self):
        result = self.train("run", *ENDLESS, "train.max-time=1s", "checkpoint.resume=none", expect=75)
        self.assertIn("; the same command without checkpoint.resume=none goes on from there", result.out)

    def test_a_squeue_that_fails_is_a_warning(self):
        self.squeue("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
        os.environ.update(SLURM_JOB_ID="4711")
        result = self.train("run", "train.steps=2")
        self.assertEqual(1, len([w for w in result.warnings if "Invalid job id" in w and "train.max-time" in w]), result)
        self.assertIn("Slurm job 4711; no end is known", result.out)

    def test_an_end_that_is_past_is_unknown(self):
        self.squeue("echo 4711 2001-01-02T03:04:05")
        os.environ.update(SLURM_JOB_ID="4711", SLURM_JOB_END_TIME=str(int(time.time()) - 1))
        result = self.train("run", "train.steps=3", ranks=2)
        self.assertEqual(1, len([w for w in result.warnings if "is past" in w and "train.max-time" in w]), result)
        self.assertIn("Slurm job 4711; no end is known", result.out)
        self.assertEqual("called\n", (self.folder / "calls").read_text(), "it may know of a longer limit")

    def test_a_slow_squeue_is_waited_for(self):
        self.squeue("sleep 8; echo 4711 UNLIMITED")
        os.environ.update(SLURM_JOB_ID="4711")
        result = self.train("run", "train.steps=2", "run.watchdog=5s", ranks=2)
        self.assertEqual([], [w for w in result.warnings if "Slurm" in w], result)

    def test_header_and_metrics_name_the_job(self):
        os.environ.update(SLURM_JOB_ID="4711", SLURM_JOB_NAME="train", SLURM_RESTART_COUNT="2",
                          SLURM_ARRAY_JOB_ID="4709", SLURM_ARRAY_TASK_ID="3", SLURM_JOB_NODELIST="n[1-2]",
                          SLURMD_NODENAME="n1", SLURM_JOB_END_TIME="4102444800")
        result = self.train("run", "train.steps=2", ranks=2)
        self.assertIn("Slurm job 4711 (train), restart 2, task 3 of array 4709, on n[1-2]; it ends at 2", result.out)
        self.assertRegex(result.out, r"it ends at 2\d\d\d-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}\n")
        start, = self.starts("run")
        self.assertLess(abs(datetime.fromisoformat(start.pop("time").replace("Z", "+00:00")).timestamp() - time.time()), 60)
        self.assertEqual(str(self.folder), start.pop("working_directory"))
        commit = re.search(r"commit (\S+)", subprocess.run([OFFSTAGE, "--version"], capture_output=True, text=True).stdout)
        self.assertRegex(start.pop("program"), rf"^offstage [0-9.]+ \(commit {re.escape(commit[1])}, ")
        self.assertEqual({"start": 0, "ranks": 2, "nodes": ["n1"], "job": "4711", "job_name": "train",
                          "restart_count": 2, "array_job": "4709", "array_task": 3, "parameters": 34976},
                         {key: value for key, value in start.items() if "_memory_" not in key})

    def test_outside_of_slurm_nothing_of_it_shows(self):
        self.squeue("exit 1")
        result = self.train("run", "train.steps=2")
        self.assertNotIn("Slurm", result.out)
        self.assertEqual({"start", "time", "ranks", "nodes", "parameters", "program", "working_directory"},
                         {key for key in self.starts("run")[0] if "_memory_" not in key})
        self.assertFalse((self.folder / "calls").exists())


if __name__ == "__main__":
    main()
