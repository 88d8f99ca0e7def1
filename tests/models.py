#!/usr/bin/env python3
"""Random shapes of models: tests/models.py [SECONDS [SEED]]      rounds for so long (600 unless told); SECONDS 0: the round of
       SEED alone
A round draws a model of odd sizes and trains it on random tokens until its weights are far from where they began. Passes if
tests/reference/plain_model.py computes the loss that `offstage evaluate` says, and if forward and backward from there have the
loss and the norm on cores that the CUDA code has, which other hands wrote. What one refuses the other refuses alike.
$OFFSTAGE is the program, $ON_CPU the one with CUDA on the CPU. A failure tells its seed."""
import array
import math
import os
import random
import re
import shutil
import sys
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "e2e"), str(HERE / "reference")]
# pylint: disable=wrong-import-position
import plain_model  # noqa: E402
from harness import OffstageTest  # noqa: E402

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 600
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30)
ON_CPU = os.environ["ON_CPU"]
STEPS = 4
WINDOWS = 2
# Relative differences of loss and norm between two orders of sums, from weights that are the same.
NEAR = {"fp32": (1e-5, 1e-4), "fp16": (5e-3, 5e-2), "bf16": (2e-2, 1e-1)}


def some(numbers, most):
    """Small numbers, odd ones, and powers of two with their neighbours."""
    return min(most, numbers.choice([numbers.randint(1, 9), numbers.randint(1, most),
                                     max(1, 2 ** numbers.randint(1, 7) + numbers.choice([-1, 0, 0, 1]))]))


def draw_llama(numbers):
    heads, head = numbers.randint(1, 6), 2 * some(numbers, 24)
    # Norms of fewer numbers divide by what may be all but 0, so that the order of sums is seen.
    keys = {"model.hidden": 7 + some(numbers, 96), "model.heads": heads, "model.head-dim": head,
            "model.kv-heads": numbers.choice([n for n in range(1, heads + 1) if heads % n == 0]),
            "model.tied-head": numbers.choice(["true", "false"]), "model.qkv-bias": numbers.choice(["true", "false"])}
    kind = numbers.choice(["", "qk-head", "after", "window", "linear", "llama3", "yarn"])
    if kind == "qk-head":
        keys |= {"model.qk-norm": "head", "model.qkv-bias": "false"}
    elif kind == "after":
        keys |= {"model.qk-norm": "all", "model.norms-after": "true", "model.qkv-bias": "false"}
    elif kind == "window":
        keys |= {"model.window": some(numbers, 40), "model.qkv-bias": "false"}
    elif kind:
        keys |= {"model.rope-scaling": kind, "model.rope-theta": numbers.choice([100, 10000]), "model.rope-factor": 4,
                 "model.rope-original-sequence": numbers.choice([8, 32])}
    return keys


def draw_gpt2(numbers):
    heads = numbers.randint(1, 6)
    return {"model.hidden": heads * 2 * (3 + some(numbers, 12)), "model.heads": heads, "model.kv-heads": "",
            "model.exact-gelu": numbers.choice(["true", "false"]), "model.tied-head": "true"}


def draw(numbers):
    family = numbers.choice(["llama", "llama", "gpt2"])
    sequence = some(numbers, 48)
    keys = {"model.family": family, "model.layers": numbers.randint(1, 3), "model.ffn-hidden": some(numbers, 150),
            "model.vocab": 1 + some(numbers, 600), "train.sequence": sequence,
            "model.max-sequence": sequence + numbers.choice([0, 1, 9]), "train.micro-batch": numbers.randint(1, 3)}
    keys["train.global-batch"] = keys["train.micro-batch"] * numbers.choice([1, 2, 3])
    return keys | (draw_llama if family == "llama" else draw_gpt2)(numbers)


def options_of(keys):
    return [f"{key}={value}" for key, value in keys.items()]


class Models(OffstageTest):
    def write_tokens(self, name, numbers, vocab, count):
        tokens = array.array("H", [min(vocab - 1, int(numbers.expovariate(4 / vocab))) for _ in range(count)])
        return self.write(name, tokens.tobytes())

    def train_on(self, program, name, *options, ranks=1):
        command = [program if part == os.environ["OFFSTAGE"] else part for part in self.command(name, *options, ranks=ranks)]
        return self.call(*command)

    def compare(self, same, dtype, ranks, numbers, said):
        """The first step from the trained weights, on cores and by the CUDA code."""
        documents = numbers.choice([[], [], ["data.attention=document", "data.separator=0"],
                                    ["data.cross-documents=false", "data.separator=0"]])
        schedule = numbers.choice([[], [], ["train.schedule=vertical", "train.activations=recompute"], ["train.activations=recompute"]])
        again = [*same, *documents, *schedule, f"numerics.dtype={dtype}", f"train.init-from={self.folder}/model", "train.steps=1",
                 "optimizer.lr=1e-3", "optimizer.warmup-steps=0", "optimizer.clip=0"]
        if dtype == "fp16":
            again.append("numerics.loss-scale=128")  # a step that overflows has no norm
        said += f"\n{' '.join(again)} on {ranks} ranks"
        results = [self.train_on(os.environ["OFFSTAGE"], "cores", *again, "device.kind=host", ranks=ranks),
                   self.train_on(ON_CPU, "cuda", *again, "device.kind=cuda", "device.share-gpu=true", ranks=ranks)]
        for result in results:
            self.assertEqual(0, result.code, f"{said}\n{result}")
        steps = [self.steps(name)[0] for name in ("cores", "cuda")]
        for key, near in zip(("loss", "grad_norm"), NEAR[dtype]):
            cores, cuda = (step[key] for step in steps)
            self.assertTrue(math.isclose(cores, cuda, rel_tol=near, abs_tol=1e-6), f"{said}\n{key} {cores} on cores, {cuda} by CUDA")

    def play_round(self, seed):
        numbers = random.Random(seed)
        keys = draw(numbers)
        vocab, length = keys["model.vocab"], keys["train.sequence"]
        texts = {"data.train": self.write_tokens("train.bin", numbers, vocab, 40 * length + 1), "data.format": "nanogpt"}
        same = options_of(keys | texts)
        said = f"seed {seed}\n{' '.join(same)}"
        first = [*same, "numerics.dtype=fp32", f"train.steps={STEPS}", "optimizer.lr=0.05", "optimizer.warmup-steps=0"]
        result = self.train_on(os.environ["OFFSTAGE"], "first", *first)
        if result.code:
            other = self.train_on(ON_CPU, "first", *first, "device.kind=cuda")
            self.assertEqual((64, result.errors), (other.code, other.errors), f"{said}\n{result}\n{other}")
            self.refused += 1
            return
        self.offstage("export", f"--from={self.folder}/first", f"--to={self.folder}/model")
        valid = self.write_tokens("valid.bin", numbers, vocab, WINDOWS * length + 1)
        evaluated = self.offstage("evaluate", f"--from={self.folder}/model", f"--data={valid}", "--format=nanogpt", f"--sequence={length}")
        found = float(re.search(r"^loss ([0-9.]+) ", evaluated.out, re.M)[1])
        tokens = array.array("H", Path(valid).read_bytes())
        model = plain_model.open_model(self.folder / "model")
        wanted = sum(plain_model.loss(model.logits(tokens[at:at + length]), tokens[at + 1:at + length + 1])
                     for at in range(0, WINDOWS * length, length)) / WINDOWS
        self.assertTrue(math.isclose(found, wanted, rel_tol=1e-5, abs_tol=2e-7), f"{said}\nloss {found}, by plain_model.py {wanted}")
        for dtype in "fp32", numbers.choice(["bf16", "fp16"]):
            self.compare(same, dtype, numbers.choice([1, 1, 2]), numbers, said)
            for name in "cores", "cuda":
                shutil.rmtree(self.folder / name)

    def test_rounds(self):
        begin = time.monotonic()
        self.rounds = self.refused = 0
        while self.rounds == 0 or time.monotonic() < begin + SECONDS:
            for name in "first", "model", "cores", "cuda":
                shutil.rmtree(self.folder / name, ignore_errors=True)
            self.play_round(SEED + self.rounds)
            self.rounds += 1
        self.assertGreater(self.rounds, self.refused, "every shape was refused")
        print(f"{self.rounds} rounds from seed {SEED}, {self.refused} of them refused")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
