#!/usr/bin/env python3
"""Kills ranks of a job at random moments, one or all of them, until the run is done nevertheless:
   tests/kills.py [KILLS [SEED]]      50 unless told; $OFFSTAGE is the program
The job scripts requeue the job each time. Passes if the bits in the end are those of a run that nothing
interrupted."""
import os
import random
import re
import signal
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "slurm"))
# pylint: disable=wrong-import-position
from slurm_harness import SlurmTest  # noqa: E402

KILLS = int(sys.argv[1]) if len(sys.argv) > 1 else 50
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30)


class Kills(SlurmTest):
    AT_ONCE = 1

    def set_key(self, key, value):
        text = self.config.read_text()
        self.config.write_text(re.sub(f"^{re.escape(key)} = .*$", f"{key} = {value}", text, flags=re.MULTILINE))

    def test_kills(self):
        numbers = random.Random(SEED)
        # Without an end until the last kill: a requeued job reads the file anew.
        self.set_key("train.steps", 1000000)
        options = ["optimizer.schedule=constant", "train.global-batch=8", "checkpoint.every=3", "train.log-every=100"]
        job = self.submit("train.sbatch", f"--run.dir={self.folder}/run", *(f"--{option}" for option in options),
                          size=("--nodes=2", "--ntasks-per-node=2"), SLURM_WAIT="1",
                          OFFSTAGE_LAUNCHER=numbers.choice(["srun", "mpirun"]), OFFSTAGE_CRASHES=str(KILLS + 1))
        for kill in range(1, KILLS + 1):
            self.wait_until(lambda: len(self.ranks_of("run")) == 4, what=f"attempt {kill}\n{self.output(job)}")
            time.sleep(numbers.uniform(0, 2.5))  # at the start, within a step, within a save
            ranks = self.ranks_of("run")
            victims = ranks if numbers.random() < 0.5 else [numbers.choice(ranks)]
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
            done = [r["step"] for r in self.steps("run")][-1:]
            print(f"kill {kill} of {KILLS}: {len(victims)} of {len(ranks)} ranks, step {done}", flush=True)
            if kill == KILLS:
                steps = (done or [0])[0] + 20
                self.set_key("train.steps", steps)
            self.wait_for_slurm(lambda: int(self.show(job)["Restarts"]) >= kill, what=f"requeue {kill}\n{self.output(job)}")
        self.assertEqual(("COMPLETED", 0), self.wait_for_job_end(job), self.output(job))
        self.assertEqual(KILLS, int(self.show(job)["Restarts"]))
        self.assertEqual(list(range(1, steps + 1)), [r["step"] for r in self.steps("run")])
        self.train("straight", f"train.steps={steps}", *options)
        self.assert_same_state("straight", "run")


if __name__ == "__main__":
    print(f"{KILLS} kills, seed {SEED}", flush=True)
    unittest.main(argv=sys.argv[:1])
