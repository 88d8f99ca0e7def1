#!/usr/bin/env python3
"""Where the working copy lives: on the device, in host memory or on storage, p, m and v have the same bits, and the
device holds no more than device.memory."""
import itertools
import json
import re

from harness import OffstageTest, in_turn, main
from pairs import chosen_rows

# Three micro-batches, so that two and four ranks have an idle one.
MODEL = ["model.layers=3", "train.steps=3", "train.global-batch=6"]

FACTORS = {
    "home": ["device", "host", "storage"],
    "sharding": ["zero3", "auto"],
    "dtype": ["bf16", "fp16", "fp32"],
    "ranks": [1, 2, 4],
    "tied": ["true", "false"],
    "paths": [1, 2, 0],  # on storage: at least 1
    "share": ["0", "1", "auto"],
    "resident": ["0", "0.3"],
    "link": ["none", "slow", "fast"],
    "subgroup": ["4096", "12k", "100M"],
    "family": ["llama", "gpt2"],
    "way": ["keep", "recompute", "0.5", "host", "vertical"],  # of activations, and of micro-batches
    "overlap": ["off", "on"],
}
LINKS = {"none": [], "slow": ["--device.emulate=h2d=100MB/s,d2h=80MB/s,update=100M,host-update=50M"],
         "fast": ["--device.emulate=h2d=20GB/s,d2h=20GB/s"]}


class Parameters(OffstageTest):
    def paths(self, count):
        options = []
        for number in range(count):
            directory = self.folder / f"path{number}"
            directory.mkdir(exist_ok=True)
            options.append(f"--tiers.path={directory},read=1GB/s,write=1GB/s")
        return options

    def options_of(self, row):
        return [*MODEL, f"parameters.home={row['home']}", f"parameters.sharding={row['sharding']}", f"numerics.dtype={row['dtype']}",
                f"model.tied-head={row['tied']}", f"update.device-share={row['share']}",
                f"update.device-resident={row['resident']}", "update.device-chunk=4096",
                f"model.family={row['family']}", "model.kv-heads=", f"update.overlap={row['overlap']}",
                "train.schedule=vertical" if row["way"] == "vertical" else f"train.activations={row['way']}",
                f"update.subgroup-size={row['subgroup']}", *LINKS[row["link"]],
                *self.paths(max(row["paths"], row["home"] == "storage"))]

    def test_pairs_of_choices(self):
        for number, row in enumerate(chosen_rows(FACTORS)):
            with self.subTest(**row):
                name, base = f"row{number}", f"{row['dtype']}-{row['tied']}-{row['family']}"
                self.train_once(base, *MODEL, f"numerics.dtype={row['dtype']}", f"model.tied-head={row['tied']}",
                               f"model.family={row['family']}", "model.kv-heads=")
                result = self.train(name, *self.options_of(row), ranks=row["ranks"])
                self.assert_same_state(base, name)
                self.assertEqual([(r["loss"], r["grad_norm"]) for r in self.steps(base)],
                                 [(r["loss"], r["grad_norm"]) for r in self.steps(name)])
                self.assertEqual(row["home"] != "device" or (row["sharding"] == "auto" and row["ranks"] > 1),
                                 "\nparameters: " in result.out)

    # 512 rows and a vocabulary of 1500: the head's tiles are summed in FP32 over the gradients' memory, and the table has
    # a slot of its own.
    def test_a_table_larger_than_blocks_changes_no_bits(self):
        model = [*MODEL, "model.vocab=1500", "data.format=text", "model.max-sequence=128", "train.sequence=128", "train.micro-batch=4",
                 "train.global-batch=12", "numerics.dtype=bf16"]
        ways = [(2, ["parameters.home=device"]), (1, ["parameters.home=host", *LINKS["fast"]]),
                (3, ["parameters.home=host"]), (1, ["parameters.home=storage", *self.paths(1)]),
                (2, ["parameters.home=storage", *self.paths(1), *LINKS["fast"]]), (3, ["parameters.home=storage", *self.paths(2)])]
        for number, ((family, tied), (ranks, options)) in enumerate(in_turn(list(itertools.product(("llama", "gpt2"), ("true", "false"))), ways)):
            shape = [*model, f"model.family={family}", f"model.tied-head={tied}", "model.kv-heads="]
            base = f"{family}-{tied}"
            self.train_once(base, *shape)
            with self.subTest(family=family, tied=tied, ranks=ranks, options=options):
                result = self.train(f"{number}", *shape, *options, ranks=ranks)
                self.assert_same_state(base, f"{number}")
                self.assertEqual("parameters.home=device" not in options, "on the device at a time, and a larger one" in result.out)

    def test_a_run_goes_on_with_parameters_elsewhere(self):
        model = [*MODEL, "numerics.dtype=bf16", "optimizer.schedule=constant", "optimizer.warmup-steps=0", f"--data.valid={self.valid}",
                 "train.valid-every=2"]
        self.train("straight", *model)
        homes = [(2, ["parameters.home=storage", *self.paths(1)]), (1, ["parameters.home=host", *LINKS["slow"]]),
                 (4, ["parameters.home=storage", *self.paths(2), *LINKS["fast"]])]
        for number, (ranks, options) in enumerate(homes):
            self.train("moved", *model, *options, f"train.steps={number + 1}", ranks=ranks)
        self.assert_same_state("straight", "moved")
        self.assertEqual([r["valid_loss"] for r in self.records("straight") if "valid_loss" in r][-1],
                         [r["valid_loss"] for r in self.records("moved") if "valid_loss" in r][-1])

    def test_steps_that_overflow_are_skipped_alike(self):
        options = [*MODEL, "numerics.dtype=fp16", "numerics.loss-scale-start=1073741824", "train.steps=8"]
        self.train("device", *options)
        self.assertGreater(sum(r["skipped"] for r in self.steps("device")), 0)
        for home in "host", "storage":
            self.train(home, *options, f"parameters.home={home}", *self.paths(1), *LINKS["fast"], ranks=2)
            self.assert_same_state("device", home)

    def test_parameters_four_times_as_large_as_the_device_are_trained_within_its_limit(self):
        limit = 9
        model = ["model.layers=24", "model.hidden=256", "model.kv-heads=", "model.ffn-hidden=704", "train.micro-batch=1",
                 "train.global-batch=1", "train.steps=2", "train.activations=recompute", "numerics.dtype=bf16",
                 "update.subgroup-size=1M", "update.device-share=0", f"device.memory={limit}MiB"]
        result = self.train("device", *model, *LINKS["fast"], expect=64)
        self.assertIn("parameters.home", "\n".join(result.errors))
        result = self.train("storage", *model, *LINKS["fast"], *self.paths(2), "parameters.home=storage")
        parameters = 2 * int(re.search(r"model: (\d+) parameters", result.out).group(1))
        self.assertGreater(parameters, 4 * limit * 2**20)
        peak, unit = re.search(rf"device memory per rank: peak ([0-9.]+) (\w+), limit {limit}.00 MiB", result.out).groups()
        print(f"parameters {parameters / 2**20:.1f} MiB, limit {limit} MiB, peak {peak} {unit}", flush=True)
        self.assertEqual("MiB", unit)
        self.assertLessEqual(float(peak), limit, result)

    # Attention has 4 C^2 parameters, the MLP 8 C^2, in 16 bits: two slots and two gradients of whole blocks alone would
    # take more than the device has.
    def test_a_device_that_holds_layers_but_no_blocks_trains(self):
        width = 128
        model = ["model.family=gpt2", "model.kv-heads=", "model.layers=4", f"model.hidden={width}", f"model.ffn-hidden={4 * width}",
                 "model.tied-head=true", "train.sequence=8", "train.micro-batch=1", "train.global-batch=3", "train.steps=2",
                 "train.activations=recompute", "update.device-chunk=4096", "update.device-share=0", "numerics.dtype=bf16"]
        limit = 4 * 2 * 12 * width**2
        self.train("roomy", *model)
        for ranks, options in ((1, ["parameters.home=host", *LINKS["fast"]]), (1, ["parameters.home=storage", *self.paths(1)]),
                               (2, ["parameters.home=host", "train.schedule=vertical"]), (3, ["parameters.home=storage", *self.paths(1), *LINKS["fast"]])):
            with self.subTest(ranks=ranks, options=options):
                name = f"small-{ranks}-{len(options)}-{options[0][16:]}"
                result = self.train(name, *model, *options, f"device.memory={limit}", ranks=ranks)
                self.assert_same_state("roomy", name)
                peak, unit = re.search(r"device memory per rank: peak ([0-9.]+) (KiB|MiB)", result.out).groups()
                self.assertLessEqual(float(peak) * {"KiB": 1 << 10, "MiB": 1 << 20}[unit], limit * 1.005)

    def gathers(self, name, ranks):
        """Layers that each rank has gathered in each step."""
        counts = set()
        for rank in range(ranks):
            events = json.loads((self.folder / name / f"trace-{rank}.json").read_text())
            rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
            brought = [e for e in events if e["ph"] == "X" and rows[e["tid"]].startswith("parameters from ranks")]
            counts.add(len(brought) / len(self.steps(name)))
        return counts

    # The untied model of three blocks has eight layers: forward uses each, backward those of blocks.
    def test_parameters_that_stay_whole_are_gathered_once_a_step_with_the_same_bits(self):
        model = [*MODEL, "numerics.dtype=bf16", "model.tied-head=false", "run.trace=on", "optimizer.clip=0.05"]
        self.train("one", *model, "parameters.sharding=zero2")
        ways = [[], [*LINKS["fast"], "update.overlap=on"], ["train.schedule=vertical"]]
        for number, ((ranks, rounds), options) in enumerate(in_turn([(2, 2), (3, 1)], ways)):
            passes = 1 if "train.schedule=vertical" in options else rounds
            for sharding, count in ("zero3", passes * (8 + 6)), ("zero2", 8):
                with self.subTest(ranks=ranks, options=options, sharding=sharding):
                    name = f"{sharding}-{number}"
                    result = self.train(name, *model, *options, f"parameters.sharding={sharding}", ranks=ranks)
                    self.assert_same_state("one", name)
                    self.assertEqual({count}, self.gathers(name, ranks))
                    self.assertEqual(sharding == "zero2", f"gathered: 8 in a step, each layer once, in place of {passes * 14} " in result.out)

    def test_auto_keeps_parameters_whole_where_the_device_has_room(self):
        model = [*MODEL, "numerics.dtype=bf16", "parameters.sharding=auto", "device.memory=64MiB"]
        self.assertIn("(parameters.sharding=zero2)", self.train("roomy", *model, ranks=2).out)
        large = ["model.hidden=256", "model.kv-heads=", "model.ffn-hidden=1024", "model.layers=8", "train.activations=recompute",
                 "numerics.dtype=bf16", "device.memory=20MiB", "update.device-share=0"]
        self.assertNotIn("zero2)", self.train("tight", *model, *large, "train.steps=1", "optimizer.warmup-steps=0", ranks=2).out)
        result = self.train("small", *large, "parameters.sharding=zero2", ranks=2, expect=64)
        self.assertIn("set parameters.sharding=zero3", "\n".join(result.errors))

    def test_parameters_that_do_not_live_on_the_device_cannot_stay_whole_there(self):
        result = self.train("run", "parameters.home=host", "parameters.sharding=zero2", expect=64)
        self.assertIn("parameters.sharding=zero2 keeps whole parameters on the device, but parameters.home=host", result.err)
        result = self.train("run", "parameters.home=host", "parameters.sharding=zero1", expect=64)
        self.assertIn("parameters.sharding=zero1 keeps whole parameters on the device, but parameters.home=host", result.err)

    def test_storage_without_a_path_is_refused(self):
        result = self.train("run", "parameters.home=storage", expect=64)
        self.assertIn("parameters.home=storage keeps the working copy on storage, but there is no tiers.path", result.err)


if __name__ == "__main__":
    main()
