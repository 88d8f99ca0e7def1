#!/usr/bin/env python3
"""A run that goes on elsewhere: on another number of ranks, with its state in another place, in other
subgroups, with another type of the working copy."""
from pathlib import Path

from harness import OffstageTest, main

COMMON = ["optimizer.schedule=constant", "checkpoint.every=2"]
RANKS = [(4, 1), (1, 4), (3, 2), (2, 3)]
DTYPES = ["fp32", "bf16", "fp16"]


# Checkpoints of four ranks whose chunks were not dealt in equal parts, in files of ranks (5) and of a node (6).
OLDER = Path(__file__).resolve().parent.parent / "checkpoint"
OF_OLDER = ["model.layers=1", "model.hidden=16", "model.heads=2", "model.kv-heads=", "model.ffn-hidden=424", "model.tied-head=true",
            "train.sequence=16", "train.micro-batch=1", "train.global-batch=4", "optimizer.kind=lion", "optimizer.moments=bf16"]


class Restart(OffstageTest):
    def setUp(self):
        super().setUp()
        self.storage = self.folder / "storage"
        self.storage.mkdir()

    def place(self, on_storage):
        return [f"tiers.path={self.storage}", "update.subgroup-size=8192"] if on_storage else []

    def check_matrix(self, dtype):
        """All pairs of type and ranks; the halves' places and subgroups in turn, so that with the three
        types each pair of place and ranks, and of place and type, comes up too."""
        common = [*COMMON, f"numerics.dtype={dtype}"]
        self.train("straight", *common, "train.steps=4")
        for index, (before, after) in enumerate(RANKS):
            began, goes_on = (index + DTYPES.index(dtype)) % 2 == 0, (index // 2 + DTYPES.index(dtype)) % 2 == 0
            with self.subTest(dtype=dtype, before=before, after=after, began=began, goes_on=goes_on):
                name = f"{before}-{after}"
                self.train(name, *common, *self.place(began), "train.steps=2", ranks=before)
                result = self.train(name, *common, *self.place(goes_on), "train.steps=4", ranks=after)
                self.assertIn("continuing after step 2", result.out)
                self.assert_same_state("straight", name)
                self.assertEqual([1, 2, 3, 4], [r["step"] for r in self.steps(name)])
                self.assertEqual([(0, before), (2, after)], [(r["start"], r["ranks"]) for r in self.starts(name)])

    def test_checkpoints_of_parts_that_were_not_equal(self):
        for ranks, form in (1, 5), (3, 5), (4, 6), (6, 6):
            name = f"from-{form}-on-{ranks}"
            older = OLDER / f"format-{form}" / "step-000000002"
            result = self.train(name, *OF_OLDER, "train.steps=4", "checkpoint.files=" + ("node" if form == 6 else "rank"),
                                f"checkpoint.resume={older}", ranks=ranks)
            self.assertIn("continuing after step 2", result.out)
            self.assert_same_state("from-5-on-1", name)

    def test_fp32_on_other_ranks_and_places(self):
        self.check_matrix("fp32")

    def test_bf16_on_other_ranks_and_places(self):
        self.check_matrix("bf16")

    def test_fp16_on_other_ranks_and_places(self):
        self.check_matrix("fp16")

    def test_another_type_of_the_working_copy(self):
        self.train("run", *COMMON, "numerics.dtype=fp32", "train.steps=2")
        for step, dtype in enumerate(["fp16", "bf16", "fp32"], start=3):
            result = self.train("run", *COMMON, f"numerics.dtype={dtype}", f"train.steps={step}")
            self.assertIn(f"continuing after step {step - 1}", result.out)
        losses = [r["loss"] for r in self.steps("run")]
        self.assertEqual(5, len(losses))
        self.assertLess(losses[-1], losses[0])


if __name__ == "__main__":
    main()
