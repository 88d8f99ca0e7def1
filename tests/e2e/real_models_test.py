#!/usr/bin/env python3
"""Families, number types and first weights: GPT-2 beside LLaMA, fp16 with its loss scale, a start from
a Hugging Face directory or from a checkpoint's weights."""
from harness import ALL, OFFSTAGE, OffstageTest, main

GPT2 = ["model.family=gpt2", "model.kv-heads=", "model.ffn-hidden=96"]
MODEL_KEYS = ["model.family=", "model.layers=", "model.hidden=", "model.heads=", "model.kv-heads=",
              "model.ffn-hidden=", "model.vocab="]


class SameBitsOfGpt2(OffstageTest):
    def test_ranks_and_restarts(self):
        for dtype in ("fp32", "bf16", "fp16") if ALL else ("bf16",):
            common = [*GPT2, f"numerics.dtype={dtype}", "checkpoint.every=3"]
            for ranks in 1, 2, 4:
                self.train(f"{dtype}-{ranks}", *common, ranks=ranks)
                self.assert_same_state(f"{dtype}-1", f"{dtype}-{ranks}")
            half = self.checkpoints(f"{dtype}-4")[0]
            self.train(f"{dtype}-resumed", *common, f"checkpoint.resume={half}", ranks=2)
            self.assert_same_state(f"{dtype}-1", f"{dtype}-resumed")

    def test_storage_and_recomputation(self):
        (self.folder / "storage").mkdir()
        self.train("plain", *GPT2, ranks=2)
        self.train("storage", *GPT2, f"tiers.path={self.folder}/storage", ranks=2)
        self.train("again", *GPT2, "train.activations=recompute", ranks=2)
        self.assert_same_state("plain", "storage")
        self.assert_same_state("plain", "again")

    def test_it_learns(self):
        self.train("learns", *GPT2, "train.steps=60", "optimizer.schedule=constant")
        steps = self.steps("learns")
        self.assertLess(steps[-1]["loss"], steps[0]["loss"] - 1.5)


class Fp16(OffstageTest):
    def test_ranks_and_restarts_give_the_same_bits(self):
        # A start that overflows, and a window that is crossed, so that the scale moves both ways.
        common = ["numerics.dtype=fp16", "checkpoint.every=4", "train.steps=12",
                  "numerics.loss-scale-start=16777216", "numerics.loss-scale-window=2"]
        for ranks in 1, 2, 4:
            self.train(f"straight{ranks}", *common, ranks=ranks)
            self.assert_same_state("straight1", f"straight{ranks}")
        scales = [r.get("loss_scale", 1) for r in self.steps("straight1")]
        self.assertTrue(any(b > a for a, b in zip(scales, scales[1:])), scales)
        self.assertTrue(any(b < a for a, b in zip(scales, scales[1:])), scales)
        first = self.checkpoints("straight4", )[0]
        self.train("resumed", *common, f"checkpoint.resume={first}", ranks=2)
        self.assert_same_state("straight1", "resumed")
        step = self.step_of(first)
        self.assertEqual(scales[step:], [r.get("loss_scale", 1) for r in self.steps("resumed")])

    def test_an_overflow_halves_the_scale_and_changes_no_state(self):
        self.train("source", "train.steps=2")
        self.export("source", "model")
        self.offstage("import", "--from", self.folder / "model", "--to", self.folder / "imported")
        (self.folder / "storage").mkdir()
        for ranks, place in (1, []), (2, [f"tiers.path={self.folder}/storage"]):
            name = f"overflow{ranks}"
            result = self.train(name, *MODEL_KEYS, f"train.init-from={self.folder}/model", "train.steps=3",
                                "numerics.dtype=fp16", "numerics.loss-scale-start=16777216", *place,
                                ranks=ranks)
            steps = self.steps(name)
            self.assertEqual([2 ** 24, 2 ** 23, 2 ** 22], [r["loss_scale"] for r in steps])
            self.assertTrue(all(r["skipped"] for r in steps))
            self.assertEqual(3, result.out.count("gradients overflowed"), result)
            same = self.call(OFFSTAGE, "checkpoint", "diff", self.folder / "imported",
                             self.folder / name / "checkpoints")
            self.assertEqual(0, same.code, same)

    def test_an_overflow_in_the_middle_of_a_run_changes_no_state(self):
        (self.folder / "storage").mkdir()
        for ranks, place in (1, []), (2, [f"tiers.path={self.folder}/storage"]):
            name = f"run{ranks}"
            common = ["numerics.dtype=fp16", "optimizer.schedule=constant", *place]
            self.train(name, *common, "train.steps=3", "numerics.loss-scale=1024", ranks=ranks)
            self.train(name, *common, "train.steps=6", "numerics.loss-scale=16777216", ranks=ranks)
            self.assertEqual([False] * 3 + [True] * 3, [r.get("skipped", False) for r in self.steps(name)])
            before, after = self.checkpoints(name)
            self.assertEqual([3, 6], [self.step_of(before), self.step_of(after)])
            self.assert_same_state(before, after)

    def test_a_fixed_scale_that_overflows_is_a_bad_step(self):
        result = self.train("bad", "numerics.dtype=fp16", "numerics.loss-scale=16777216",
                            "train.max-bad-steps=2", expect=65)
        self.assertIn("train.max-bad-steps=2", result.err)

    def test_a_scale_that_is_no_power_of_two_is_refused(self):
        result = self.train("bad", "numerics.dtype=fp16", "numerics.loss-scale=1000", expect=64)
        self.assertIn("numerics.loss-scale=1000 must be dynamic or a power of two", result.err)
        result = self.train("bad", "numerics.dtype=fp16", "numerics.loss-scale-start=0.5", expect=64)
        self.assertIn("numerics.loss-scale-start=0.5 must be a power of two, 1 or more", result.err)


class FirstWeights(OffstageTest):
    def setUp(self):
        super().setUp()
        self.train("source", *GPT2, "train.steps=2")
        self.export("source", "model")

    def test_a_start_from_a_model_equals_a_start_from_its_import(self):
        self.offstage("import", "--from", self.folder / "model", "--to", self.folder / "imported")
        direct = [*MODEL_KEYS, f"train.init-from={self.folder}/model"]
        self.train("direct", *direct, ranks=2)
        self.train("other-ranks", *direct)
        self.train("imported-run", *MODEL_KEYS, f"checkpoint.dir={self.folder}/imported")
        self.assert_same_state("direct", "other-ranks")
        same = self.call(OFFSTAGE, "checkpoint", "diff", self.folder / "imported",
                         self.folder / "direct" / "checkpoints")
        self.assertEqual(0, same.code, same)

    def test_a_checkpoint_gives_its_weights_too(self):
        self.train("direct", *MODEL_KEYS, f"train.init-from={self.folder}/model")
        self.train("weights", *MODEL_KEYS, f"train.init-from={self.folder}/source/checkpoints", ranks=2)
        self.assert_same_state("direct", "weights")

    def test_the_same_command_goes_on_without_the_first_weights(self):
        command = [*MODEL_KEYS, f"train.init-from={self.folder}/model", "optimizer.schedule=constant"]
        self.train("straight", *command)
        self.train("half", *command, "train.steps=3")
        (self.folder / "model").rename(self.folder / "moved")
        self.train("half", *command)
        self.assert_same_state("straight", "half")

    def test_a_checkpoint_knows_the_model(self):
        result = self.train("source", *MODEL_KEYS, "train.steps=3")
        self.assertRegex(result.out, r"checkpoint \S*step-0+2: model\.family=gpt2")

    def test_a_checkpoint_is_no_directory_of_checkpoints(self):
        step = self.checkpoints("source")[-1]
        before = self.snapshot()
        result = self.train("inside", *MODEL_KEYS, f"checkpoint.dir={step}", expect=64)
        self.assertIn(f"checkpoint.dir={step} is a checkpoint itself", result.errors[0])
        self.assertEqual(before, self.snapshot())

    def test_what_does_not_agree_is_refused(self):
        model = f"train.init-from={self.folder}/model"
        result = self.train("bad", *MODEL_KEYS, model, "model.hidden=64", expect=64)
        self.assertIn("model.hidden=64 is not the 32 of train.init-from=", result.err)
        result = self.train("bad", *MODEL_KEYS, model, "train.sequence=25", expect=64)
        self.assertIn("train.sequence=25 is longer than model.max-sequence=24", result.err)
        result = self.train("bad", *MODEL_KEYS, f"train.init-from={self.folder}/none", expect=65)
        self.assertIn("train.init-from", result.err)
        result = self.train("bad", *MODEL_KEYS, expect=64)
        self.assertIn("train.init-from may name a model instead", result.err)
        self.assertFalse((self.folder / "bad").exists())


if __name__ == "__main__":
    main()
