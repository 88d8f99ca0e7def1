#!/usr/bin/env python3
"""What a run says and writes: metrics, header, log lines, end table; and the limits of its data."""
import json
import math
import os
import re
import shutil
import signal
import struct
from unittest import mock

from harness import MPI, OFFSTAGE, OffstageTest, main

STEP_KEYS = {"step", "loss", "grad_norm", "learning_rate", "tokens", "step_seconds", "forward_seconds",
             "backward_seconds", "update_seconds", "elapsed_seconds", "read_bytes", "write_bytes", "tflops"}


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

    def test_host_memory_stays_within_its_limit_for_a_vocabulary_of_odd_size(self):
        storage = self.folder / "storage"
        storage.mkdir()
        # In bf16 oneDNN sums the gradient of such a head in 49 MiB of FP32.
        result = self.train("run", "model.layers=1", "model.hidden=256", "model.vocab=50257", "data.format=text", "numerics.dtype=bf16",
                            "train.micro-batch=1", "train.global-batch=1", "train.steps=2", "update.subgroup-size=",
                            f"tiers.path={storage}", "tiers.host-memory=160MiB", "tiers.cache=auto")
        peak, unit = re.search(r"per node: peak ([0-9.]+) (\w+), limit 160 MiB", result.out).groups()
        self.assertEqual("MiB", unit)
        self.assertLessEqual(float(peak), 160.0, result)

    def test_header_log_lines_and_end_table(self):
        config = self.write("a.cfg", "[train]\nmicro-batch = 4\n")
        storage = self.folder / "storage"
        storage.mkdir()
        result = self.train("run", f"--config={config}", "train.micro-batch=", f"tiers.path={storage}", "run.header=full", ranks=2)
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

    def header(self, result):
        """Its lines: what a run says before it starts or goes on."""
        lines = result.out.splitlines()
        ends = [i for i, line in enumerate(lines) if " starting at step " in line or line.startswith("checkpoint /")]
        return lines[:ends[0]]

    def test_the_short_header_shows_what_differs_from_defaults_in_30_lines_and_the_file_has_all(self):
        storage = [self.folder / f"storage{i}" for i in range(6)]
        for path in storage:
            path.mkdir()
        config = self.write("a.cfg", "[train]\nmicro-batch = 4\n")
        long = [f"data.train={','.join([str(self.text)] * 6)}", f"data.valid={','.join([str(self.valid)] * 5)}",
                *(f"--tiers.path={path}" for path in storage), "train.micro-batch=", f"--config={config}",
                "data.separator=32", "data.cross-documents=false", "optimizer.weight-decay=0.01", "optimizer.beta2=0.99"]
        lines = self.header(self.train("run", *long, "train.steps=2", ranks=4))
        print(f"RESULT header_lines {len(lines)}")
        self.assertLessEqual(len(lines), 30, "\n".join(lines))
        text = "\n".join(lines)
        for words in ("  2 places of ranks more", "  4 paths more", "  9 files more", f"  {config}: train.micro-batch=4",
                      "  command line: ", "optimizer.lr=0.01", f"in {self.folder}/run/header.txt"):
            self.assertIn(words, text)
        self.assertNotIn("optimizer.beta1", text)
        full = (self.folder / "run/header.txt").read_text()
        for line in lines:
            if not line.startswith(("configuration", "  command line", "   ", f"  {config}")) and " more" not in line:
                self.assertIn(line + "\n", full)
        self.assertRegex(full, r"optimizer\.beta1 +0\.9 +default")
        for path in storage:
            self.assertIn(f"  path {path}  ", full)
        again = self.train("full", "run.header=full", "train.steps=2")
        self.assertEqual((self.folder / "full/header.txt").read_text().splitlines(), self.header(again))

    def test_the_header_says_on_what_it_trains(self):
        tokens = [i % 250 for i in range(2000)]
        nano = self.write("nano.bin", struct.pack("<2000H", *tokens))
        result = self.train("run", f"data.train={self.text}:3,{nano}:1", f"data.valid={self.valid}", "train.steps=3")
        text = self.text.stat().st_size
        share = 3 * 8 * 0.75 / ((text - 1) // 24)
        self.assertIn(f"data.train {self.text}: text, u8, {text} tokens, documents not told apart; {share:.3g} epochs in 3 "
                      "steps of 8 sequences, 75 % of the samples", result.out)
        self.assertIn(f"data.train {nano}: nanogpt, u16, 2000 tokens, ", result.out)
        windows = (self.valid.stat().st_size - 1) // 24
        self.assertIn(f"data.valid {self.valid}: text, u8, {self.valid.stat().st_size} tokens, documents not told apart; "
                      f"{windows} of {windows} windows", result.out)
        wide = self.write("wide.bin", struct.pack("<2000I", *tokens))
        result = self.train("doubted", f"data.train={wide}", "data.format=nanogpt", "train.steps=2")
        self.assertIn(f"data.train {wide}: nanogpt, u16, 4000 tokens, ", result.out)
        self.assertEqual(1, len([w for w in result.warnings if f"data.train={wide}: every second of its u16 are 0" in w]),
                         result)

    def test_the_effective_configuration_gives_the_same_bits(self):
        storage = self.folder / "storage"
        storage.mkdir()
        self.train("run", "optimizer.kind=lion", f"tiers.path={storage}", f"data.train={self.text}:2,{self.valid}:1", ranks=2)
        effective = self.folder / "run/effective.cfg"
        result = self.call(MPI, "2", OFFSTAGE, "train", "--config", effective, f"--run.dir={self.folder}/again")
        self.assertEqual(0, result.code, result)
        self.assert_same_state("run", "again")
        again = (self.folder / "again/effective.cfg").read_text()
        self.assertEqual(effective.read_text(), again.replace(f"{self.folder}/again", f"{self.folder}/run"))

    def test_what_changed_since_the_checkpoint_is_said_in_a_table(self):
        first = self.train("run")
        self.assertNotIn("in the checkpoint", first.out)
        same = self.train("run", "train.steps=8", "optimizer.schedule=constant")
        self.assertRegex(same.out, r"optimizer\.schedule +cosine +constant\n")
        self.assertRegex(same.out, r"train\.steps +6 +8\n")
        changed = self.train("run", "train.steps=10", "optimizer.schedule=constant", "optimizer.lr=0.001", "numerics.dtype=fp32",
                             f"data.train={self.valid}", "train.sequence=12", "train.global-batch=4", "train.log-every=2")
        for row in (r"data\.train +\S*train.txt +\S*valid.txt", r"numerics\.dtype +bf16 +fp32", r"optimizer\.lr +0.01 +0.001",
                    r"train\.global-batch +8 +4", r"train\.sequence +24 +12", r"train\.steps +8 +10",
                    r"no weight depends on it: .*train\.log-every"):
            self.assertRegex(changed.out, row)
        self.assertNotIn("optimizer.schedule", changed.out.partition("in the checkpoint")[2].partition("\nstep")[0])

    def test_tokens_never_run_backwards(self):
        self.train("run", "optimizer.schedule=constant")
        self.train("run", "optimizer.schedule=constant", "train.steps=8", "train.sequence=12", "train.global-batch=4")
        self.train("run", "optimizer.schedule=constant", "train.steps=10", "train.sequence=16")
        tokens = [record["tokens"] for record in self.steps("run")]
        steps = [8 * 24] * 6 + [4 * 12] * 2 + [8 * 16] * 2
        self.assertEqual([sum(steps[:i + 1]) for i in range(10)], tokens)

    def test_a_longer_run_after_a_finished_cosine_is_told_of_the_jump_and_what_goes_on(self):
        self.train("run", "optimizer.min-lr=0.001")
        self.train("other", "optimizer.min-lr=0.001")
        longer = self.train("run", "optimizer.min-lr=0.001", "train.steps=12")
        warning, = [w for w in longer.warnings if "the learning rate jumps" in w]
        self.assertIn("step 6 was taken at 0.001, and step 7 will be at ", warning)
        self.assertIn("optimizer.lr=0.001 with optimizer.schedule=cooldown", warning)
        self.assertGreater(self.steps("run")[6]["learning_rate"], 0.004)
        advised = self.train("other", "train.steps=12", "optimizer.lr=0.001", "optimizer.schedule=cooldown")
        self.assertEqual([], [w for w in advised.warnings if "jumps" in w])
        rates = [record["learning_rate"] for record in self.steps("other")]
        self.assertEqual([0.001] * 5, rates[5:10])
        self.assertEqual(0, rates[11])

    def test_a_cooldown_that_was_made_longer_gives_the_bits_of_a_long_one(self):
        keys = ["optimizer.schedule=cooldown", "optimizer.decay-steps=2", "checkpoint.every=4"]
        self.train("long", *keys, "train.steps=9")
        self.train("short", *keys)
        before_the_fall = self.checkpoints("short")[0]
        result = self.train("short", *keys, "train.steps=9", f"checkpoint.resume={before_the_fall}")
        self.assertEqual([], [w for w in result.warnings if "jumps" in w])
        self.assert_same_state("long", "short")

    def test_a_stage_begins_its_schedule_anew(self):
        keys = ["optimizer.schedule=cosine", "optimizer.min-lr=0.001", "optimizer.lr=0.03"]
        self.train("run", *keys)
        late = self.train("late", *keys, "optimizer.schedule-begin=3", expect=64)
        self.assertIn("optimizer.schedule-begin=3 is after step 0, from which this start goes on; use 0 or less", late.errors[0])
        stage = ["train.steps=12", "optimizer.warmup-steps=3"]
        shutil.copytree(self.folder / "run", self.folder / "idle")
        warned = self.train("idle", *keys, *stage, "train.sequence=12")
        self.assertIn("optimizer.warmup-steps=3 warms up nothing: it counts from step 0, and step 6 is done; "
                      "optimizer.schedule-begin=6 begins the schedule here", "".join(warned.warnings))
        self.assertNotIn("model.max-sequence", warned.out)
        self.assertEqual({"optimizer.warmup-steps", "train.sequence", "train.steps"}, set(self.starts("idle")[1]["changed"]))
        begun = self.train("run", *keys, *stage, "optimizer.schedule-begin=6", f"checkpoint.resume={self.checkpoints('run')[-1]}")
        starts = self.starts("run")
        self.assertEqual([False, True], ["from" in start or "changed" in start for start in starts])
        self.assertEqual(str(self.checkpoints("run")[0]), starts[1]["from"])
        self.assertEqual({"optimizer.schedule-begin": ["0", "6"], "optimizer.warmup-steps": ["1", "3"],
                          "train.steps": ["6", "12"]}, starts[1]["changed"])
        self.assertEqual([], [w for w in begun.warnings if "warms up" in w or "jumps" in w])
        rates = [record["learning_rate"] for record in self.steps("run")]
        self.assertEqual([0.01, 0.02, 0.03], [round(rate, 12) for rate in rates[6:9]])
        self.assertEqual(0.001, rates[11])
        # Positions of GPT-2 are parameters.
        positions = ["model.family=gpt2", "model.tied-head=true", "model.kv-heads=4"]
        self.train("gpt2", *positions)
        other = self.train("gpt2", *positions, "train.steps=7", "train.sequence=12", "optimizer.schedule=constant", expect=65)
        self.assertIn("give model.max-sequence=24", other.errors[0])
        # The model stays one for the longer sequences of the first stage.
        result = self.call(OFFSTAGE, "export", "--from", self.folder / "idle", "--to", self.folder / "out")
        self.assertEqual(0, result.code, result)
        self.assertEqual(24, json.loads((self.folder / "out/config.json").read_text())["max_position_embeddings"])

    def test_a_fresh_start_sets_the_metrics_of_the_run_before_aside(self):
        self.train("run")
        first = (self.folder / "run/metrics.jsonl").read_bytes()
        result = self.train("run", "checkpoint.resume=none", "train.seed=8")
        aside = self.folder / "run/passed-over-metrics.jsonl"
        self.assertEqual(first, aside.read_bytes())
        self.assertIn(str(aside), result.out)
        self.assertEqual(list(range(1, 7)), [r["step"] for r in self.steps("run")])
        second = (self.folder / "run/metrics.jsonl").read_bytes()
        self.train("run", f"checkpoint.resume={self.checkpoints('run')[-1]}", "train.steps=7")
        self.assertFalse((self.folder / "run/passed-over-metrics.jsonl.2").exists(), "nothing was cut")
        self.train("run", "checkpoint.resume=none")
        self.assertTrue((self.folder / "run/passed-over-metrics.jsonl.2").read_bytes().startswith(second))
        self.assertEqual(first, aside.read_bytes())

    def test_metrics_are_those_of_the_checkpoint_from_which_a_run_goes_on(self):
        keys = ["optimizer.schedule=constant", "checkpoint.every=2", "checkpoint.keep-every=2"]
        self.train("run", *keys)
        first = (self.folder / "run/metrics.jsonl").read_bytes()
        back = [*keys, f"checkpoint.resume={self.checkpoints('run')[0]}", "optimizer.lr=1e-4", "checkpoint.every=0",
                "checkpoint.keep-every=0", "train.steps=1000000"]
        process = self.start("run", *back)
        self.wait_for_step("run", 7, process)
        process.kill()
        for pid in self.processes("run"):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        result = self.train("run", *keys, "train.steps=7")
        self.assertIn("continuing after step 6", result.out)
        self.assertIn("tells of a start that left no checkpoint, and not of step 6", "".join(result.warnings))
        self.assertTrue((self.folder / "run/metrics.jsonl").read_bytes().startswith(first.rsplit(b"\n", 2)[0]))
        self.train("long", *keys, "train.steps=7")
        losses = [[(r["step"], r["loss"]) for r in self.steps(name)] for name in ("run", "long")]
        self.assertEqual(*losses)
        # A checkpoint.dir that is mistyped begins a run of its own.
        result = self.train("run", *keys, "train.steps=3", f"checkpoint.dir={self.folder}/run/checkpoint")
        self.assertIn("tells of a checkpoint after step 0", "".join(result.warnings))
        self.assertEqual([1, 2, 3], [r["step"] for r in self.steps("run")])
        self.train("run", *keys, "train.steps=8")
        self.assertEqual(list(range(1, 9)), [r["step"] for r in self.steps("run")])

    def test_validation_counts_every_window_whatever_the_micro_batch(self):
        self.assertEqual(0, self.call(OFFSTAGE, "--version").code)
        windows = (self.valid.stat().st_size - 1) // 24
        losses = {}
        # One window in the last micro-batch, and more rows than windows.
        for batch, ranks in (1, 1), (windows - 1, 1), (windows - 1, 2), (4 * windows, 1):
            self.train(f"run{batch}-{ranks}", f"data.valid={self.valid}", f"train.micro-batch={batch}", "train.global-batch=",
                       "numerics.dtype=fp32", "train.steps=1", "optimizer.warmup-steps=0", "optimizer.lr=1e-12", ranks=ranks)
            losses[batch, ranks] = [r for r in self.records(f"run{batch}-{ranks}") if "valid_loss" in r][-1]["valid_loss"]
        for loss in losses.values():
            self.assertAlmostEqual(losses[1, 1], loss, delta=5e-6)

    def test_a_run_alone_in_a_job_of_two_tasks_warns(self):
        said = "this job has 2 tasks (SLURM_NTASKS), but this run has one rank"
        with mock.patch.dict(os.environ, {"SLURM_NTASKS": "2"}):
            self.assertIn(said, self.train("run", "train.steps=2").err)
            self.assertNotIn(said, self.train("two", "train.steps=2", ranks=2).err)
        with mock.patch.dict(os.environ, {"SLURM_NTASKS": "1"}):
            self.assertNotIn(said, self.train("one", "train.steps=2").err)

    def test_a_run_alone_among_processes_of_torchrun_warns(self):
        said = "torchrun, accelerate or deepspeed started 2 processes (WORLD_SIZE), but this run has one rank"
        with mock.patch.dict(os.environ, {"WORLD_SIZE": "2", "RANK": "1"}):
            self.assertIn(said, self.train("run", "train.steps=2").err)
            self.assertNotIn(said, self.train("two", "train.steps=2", ranks=2).err)
        with mock.patch.dict(os.environ, {"WORLD_SIZE": "1"}):
            self.assertNotIn(said, self.train("one", "train.steps=2").err)

    def test_header_and_checkpoints_say_what_multiplies_bf16_in_attention(self):
        said = {}
        for name, isa in {"free": None, "widened": "AVX2"}.items():
            with mock.patch.dict(os.environ, {"ONEDNN_MAX_CPU_ISA": isa} if isa else {}):
                result = self.train(name, "train.steps=1", "optimizer.warmup-steps=0", "numerics.dtype=bf16")
            said[name] = re.search(r"^(?:offstage: )?attention: (bf16 .*)$", result.out, re.MULTILINE)[1]
            master = (self.folder / name / "checkpoints" / "step-000000001" / "master.h5").read_bytes()
            self.assertIn(f", attention: {said[name]})".encode(), master)
        self.assertEqual("bf16 widened to FP32", said["widened"])
        self.assertRegex(said["free"], "^bf16 (products by (AVX512-BF16|AMX)|widened to FP32)$")
        with mock.patch.dict(os.environ, {"ONEDNN_MAX_CPU_ISA": "SSE41"}):
            other = self.train("free", "train.steps=2", "optimizer.warmup-steps=0", "numerics.dtype=bf16")
        line = re.search(r"the checkpoint was computed by .*", other.out) if said["free"] != said["widened"] else None
        self.assertEqual(said["free"] != said["widened"], line is not None, other)
        again = self.train("widened", "train.steps=2", "optimizer.warmup-steps=0", "numerics.dtype=bf16")
        self.assertEqual(self.processor() != self.processor("AVX2"), "the checkpoint was computed by " in again.out, again)
        self.assertNotIn("attention:", self.train("fp32", "numerics.dtype=fp32", "train.steps=1", "optimizer.warmup-steps=0").out)

    def processor(self, most=None):
        with mock.patch.dict(os.environ, {"ONEDNN_MAX_CPU_ISA": most} if most else {}):
            return re.search(r"(?m)^this processor: (.*)$", self.call(OFFSTAGE, "--version").out)[1]

    def test_what_the_cores_compute_by_is_recorded_and_may_be_limited(self):
        best, least = self.processor(), self.processor("SSE41")
        self.assertEqual("NEON" if best == "NEON" else "SSE2", least)
        self.assertEqual(least if best == least else "AVX2", self.processor("avx2"))
        for dtype in "fp32", "bf16":
            keys = "optimizer.warmup-steps=0", f"numerics.dtype={dtype}"
            self.train(dtype, "train.steps=1", "run.threads=1", *keys)
            program = self.records(dtype)[0]["program"]
            self.assertRegex(program, rf"; 1 thread, {best}, oneDNN \d+\.\d+\.\d+")
            same = self.train(dtype, "train.steps=2", "run.threads=1", *keys)
            self.assertNotRegex(same.out, "the checkpoint (is of|was computed by)")
            more = self.train(dtype, "train.steps=3", "run.threads=2", *keys)
            self.assertRegex(more.out, rf"the checkpoint was computed by 1 thread, {best}, .*, and this start computes by 2 threads, {best}, .*: the bits may be others\n")
            self.assertNotIn("no weight depends on it: run.threads", more.out)
            with mock.patch.dict(os.environ, {"ONEDNN_MAX_CPU_ISA": "SSE41"}):
                other = self.train(dtype, "train.steps=4", "run.threads=2", *keys)
            self.assertEqual(best != least, f"computes by 2 threads, {least}, oneDNN" in other.out, other)

    def test_ranks_whose_cores_compute_otherwise_are_named(self):
        if self.processor() == "NEON":
            self.skipTest("one instruction set")
        script = '[ "$OMPI_COMM_WORLD_RANK" = 0 ] || export ONEDNN_MAX_CPU_ISA=SSE41; exec "$@"'
        for dtype in "fp32", "bf16":
            command = self.command(dtype, "train.steps=2", f"numerics.dtype={dtype}", "optimizer.warmup-steps=0")
            mixed = self.call(MPI, "2", "sh", "-c", script, "rank", *command)
            alike = self.call(MPI, "2", *self.command(f"{dtype}-alike", "train.steps=2", f"numerics.dtype={dtype}", "optimizer.warmup-steps=0"))
            self.assertEqual((0, 0), (mixed.code, alike.code), (mixed, alike))
            self.assertNotIn("ONEDNN_MAX_CPU_ISA", alike.err)
            said = re.findall(r"rank 1 on \S+ computes by SSE2, oneDNN .*, but rank 0 by (\S+), oneDNN .* the bits depend", mixed.err)
            self.assertEqual([] if self.processor() == "SSE2" else [self.processor()], said, mixed)

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
            self.assertRegex(self.records(name)[-1]["end"], "failed: .*train.max-bad-steps=3")
            self.assertEqual(self.steps(name)[-1]["step"], skipped[-1])
            # Checkpoints from before stay.
            self.assertEqual(skipped[0] - 1, self.step_of(self.checkpoints(name)[-1]))
            self.assertIn(f"step {skipped[0]:6}  its save waits", result.out)

    def test_a_skipped_step_leaves_the_state_as_it_was(self):
        bad = ["optimizer.lr=1e30", "optimizer.clip=0", "optimizer.warmup-steps=0", "optimizer.schedule=constant",
               "checkpoint.every=1", "checkpoint.keep=50"]
        self.train("run", *bad, "train.steps=50", "train.max-bad-steps=3", expect=65)
        before = self.checkpoints("run")[-1]
        steps = self.step_of(before) + 2
        result = self.train("run", *bad, f"train.steps={steps}")
        self.assertIn(f"step {steps} was skipped", "".join(result.warnings))
        self.assertEqual(steps, self.step_of(self.checkpoints("run")[-1]))
        self.assert_same_state(before, self.checkpoints("run")[-1])

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
