#!/usr/bin/env python3
"""Runs from submission to end by each job script, and jobs that the scripts refuse or hand on."""
import signal
import subprocess

from slurm_harness import ROOT, STEPS, SlurmTest, main

# Stands in for offstage: says what a rank gets.
SHOW = """#!/bin/sh
echo "rank on $SLURMD_NODENAME: GPUs $CUDA_VISIBLE_DEVICES, $SLURM_CPUS_ON_NODE cpus for all, $*"
"""


class Runs(SlurmTest):
    def test_srun_on_two_nodes(self):
        job = self.submit("train.sbatch", size=("--nodes=2", "--ntasks-per-node=2"))
        self.assert_completed(job, attempts=1)
        self.assertIn("4 ranks on 2 nodes", self.output(job))

    def test_mpirun_on_two_nodes(self):
        job = self.submit("train.sbatch", size=("--nodes=2", "--ntasks-per-node=2"), OFFSTAGE_LAUNCHER="mpirun")
        self.assert_completed(job, attempts=1)
        self.assertIn("4 ranks on 2 nodes", self.output(job))

    def test_every_rank_sees_all_gpus_and_the_scratch_of_its_node_and_has_its_cores(self):
        show = self.write("show.sh", SHOW)
        show.chmod(0o755)
        for launcher in ("srun", "mpirun"):
            with self.subTest(launcher):
                job = self.submit("train.sbatch", size=("--nodes=2", "--ntasks-per-node=2"),
                                  sbatch=["--gpus-per-node=2", "--cpus-per-task=3"], OFFSTAGE=str(show), OFFSTAGE_LAUNCHER=launcher)
                self.assertEqual(("COMPLETED", 0), self.wait_for_job_end(job), self.output(job))
                shown = sorted(line for line in self.output(job).splitlines() if line.startswith("rank on"))
                nodes = self.slurm("scontrol", "show", "hostnames", self.show(job)["NodeList"]).split()
                self.assertEqual([f"rank on {node}: GPUs 0,1, 6 cpus for all, train --config {self.config} "
                                  f"--tiers.path={self.cluster}/scratch.{node}"
                                  for node in nodes for _ in range(2)], shown, self.output(job))

    def test_commands_of_a_shell_that_is_the_only_task_of_its_step(self):
        for mpi in "pmix", "none":
            with self.subTest(mpi):
                train = f"$OFFSTAGE train --config {self.config} --train.steps=2 --run.dir={self.folder}/{mpi}"
                shell = self.slurm("srun", "--overlap", f"--mpi={mpi}", "--nodes=1", "--ntasks=1", "bash", "-ec", f"""{train}-1; {train}-2
                    $OFFSTAGE evaluate --from {self.folder}/{mpi}-1 --data {self.text}
                    mpirun -n 2 --oversubscribe {train}-3""")
                self.assertEqual(2, shell.count("1 rank on 1 node,"), shell)
                self.assertIn("2 ranks on 1 node,", shell)

    def test_interactive_stops_by_control_c_and_goes_on(self):
        command = [ROOT / "jobs/interactive.sh", "--nodes=2", "--ntasks-per-node=1", "--", self.config]
        with open(self.folder / "first.out", "wb") as out:
            process = subprocess.Popen(command, env=self.environment, cwd=self.folder, stdout=out, stderr=out)
        self.wait_until(lambda: any(r["step"] >= 5 for r in self.steps("run")), process, "step 5")
        process.send_signal(signal.SIGINT)
        self.assertEqual(75, process.wait(60), (self.folder / "first.out").read_text())
        self.assertIn("continuing after step", self.slurm(*command))
        self.assert_run_is_whole()

    def test_interactive_in_a_shell_that_is_a_step_of_its_own(self):
        run = f"{ROOT}/jobs/interactive.sh --ntasks=1 -- {self.config} --train.steps=2"
        self.assertIn("done: step 2 of 2", self.slurm("srun", "--nodes=1", "--ntasks=1", "--time=5", "bash", "-c", run))

    def test_a_job_that_is_submitted_inside_the_task_of_an_array_requeues_itself(self):
        around = {"SLURM_ARRAY_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": "1", "SLURM_RESTART_COUNT": "7", "SLURM_MEM_PER_CPU": "9",
                  "SLURM_MEM_PER_NODE": "99", "SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "SLURM_CPU_BIND_TYPE": "mask_cpu:"}
        job = self.submit("train.sbatch", size=("--nodes=1", "--ntasks-per-node=1"), **around)
        self.wait_until(lambda: any(r["step"] >= 5 for r in self.steps("run")), what="step 5")
        self.slurm("scancel", "--batch", "--signal=USR1", job)
        self.assert_completed(job, attempts=2)

    def test_a_chain_of_links(self):
        job = self.submit("array.sbatch", sbatch=["--array=1-5%1"])
        self.wait_until(lambda: any(r["step"] >= 5 for r in self.steps("run")), what="step 5")
        # For a task of an array scancel delivers the signal and then complains that the task has ended.
        self.slurm("scancel", "--batch", "--signal=USR1", f"{job}_1", expect=None)
        self.wait_for_text(job, "ended with 75; the next link goes on")
        self.wait_for_text(job, "the rest of the chain is cancelled")
        self.wait_for_slurm(lambda: not self.slurm("squeue", "-h", "-j", job, expect=None), what="the chain's end")
        output = self.output(job)
        self.assert_run_is_whole(output)
        self.assertEqual(2, output.count("offstage-job: job "), output)
        self.assertIn("continuing after step", output)

    def test_a_restart_on_other_ranks_and_nodes(self):
        self.assertEqual(0, self.submit_and_stop(size=("--nodes=1", "--ntasks-per-node=1")))
        job = self.submit("restart.sbatch", size=("--nodes=3", "--ntasks-per-node=1"), OFFSTAGE_LAUNCHER="mpirun")
        self.assert_completed(job, attempts=1)
        self.assertIn("3 ranks on 3 nodes", self.output(job))
        self.assertIn("continuing after step", self.output(job))

    def submit_and_stop(self, **options):
        """Ends with 75 where the site forbids requeueing."""
        job = self.submit("train.sbatch", sbatch=["--no-requeue"], **options)
        self.wait_for_job_step(job, 5)
        self.slurm("scancel", "--batch", "--signal=USR1", job)
        self.assertEqual(("FAILED", 75), self.wait_for_job_end(job), self.output(job))
        self.assertIn("no requeue: ", self.output(job))
        self.assertIn("submit the same command again", self.output(job))
        return int(self.show(job)["Restarts"])

    def test_where_no_requeue_is_allowed_restart_submits_a_new_job(self):
        self.submit_and_stop()
        job = self.submit("restart.sbatch", "--checkpoint.resume=" + str(self.checkpoints("run")[-1]),
                          sbatch=["--no-requeue"])
        self.wait_for_text(job, "continuing after")
        self.wait_for_job_step(job, self.step_of(self.checkpoints("run")[-1]) + 3)
        self.slurm("scancel", "--batch", "--signal=USR1", job)
        self.assertEqual(("FAILED", 75), self.wait_for_job_end(job), self.output(job))
        self.wait_for_text(job, "goes on")
        new = self.output(job).split("Submitted batch job ")[1].split()[0]
        self.addCleanup(self.slurm, "scancel", "--quiet", new, expect=None)
        self.assertEqual("2", self.show(new)["NumNodes"].split("-")[0])
        self.assert_completed(new)

    def test_a_restart_without_a_checkpoint_is_refused(self):
        job = self.submit("restart.sbatch")
        self.assertEqual(("FAILED", 65), self.wait_for_job_end(job), self.output(job))
        self.assertIn("no checkpoint to go on from", self.output(job))

    def test_a_mistake_is_not_requeued(self):
        job = self.submit("train.sbatch", "--train.stepps=3")
        self.assertEqual(("FAILED", 64), self.wait_for_job_end(job), self.output(job))
        self.assertEqual("0", self.show(job)["Restarts"])
        self.assertFalse((self.folder / "run").exists())

    def test_scratch_in_memory_is_refused(self):
        job = self.submit("train.sbatch", OFFSTAGE_SCRATCH="/dev/shm", OFFSTAGE_CRASHES="1")
        self.assertEqual(("FAILED", 74), self.wait_for_job_end(job), self.output(job))
        self.assertIn("/dev/shm: is in memory", self.output(job))

    def test_without_scratch_the_configuration_decides(self):
        job = self.submit("train.sbatch", OFFSTAGE_SCRATCH="none")
        self.assert_completed(job, attempts=1)
        self.assertIn("in host memory", self.output(job))


if __name__ == "__main__":
    main()
