#!/usr/bin/env python3
"""Runs whose micro-batches pass the layers together have the bits of those that take one after the other."""
import json
import re

from harness import OffstageTest, in_turn, main

MODEL = ["model.layers=5", "train.steps=3", "train.global-batch=10"]  # five micro-batches
LINK = "device.emulate=h2d=1GB/s,d2h=1GB/s,compute=1T"
HOME = "parameters.home"


class Vertical(OffstageTest):
    def assert_same(self, reference, name, *options, ranks=1):
        with self.subTest(name, ranks=ranks, options=options):
            result = self.train(name, *options, "train.schedule=vertical", ranks=ranks)
            self.assertIn("schedule: vertical", result.out)
            self.assert_same_state(reference, name)
            return result

    def test_it_changes_no_bits_wherever_parameters_and_inputs_are_on_any_number_of_ranks(self):
        (self.folder / "path").mkdir()
        stored = [f"{HOME}=storage", f"tiers.path={self.folder}/path"]
        places = [[], [f"{HOME}=host"], [LINK, f"{HOME}=host"], [LINK, *stored, "update.overlap=on"],
                  [*stored, "update.overlap=off", "optimizer.clip=0.01"], [LINK, "update.transfers=blocking"],
                  [LINK, "update.device-gradients=0"], [LINK, f"{HOME}=host", "update.device-gradients=100KiB"],
                  [LINK, f"{HOME}=host", "update.device-gradients=70KiB", "update.device-share=0.6"]]
        gpt2 = ["model.family=gpt2", "model.kv-heads=", "model.max-sequence=24"]
        kinds = [("fp32", "false", []), ("bf16", "true", gpt2), ("bf16", "false", []), ("fp16", "true", gpt2)]
        for turn, ((dtype, tied, family), place) in enumerate(in_turn(kinds, places)):
            common = [*MODEL, f"numerics.dtype={dtype}", f"model.tied-head={tied}", *family]
            clip = "0.01" if "optimizer.clip=0.01" in place else "1.0"
            base = f"{dtype}-{tied}-{clip}"
            self.train_once(base, *common, f"optimizer.clip={clip}")
            fate = ("recompute", "host", "0")[turn % 3]
            self.assert_same(base, f"{dtype}-{tied}-{turn}", *common, "optimizer.clip=1.0", *place,
                             f"train.activations={fate}", ranks=1 + turn // 3 % 3)

    def test_it_changes_no_bits_where_sums_are_of_16_bits_or_flushed_or_ranks_have_nothing_to_do(self):
        (self.folder / "path").mkdir()
        common = [*MODEL, "numerics.dtype=bf16"]
        self.train("fp32", *common)
        self.train("16bit", *common, "numerics.accumulate=16bit")
        flushed = [f"tiers.path={self.folder}/path", "update.gradients=flush-fp32"]
        for ranks in 1, 2, 3:
            self.assert_same("16bit", f"16bit-{ranks}", *common, "numerics.accumulate=16bit", ranks=ranks)
            self.assert_same("fp32", f"flushed-{ranks}", *common, *flushed, ranks=ranks)
        few = ["train.global-batch=2"]
        self.train("few", *common, *few)
        self.assert_same("few", "few-3", *common, *few, ranks=3)

    def test_a_run_goes_on_with_the_other_schedule(self):
        model = [*MODEL, "optimizer.schedule=constant"]
        self.train("through", *model, "train.steps=6")
        self.train("run", *model, "train.schedule=vertical", "train.activations=host", ranks=2)
        self.train("run", *model, "train.steps=6")
        self.assert_same_state("through", "run")
        self.train("other", *model)
        self.train("other", *model, "train.steps=6", "train.schedule=vertical")
        self.assert_same_state("through", "other")

    def test_inputs_leave_once_a_step_and_come_back(self):
        self.train("run", *MODEL, LINK, "train.schedule=vertical", "train.activations=host", "run.trace=on",
                   "train.global-batch=16")
        events = json.loads((self.folder / "run" / "trace-0.json").read_text())
        rows = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
        self.assertLessEqual({"activations out", "activations back"}, rows)
        steps = [json.loads(line) for line in (self.folder / "run" / "metrics.jsonl").read_text().splitlines()]
        steps = [step for step in steps if "loss" in step]
        # Five inputs and the last block's output of eight micro-batches, and as many gradients.
        tensor = 2 * 24 * 32 * 2
        self.assertEqual([12 * 8 * tensor] * 3, [step["activation_out_bytes"] for step in steps])

    def test_what_host_memory_has_no_room_for_goes_to_storage(self):
        (self.folder / "path").mkdir()
        common = [*MODEL, "model.hidden=64", "train.micro-batch=16", "train.global-batch=80", "numerics.dtype=bf16",
                  f"tiers.path={self.folder}/path"]
        self.train("one-by-one", *common, "train.activations=keep")
        for turn, more in enumerate(([], [LINK, "update.overlap=off", f"{HOME}=host"], [LINK, f"{HOME}=storage", "update.overlap=on"],
                                     [LINK, "update.transfers=blocking"])):
            ranks = 1 + turn % 2
            for memory in range(1600, 20000, 250):
                result = self.call(*self.command(f"run-{turn}", *common, *more, "train.schedule=vertical", "train.activations=storage",
                                                 f"tiers.host-memory={memory * ranks}KiB", "run.header=full", ranks=ranks))
                if result.code != 64:
                    break
            self.assertEqual(0, result.code, result)
            self.assert_same_state("one-by-one", f"run-{turn}")
            row = next(line for line in result.out.splitlines() if "activations and scratch" in line)
            self.assertFalse(row.endswith("-"), row)

    def test_as_many_inputs_stay_on_the_device_as_it_has_room_for(self):
        (self.folder / "path").mkdir()
        common = [*MODEL, "model.hidden=64", "train.micro-batch=2", "train.global-batch=20", "numerics.dtype=bf16",
                  "model.tied-head=true", f"tiers.path={self.folder}/path", "update.subgroup-size=8192",
                  "update.device-chunk=4096", LINK]
        self.train("one-by-one", *common, "train.activations=keep")
        parts = []
        for turn, (memory, fate) in enumerate([(800, "host"), (950, "storage"), (1100, "host"), (1600, "storage")]):
            result = self.assert_same("one-by-one", f"run-{turn}", *common, f"{HOME}=host", f"train.activations={fate}",
                                      f"device.memory={memory}KiB", "update.device-share=0.5", ranks=1 + turn % 2)
            found = re.search(r"wait (?:[a-z ]+, (\d+) % of them )?on the device", result.out)
            self.assertIsNotNone(found, result.out)
            parts.append(int(found[1] or 100))
        self.assertEqual(sorted(set(parts)), parts)
        self.assertLess(parts[-2], 100)
        self.assertEqual(100, parts[-1])

    def test_auto_is_vertical_where_parameters_come_from_elsewhere(self):
        larger = ["model.hidden=128", "train.sequence=8"]  # parameters, few tokens
        cases = [([], False), ([f"{HOME}=host"], True), ([f"{HOME}=host", "train.activations=keep"], False),
                 ([f"{HOME}=host", "train.global-batch=2"], False), ([f"{HOME}=host", "train.activations=0.5"], False)]
        for turn, (more, expected) in enumerate(cases):
            with self.subTest(more):
                result = self.train(f"auto-{turn}", *MODEL, *larger, LINK, *more, "train.schedule=auto")
                self.assertEqual(expected, "schedule: vertical" in result.out)

    def test_what_it_cannot_do_is_refused(self):
        for fate in "keep", "0.5", "storage:0.5":
            result = self.train("wrong", *MODEL, "train.schedule=vertical", f"train.activations={fate}",
                                f"tiers.path={self.folder}", expect=64)
            self.assertIn(f"train.activations={fate} keeps what train.schedule=vertical computes again", result.err)
            self.assertIn("use recompute", result.err)
        result = self.train("wrong", *MODEL, "train.schedule=diagonal", expect=64)
        self.assertIn("train.schedule", result.err)


if __name__ == "__main__":
    main()
