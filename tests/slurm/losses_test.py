#!/usr/bin/env python3
"""Nodes that a job loses: to another one that preempts it, or because they go down."""
from slurm_harness import SlurmTest, main


class Losses(SlurmTest):
    NODES = 9  # enough for all tests at the same time

    def check_preemption(self, nodes, partition, launcher):
        job = self.submit("train.sbatch", sbatch=[f"--partition={partition}", f"--nodelist={nodes}"],
                          OFFSTAGE_LAUNCHER=launcher)
        self.wait_for_job_step(job, 5)
        other = self.slurm("sbatch", "--parsable", "--partition=high", f"--nodelist={nodes}", "--exclusive",
                           f"--output={self.folder}/other.out", "--wrap", "echo it ran")
        self.wait_until(lambda: (self.folder / "other.out").exists(), what="the other job")
        self.assertEqual(("COMPLETED", 0), self.wait_for_job_end(other))
        self.assert_completed(job)
        # Slurm 24.11 starts a job of `grace` once more when it is done.
        attempts = int(self.show(job)["Restarts"]) + 1
        self.assertIn(attempts, (2, 3) if partition == "grace" else (2,), self.output(job))
        self.assertIn("continuing after step", self.output(job))

    def test_preemption_by_another_partition(self):
        self.check_preemption("node[1-2]", "low", "srun")

    def test_preemption_with_time_of_grace_and_mpirun(self):
        self.check_preemption("node[3-4]", "grace", "mpirun")

    def test_preemption_that_cancels_the_job(self):
        self.check_preemption("node[5-6]", "gone", "srun")

    def test_a_node_that_goes_down_is_replaced(self):
        job = self.submit("train.sbatch", sbatch=["--exclude=node[1-6]"])
        self.wait_for_job_step(job, 12)
        lost = self.slurm("scontrol", "show", "hostnames", self.show(job)["NodeList"]).split()[-1]
        self.slurm("scontrol", "update", f"nodename={lost}", "state=down", "reason=test")
        self.assert_completed(job, attempts=2)
        self.assertNotIn(lost, self.slurm("scontrol", "show", "hostnames", self.show(job)["NodeList"]).split())


if __name__ == "__main__":
    main()
