#!/usr/bin/env python3
"""Training on conversations with a loss mask follows transformers with labels of -100 on the same windows
(files/masked.json, by make_masked.py), however the global batch is dealt to ranks and micro-batches; also where
conversations of a window do not see each other."""
import json
import os
import struct
from pathlib import Path

from harness import OffstageTest, main

os.environ.setdefault("OMP_NUM_THREADS", "1")
FILES = Path(__file__).resolve().parent / "files"
REFERENCE = json.loads((FILES / "masked.json").read_text())
TOLERANCE = 1e-5
DEALT = [(1, 6, []), (1, 1, []), (2, 1, []), (2, 2, ["train.schedule=vertical"]), (4, 1, []), (3, 2, [])]


class Masked(OffstageTest):
    def setUp(self):
        super().setUp()
        documents = REFERENCE["documents"]
        tokens = [t for document in documents for t in document["tokens"]]
        mask = [m for document in documents for m in document["mask"]]
        lengths = [len(document["tokens"]) for document in documents]
        self.data = self.write("chats.bin", struct.pack(f"<{len(tokens)}H", *tokens))
        pointers = [2 * sum(lengths[:i]) for i in range(len(lengths))]
        count = len(lengths)
        self.write("chats.idx", b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1)
                   + struct.pack(f"<{count}i{count}q{count + 1}q", *lengths, *pointers, *range(count + 1)))
        self.mask = self.write("chats.mask", b"OFFMASK1" + struct.pack("<4Q", len(mask), sum(mask), 0, 0) + bytes(mask))

    def run_on(self, name, *options, ranks=1, expect=0, model=REFERENCE["model"], attention="window"):
        unset = [f"model.{key}=" for key in ("family", "layers", "hidden", "heads", "kv-heads", "ffn-hidden", "vocab")]
        return self.train(name, *unset, f"train.init-from={FILES / model}", f"data.train={self.data}",
                          "data.cross-documents=whole", f"data.attention={attention}", f"train.sequence={REFERENCE['sequence']}",
                          f"train.steps={REFERENCE['steps']}", f"train.global-batch={REFERENCE['windows']}",
                          f"optimizer.lr={REFERENCE['learning_rate']}", "optimizer.schedule=constant", "optimizer.warmup-steps=0",
                          "optimizer.beta1=0.9", "optimizer.beta2=0.95", "optimizer.eps=1e-8", "optimizer.weight-decay=0",
                          "optimizer.clip=1", "numerics.dtype=fp32", *options, ranks=ranks, expect=expect)

    def assert_close(self, wanted, found):
        for a, b in zip(wanted, found, strict=True):
            self.assertLess(abs(a - b) / a, TOLERANCE)

    def test_losses_and_norms_are_those_of_transformers(self):
        for ranks, micro_batch, options in DEALT:
            with self.subTest(ranks=ranks, micro_batch=micro_batch):
                name = f"run-{ranks}-{micro_batch}"
                self.run_on(name, f"train.micro-batch={micro_batch}", f"data.valid={self.data}", *options, ranks=ranks)
                steps = self.steps(name)
                self.assert_close(REFERENCE["loss"], [r["loss"] for r in steps])
                self.assert_close(REFERENCE["grad_norm"], [r["grad_norm"] for r in steps])
                valid = [r["valid_loss"] for r in self.records(name) if "valid_loss" in r]
                self.assert_close([REFERENCE["loss_after"]], valid)

    def test_with_the_auxiliary_loss_they_are_those_of_transformers(self):
        wanted = REFERENCE["z_loss"]
        self.assertGreater(abs(wanted["loss"][-1] - REFERENCE["loss"][-1]), 1e-3)
        for ranks, micro_batch, options in DEALT[1:4]:
            with self.subTest(ranks=ranks, micro_batch=micro_batch):
                name = f"run-z-{ranks}-{micro_batch}"
                self.run_on(name, f"train.micro-batch={micro_batch}", f"train.z-loss={wanted['weight']}", *options, ranks=ranks)
                self.assert_close(wanted["loss"], [r["loss"] for r in self.steps(name)])
                self.assert_close(wanted["grad_norm"], [r["grad_norm"] for r in self.steps(name)])

    def test_documents_that_see_themselves_alone_are_those_of_transformers(self):
        for model, wanted in REFERENCE["alone"].items():
            for ranks, micro_batch, options in DEALT[1:4]:
                with self.subTest(model=model, ranks=ranks, micro_batch=micro_batch):
                    name = f"run-{model}-{ranks}-{micro_batch}"
                    self.run_on(name, f"train.micro-batch={micro_batch}", f"data.valid={self.data}", *options, ranks=ranks,
                                model=model, attention="document")
                    steps = self.steps(name)
                    self.assert_close(wanted["loss"], [r["loss"] for r in steps])
                    self.assert_close(wanted["grad_norm"], [r["grad_norm"] for r in steps])
                    valid = [r["valid_loss"] for r in self.records(name) if "valid_loss" in r]
                    self.assert_close([wanted["loss_after"]], valid)

    def test_ranks_do_not_change_the_bits(self):
        for attention in "window", "document":
            one, three = f"one-{attention}", f"three-{attention}"
            self.run_on(one, "train.micro-batch=1", "numerics.dtype=bf16", attention=attention)
            self.run_on(three, "train.micro-batch=1", "numerics.dtype=bf16", attention=attention, ranks=3)
            self.assert_same_state(one, three)

    def test_the_header_says_what_counts(self):
        header = self.run_on("run", "train.micro-batch=1").out
        counted = sum(sum(document["mask"]) for document in REFERENCE["documents"])
        tokens = sum(len(document["tokens"]) for document in REFERENCE["documents"])
        self.assertIn(f"{tokens} tokens, {100 * counted / tokens:.1f} % of which count, 10 documents", header)
        self.assertIn("positions filled, 1 document cut", header)

    def test_without_the_mask_all_counts(self):
        self.run_on("run", "train.micro-batch=1", "data.mask=off")
        without = self.steps("run")[0]["loss"]
        self.assertGreater(abs(without - REFERENCE["loss"][0]), 1e-3)
        for mask, loss in ("on", REFERENCE["loss"][0]), ("off", without):
            said = self.offstage("evaluate", "--from", FILES / REFERENCE["model"], "--data", self.data, "--cross-documents=whole",
                                 "--attention=window", f"--sequence={REFERENCE['sequence']}", f"--mask={mask}", "--json")
            self.assert_close([loss], [json.loads(said.out)["loss"]])

    def test_a_mask_of_other_tokens_ends_the_run(self):
        self.mask.write_bytes(self.mask.read_bytes()[:-1])
        result = self.run_on("run", "train.micro-batch=1", ranks=2, expect=65)
        self.assertIn(f"data.train={self.mask}: has", result.errors[0])

    def test_steps_without_a_target_that_counts_change_nothing(self):
        mask = bytearray(self.mask.read_bytes())
        mask[40:] = bytes(len(mask) - 40)
        mask[41] = 1  # one token of the first window alone
        mask[16:24] = struct.pack("<Q", 1)
        self.mask.write_bytes(mask)
        result = self.run_on("run", "train.micro-batch=1", "train.global-batch=1", "train.steps=15", "train.max-bad-steps=2")
        skipped = [r["step"] for r in self.steps("run") if r.get("skipped")]
        self.assertEqual(12, len(skipped), skipped)  # three epochs of five windows: one document has lost its targets with its end
        self.assertIn("no target of its batch counts", result.err)


if __name__ == "__main__":
    main()
