#!/usr/bin/env python3
"""Killed ranks, crashes and what they leave: the epilog, and a cluster without its owner."""
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from slurm_harness import ROOT, SlurmTest, main


class Leftovers(SlurmTest):
    def check_killed_rank(self, launcher):
        job = self.submit("train.sbatch", f"--run.dir={self.folder}/run", OFFSTAGE_LAUNCHER=launcher, SLURM_WAIT="1")
        self.wait_until(lambda: any(r["step"] >= 12 for r in self.steps("run")), what="step 12")
        os.kill(self.ranks_of("run")[0], signal.SIGKILL)
        self.assert_completed(job)
        self.assertIn("asking for a requeue", self.output(job))
        self.assertIn("continuing after step", self.output(job))

    def test_a_killed_rank_costs_the_steps_since_the_last_checkpoint_with_srun(self):
        self.check_killed_rank("srun")

    def test_a_killed_rank_costs_the_steps_since_the_last_checkpoint_with_mpirun(self):
        self.check_killed_rank("mpirun")

    def test_a_program_that_always_crashes_is_not_requeued_for_ever(self):
        crashing = self.write("crash.sh", "#!/bin/sh\nexit 1\n")
        crashing.chmod(0o755)
        job = self.submit("train.sbatch", OFFSTAGE=str(crashing), OFFSTAGE_CRASHES="2")
        self.assertEqual(("FAILED", 1), self.wait_for_job_end(job), self.output(job))
        self.assertIn("the 2. bad end in a row without a new checkpoint", self.output(job))
        self.assertEqual(2, len((self.folder / "run/attempts").read_text().splitlines()))

    def test_the_epilog_removes_what_this_job_left_and_nothing_else(self):
        scratch = self.cluster / "scratch.node1"
        killed = self.write("killed.sh", '#!/bin/sh\nmkdir "$SLURM_TMPDIR/offstage-$SLURM_JOB_ID-run-node1-1-0"\n'
                            'touch "$SLURM_TMPDIR/offstage-$SLURM_JOB_ID-run-node1-1-0/extents"\nexit 65\n')
        killed.chmod(0o755)
        others = ["offstage-999-run-node1-1-0", "offstage-nojob-run-node1-1-0", "mine"]
        for name in others:
            (scratch / name).mkdir()
        job = self.submit("train.sbatch", size=("--nodes=1", "--ntasks-per-node=1"), sbatch=["--nodelist=node1"],
                          OFFSTAGE=str(killed))
        os.symlink(scratch / "mine", scratch / f"offstage-{job}-link")
        (scratch / f"offstage-{job}-file").touch()
        self.assertEqual(("FAILED", 65), self.wait_for_job_end(job), self.output(job))
        log = self.cluster / "log/epilog.node1"
        left = f"job {job} left {scratch}/offstage-{job}-run-node1-1-0"
        self.wait_until(lambda: log.exists() and left in log.read_text(), what="the epilog")
        self.wait_until(lambda: not list(scratch.glob("offstage-*-run-node1-1-0/extents")), what="the removal")
        expected = sorted([*others, f"offstage-{job}-link", f"offstage-{job}-file"])
        self.assertEqual(expected, sorted(entry.name for entry in scratch.iterdir()))
        self.assertEqual([], [node for node in self.slurm("sinfo", "-h", "-N", "-p", "low", "-o", "%T").split()
                              if "drain" in node])

    def test_a_cluster_ends_with_its_owner_however_that_ends(self):
        script = 'import subprocess, sys, os, time\n' \
                 'print(subprocess.check_output([sys.argv[1], "1", str(os.getpid())], text=True), flush=True)\n' \
                 'time.sleep(600)\n'
        owner = subprocess.Popen([sys.executable, "-c", script, ROOT / "slurm/test-cluster/start.sh"],
                                 stdout=subprocess.PIPE, text=True)
        cluster = Path(owner.stdout.readline().strip())
        self.assertTrue((cluster / "slurm.conf").exists())
        environment = {**self.environment, "SLURM_CONF": str(cluster / "slurm.conf")}
        subprocess.run(["sbatch", "--output=/dev/null", "--wrap", f"sleep 600; : {self.folder}"],
                       env=environment, check=True, stdout=subprocess.DEVNULL)
        time.sleep(1)
        owner.kill()
        owner.wait()
        owner.stdout.close()
        self.wait_until(lambda: not cluster.exists(), what="the cluster's end")
        mark = f"OFFSTAGE_CLUSTER={cluster}".encode()
        left = []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            try:
                left += [entry] if mark in entry.read_bytes().split(b"\0") else []
            except OSError:
                pass
        self.assertEqual([], left)


if __name__ == "__main__":
    main()
