#!/usr/bin/env python3
"""Layers between ranks that have a GPU each: by any comm.backend the same bits. Runs where there are several GPUs (label
gpu), and everywhere with a program whose CUDA code runs on the CPU and a library in NCCL's place (tests/cuda_on_cpu)."""
import os
import re
import subprocess
import unittest
from pathlib import Path

from harness import OffstageTest, main

MODEL = ["model.hidden=64", "model.heads=2", "model.kv-heads=1", "model.ffn-hidden=96", "train.global-batch=4",
         "train.sequence=16"]
GPU = "device.kind=cuda"
ON_CPU = os.path.basename(os.environ["OFFSTAGE"]) == "offstage_on_cpu"
NCCL = os.environ.get("NCCL_ON_CPU", "")


def gpus():
    if ON_CPU:
        return 4
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        return 0
    return listed.stdout.count("GPU ")


@unittest.skipUnless(gpus() >= 2, "no two GPUs: not run")
class BetweenGpus(OffstageTest):
    def setUp(self):
        super().setUp()
        if ON_CPU:
            before = dict(os.environ)
            self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
            os.environ["CUDA_ON_CPU_DEVICES"] = str(gpus())
            os.environ["LD_LIBRARY_PATH"] = f"{Path(NCCL).parent}:{before.get('LD_LIBRARY_PATH', '')}"

    def test_every_backend_gives_the_bits_of_one_rank(self):
        options = [*MODEL, "train.steps=3", GPU]
        self.train("one", *options)
        ways = {
            "auto": (r"NCCL 2\.", []),
            "nccl": (r"NCCL 2\.", ["comm.backend=nccl"]),
            "mpi": ("(CUDA-aware )?MPI", ["comm.backend=mpi"]),
            "nccl-host": (r"NCCL 2\.", ["comm.backend=nccl", "parameters.home=host"]),
            "mpi-host": ("(CUDA-aware )?MPI", ["comm.backend=mpi", "parameters.home=host"]),
        }
        for name, (said, more) in ways.items():
            ranks = 4 if name in ("nccl", "mpi-host") and gpus() >= 4 else 2
            with self.subTest(ranks=ranks, way=name):
                result = self.train(name, *options, *more, ranks=ranks)
                self.assertRegex(result.out, f"layers between ranks: {said}")
                self.assert_same_state("one", name)

    def test_state_on_storage_and_updates_under_backward_change_no_bits(self):
        (self.folder / "path").mkdir()
        options = [*MODEL, "train.steps=3", GPU]
        self.train("one", *options)
        self.train("two", *options, "comm.backend=nccl", "update.overlap=on", "parameters.home=storage",
                   f"--tiers.path={self.folder}/path,read=1GB/s,write=1GB/s", ranks=2)
        self.assert_same_state("one", "two")
        self.train("vertical", *options, "comm.backend=nccl", "train.schedule=vertical", "parameters.home=host", ranks=2)
        self.assert_same_state("one", "vertical")

    def test_ranks_that_share_a_gpu_go_by_mpi(self):
        options = [*MODEL, "train.steps=2", GPU, "device.share-gpu=true"]
        ranks = gpus() + 1
        result = self.train("shared", *options, ranks=ranks)
        self.assertRegex(result.out, "layers between ranks: (CUDA-aware )?MPI")
        self.assertIn("share a GPU", result.out)
        result = self.train("refused", *options, "comm.backend=nccl", ranks=ranks, expect=64)
        self.assertIn("comm.backend=nccl", result.errors[0])
        self.assertIn("share a GPU", result.errors[0])

    @unittest.skipUnless(ON_CPU, "a real GPU is what it is: not run")
    def test_slices_of_one_gpu_go_by_mpi(self):
        os.environ["CUDA_ON_CPU_MIG"] = "1"  # with UUIDs of their own and one place on the bus, as from CUDA 12 on
        result = self.train("slices", *MODEL, "train.steps=2", GPU, ranks=2)
        self.assertRegex(result.out, "layers between ranks: (CUDA-aware )?MPI.*share a GPU, which NCCL refuses")

    def test_what_nccl_takes_of_a_gpu_is_in_the_tables_of_plan_and_run(self):
        row = r"NCCL's buffers +([\d.]+ [MG]iB)"
        run = self.train("run", *MODEL, "train.steps=2", "run.header=full", GPU, ranks=2)
        model = [f"--{option}" for option in MODEL if option.startswith("model.")]
        plan = self.offstage("plan", *model, "--model.family=llama", "--model.layers=2", "--model.vocab=256",
                             "--device.kind=cuda", "--ranks=2")
        self.assertRegex(run.out, row)
        self.assertEqual("1.12 GiB", re.search(row, plan.out).group(1))
        if not ON_CPU:
            return  # takes what it takes
        self.assertEqual([], run.warnings)
        self.assertEqual("512 MiB", re.search(row, run.out).group(1), "of what it took, nothing, and what it may take yet")
        os.environ["NCCL_ON_CPU_MEMORY"] = str(1 << 30)
        most = self.train("most", *MODEL, "train.steps=2", "run.header=full", GPU, ranks=2)
        self.assertEqual([], most.warnings)
        self.assertEqual("1.12 GiB", re.search(row, most.out).group(1), "no more than was planned")
        os.environ["NCCL_ON_CPU_MEMORY"] = str(2 << 30)
        more = self.train("more", *MODEL, "train.steps=2", "run.header=full", GPU, ranks=2)
        self.assertEqual(1, len(more.warnings), more)
        self.assertIn("NCCL has taken 2.00 GiB of a GPU's memory, where 1.12 GiB were expected", more.warnings[0])
        self.assertEqual("2.50 GiB", re.search(row, more.out).group(1))
        self.assert_same_state("run", "more")

    def test_a_device_without_room_for_nccl_goes_by_mpi_or_says_what_helps(self):
        options = [*MODEL, "train.steps=2", GPU, "device.memory=700MiB"]
        auto = self.train("auto", *options, ranks=2)
        self.assertRegex(auto.out, "layers between ranks: (CUDA-aware )?MPI")
        self.assertIn("are more than the 700 MiB of the device", auto.warnings[0])
        self.assertNotIn("NCCL's buffers", auto.out)
        if not ON_CPU:
            return  # takes what it takes
        os.environ["NCCL_ON_CPU_MEMORY"] = str(2 << 30)
        asked = self.train("asked", *options, "comm.backend=nccl", ranks=2, expect=64)
        self.assertIn("NCCL's buffers need 2.50 GiB", asked.errors[0])
        self.assertRegex(asked.errors[0], "raise device.memory, or set comm.backend=mpi")

    def test_one_rank_needs_no_backend(self):
        result = self.train("one", *MODEL, "train.steps=2", GPU, "comm.backend=nccl")
        self.assertNotIn("layers between ranks", result.out)

    def test_the_emulated_device_has_no_nccl(self):
        result = self.train("host", *MODEL, "device.kind=host", "comm.backend=nccl", ranks=2, expect=64)
        self.assertIn("comm.backend=nccl", result.errors[0])

    def test_a_run_that_fails_ends(self):
        result = self.train("failed", *MODEL, GPU, "comm.backend=nccl", "train.max-bad-steps=1",
                            "optimizer.lr=1e30", "optimizer.clip=0", ranks=2, expect=65)
        self.assertIn("not finite", result.errors[0])


if __name__ == "__main__":
    main()
