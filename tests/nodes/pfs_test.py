#!/usr/bin/env python3
"""State on each node's own storage and on the distributed file system at once; a brick that dies; a full file system."""

import collections
import unittest

from nodes_harness import NodesTest


class Places(NodesTest):
    PFS = ("3", "replica", "3")

    def check_places(self, launcher, *options):
        job = self.submit("train.sbatch", *options, OFFSTAGE_LAUNCHER=launcher)
        self.assert_completed(job)
        self.assertIn("6 ranks on 3 nodes", self.output(job))
        used = collections.Counter()  # in the whole run: later steps go around a path that became slow
        for step in self.steps("run"):
            used.update({path["path"]: path["write_bytes"] for path in step["paths"]})
        self.assertEqual({str(self.local), str(self.pfs)}, set(used))
        self.assertTrue(all(used.values()), used)

    def test_state_on_both_with_srun(self):
        self.check_places("srun")

    def test_state_on_both_with_mpirun(self):
        self.check_places("mpirun")

    def test_checkpoints_by_reference_and_on_the_nodes_too(self):
        self.set_keys({}, [f"tiers.path = {self.local},emulate-latency={self.LATENCY}", f"tiers.path = {self.pfs},persistent",
                           f"checkpoint.local = {self.local}", "checkpoint.local-every = 3"])
        job = self.submit("train.sbatch")
        self.wait_for_job_step(job, 14)
        self.slurm("scontrol", "requeue", job)
        self.assert_completed(job)
        self.assertRegex(self.output(job), r"of it by reference")
        self.assertRegex(self.output(job), r"level 1")

    def test_a_brick_dies(self):
        job = self.submit("train.sbatch", sbatch=["--exclude=node3"])
        self.wait_for_job_step(job, 12)
        attempts = self.attempts(job)
        self.kill("node3")
        self.assert_completed(job, attempts)


class Full(NodesTest):
    PFS = ("3",)  # distributed over the bricks, so each file is on one of them
    PFS_SIZE = "16M"

    def filler(self, node):
        """In the memory below the brick: a client that meets a full volume may end, and take the mount along."""
        return self.cluster / "nodes" / node / "brick" / "filler"

    def test_a_full_file_system(self):
        self.set_keys({}, [f"tiers.path = {self.local},emulate-latency={self.LATENCY}"])
        job = self.submit("train.sbatch", OFFSTAGE_CRASHES="100")
        self.wait_for_job_step(job, 12)
        for node in self.nodes()[:3]:
            self.on(node, "sh", "-c", f"cat /dev/zero > {self.filler(node)} || true")
        self.wait_for_text(job, "No space left on device")
        self.wait_for_text(job, "asking for a requeue")
        for node in self.nodes()[:3]:
            self.on(node, "rm", self.filler(node))
        self.assert_completed(job)
        self.assertIn("ended with 74", self.output(job))
        self.assertRegex(self.output(job), r"continuing after step [1-4]0\n")


if __name__ == "__main__":
    unittest.main()
