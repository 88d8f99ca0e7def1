#!/usr/bin/env python3
"""Training on a GPU: it follows the CPU's losses, and a schedule changes none of its bits. Runs on a real one (label gpu),
and everywhere with a program whose CUDA code runs on the CPU (tests/cuda_on_cpu)."""
import os
import re
import subprocess
import unittest
from unittest import mock

from harness import ALL, OFFSTAGE, OffstageTest, main

ON_CPU = os.path.basename(os.environ["OFFSTAGE"]) == "offstage_on_cpu"  # slowly, so less of everything
STEPS = 8 if ON_CPU else 50
# Heads of 32 elements: products of attention on tensor cores.
MODELS = {
    "llama": ["model.hidden=64", "model.heads=2", "model.kv-heads=1", "model.ffn-hidden=96"],
    "gpt2": ["model.family=gpt2", "model.hidden=64", "model.heads=2", "model.kv-heads=", "model.ffn-hidden=128",
             "model.max-sequence=64", "model.vocab=257", "data.format=text"],  # rows of logits with something between them
}
# Two micro-batches a step.
SHORT = ["train.steps=3", "train.global-batch=4", "train.sequence=16"]
ONE_STEP = [*SHORT, "train.steps=1", "optimizer.schedule=constant", "optimizer.warmup-steps=0"]
# How far apart losses of about 5 may be after STEPS steps; what was seen is a fifth of it at most.
APART = {"fp32": 0.002, "bf16": 0.1, "fp16": 0.05}
GPU, CPU, AUTO = "device.kind=cuda", "device.kind=host", "device.kind=auto"
# cuDNN takes over a second to plan attention at each start, and there would be no other whole runs with our own kernels.
OWN = "device.attention=own"


def gpus():
    if ON_CPU:
        return int(os.environ.get("CUDA_ON_CPU_DEVICES", "1"))
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        return 0
    return listed.stdout.count("GPU ")


@unittest.skipUnless(gpus() > 0, "no GPU: not run")
class Gpu(OffstageTest):
    def test_losses_follow_the_cpu(self):
        for family, model in MODELS.items():
            for dtype in ("bf16", "fp32" if family == "llama" else "fp16") if ON_CPU else APART:
                apart = APART[dtype]
                with self.subTest(family=family, dtype=dtype):
                    options = [*model, f"numerics.dtype={dtype}", f"train.steps={STEPS}", "train.global-batch=2",
                               "optimizer.lr=0.003"]
                    name = f"{family}-{dtype}"
                    self.train(f"{name}-cpu", *options, CPU)
                    self.train(f"{name}-gpu", *options, GPU)
                    expected, got = self.steps(f"{name}-cpu"), self.steps(f"{name}-gpu")
                    self.assertEqual(STEPS, len(got))
                    for one, other in zip(expected, got):
                        self.assertAlmostEqual(one["loss"], other["loss"], delta=apart, msg=one["step"])
                    self.assertAlmostEqual(expected[0]["grad_norm"], got[0]["grad_norm"],
                                           delta=apart * expected[0]["grad_norm"])
                    self.assertLess(got[-1]["loss"], got[0]["loss"] - 0.5)

    def test_a_schedule_changes_no_bits(self):
        (self.folder / "path").mkdir()
        path = f"--tiers.path={self.folder}/path,read=1GB/s,write=1GB/s"
        schedules = {
            "again": [],
            "recomputed": ["train.activations=recompute"],
            "swapped": ["train.activations=host", "update.transfers=blocking"],
            "storage": [path],
            "cores": ["update.device-share=0"],
            "device": ["update.device-share=1", "update.device-chunk=4096"],
            "both": ["update.device-share=0.5", "update.device-chunk=4096", path],
            "resident": ["update.device-resident=0.4"],
            "blocking": ["update.transfers=blocking"],
            "ahead": ["update.overlap=on", path],
            "parameters-host": ["parameters.home=host"],
            "split": ["parameters.home=host", "tiers.split-parameters=on", "update.device-share=0.5",
                      "update.device-resident=0.2", "update.device-chunk=4096", path],
            "vertical": ["train.schedule=vertical", "train.activations=host", "parameters.home=host"],
            "vertical-storage": ["train.schedule=vertical", "train.activations=storage", "parameters.home=storage", path],
            "parameters-storage": ["parameters.home=storage", "update.overlap=on", path],
        }
        some = {name: schedules[name] for name in ("both", "parameters-host", "vertical")}
        if ON_CPU:
            for name in "recomputed", "cores", "device", "blocking", "parameters-host", "vertical-storage":
                del schedules[name]
            if not ALL:
                for name in "again", "storage", "resident", "ahead":
                    del schedules[name]
                some = {"both": schedules["both"]}
        tries = [("llama", OWN, schedules), ("gpt2", OWN, some)]
        if not ON_CPU:
            tries.append(("llama", "device.attention=auto", {name: schedules[name] for name in ("again", "recomputed", "vertical")}))
        for family, attention, tried in tries:
            options = [*MODELS[family], *SHORT, GPU, attention]
            kind = f"{family}-{attention.partition('=')[2]}"
            self.train(f"{kind}-plain", *options, "update.overlap=off")
            for name, more in tried.items():
                with self.subTest(family=family, attention=attention, schedule=name):
                    self.train(f"{kind}-{name}", *options, *more)
                    self.assert_same_state(f"{kind}-plain", f"{kind}-{name}")

    def test_ranks_that_share_it_give_the_bits_of_one(self):
        options = [*MODELS["llama"], *SHORT, GPU, OWN, "device.share-gpu=true"]
        self.train("one", *options)
        for name, more in {"two": [], "two-host": ["parameters.home=host"], "two-node": ["parameters.home=node"]}.items():
            self.train(name, *options, *more, ranks=2)
            self.assert_same_state("one", name)

    def test_a_restart_goes_on_with_the_same_bits(self):
        for dtype in ("fp16",) if ON_CPU and not ALL else ("bf16", "fp16"):
            options = [*MODELS["llama"], *SHORT, f"numerics.dtype={dtype}", "optimizer.schedule=constant", GPU, OWN]
            self.train(f"{dtype}-straight", *options, "train.steps=4")
            self.train(f"{dtype}-halves", *options, "train.steps=2")
            self.train(f"{dtype}-halves", *options, "train.steps=4")
            self.assert_same_state(f"{dtype}-straight", f"{dtype}-halves")

    def test_too_little_memory_is_found_before_the_first_step(self):
        result = self.train("small", *MODELS["llama"], GPU, "device.memory=512KiB", expect=64)
        self.assertEqual(1, len(result.errors), result)
        self.assertIn("device.memory", result.errors[0])
        self.assertFalse((self.folder / "small").exists())

    @unittest.skipUnless(ON_CPU, "a real GPU has the memory it has: not run")
    def test_ranks_that_share_it_have_equal_parts_of_its_memory(self):
        self.addCleanup(os.environ.pop, "CUDA_ON_CPU_MEMORY")
        os.environ["CUDA_ON_CPU_MEMORY"] = "2049MiB"  # of its part each leaves 1 GiB to its libraries
        options = [*MODELS["llama"], *ONE_STEP, GPU, "device.share-gpu=true"]
        self.train("one", *options)
        result = self.train("two", *options, ranks=2, expect=64)
        self.assertRegex(result.errors[0], r"the device's memory, 512 KiB, is too small: .* are needed")
        result = self.train("three", *options, ranks=3, expect=64)
        self.assertRegex(result.errors[0], r"2.00 GiB of GPU 0 \(.*\) are free, and each of its ranks \(here 3\) leaves 1.00 GiB")

    def test_auto_takes_the_gpus_where_there_is_one_for_each_rank(self):
        alone = self.train("auto", *MODELS["llama"], *ONE_STEP, AUTO)
        self.assertRegex(alone.out, r"rank 0 .* GPU [0-9A-Fa-f]+:")
        self.assertEqual([], alone.warnings)

    def test_more_ranks_than_gpus_compute_on_the_cores_with_auto_and_are_an_error_with_cuda(self):
        options = [*MODELS["llama"], *ONE_STEP]
        ranks, there = gpus() + 1, f"{gpus()} GPU{'' if gpus() == 1 else 's'}"
        crowded = self.train("auto", *options, AUTO, ranks=ranks)
        self.assertEqual(1, len(crowded.warnings), crowded)
        self.assertIn("device.kind=auto computes on the cores", crowded.warnings[0])
        self.assertIn(f"the {ranks} ranks of their node see {there}", crowded.warnings[0])
        self.assertNotRegex(crowded.out, r"rank \d+ .* GPU [0-9A-Fa-f]+:")
        self.assertIn("device host", crowded.out)

        shared = self.train("shared", *options, AUTO, "device.share-gpu=true", ranks=ranks)
        self.assertEqual([], shared.warnings)
        self.assertRegex(shared.out, r"rank 1 .* GPU [0-9A-Fa-f]+:")

        refused = self.train("cuda", *options, GPU, ranks=ranks, expect=64)
        self.assertEqual(1, len(refused.errors), refused)
        self.assertIn(f"the {ranks} ranks of their node see {there}", refused.errors[0])
        self.assertIn("device.share-gpu", refused.errors[0])
        self.assertFalse((self.folder / "cuda").exists())

    def pretend(self, **variables):
        """What the driver and the GPU of tests/cuda_on_cpu are to be, until the test ends."""
        for name, value in variables.items():
            self.addCleanup(os.environ.pop, f"CUDA_ON_CPU_{name}", None)
            os.environ[f"CUDA_ON_CPU_{name}"] = value

    @unittest.skipUnless(ON_CPU, "a real driver is what it is: not run")
    def test_a_driver_that_is_too_old_is_said_and_not_taken_for_none(self):
        options = [*MODELS["llama"], *ONE_STEP]
        self.pretend(DRIVER="11040")
        automatic = self.train("auto", *options, AUTO, ranks=2)
        self.assertEqual(1, len(automatic.warnings), automatic)
        self.assertRegex(automatic.warnings[0],
                         r"device.kind=auto computes on the cores: the NVIDIA driver here knows CUDA up to 11\.4, and this "
                         r"program was built with [0-9]+\.[0-9]")
        self.assertIn("device host", automatic.out)
        refused = self.train("cuda", *options, GPU, expect=64)
        self.assertRegex(refused.errors[0], r"device.kind=cuda: the NVIDIA driver here knows CUDA up to 11\.4, .* set device.kind=host")
        self.pretend(DRIVER="0")
        self.assertEqual([], self.train("none", *options, AUTO).warnings)
        self.assertIn("there is no NVIDIA driver here", self.train("no-cuda", *options, GPU, expect=64).errors[0])

    @unittest.skipUnless(ON_CPU, "a real GPU is what it is: not run")
    def test_a_rank_that_sees_no_gpu_where_another_does_is_said(self):
        hidden = self.write("hidden.sh", '#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && export CUDA_ON_CPU_DEVICES=0\nexec "$@"\n')
        hidden.chmod(0o755)
        command = self.command("run", *MODELS["llama"], *ONE_STEP, AUTO, ranks=2)
        at = command.index(OFFSTAGE)
        result = self.call(*command[:at], hidden, *command[at:])
        self.assertEqual(0, result.code, result)
        self.assertEqual(1, len(result.warnings), result)
        self.assertIn("device.kind=auto computes on the cores: not all ranks see a GPU; rank 1: no GPU is to be seen here",
                      result.warnings[0])
        # In a job that was given GPUs, such a node is broken: another attempt may get others.
        command = self.command("job", *MODELS["llama"], *ONE_STEP, AUTO, ranks=2)
        with mock.patch.dict(os.environ, {"SLURM_GPUS_ON_NODE": "1"}):
            result = self.call(*command[:at], hidden, *command[at:])
        self.assertEqual(74, result.code, result)
        self.assertIn("device.kind=auto: Slurm gave this job GPUs here, but no GPU is to be seen here", result.errors[0])
        self.assertFalse((self.folder / "job").exists())

    @unittest.skipUnless(ON_CPU, "a real GPU is what it is: not run")
    def test_a_job_with_gpus_does_not_compute_on_the_cores(self):
        options = [*MODELS["llama"], *ONE_STEP]
        cases = {"lost": ({"DEVICES": "0"}, 1, 74, r"no GPU is to be seen here.*exclude the node"),
                 "container": ({"DRIVER": "0"}, 1, 74, r"no NVIDIA driver here \(a container gets it by apptainer --nv\)"),
                 "old": ({"DRIVER": "11040"}, 1, 64, r"knows CUDA up to 11\.4, .*; correct that, or set device.kind=host"),
                 "one-lost": ({"DEVICES": "1"}, 2, 74, r"Slurm gave 2 GPUs of their node, and CUDA shows 1"),
                 "busy": ({"BUSY": "1"}, 1, 74, r"GPU 0000:01:00\.0 \(CUDA on the CPU\) on \S+ does not let this process in")}
        for name, (pretended, ranks, code, said) in cases.items():
            for kind in GPU, AUTO:
                with self.subTest(case=name, kind=kind), mock.patch.dict(
                        os.environ, {"SLURM_GPUS_ON_NODE": "2", **{f"CUDA_ON_CPU_{k}": v for k, v in pretended.items()}}):
                    result = self.train(f"{name}-{kind}", *options, kind, ranks=ranks, expect=code)
                    self.assertRegex(result.errors[0], said)
                    self.assertFalse((self.folder / f"{name}-{kind}").exists())

    @unittest.skipUnless(ON_CPU, "a real GPU is what it is: not run")
    def test_memory_that_others_use_is_said(self):
        self.pretend(OTHERS="2.9GiB")
        result = self.train("run", *MODELS["llama"], *ONE_STEP, GPU)
        self.assertRegex(result.warnings[0], r"GPU 0000:01:00\.0 \(.*\) on \S+: 2\.90 GiB of its 4\.00 GiB are used by other processes")
        self.pretend(OTHERS="3145472KiB")
        result = self.train("small", *MODELS["llama"], *ONE_STEP, GPU, "device.memory=3GiB", expect=64)
        self.assertIn("what is free of the device's memory, 256 KiB, is too small", result.errors[0])

    @unittest.skipUnless(ON_CPU, "a real GPU is what it is: not run")
    def test_a_gpu_that_is_too_old_is_refused_by_name_before_anything_is_made(self):
        self.pretend(CAPABILITY="7.5")
        for kind in GPU, AUTO:
            result = self.train("turing", *MODELS["llama"], *ONE_STEP, kind, expect=64)
            self.assertRegex(result.errors[0], r"GPU 0 \(CUDA on the CPU\) has compute capability 7\.5, and 8\.0 is the least")
            self.assertFalse((self.folder / "turing").exists())

    @unittest.skipUnless(ON_CPU, "pins what it can: not run")
    def test_memory_that_cannot_be_pinned_is_said_and_changes_no_bits(self):
        options = [*MODELS["llama"], *SHORT, GPU, "update.device-share=0.5", "update.device-chunk=4096"]
        self.assertEqual([], self.train("pinned", *options).warnings)
        for most in "0", "64KiB":
            with self.subTest(most=most):
                self.pretend(PINNED=most)
                result = self.train(f"pageable-{most}", *options)
                self.assertEqual(1, len(result.warnings), result)
                self.assertIn("cannot pin", result.warnings[0])
                self.assert_same_state("pinned", f"pageable-{most}")

    def test_waiting_for_every_launch_changes_no_bits(self):
        options = [*MODELS["gpt2"], *SHORT, GPU, OWN]
        self.train("plain", *options)
        self.train("checked", *options, "device.check=launches")
        self.assert_same_state("plain", "checked")

    @unittest.skipUnless(ON_CPU, "kernels do not fail by order: not run")
    def test_a_kernel_that_fails_is_named_with_its_caller(self):
        self.pretend(FAULT="40")
        options = [*MODELS["llama"], *ONE_STEP, GPU]
        checked = self.train("checked", *options, "device.check=launches", expect=1)
        self.assertRegex(checked.errors[0], r"CUDA: .*: an illegal memory access was encountered, launched by .*(kernels::cuda|BlasLt)")
        self.assertNotIn("launch.cuh", checked.errors[0])
        later = self.train("later", *options, expect=1)
        self.assertIn("device.check=launches", later.errors[0])
        self.assertRegex(later.errors[0], r"\(GPU 0000:01:00\.0 \(CUDA on the CPU\) on \S+\)")

    def test_the_header_says_who_computes_attention(self):
        asked = [*MODELS["llama"], *ONE_STEP, "numerics.dtype=bf16", GPU]
        self.assertRegex(self.train("auto", *asked).out, r"attention: (own kernels \(cuDNN: .*\)|cuDNN [0-9.]+ \(eng.*\), workspace .*)")
        self.assertIn("attention: own kernels (device.attention=own)", self.train("own", *asked, "device.attention=own").out)
        refused = self.train("fp32", *asked, "numerics.dtype=fp32", "device.attention=cudnn", expect=64)
        self.assertRegex(refused.errors[0], "device.attention=cudnn, but cuDNN: .*; correct that, or set device.attention=auto")
        on_host = self.train("host", *asked, CPU, "device.attention=cudnn", expect=64)
        self.assertIn("device.attention=cudnn is for GPUs", on_host.errors[0])
        self.assertRegex(self.train("cores", *asked, CPU).out, "attention: bf16 (products by|widened to)")

    def test_the_header_and_checkpoints_say_the_version_of_cublaslt(self):
        result = self.train("run", *MODELS["llama"], *ONE_STEP, GPU)
        version = re.search(r"device .*, (cuBLASLt [0-9]+\.[0-9]+\.[0-9]+)$", result.out, re.MULTILINE)
        self.assertIsNotNone(version, result)
        master = (self.folder / "run" / "checkpoints" / "step-000000001" / "master.h5").read_bytes()
        self.assertRegex(master, rb"offstage [0-9.]+ \([^)]*; " + version[1].encode() + rb"(, cuDNN [0-9.]+ \([^)]*\))?\)")


if __name__ == "__main__":
    main()
