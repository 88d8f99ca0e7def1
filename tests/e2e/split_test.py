#!/usr/bin/env python3
"""Split parameters (tiers.split-parameters): the state has the half that the bf16 working copy lacks, and p, m and v have
the same bits; checkpoints hold whole parameters, and do not show how a run kept them."""
from harness import OffstageTest, main
from pairs import chosen_rows

MODEL = ["model.layers=3", "train.steps=4", "train.global-batch=4"]

FACTORS = {
    "optimizer": ["adamw fp32", "adamw 8bit", "lion bf16", "sgd fp32"],
    "place": ["device", "host", "slow", "queued"],  # of the working copy; host memory beyond a link
    "ranks": [1, 2, 3],
    "paths": [0, 1, 2],
    "overlap": ["off", "on", "auto"],
    "clip": ["0", "some", "0.001"],  # never, in some of the steps, in every step
    "share": ["0", "0.5", "1"],
    "resident": ["0", "0.3"],
    "cache": ["0", "200KiB"],
    "subgroup": ["4096", "12k", "100M"],
}
PLACES = {"device": [], "host": ["parameters.home=host"],
          "slow": ["parameters.home=host", "--device.emulate=h2d=300MB/s,d2h=200MB/s,update=100M,host-update=50M"],
          "queued": ["parameters.home=host", "--device.emulate=h2d=2GB/s,d2h=1GB/s,compute=1T,host-sum=1GB/s"]}
BYTES = {"adamw fp32": "10", "adamw 8bit": "4.03", "lion bf16": "4", "sgd fp32": "2"}


class Split(OffstageTest):
    def optimizer(self, text):
        kind, moments = text.split()
        return [f"optimizer.kind={kind}", f"optimizer.moments={moments}"]

    def paths(self, count, attributes=""):
        options = []
        for number in range(count):
            directory = self.folder / f"path{number}"
            directory.mkdir(exist_ok=True)
            options.append(f"--tiers.path={directory},read=1GB/s,write=1GB/s{attributes}")
        return options

    def reference(self, optimizer, clip):
        """The run that does not split and waits, in host memory, on one rank; and the limit of norms."""
        options = [*MODEL, *self.optimizer(optimizer), "update.overlap=off"]
        name = optimizer.replace(" ", "-")
        if clip == "some":
            self.train_once(f"{name}-0", *options, "optimizer.clip=0")
            norms = sorted(r["grad_norm"] for r in self.steps(f"{name}-0"))
            clip = f"{norms[len(norms) // 2]:.3g}"
        self.train_once(f"{name}-{clip}", *options, f"optimizer.clip={clip}")
        return f"{name}-{clip}", clip

    def test_pairs_of_choices(self):
        fates = set()
        for number, row in enumerate(chosen_rows(FACTORS)):
            with self.subTest(**row):
                whole, clip = self.reference(row["optimizer"], row["clip"])
                name = f"row{number}"
                result = self.train(name, *MODEL, *self.optimizer(row["optimizer"]), *PLACES[row["place"]],
                                    *self.paths(row["paths"]), "tiers.split-parameters=on", f"optimizer.clip={clip}",
                                    f"update.overlap={row['overlap']}", f"update.device-share={row['share']}",
                                    f"update.device-resident={row['resident']}", f"tiers.cache={row['cache']}",
                                    f"update.subgroup-size={row['subgroup']}", "update.device-chunk=4096",
                                    ranks=row["ranks"])
                self.assertIn(f"{BYTES[row['optimizer']]} bytes per parameter", result.out)
                self.assertIn("parameters split", result.out)
                self.assert_same_state(whole, name)
                self.assertEqual([(r["loss"], r["grad_norm"]) for r in self.steps(whole)],
                                 [(r["loss"], r["grad_norm"]) for r in self.steps(name)])
                fates.update(step.get("overlap") for step in self.steps(name))
        self.assertEqual({None, "kept", "redone"}, fates)

    def test_checkpoints_do_not_show_it(self):
        """Every one of them, written while the next step computes."""
        common = [*MODEL, "checkpoint.every=1", "checkpoint.keep=9", "update.overlap=off", *self.paths(1)]
        for ranks in 1, 2:
            for split in "on", "off":
                self.train(f"{split}{ranks}", *common, f"tiers.split-parameters={split}", ranks=ranks)
            pairs = list(zip(self.checkpoints(f"on{ranks}"), self.checkpoints(f"off{ranks}"), strict=True))
            self.assertEqual(4, len(pairs))
            for on, off in pairs:
                self.assert_same_state(on, off)
                for rank in range(ranks):
                    name = f"rank-{rank:04}.json"  # with the checksum of each extent
                    self.assertEqual((on / name).read_text(), (off / name).read_text(), f"{on} {name}")
                self.offstage("checkpoint", "verify", on)

    def test_a_run_goes_on_with_the_other_choice(self):
        keys = [*MODEL, "train.steps=6", "optimizer.schedule=constant"]
        for optimizer in "adamw fp32", "adamw 8bit":
            moments = self.optimizer(optimizer)
            name = optimizer.replace(" ", "-")
            self.train(name, *keys, *moments, "tiers.split-parameters=off")
            choices = [("on", 1, self.paths(1)), ("off", 2, self.paths(1)), ("on", 3, PLACES["slow"]), ("on", 2, [])]
            for number, (split, ranks, options) in enumerate(choices):
                self.train(f"{name}b", *keys, *moments, *options, f"tiers.split-parameters={split}",
                           f"train.steps={3 + number}", ranks=ranks)
            self.assert_same_state(name, f"{name}b")

    def test_first_weights_and_other_moments_of_a_checkpoint(self):
        self.train("from", *MODEL, "tiers.split-parameters=on")
        for split in "on", "off":
            self.train(split, *MODEL, f"tiers.split-parameters={split}", f"train.init-from={self.folder}/from/checkpoints")
            self.train(split, *MODEL, f"tiers.split-parameters={split}", "train.steps=6", "optimizer.moments=bf16",
                       "train.init-from=")
        self.assert_same_state("on", "off")

    def test_what_auto_does(self):
        stored = [*self.paths(1), "update.overlap=off"]
        for options, split in [(stored, True), (["update.overlap=off"], False), (self.paths(1), False),
                               ([*stored, "numerics.dtype=fp16"], False),
                               ([*stored, "parameters.home=storage"], False),
                               ([*stored, "--device.emulate=h2d=1GB/s,d2h=1GB/s"], False),
                               ([*stored, "--device.emulate=h2d=1GB/s,d2h=1GB/s", "parameters.home=host"], True),
                               ([*self.paths(1, ",persistent"), "update.overlap=off"], False)]:
            with self.subTest(options=options):
                result = self.train("auto", *MODEL, *options, "train.steps=2", "checkpoint.resume=none")
                self.assertEqual(split, "10 bytes per parameter (adamw, moments in fp32, parameters split)" in result.out)
                plan = self.offstage("plan", *self.command("auto", *MODEL, *options)[2:])
                self.assertEqual(split, "parameters split" in plan.out, plan)

    def test_extents_that_others_would_link_are_copied(self):
        """Of a persistent path, and of one beside level 1, also where what is auto is settled after level 1 is found."""
        (self.folder / "local").mkdir()
        self.train("whole", *MODEL)
        beside = [f"checkpoint.local={self.folder}/local", "checkpoint.local-every=1"]
        for name, options in [("copied", self.paths(1, ",persistent")), ("chosen", ["plan.choose=on", *self.paths(1, ",persistent")]),
                              ("beside", [*beside, *self.paths(1)]), ("chosen-beside", ["plan.choose=on", *beside, *self.paths(1)])]:
            with self.subTest(name):
                result = self.train(name, *MODEL, *options, "tiers.split-parameters=on", "tiers.cache=0")
                self.assertIn("parameters split", result.out)
                self.assertEqual("persistent" in str(options), "persistent" in str(result.warnings))
                self.assertEqual([], list(self.checkpoints(name)[-1].glob("extent-*")))
                self.assert_same_state(name, "whole")

    def test_says_what_is_in_the_way(self):
        link = "--device.emulate=h2d=1GB/s,d2h=1GB/s"
        for options, part in [(["numerics.dtype=fp16"], "numerics.dtype=bf16"), (["numerics.dtype=fp32"], "numerics.dtype=bf16"),
                              (["parameters.home=storage", *self.paths(1)], "parameters.home=host"),
                              ([link], "parameters.home=host"), (["device.kind=cuda"], "parameters.home=host")]:
            result = self.train("no", *MODEL, *options, "tiers.split-parameters=on", expect=64)
            self.assertRegex(result.errors[0], f"tiers.split-parameters=on: .*{part}, or tiers.split-parameters=auto")
        result = self.train("no", *MODEL, "tiers.split-parameters=half", expect=64)
        self.assertRegex(result.err, r"tiers.split-parameters=half.*auto.*on.*off")


if __name__ == "__main__":
    main()
