#!/usr/bin/env python3
"""Gradients that are summed in blocks of micro-batches: the bits depend on numerics.sum-block alone, on no number of ranks,
no place and no schedule."""
import shutil

from harness import OFFSTAGE, OffstageTest, in_turn, main

# Ten micro-batches in four blocks, of which the last has one: two, three and four ranks have idle ones.
MODEL = ["model.layers=2", "train.steps=3", "train.micro-batch=1", "train.global-batch=10", "optimizer.clip=0.5"]
BLOCKS = [*MODEL, "numerics.sum-block=3"]
LINK = "--device.emulate=h2d=20GB/s,d2h=20GB/s"


class SumBlock(OffstageTest):
    def differ(self, a, b):
        return self.call(OFFSTAGE, "checkpoint", "diff", *(self.folder / name / "checkpoints" for name in (a, b))).code != 0

    def path(self):
        directory = self.folder / "path"
        directory.mkdir(exist_ok=True)
        return f"--tiers.path={directory},read=1GB/s,write=1GB/s"

    def test_one_block_or_blocks_of_one_leave_the_bits_as_they_are(self):
        self.train("plain", *MODEL)
        for block in 1, 10, 64:
            with self.subTest(block=block):
                self.train(f"block-{block}", *MODEL, f"numerics.sum-block={block}", ranks=2 if block > 1 else 1)
                self.assert_same_state("plain", f"block-{block}")
        # Sums of few gradients in 16 bits may be exact in any order.
        self.train("plain-fp32", *MODEL, "numerics.dtype=fp32")
        result = self.train("blocks", *BLOCKS, "numerics.dtype=fp32")
        self.assertTrue(self.differ("plain-fp32", "blocks"))
        self.assertIn("gradients: summed in 4 blocks of 3 micro-batches (numerics.sum-block=3)", result.out)

    def test_ranks_places_and_schedules_leave_the_bits_of_blocks_as_they_are(self):
        dtypes = ["numerics.dtype=bf16"], ["numerics.dtype=bf16", "numerics.accumulate=16bit"], ["numerics.dtype=fp32"]
        for dtype, (ranks, options) in in_turn(dtypes, [
                (1, [LINK]),
                (1, [LINK, "update.overlap=on", "update.device-share=1"]),
                (1, [LINK, self.path(), "tiers.host-memory=60MB"]),
                (1, ["train.schedule=vertical", LINK]),
                (2, ["parameters.sharding=zero2"]),
                (2, ["train.schedule=vertical"]),
                (3, ["parameters.home=host", LINK]),
                (4, ["parameters.sharding=zero3", self.path(), "update.gradients=flush-fp32"]),
                (4, ["train.schedule=vertical", "parameters.home=host", LINK])]):
            with self.subTest(dtype=dtype, ranks=ranks, options=options):
                base = f"one-{dtype[-1][9:]}"
                self.train_once(base, *BLOCKS, *dtype)
                self.train("run", *BLOCKS, *dtype, *options, ranks=ranks)
                self.assert_same_state(base, "run")
            shutil.rmtree(self.folder / "run")

    # Where each rank sums whole gradients of its blocks: two ranks have two blocks each, three and four have idle ones.
    def test_shardings_leave_the_bits_of_blocks_as_they_are(self):
        dtypes = ["numerics.dtype=bf16"], ["numerics.dtype=fp16", "numerics.accumulate=16bit"]
        for dtype, (ranks, options) in in_turn(dtypes, [
                (1, ["parameters.sharding=zero1"]),
                (1, ["parameters.sharding=zero1", LINK, self.path(), "tiers.host-memory=60MB"]),
                (2, ["parameters.sharding=zero1"]),
                (2, ["parameters.sharding=zero1", LINK, "update.overlap=on"]),
                (2, ["parameters.sharding=zero1", "train.schedule=vertical"]),
                (3, ["parameters.sharding=zero1", "train.schedule=vertical", LINK]),
                (4, ["parameters.sharding=zero3"]),
                (4, ["parameters.sharding=zero2", LINK]),
                (4, ["parameters.sharding=zero1"]),
                (4, ["parameters.sharding=zero1", "train.schedule=vertical", LINK, "model.tied-head=true"]),
                (4, ["parameters.sharding=zero1", LINK, self.path(), "update.gradients=flush-fp32"])]):
            with self.subTest(dtype=dtype, ranks=ranks, options=options):
                tied = [option for option in options if option.startswith("model.")]
                base = f"base-{dtype[0][15:]}{'-tied' if tied else ''}"
                self.train_once(base, *BLOCKS, *dtype, *tied)
                result = self.train("run", *BLOCKS, *dtype, *options, ranks=ranks)
                self.assert_same_state(base, "run")
                self.assertEqual("parameters.sharding=zero1" in options,
                                 "numerics.sum-block=3), each by one rank, whole (parameters.sharding=zero1)" in result.out)
            shutil.rmtree(self.folder / "run")

    def test_a_run_goes_on_with_another_sharding_and_other_ranks(self):
        self.train("run", *BLOCKS, "train.steps=1", "optimizer.warmup-steps=0", "parameters.sharding=zero1", ranks=2)
        self.train("all-again", *BLOCKS, "train.steps=1", "optimizer.warmup-steps=0")
        self.assert_same_state("all-again", "run")
        for ranks, sharding in (4, "zero1"), (2, "zero2"):
            shutil.copytree(self.folder / "run", self.folder / f"on-{sharding}")
            self.train(f"on-{sharding}", *BLOCKS, "train.steps=2", "optimizer.warmup-steps=0", f"parameters.sharding={sharding}", ranks=ranks)
        self.assert_same_state("on-zero1", "on-zero2")

    def test_whole_gradients_without_blocks_are_refused(self):
        for block, right in (1, "must be from 2 to 9"), (10, "must be from 2 to 9"):
            result = self.train("run", *MODEL, f"numerics.sum-block={block}", "parameters.sharding=zero1", ranks=2, expect=64)
            self.assertIn("parameters.sharding=zero1 has each rank sum whole gradients of a block", result.err)
            self.assertIn(f"numerics.sum-block={block} {right}, less than the 10 of a step, or use parameters.sharding=zero2", result.err)

    def test_ranks_without_a_block_are_told_once(self):
        zero1 = [*BLOCKS, "train.steps=2", "optimizer.warmup-steps=0", "parameters.sharding=zero1"]
        warned = self.train("idle", *zero1, "numerics.sum-block=5", ranks=3).err
        self.assertEqual(warned.count("the 10 micro-batches of a step are 2 blocks of 5 (numerics.sum-block), so 1 of 3 ranks stay idle; "
                                      "numerics.sum-block=3 has work for all"), 1, warned)
        self.assertNotIn("stay idle", self.train("busy", *zero1, ranks=3).err)

    def test_auto_keeps_gradients_whole_where_every_rank_has_a_block(self):
        options = [*MODEL, "train.global-batch=8", "numerics.sum-block=2", "parameters.sharding=auto", "train.steps=1",
                   "optimizer.warmup-steps=0"]
        self.assertIn("(parameters.sharding=zero1)", self.train("roomy", *options, "device.memory=256MiB", ranks=2).out)
        self.assertIn("(parameters.sharding=zero2)", self.train("idle", *options, "numerics.sum-block=5", "device.memory=256MiB", ranks=2).out)

    def test_a_run_that_goes_on_with_another_block_is_told(self):
        self.train("run", *BLOCKS, "train.steps=1", "optimizer.warmup-steps=0")
        result = self.train("run", *MODEL, "numerics.sum-block=2", "train.steps=2", "optimizer.warmup-steps=0")
        self.assertRegex(result.out, r"numerics\.sum-block +3 +2\n")

    def test_no_block_is_refused(self):
        result = self.train("run", *MODEL, "numerics.sum-block=0", expect=64)
        self.assertIn("numerics.sum-block=0 must be 1 or more; 1 adds gradients one after the other", result.err)


if __name__ == "__main__":
    main()
