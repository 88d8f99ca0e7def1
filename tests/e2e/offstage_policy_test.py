#!/usr/bin/env python3
"""The policy offstage chooses by the machine, says why, chooses again when rates have moved, and changes no bits."""
import errno
import re
from pathlib import Path

from harness import OffstageTest, main

POLICY = Path(__file__).resolve().parents[2] / "configs/policies/offstage.cfg"
MODEL = ["model.layers=4", "model.hidden=64", "train.steps=4", "train.global-batch=8", "numerics.dtype=bf16", "checkpoint.every=0",
         "update.subgroup-size=16k", "update.device-chunk=8k", "optimizer.schedule=constant", "tiers.cache=auto"]
# What bounds a step of each, by far: so a busy machine chooses as an idle one, and other choices differ.
MACHINES = {
    "device": ("h2d=100MB/s,d2h=100MB/s,compute=1G,update=50M,host-update=20M", "3MiB", "200MB/s"),
    "cores": ("h2d=100MB/s,d2h=100MB/s,compute=50G,update=50M,host-update=1M", "1200KiB", "200MB/s"),
    "link": ("h2d=5MB/s,d2h=5MB/s,compute=50G,update=50M,host-update=20M", "3MiB", "200MB/s"),
}


class OffstagePolicy(OffstageTest):
    def choose(self, name, machine, *options, ranks=1):
        emulation, memory, rate = MACHINES[machine]
        (self.folder / "path").mkdir(exist_ok=True)
        return self.train(name, f"--config={POLICY}", *MODEL, f"device.emulate={emulation}", f"device.memory={memory}",
                          f"tiers.path={self.folder}/path,emulate-read={rate},emulate-write={rate}", "run.header=full",
                          *options, ranks=ranks)

    def choice(self, result):
        return re.search(r"(?m)^plan.choose=on: (.*)$", result.out).group(1)

    def test_it_changes_no_bits_whatever_it_chooses(self):
        self.train("plain", *MODEL)
        chosen = set()
        for turn, machine in enumerate(MACHINES):
            result = self.choose(machine, machine, ranks=1 + turn % 2)
            self.assert_same_state("plain", machine)
            chosen.add(self.choice(result))
            lines = result.out.splitlines()
            first = next(i for i, line in enumerate(lines) if line.startswith("plan.choose=on"))
            why = [line for line in lines[first:first + 12] if line.startswith(("plan.choose", "  a step", "  of ", "  with "))]
            self.assertLessEqual(len(why), 10)
            self.assertRegex(why[1], r"a step of [\d.e+-]+ s, .* tokens/s; busy: ")
        self.assertGreater(len(chosen), 1, "machines differ, and so do choices")

    def test_keys_that_are_given_stay(self):
        result = self.choose("run", "device", "parameters.home=host", "update.overlap=off", "train.steps=1", "optimizer.warmup-steps=0")
        self.assertIn("parameters: in host memory", result.out)
        self.assertNotIn("parameters.home", self.choice(result))
        self.assertNotIn("update.overlap", self.choice(result))
        self.assertIn("update.device-share", self.choice(result))

    def test_it_measures_what_nobody_has_given(self):
        (self.folder / "path").mkdir()
        result = self.train("run", f"--config={POLICY}", *MODEL, "device.kind=host", "train.steps=1", "optimizer.warmup-steps=0",
                            f"tiers.path={self.folder}/path", "tiers.host-memory=40MiB", ranks=2)
        self.assertIn("parameters.home=", self.choice(result))
        # So little that measuring has to do with less than it would take.
        self.assertLess(float(re.search(r"per node: peak ([\d.]+) MiB", result.out).group(1)), 40)

    def test_rates_that_have_moved_are_planned_for_anew_with_the_same_bits(self):
        # The cores are far slower than the plan was told. What is gained is many times what a start takes on a busy machine.
        common = [*MODEL, "train.steps=100", "train.log-every=100"]
        self.train("plain", *common)
        slow = "h2d=100MB/s,d2h=100MB/s,compute=50G,update=50M,host-update=80k"
        result = self.choose("run", "cores", *common, f"device.emulate={slow}", "platform.cpu-update=50M", ranks=2)
        self.assertRegex(result.out, r"(?m)^\S+Z plan: .*updates on the cores \d+ % slower than planned.*for which the run saves and starts anew$")
        self.assertRegex(result.out, r"continuing after step \d+")
        self.assert_same_state("plain", "run")
        steps = self.steps("run")
        self.assertEqual(list(range(1, 101)), [r["step"] for r in steps], "each once")
        # Steps are predicted for the configuration that they are made in, by the rates that it was chosen by.
        again = int(re.search(r"continuing after step (\d+)", result.out).group(1))
        predicted = [r["predicted_step_seconds"] for r in steps]
        self.assertEqual(1, len(set(predicted[:again])))
        self.assertNotEqual(predicted[0], predicted[again])

    def test_records_that_wait_in_memory_are_not_lost_with_a_new_start(self):
        common = [*MODEL, "train.steps=10", "train.log-every=100"]  # behind the eighth it would start anew
        slow = "h2d=100MB/s,d2h=100MB/s,compute=50G,update=50M,host-update=80k"
        with self.faulty(self.folder / "run/metrics.jsonl", calls="write", error=errno.EDQUOT, after=4, times=9):
            result = self.choose("run", "cores", *common, f"device.emulate={slow}", "platform.cpu-update=50M")
        self.assertIn("its records wait in memory", result.err)
        self.assertNotIn("starts anew", result.out)
        self.assertEqual(list(range(1, 11)), [r["step"] for r in self.steps("run")], result)

    def test_a_new_start_takes_a_checkpoint_of_either_level(self):
        (self.folder / "local").mkdir()
        common = [*MODEL, "train.steps=60", "train.log-every=60"]
        self.train("plain", *common)
        slow = "h2d=100MB/s,d2h=100MB/s,compute=50G,update=50M,host-update=80k"
        result = self.choose("run", "cores", *common, f"device.emulate={slow}", "platform.cpu-update=50M",
                             f"checkpoint.local={self.folder}/local", "checkpoint.local-every=4")
        self.assertRegex(result.out, r"continuing after step \d+")
        self.assert_same_state("plain", "run")


if __name__ == "__main__":
    main()
