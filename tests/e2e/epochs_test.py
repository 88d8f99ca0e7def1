#!/usr/bin/env python3
"""Runs whose length is given in epochs: they have the steps, and the bits, of runs of as many steps."""
import json
import struct

from harness import TINY, OffstageTest, main

USAGE = 64
WINDOWS = 40  # of the text; a step has 8


class Epochs(OffstageTest):
    def setUp(self):
        super().setUp()
        self.short = self.write("short.txt", self.text.read_bytes()[:WINDOWS * TINY["train.sequence"] + 1])
        self.data = f"data.train={self.short}"
        self.storage = self.folder / "storage"
        self.storage.mkdir()

    def test_a_run_of_epochs_has_the_bits_of_one_of_as_many_steps(self):
        self.train("steps", self.data, "train.steps=8")
        result = self.train("epochs", self.data, "train.steps=1.5epochs")  # 60 sequences
        self.assertIn("; 1.6 epochs in 8 steps of 8 sequences", result.out)
        self.assert_same_state("steps", "epochs")
        rates = [[record["learning_rate"] for record in self.steps(name)] for name in ("steps", "epochs")]
        self.assertEqual(*rates)
        self.train("elsewhere", self.data, "train.steps=1.5 epochs", f"tiers.path={self.storage}", ranks=2)
        self.assert_same_state("steps", "elsewhere")

    def test_a_start_that_goes_on_comes_to_the_same_end(self):
        keys = [self.data, "train.steps=2epochs", "checkpoint.keep-every=3"]
        self.train("run", *keys)
        result = self.train("again", *keys, f"checkpoint.resume={self.checkpoints('run')[0]}", f"tiers.path={self.storage}", ranks=2)
        self.assertIn("continuing after step 3", result.out)
        self.assertEqual(10, self.steps("again")[-1]["step"])
        self.assert_same_state("run", "again")
        over = self.train("again", *keys)
        self.assertIn("nothing to do: step 10 is done, and train.steps=10 asks for no more", over.out)

    def test_what_earlier_steps_saw_counts_whatever_their_batch(self):
        keys = [self.data, "optimizer.schedule=constant"]
        self.train("run", *keys, "train.steps=2")  # 16 sequences, and 64 are left
        result = self.train("run", *keys, "train.steps=2epochs", "train.global-batch=16")
        self.assertIn("2 epochs until step 6, as earlier steps had another train.global-batch", result.out)
        self.assertEqual(list(range(1, 7)), [record["step"] for record in self.steps("run")])
        self.assertIn("nothing to do: step 6", self.train("run", *keys, "train.steps=2epochs", "train.global-batch=16").out)

    def test_an_epoch_of_whole_documents_is_that_of_the_windows_that_have_them(self):
        documents = self.write("documents.bin", struct.pack("<300H", *([*range(1, 10), 0] * 30)))  # two of ten tokens in a window
        result = self.train("run", f"data.train={documents}", "data.cross-documents=whole", "data.separator=0", "train.steps=2epochs",
                            "data.format=nanogpt")
        self.assertIn("in 4 steps of 8 sequences", result.out)  # 30 sequences
        self.assertEqual(4, self.steps("run")[-1]["step"])

    def test_keys_that_do_not_go_with_epochs_are_refused_and_nothing_is_left(self):
        for options, words in (
                ([self.data, "train.steps=1.5epochs", "optimizer.warmup-steps=8"],
                 "optimizer.warmup-steps=8 leaves nothing of train.steps=8; use 7 or less (train.steps=1.5epochs)"),
                ([f"data.train={self.short}:1,{self.valid}:2", "train.steps=3epochs"],
                 "train.steps=3epochs needs files without weights in data.train"),
                ([self.data, "train.steps=3epochs", "optimizer.schedule-begin=3"],
                 "optimizer.schedule-begin=3 begins a later stage; give a number of steps")):
            result = self.train("run", *options, expect=USAGE, ranks=2)
            self.assertIn(words, result.errors[0])
            self.assertFalse((self.folder / "run").exists(), words)

    def test_a_plan_says_that_it_does_not_know_the_steps(self):
        model = [f"--{key}={value}" for key, value in TINY.items() if key.startswith("model.")]
        plan = ["plan", *model, "--device.kind=host", "--platform.products=1T", "--platform.cpu-update=1G", "--platform.host-sum=10GB/s",
                "--train.steps=3epochs", "--optimizer.warmup-steps=100"]
        self.assertRegex(self.offstage(*plan).out, r"(?m)^the run takes +3 epochs of data that a plan does not open")
        self.assertNotIn("run_seconds", json.loads(self.offstage(*plan, "--json").out))


if __name__ == "__main__":
    main()
