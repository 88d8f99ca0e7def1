#!/usr/bin/env python3
"""The network between two nodes is cut, for a time and for good; a node is slower than the others."""
import contextlib
import os
import signal
import threading
import unittest

from nodes_harness import STEPS, NodesTest


class Network(NodesTest):
    def cut(self, *pair):
        self.tool("nodes.sh", "cut", *pair)
        self.addCleanup(self.mend, pair)
        self.is_cut = True

    def mend(self, pair):
        if self.is_cut:
            self.tool("nodes.sh", "mend", *pair)
        self.is_cut = False

    def test_a_cut_of_20_seconds(self):
        job = self.submit("train.sbatch")
        self.wait_for_job_step(job, 12)
        pair = self.nodes_of(job)[1:]
        self.cut(*pair)
        threading.Event().wait(20)
        self.assertLess(self.steps("run")[-1]["step"], STEPS, "the cut came too late")
        attempts = self.attempts(job)
        self.mend(pair)
        self.assert_completed(job, attempts)

    def check_cut_for_good(self, job, bad):
        """The attempt ends; somebody takes a node away, and the next attempt has another."""
        attempt = self.attempts(job)
        self.wait_for_text(job, "asking for a requeue")
        self.slurm("scontrol", "update", f"nodename={bad}", "state=drain", "reason=network")
        self.wait_for_next_attempt(job, attempt, without=bad)
        self.assert_completed(job)

    def check_cut_in_a_step(self, launcher):
        job = self.submit("train.sbatch", "--run.watchdog=8s", OFFSTAGE_LAUNCHER=launcher, SLURM_WAIT="5")
        self.wait_for_job_step(job, 12)
        pair = self.nodes_of(job)[1:]
        self.cut(*pair)
        self.check_cut_for_good(job, pair[1])
        self.assertIn("no progress for", self.output(job))
        self.assertRegex(self.output(job), r"continuing after step [1-4]0\n")

    def test_a_cut_for_good_with_srun(self):
        self.check_cut_in_a_step("srun")

    def test_a_cut_for_good_with_mpirun(self):
        self.check_cut_in_a_step("mpirun")

    def check_cut_before_the_start(self, launcher):
        self.cut("node2", "node3")
        self.slurm("scontrol", "update", "nodename=node4", "state=drain", "reason=spare")  # so that the job gets the pair
        job = self.submit("train.sbatch", "--run.watchdog=8s", OFFSTAGE_LAUNCHER=launcher, SLURM_WAIT="5")
        self.wait_for_text(job, "attempt 1")
        self.slurm("scontrol", "update", "nodename=node4", "state=resume")
        self.check_cut_for_good(job, "node3")

    def test_a_cut_before_the_start_with_srun(self):
        self.check_cut_before_the_start("srun")  # whose PMIx ends it, after two minutes

    def test_a_cut_before_the_start_with_mpirun(self):
        self.check_cut_before_the_start("mpirun")

    def test_a_slow_node_is_named(self):
        # Steps that compute for more than a moment, and wait for no storage and no emulated device: time passes there for
        # ranks that stand still, too.
        self.set_keys({"model.hidden": 128, "model.ffn-hidden": 512, "train.sequence": 64, "train.steps": 80,
                       "train.global-batch": 12, "tiers.cache": "auto", "device.emulate": ""}, places=[])
        job = self.submit("train.sbatch")
        self.wait_for_job_step(job, 2)
        slow = self.nodes_of(job)[1]
        over = threading.Event()
        thread = threading.Thread(target=self.slow_down, args=(slow, over))
        thread.start()
        try:
            self.assertEqual(("COMPLETED", 0), self.wait_for_job_end(job), self.output(job))
        finally:
            over.set()
            thread.join()
        told = rf"{slow} is slow: its own part of a step takes \S+ s, \S+ times that of the median of 3 nodes"
        self.assertRegex(self.output(job), f"(?m)^offstage: warning: {told}")
        self.assertRegex(self.output(job), f"(?m)^{told}")

    def slow_down(self, node, over):
        """Its ranks run a fifth of the time."""
        while not over.is_set():
            ranks = self.ranks_on(node)
            for _ in range(20):
                for what, seconds in (signal.SIGSTOP, 0.08), (signal.SIGCONT, 0.02):
                    for rank in ranks:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(rank, what)
                    over.wait(seconds)


if __name__ == "__main__":
    unittest.main()
