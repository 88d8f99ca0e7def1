#!/usr/bin/env python3
"""What a run says and writes: metrics, header, log lines, end table; and the limits of its data."""
import math
import os
import re
import signal
from unittest import mock

from harness import OFFSTAGE, OffstageTest, main

STEP_KEYS = {"step", "loss", "grad_norm", "learning_rate", "tokens", "step_seconds", "forward_seconds",
             "backward_seconds", "update_seconds", "read_bytes", "write_bytes", "tflops"}


class Records(OffstageTest):
    def test_metrics_of_a_run(self):
        self.train("run", f"data.valid={self.valid}", "train.valid-every=2", "checkpoint.every=2",
                   "optimizer.warmup-steps=2", ranks=2)
        records = self.records("run")
        self.assertEqual([2, 4, 6], [r["step"] for r in records if "valid_loss" in r])
        steps = self.steps("run")
        self.assertEqual(list(range(1, 7)), [r["step"] for r in steps])
        for record in steps:
            # The first two steps have the rates by which the others are predicted.
            foreseen = {"predicted_step_seconds"} if "predicted_step_seconds" in record or record["step"] > 2 else set()
            self.assertEqual(STEP_KEYS | foreseen, set(record))
            self.assertEqual(record["step"] * 8 * 24, record["tokens"])
            self.assertTrue(0 < record["loss"] < 7 and record["grad_norm"] > 0)
            self.assertLessEqual(record["forward_seconds"] + record["backward_seconds"] + record["update_seconds"],
                                 record["step_seconds"] * 1.01 + 1e-3)
        self.assertAlmostEqual(math.log(256), steps[0]["loss"], delta=0.2)
        self.assertEqual([0.005, 0.01], [round(r["learning_rate"], 12) for r in steps[:2]])
        self.assertLess(steps[-1]["learning_rate"], steps[2]["learning_rate"])

    def test_the_loss_falls(self):
        self.train("run", "train.steps=60", f"data.valid={self.valid}", "train.log-every=20", ranks=2)
        steps = self.steps("run")
        self.assertLess(steps[-1]["loss"], 3.0)
        self.assertLess([r for r in self.records("run") if "valid_loss" in r][-1]["valid_loss"], 3.2)

    def test_metrics_are_cut_back_to_the_checkpoint_on_resume(self):
        options = ["optimizer.schedule=constant", "checkpoint.every=5", f"data.valid={self.valid}",
                   "train.valid-every=3"]
        process = self.start("run", *options, "train.steps=1000000")
        self.wait_for_step("run", 8, process)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        with open(self.folder / "run/metrics.jsonl", "ab") as file:
            file.write(b'{"step": 9999, "lo')
        total = self.step_of([c for c in self.checkpoints("run") if (c / "master.h5").exists()][-1]) + 4
        self.train("run", *options, f"train.steps={total}")
        self.assertEqual(list(range(1, total + 1)), [r["step"] for r in self.steps("run")])
        wanted = sorted({*range(3, total + 1, 3), total})
        self.assertEqual(wanted, [r["step"] for r in self.records("run") if "valid_loss" in r])

    def test_host_memory_stays_within_its_limit_for_a_larger_state(self):
        storage = self.folder / "storage"
        storage.mkdir()
        # 3.1 million parameters: 35 MiB of state, and gradients in 16 bit as one micro-batch needs no more.
        result = self.train("run", "model.layers=4", "model.hidden=256", "model.ffn-hidden=704",
                            "train.micro-batch=1", "train.global-batch=1", "train.steps=3",
                            "update.subgroup-size=", f"tiers.path={storage}", "tiers.host-memory=26MiB",
                            "tiers.cache=auto")
        self.assertIn("optimizer state: 35", result.out)
        peak, unit = re.search(r"per node: peak ([0-9.]+) (\w+), limit 26.0 MiB", result.out).groups()
        self.assertEqual("MiB", unit)
        self.assertLessEqual(float(peak), 26.0, result)

    def test_header_log_lines_and_end_table(self):
        config = self.write("a.cfg", "[train]\nmicro-batch = 4\n")
        storage = self.folder / "storage"
        storage.mkdir()
        result = self.train("run", f"--config={config}", "train.micro-batch=", f"tiers.path={storage}", ranks=2)
        for word in ("offstage ", "Open MPI", "2 ranks", str(storage), "34976", "cores"):
            self.assertIn(word, result.out)
        self.assertRegex(result.out, r"train\.micro-batch +4 +.*a\.cfg:2")
        self.assertRegex(result.out, r"train\.steps +6 +--train\.steps")
        self.assertRegex(result.out, r"optimizer\.beta1 +0\.9 +default")
        self.assertRegex(result.out, r"step +6/6 +loss +\d")
        self.assertRegex(result.out, r"tokens/s")
        for phase in "forward", "backward", "update", "checkpoint":
            self.assertRegex(result.out, rf"{phase} +\d")
        self.assertEqual(1, result.out.count("Open MPI"), "one header per run")
        self.assertEqual([], result.warnings if os.cpu_count() >= 2 else [])

    def test_header_and_checkpoints_say_what_multiplies_bf16_in_attention(self):
        said = {}
        for name, isa in {"free": None, "widened": "AVX2"}.items():
            with mock.patch.dict(os.environ, {"ONEDNN_MAX_CPU_ISA": isa} if isa else {}):
                result = self.train(name, "train.steps=1", "optimizer.warmup-steps=0", "numerics.dtype=bf16")
            said[name] = re.search(r"^(?:offstage: )?attention: (bf16 .*)$", result.out, re.MULTILINE)[1]
            master = (self.folder / name / "checkpoints" / "step-000000001" / "master.h5").read_bytes()
            self.assertIn(f"; attention: {said[name]})".encode(), master)
        self.assertEqual("bf16 widened to FP32", said["widened"])
        self.assertRegex(said["free"], "^bf16 (products by (AVX512-BF16|AMX)|widened to FP32)$")
        self.assertNotIn("attention:", self.train("fp32", "numerics.dtype=fp32", "train.steps=1", "optimizer.warmup-steps=0").out)

    def test_a_later_source_wins(self):
        first = self.write("a.cfg", "[train]\nsteps = 2\nsequence = 16\n[optimizer]\nlr = 1e-3\n")
        second = self.write("b.cfg", "[train]\nsteps = 3\nsequence = 8\n")
        self.train("run", f"--config={first}", f"--config={second}", "train.steps=", "train.sequence=", "optimizer.lr=",
                   "--train.sequence=12")
        self.assertEqual(3, len(self.steps("run")))
        self.assertEqual(12 * 8, self.steps("run")[0]["tokens"])
        self.assertAlmostEqual(1e-3, self.steps("run")[0]["learning_rate"])

    def test_steps_that_are_not_finite_are_skipped_and_end_the_run(self):
        for ranks in 1, 2:
            name = f"run{ranks}"
            result = self.train(name, "optimizer.lr=1e30", "optimizer.clip=0", "train.max-bad-steps=3",
                                "train.steps=50", "optimizer.warmup-steps=0", "checkpoint.every=1",
                                "checkpoint.keep=50", ranks=ranks, expect=65)
            self.assertEqual(1, len(result.errors), result)
            self.assertIn("train.max-bad-steps=3", result.errors[0])
            self.assertIn("optimizer.lr", result.errors[0])
            skipped = [r["step"] for r in self.steps(name) if r.get("skipped")]
            self.assertEqual(3, len(skipped))
            self.assertEqual(self.steps(name)[-1]["step"], skipped[-1])
            # A skipped step leaves the state as it was.
            before, after = (self.folder / name / f"checkpoints/step-{s:09d}" for s in (skipped[0] - 1, skipped[1]))
            self.assert_same_state(before, after)

    def test_one_window_of_data_is_enough(self):
        text = self.write("one.txt", b"exactly twenty-five bytes")
        self.assertEqual(25, text.stat().st_size)
        self.train("run", f"data.train={text}", f"data.valid={text}", "train.steps=20", ranks=2)
        self.assertLess(self.steps("run")[-1]["loss"], self.steps("run")[0]["loss"])

    def test_a_finished_run_started_again_does_nothing(self):
        self.train("run")
        before = self.snapshot()
        self.train("run")
        self.assertEqual(before, self.snapshot())

    def test_help_and_version(self):
        help_text = self.call(OFFSTAGE, "train", "--help")
        self.assertEqual(0, help_text.code)
        for key in "run.dir", "tiers.host-memory", "update.subgroup-size", "checkpoint.every":
            self.assertIn(key, help_text.out)
        self.assertRegex(self.call(OFFSTAGE, "--version").out, r"^offstage \d+\.\d+\.\d+")


if __name__ == "__main__":
    main()
