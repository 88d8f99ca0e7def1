#!/usr/bin/env python3
"""Runs whose activations stay on the device, are computed again or wait in host memory."""
import json
import re
from pathlib import Path

from harness import OffstageTest, main

MODEL = ["model.layers=6", "train.steps=3"]
LINK = "device.emulate=h2d=1GB/s,d2h=1GB/s,compute=1T"


class Activations(OffstageTest):
    def test_their_fates_change_no_bits_on_any_number_of_ranks(self):
        devices = [[], ["update.transfers=blocking"], [LINK], [LINK, "parameters.home=host"]]
        turn = 0
        for dtype in "fp32", "bf16":
            common = [*MODEL, f"numerics.dtype={dtype}"]
            self.train(f"{dtype}-keep", *common, "train.activations=keep")
            for fate in "recompute", "host", "0", "0.3", "0.8", "keep:0.4", "keep:1":
                name, device, ranks = f"{dtype}-{fate}", devices[turn % 4], 1 + turn % 3
                turn += 1
                with self.subTest(name, device=device, ranks=ranks):
                    result = self.train(name, *common, *device, f"train.activations={fate}", "run.header=full", ranks=ranks)
                    self.assert_same_state(f"{dtype}-keep", name)
                    row = next(line for line in result.out.splitlines() if "activations and scratch" in line)
                    host = row.split("B")[1].strip()  # "activations and scratch  40.0 KiB  24.0 KiB  -"
                    self.assertEqual(fate == "recompute" or "keep" in fate, host.startswith("-"), row)

    def least(self, name, *options, ranks):
        """A run with about as little host memory as it is content with."""
        for memory in range(600, 6000, 150):
            result = self.call(*self.command(name, *options, f"tiers.host-memory={memory * ranks}KiB", ranks=ranks))
            if result.code != 64:
                self.assertEqual(0, result.code, result)
                return result
            self.assertIn("too small", result.err)
        self.fail(result)

    def test_what_host_memory_has_no_room_for_goes_to_storage(self):
        (self.folder / "path").mkdir()
        common = [*MODEL, "model.hidden=64", "train.micro-batch=8", "numerics.dtype=bf16", f"tiers.path={self.folder}/path"]
        self.train("keep", *common, "train.activations=keep")
        for turn, (fate, more) in enumerate((("storage", []), ("storage", [LINK, "update.overlap=off"]),
                                             ("storage:0.5", [LINK, "parameters.home=storage", "update.overlap=on"]),
                                             ("storage:0.8", ["update.gradients=flush-fp32", "update.transfers=blocking"]))):
            name, ranks = f"{fate}-{turn}", 1 + turn % 3
            with self.subTest(name, ranks=ranks):
                result = self.least(name, *common, *more, f"train.activations={fate}", "run.header=full", ranks=ranks)
                self.assert_same_state("keep", name)
                row = next(line for line in result.out.splitlines() if "activations and scratch" in line)
                self.assertFalse(row.endswith("-"), row)
                steps = [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]
                for step in (step for step in steps if "loss" in step):
                    self.assertGreater(step["activation_out_bytes"], 0)
                    self.assertEqual(step["activation_out_bytes"], step["activation_back_bytes"])
                    self.assertGreaterEqual(step["activation_wait_seconds"], 0)
                self.assertIn("left rank 0's device", result.out)
        result = self.train("none", *MODEL, "train.activations=storage", expect=64)
        self.assertIn("there is no tiers.path", result.err)

    def peak(self, result):
        number, unit = re.search(r"device memory per rank: peak ([0-9.]+) (KiB|MiB)", result.out).groups()
        return float(number) * {"KiB": 1 << 10, "MiB": 1 << 20}[unit]

    def test_a_choice_by_measured_rates_fits_the_device_and_changes_no_bits(self):
        common = [*MODEL, "model.hidden=64", "train.sequence=48", "train.micro-batch=8", "train.global-batch=16", "numerics.dtype=bf16"]
        kept = self.train("keep", *common, "train.activations=auto")
        self.assertNotIn("train.activations=auto: ", kept.out, "all fits: nothing is measured")
        limit = int(self.peak(kept) * 0.6) >> 10
        rates = r"train.activations=auto: keep would take .* products .*FLOP/s \(measured\), link .* \(measured\)"
        for ranks in 1, 2:
            name = f"auto-{ranks}"
            with self.subTest(name):
                result = self.train(name, *common, f"device.memory={limit}KiB", ranks=ranks)
                self.assertRegex(result.out, rates)
                self.assertLessEqual(self.peak(result), limit << 10)
                self.assert_same_state("keep", name)

    def test_runs_either_side_of_a_boundary_of_memory(self):
        """Fuyou's Figure 4 to scale: a run at the least memory that plan accepts, and none below."""
        configs = Path(__file__).resolve().parents[2] / "configs"
        (self.folder / "path").mkdir()
        policy = [f"--config={configs}/policies/fuyou.cfg", f"tiers.path={self.folder}/path", "model.family=gpt2", "model.layers=6",
                  "model.hidden=64", "model.max-sequence=48", "train.sequence=48", "numerics.dtype=bf16", "train.steps=2", "model.ffn-hidden=256",
                  "model.kv-heads=4", "update.subgroup-size=49152", "device.emulate=h2d=1GB/s,d2h=1GB/s,compute=100G"]
        for batch in 4, 16:
            common = [*policy, f"train.micro-batch={batch}", f"train.global-batch={batch}"]
            kept = self.train(f"keep-{batch}", *common)
            low, high = 64, int(self.peak(kept)) >> 10
            while high - low > 4:
                middle = (low + high) // 2
                plan = self.command("none", *common, f"device.memory={middle}KiB")
                plan[plan.index("train")] = "plan"
                low, high = (low, middle) if self.call(*plan).code == 0 else (middle, high)
            self.assertLess(high << 10, 0.7 * self.peak(kept))
            for name, memory, code in ((f"fits-{batch}", high, 0), (f"refused-{batch}", low, 64)):
                with self.subTest(name, memory=memory):
                    result = self.train(name, *common, f"device.memory={memory}KiB", expect=code)
                    if code:
                        self.assertIn("device.memory", result.err)
                    else:
                        self.assertLess(self.peak(result), (memory << 10) * 1.005, "it is printed with three digits")
                        self.assert_same_state(f"keep-{batch}", name)

    def test_a_trace_shows_what_leaves(self):
        self.train("run", *MODEL, LINK, "train.activations=host", "run.trace=on")
        events = json.loads((self.folder / "run" / "trace-0.json").read_text())
        rows = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
        self.assertLessEqual({"activations out", "activations back"}, rows)


if __name__ == "__main__":
    main()
