#!/usr/bin/env python3
"""Every optimizer with every kind of moments: the same bits whatever the ranks, the place of the state, who updates
it and when; restarts; checkpoints of others."""
from harness import OffstageTest, main

# tests/update has all of each; AdamW in FP32 is what other tests run.
KINDS = {"fp32": [("adam", 0), ("adagrad", 0), ("rmsprop", 0), ("rmsprop", 0.9), ("sgd", 0), ("sgd", 0.9), ("lion", 0)],
         "bf16": [("adamw", 0), ("rmsprop", 0.9)],
         "8bit": [("adamw", 0), ("adagrad", 0), ("sgd", 0.9), ("lion", 0)]}
BYTES = {"fp32": 4, "bf16": 2, "8bit": 1 + 4 / 256}
PLANES = {"adamw": 2, "adam": 2, "adagrad": 1, "rmsprop": 1, "sgd": 0, "lion": 1}


class Optimizers(OffstageTest):
    def setUp(self):
        super().setUp()
        self.storage = self.folder / "storage"
        self.storage.mkdir()

    def keys(self, kind, momentum, moments):
        return [f"optimizer.kind={kind}", f"optimizer.moments={moments}", "optimizer.schedule=constant",
                "train.steps=4", *([f"optimizer.momentum={momentum}"] if momentum else [])]

    def check(self, moments):
        """Straight on one rank; and two steps on two ranks, with state on storage and updates under backward, which
        three ranks go on with in host memory, half of it updated on a device."""
        path = f"tiers.path={self.storage},persistent"
        device = ["device.emulate=h2d=5GB/s,d2h=5GB/s", "update.device-share=0.5", "update.device-resident=0.2",
                  "update.subgroup-size=12288"]
        for kind, momentum in KINDS[moments]:
            with self.subTest(kind=kind, momentum=momentum):
                name = f"{kind}{momentum}"
                keys = self.keys(kind, momentum, moments)
                result = self.train(name, *keys)
                each = 4 + (PLANES[kind] + (1 if momentum else 0)) * BYTES[moments]
                self.assertIn(f"{each:.3g} bytes per parameter ({kind}, moments in {moments})", result.out)
                self.train(f"{name}b", *keys, "train.steps=2", path, "update.overlap=on", "tiers.cache=96KiB", ranks=2)
                result = self.train(f"{name}b", *keys, *device, ranks=3)
                self.assertIn("continuing after step 2", result.out)
                self.assert_same_state(name, f"{name}b")

    def test_moments_in_fp32(self):
        self.check("fp32")

    def test_moments_in_bf16(self):
        self.check("bf16")

    def test_moments_in_8_bits(self):
        self.check("8bit")

    def test_other_moments_are_converted(self):
        keys = self.keys("adamw", 0, "fp32")
        self.train("run", *keys, "train.steps=2")
        for was, now, how in [("fp32", "8bit", "rounded to nearest"), ("8bit", "bf16", "rounded to nearest"), ("bf16", "fp32", "exactly")]:
            step = self.checkpoints("run")[-1]
            steps = self.step_of(step) + 1
            result = self.train("run", *self.keys("adamw", 0, now), f"train.steps={steps}", ranks=2)
            self.assertIn(f"optimizer.moments={now}, but the checkpoint has {was}: moments were converted, {how}",
                          result.out)
            self.assertEqual(1, result.out.count("converted"))
            self.offstage("checkpoint", "verify", self.checkpoints("run")[-1])

    def test_other_optimizers_are_refused_and_their_parameters_taken(self):
        self.train("run", *self.keys("adamw", 0, "bf16"), "train.steps=2")
        result = self.train("run", *self.keys("lion", 0, "fp32"), expect=65)
        self.assertIn("optimizer.kind: checkpoint adamw, run lion", result.errors[0])
        self.assertIn("train.init-from=", result.errors[0])
        result = self.train("sgd", *self.keys("sgd", 0, "fp32"), "train.steps=2")
        result = self.train("sgd", *self.keys("sgd", 0.9, "fp32"), expect=65)
        self.assertIn("optimizer.momentum", result.errors[0])
        self.train("fresh", *self.keys("lion", 0, "8bit"), f"train.init-from={self.folder}/run/checkpoints", ranks=2)
        self.assertLess(self.steps("fresh")[0]["loss"], self.steps("run")[0]["loss"])

    def test_checkpoints_of_other_moments_compare_by_their_parameters(self):
        for moments in "fp32", "bf16":
            self.train(moments, *self.keys("lion", 0, moments), "train.steps=1", "optimizer.warmup-steps=0")
        folders = [self.folder / moments / "checkpoints" for moments in ("fp32", "bf16")]
        result = self.offstage("checkpoint", "diff", *folders, expect=1)
        self.assertIn("momentum", result.out)
        self.assertNotIn("parameter ", result.out)  # the first step's momentum was zero for both

    def test_bad_keys(self):
        for keys, part in [
                (["optimizer.kind=adma"], "'adma' is none of adamw, adam,"),
                (["optimizer.moments=4bit"], "'4bit' is none of fp32, bf16, 8bit"),
                (["optimizer.kind=sgd", "optimizer.moments=8bit"], "optimizer.moments=8bit"),
                (["optimizer.kind=sgd", "optimizer.moments=bf16"], "optimizer.moments=bf16"),
                (["optimizer.kind=sgd", "optimizer.beta2=0.9"], "optimizer.beta2=0.9 does nothing"),
                (["optimizer.kind=lion", "optimizer.eps=1e-6"], "optimizer.eps=1e-6 does nothing"),
                (["optimizer.momentum=0.9"], "optimizer.momentum=0.9 has no effect with optimizer.kind=adamw"),
                (["optimizer.kind=rmsprop", "optimizer.momentum=1"], "optimizer.momentum=1 must be")]:
            result = self.train("bad", *keys, expect=64)
            self.assertIn(part, result.errors[0])


if __name__ == "__main__":
    main()
