#!/usr/bin/env python3
"""Runs that are stopped by a signal, by scancel or by a requeue and go on to the same bits."""
import unittest

from slurm_harness import OPEN_MPI, SlurmTest, main


# Stands in for offstage: at its first start it waits for SIGTERM, too long a save follows.
SLOW = """#!/bin/sh
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 0
trap 'sleep 60' TERM
echo waiting
sleep 600 & wait
"""


class Stops(SlurmTest):
    AT_ONCE = 10  # all: each waits for Slurm most of the time

    def test_a_job_that_the_time_limit_ends_without_warning_is_requeued(self):
        slow = self.write("slow.sh", SLOW)
        slow.chmod(0o755)
        job = self.submit("train.sbatch", sbatch=["--time=1", "--signal=B:CONT@1"], OFFSTAGE=str(slow))
        self.wait_for_text(job, "waiting")
        # Slurm looks for such jobs every 30 s.
        self.slurm("scontrol", "update", f"jobid={job}", "endtime=now+1")
        self.assertEqual(("COMPLETED", 0), self.wait_for_job_end(job), self.output(job))
        self.assertIn("the time limit is over; asking for a requeue", self.output(job))
        self.assertIn("attempt 2", self.output(job))

    def check_requeue_after(self, launcher, *command):
        """A command to a running job, which saves, asks for a requeue and goes on."""
        job = self.submit("train.sbatch", OFFSTAGE_LAUNCHER=launcher)
        self.wait_for_job_step(job, 5)
        self.slurm(*command, job)
        self.wait_for_text(job, "saved, more to do; asking for a requeue")
        self.assert_completed(job, attempts=2)
        output = self.output(job)
        self.assertIn("because a signal came", output)
        self.assertIn("continuing after step", output)
        return output

    def test_the_signal_before_the_time_limit_with_srun(self):
        output = self.check_requeue_after("srun", "scancel", "--batch", "--signal=USR1")
        self.assertIn("SIGUSR1, the end of the time limit is near", output)
        self.assertNotIn("exit 1", (self.folder / "run/attempts").read_text())

    def test_another_signal_before_the_time_limit_with_mpirun(self):
        output = self.check_requeue_after("mpirun", "scancel", "--batch", "--signal=INT")
        self.assertIn("SIGINT, the end of the time limit is near", output)

    def test_sigterm_to_the_script_alone_with_srun(self):
        self.check_requeue_after("srun", "scancel", "--batch", "--signal=TERM")

    def test_sigterm_to_the_script_alone_with_mpirun(self):
        self.check_requeue_after("mpirun", "scancel", "--batch", "--signal=TERM")

    def test_a_signal_to_the_steps_with_srun(self):
        self.check_requeue_after("srun", "scancel", "--signal=USR1")

    @unittest.skipIf(OPEN_MPI >= 5, "Open MPI 5 hands no signal of Slurm on to its ranks")
    def test_a_signal_to_the_steps_with_mpirun(self):
        self.check_requeue_after("mpirun", "scancel", "--signal=USR1")

    def check_scancel(self, launcher):
        """All ranks save, the job stays out of the queue, and the same command goes on."""
        job = self.submit("train.sbatch", OFFSTAGE_LAUNCHER=launcher)
        self.wait_for_job_step(job, 5)
        self.slurm("scancel", job)
        self.assertEqual("CANCELLED", self.wait_for_job_end(job)[0])
        self.wait_for_text(job, "it is left to Slurm")
        self.assertIn("Slurm ends the job and has told the ranks", self.output(job))
        saved = self.step_of(self.checkpoints("run")[-1])
        self.assertEqual(saved, self.steps("run")[-1]["step"], self.output(job))
        job = self.submit("train.sbatch", OFFSTAGE_LAUNCHER=launcher)
        self.assert_completed(job, attempts=1)
        self.assertIn(f"continuing after step {saved}", self.output(job))

    def test_scancel_with_srun(self):
        self.check_scancel("srun")

    def test_scancel_with_mpirun_which_would_kill_its_ranks_after_a_second(self):
        self.check_scancel("mpirun")

    def test_a_requeue_by_the_user_does_not_begin_afresh_again(self):
        job = self.submit("train.sbatch", "--checkpoint.resume=none")
        self.wait_for_job_step(job, 5)
        self.slurm("scontrol", "requeue", job)
        self.wait_for_text(job, "attempt 2")
        self.assert_completed(job, attempts=2)
        self.assertEqual(1, self.output(job).count("starting at step 0"), self.output(job))


if __name__ == "__main__":
    main()
