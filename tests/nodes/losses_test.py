#!/usr/bin/env python3
"""A node is lost, as if its power were cut: in a start, in a step, in each phase of a save. Slurm requeues the job on the
nodes that are left, and the bits in the end are those of a run that nothing interrupted."""
import unittest

from nodes_harness import NodesTest

SAVE = "step-000000020"  # the second one: there is one to go back to
# What the rank is about to do when its node dies: of which rank, (kind of call, file, how many of those before), and
# after which step the next attempt begins.
PHASES = {
    "the step directory is made": (0, ("mkdir", SAVE, 0), 10),
    "a rank's file is created": (2, ("create", f"{SAVE}/rank-0002.h5", 0), 10),
    "its state is written": (2, ("aio-write", f"{SAVE}/rank-0002.h5", 0), 10),
    "it is synced": (2, ("sync", f"{SAVE}/rank-0002.h5", 0), 10),
    "its manifest is written": (2, ("write", f"{SAVE}/rank-0002.json", 0), 10),
    "the first rank's file is created": (0, ("create", f"{SAVE}/rank-0000.h5", 0), 10),
    "the master is created": (0, ("create", f"{SAVE}/master.h5.tmp", 0), 10),
    "the master is synced": (0, ("sync", f"{SAVE}/master.h5.tmp", 0), 10),
    "the master gets its name": (0, ("rename", f"{SAVE}/master.h5.tmp", 0), 10),
    "the step directory is synced with the name in it": (0, ("sync", SAVE, 1), 20),
    "the oldest checkpoint is removed": (0, ("unlink", "step-000000010/master.h5", 0), 30),
}


class Losses(NodesTest):
    PFS = ("3", "replica", "3")

    def check_loss(self, job, rank):
        attempt = self.attempts(job)
        node = self.nodes_of(job)[rank // 2]
        self.kill(node)
        self.wait_for_next_attempt(job, attempt, without=node)
        self.assert_completed(job)

    def check_phase(self, rank, at, begins):
        kind, path, before = at
        checkpoints = self.pfs / "run/checkpoints"
        program = self.program_that_stops(rank, (kind, checkpoints / path, before), checkpoints)
        job = self.submit("train.sbatch", OFFSTAGE=program)
        self.wait_for_stop(job)
        self.check_loss(job, rank)
        self.assertIn(f"continuing after step {begins}\n", self.output(job))

    def check_step(self, rank, launcher):
        job = self.submit("train.sbatch", OFFSTAGE_LAUNCHER=launcher)
        self.wait_for_job_step(job, 12)
        self.check_loss(job, rank)
        self.assertRegex(self.output(job), r"continuing after step [1-4]0\n")

    def test_in_a_step_the_first_node_with_srun(self):
        self.check_step(0, "srun")

    def test_in_a_step_the_first_node_with_mpirun(self):
        self.check_step(0, "mpirun")

    def test_in_a_step_another_node_with_srun(self):
        self.check_step(2, "srun")

    def test_in_a_step_another_node_with_mpirun(self):
        self.check_step(2, "mpirun")

    def check_first_start(self, rank):
        program = self.program_that_stops(rank, ("create", "", 0), self.local)
        job = self.submit("train.sbatch", OFFSTAGE=program)
        self.wait_for_stop(job)
        self.check_loss(job, rank)
        self.assertNotIn("continuing", self.output(job))

    def test_in_a_first_start_the_first_node(self):
        self.check_first_start(0)

    def test_in_a_first_start_another_node(self):
        self.check_first_start(2)

    def check_restart(self, rank):
        checkpoints = self.pfs / "run/checkpoints"
        program = self.program_that_stops(rank, ("aio-read", "", 0), checkpoints, attempt=2)
        job = self.submit("train.sbatch", OFFSTAGE=program)
        self.wait_for_job_step(job, 12)
        self.slurm("scontrol", "requeue", job)
        self.wait_for_stop(job)
        self.check_loss(job, rank)

    def test_in_a_restart_the_first_node(self):
        self.check_restart(0)

    def test_in_a_restart_another_node(self):
        self.check_restart(2)


def in_phase(rank, at, begins):
    return lambda self: self.check_phase(rank, at, begins)


for name, phase in PHASES.items():
    setattr(Losses, "test_in_a_save_before_" + name.replace(" ", "_").replace("'", ""), in_phase(*phase))


if __name__ == "__main__":
    unittest.main()
