#!/usr/bin/env python3
"""A schedule changes when and where something is computed, never what: the same bits of p, m and v for
any number of ranks, place of the state, recomputation and interruption."""
from harness import OFFSTAGE, OffstageTest, in_turn, main

RANKS = [1, 2, 4]
DTYPES = ["fp32", "bf16"]


class SameBits(OffstageTest):
    def check_ranks_and_restarts(self, dtype):
        """Straight runs of 6 steps on 1, 2 and 4 ranks; then, from each one's third step, the other half
        on another number of ranks."""
        common = [f"numerics.dtype={dtype}", "checkpoint.every=3"]
        for ranks in RANKS:
            self.train(f"straight{ranks}", *common, ranks=ranks)
            self.assert_same_state("straight1", f"straight{ranks}")
            self.assertEqual([(r["loss"], r["grad_norm"]) for r in self.steps("straight1")],
                             [(r["loss"], r["grad_norm"]) for r in self.steps(f"straight{ranks}")])
        for before, after in zip(RANKS, [1, 4, 2]):
            half = self.checkpoints(f"straight{before}")[0]
            self.assertEqual(3, self.step_of(half))
            self.train(f"resumed{after}", *common, f"checkpoint.resume={half}", ranks=after)
            self.assert_same_state("straight1", f"resumed{after}")
            self.assertEqual([4, 5, 6], [r["step"] for r in self.steps(f"resumed{after}")])

    def test_ranks_and_restarts_in_fp32(self):
        self.check_ranks_and_restarts("fp32")

    def test_ranks_and_restarts_in_bf16(self):
        self.check_ranks_and_restarts("bf16")

    def test_the_same_command_goes_on_where_it_ended(self):
        for dtype, ranks in in_turn(DTYPES, RANKS):
            name = f"{dtype}-{ranks}"
            common = [f"numerics.dtype={dtype}", "optimizer.schedule=constant"]
            self.train_once(f"{dtype}-straight", *common)
            self.train(name, *common, "train.steps=3", ranks=ranks)
            result = self.train(name, *common, "train.steps=6", ranks=ranks)
            self.assertIn("step 3", result.out)
            self.assert_same_state(f"{dtype}-straight", name)

    def test_state_on_storage_and_in_host_memory(self):
        (self.folder / "storage").mkdir()
        for dtype, (ranks, subgroup) in in_turn(DTYPES, [(1, 4096), (2, 8192), (4, 100_000)]):
            name = f"{dtype}-storage{ranks}"
            self.train_once(f"{dtype}-host", f"numerics.dtype={dtype}")
            self.train(name, f"numerics.dtype={dtype}", f"tiers.path={self.folder}/storage",
                       f"update.subgroup-size={subgroup}", ranks=ranks)
            self.assert_same_state(f"{dtype}-host", name)
            # Of all steps: what a step leaves to go on under the next forward counts for that one.
            for moved in "read_bytes", "write_bytes":
                self.assertGreater(sum(step[moved] for step in self.steps(name)), 0)

    def test_recomputation(self):
        for dtype in "fp32", "bf16":
            self.train(f"{dtype}-none", f"numerics.dtype={dtype}", ranks=2)
            self.train(f"{dtype}-block", f"numerics.dtype={dtype}", "train.activations=recompute", ranks=2)
            self.assert_same_state(f"{dtype}-none", f"{dtype}-block")

    def test_a_round_with_idle_ranks_and_more_ranks_than_micro_batches(self):
        common = ["train.global-batch=6", "model.tied-head=true", "train.steps=3"]
        for ranks in 1, 2, 4:
            result = self.train(f"idle{ranks}", *common, ranks=ranks)
            idle = result.err.count("a step has 3 micro-batches for 4 ranks: 1 of them runs no forward or backward")
            self.assertEqual(1 if ranks == 4 else 0, idle, result)
            self.assertIn("\na step: 6 sequences, 144 tokens, 3 micro-batches", result.out)
            self.assert_same_state("idle1", f"idle{ranks}")

    def test_a_device_that_queues_the_models_work(self):
        # Fast enough to cost nothing; with and without a link that the host does not see across.
        (self.folder / "storage").mkdir()
        link = "h2d=2GB/s,d2h=1GB/s,compute=1T"
        devices = [["device.emulate=compute=100T"],
                   [f"device.emulate={link}", "train.activations=recompute"],
                   [f"device.emulate={link},host-sum=1GB/s", "parameters.home=host", f"tiers.path={self.folder}/storage",
                    "update.overlap=on"]]
        types = [("fp32", "fp32"), ("bf16", "fp32"), ("bf16", "16bit")]
        for number, ((dtype, accumulate), device, ranks) in enumerate(in_turn(types, devices, RANKS)):
            common = [f"numerics.dtype={dtype}", f"numerics.accumulate={accumulate}"]
            inline = f"{dtype}-{accumulate}"
            self.train_once(inline, *common)
            name = f"{inline}-{number}"
            with self.subTest(name, ranks=ranks):
                self.train(name, *common, *device, ranks=ranks)
                self.assert_same_state(inline, name)
                self.assertEqual([(r["loss"], r["grad_norm"]) for r in self.steps(inline)],
                                 [(r["loss"], r["grad_norm"]) for r in self.steps(name)])

    def test_sums_of_gradients_in_16_bit(self):
        for ranks in 1, 2, 4:
            self.train(f"sums{ranks}", "numerics.accumulate=16bit", ranks=ranks)
            self.assert_same_state("sums1", f"sums{ranks}")

    def test_another_seed_gives_other_bits(self):
        self.train("seven", "train.steps=2")
        self.train("eight", "train.steps=2", "train.seed=8")
        result = self.call(OFFSTAGE, "checkpoint", "diff", self.folder / "seven/checkpoints",
                           self.folder / "eight/checkpoints")
        self.assertEqual(1, result.code, result)


if __name__ == "__main__":
    main()
