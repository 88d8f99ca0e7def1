#!/usr/bin/env python3
"""Persistent storage paths: checkpoints by reference, killed runs, restarts on other ranks, disk use."""
import contextlib
import os
import random
import shutil
import signal
import struct
import time
from pathlib import Path

from harness import OFFSTAGE, OffstageTest, main

COMMON = ["checkpoint.every=2", "checkpoint.keep=2", "optimizer.schedule=constant", "tiers.cache=0"]


class Persistent(OffstageTest):
    def setUp(self):
        super().setUp()
        self.storage = self.folder / "storage"
        self.storage.mkdir()
        self.options = [*COMMON, f"tiers.path={self.storage},persistent"]

    def kill(self, name, process):
        for pid in self.processes(name):
            os.kill(pid, signal.SIGKILL)
        process.wait(60)
        self.wait_until(lambda: not self.processes(name), what="the end of all processes")

    def complete(self, name):
        return [c for c in self.checkpoints(name) if (c / "master.h5").exists()]

    def verify(self, name):
        for checkpoint in self.complete(name):
            result = self.call(OFFSTAGE, "checkpoint", "verify", checkpoint)
            self.assertEqual(0, result.code, result)

    def bytes_of(self, folder):
        """Disk space of a folder's files, each counted once however many names it has."""
        found = {}
        for directory, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # the run removed it just now
                    status = os.lstat(os.path.join(directory, name))
                    found[status.st_ino] = 0 if name in ("metrics.jsonl", "header.txt", "effective.cfg") else status.st_blocks * 512
        return sum(found.values())

    def test_the_bits_are_those_of_a_run_in_host_memory_and_nothing_is_copied(self):
        result = self.train("run", *self.options, ranks=2)
        self.assertRegex(result.out, r"persistent: up to \d+ more per rank for each checkpoint held")
        self.assertRegex(result.out, r"step +6  saved .* of it by reference")
        self.train("straight", *COMMON)
        self.assert_same_state("straight", "run")
        self.verify("run")
        for checkpoint in self.checkpoints("run"):
            self.assertTrue(list(checkpoint.glob("extent-0000-*.h5")))
            self.assertTrue(list(checkpoint.glob("extent-0001-*.h5")))
            self.assertLess((checkpoint / "rank-0000.h5").stat().st_size, 32768, "it holds checksums alone")
        self.assertEqual([], list(self.storage.iterdir()))
        self.assertFalse((self.folder / "run/checkpoints/slots").exists())
        listing = self.offstage("checkpoint", "ls", self.folder / "run/checkpoints")
        self.assertIn("step-000000006", listing.out)

    def test_a_killed_run_goes_on_with_any_number_of_ranks_and_any_path(self):
        process = self.start("run", *self.options, "train.steps=1000000", ranks=2)
        self.wait_for_step("run", 7, process)
        self.kill("run", process)
        self.assertTrue(list((self.folder / "run/checkpoints/slots").iterdir()), "slots that the next start removes")
        total = self.step_of(self.complete("run")[-1]) + 3
        self.train("straight", *COMMON, f"train.steps={total}")
        another = self.folder / "another"
        another.mkdir()
        for name, ranks, options in (
                ("one", 1, self.options),
                ("three", 3, self.options),
                ("moved", 2, [*COMMON, f"tiers.path={another},persistent"]),
                ("plain", 2, [*COMMON, f"tiers.path={another}"]),
                ("memory", 2, COMMON)):
            with self.subTest(name):
                shutil.copytree(self.folder / "run", self.folder / name)
                result = self.train(name, *options, f"train.steps={total}", ranks=ranks)
                self.assertRegex("".join(result.warnings), r"removed \d+ slots of a run that was killed")
                self.assert_same_state("straight", name)
                self.verify(name)
                self.assertFalse((self.folder / name / "checkpoints/slots").exists())
        self.assertEqual([], list(another.iterdir()))

    def test_killed_at_any_moment_it_loses_nothing(self):
        numbers = random.Random(3)
        options = [*self.options, "checkpoint.every=1", "train.steps=1000000"]
        last, unpruned = 0, 0
        for _ in range(6):
            process = self.start("run", *options, ranks=2)
            done = len(self.steps("run"))
            self.wait_until(lambda: len(self.steps("run")) > done, process, "a step")  # pylint: disable=cell-var-from-loop
            time.sleep(numbers.uniform(0, 0.3))
            self.kill("run", process)
            self.verify("run")
            steps = [self.step_of(c) for c in self.complete("run")] or [0]
            self.assertGreaterEqual(steps[-1], last)
            # The oldest goes once a save is complete: a run killed between the two leaves one more for the next save.
            unpruned = 1 if steps[-1] - last > 1 else unpruned + 1
            self.assertLessEqual(len(steps), 2 + unpruned, f"{steps}, and {last} before")
            last = steps[-1]
        self.train("run", *self.options, f"train.steps={last + 2}", ranks=2)
        self.train("straight", *COMMON, f"train.steps={last + 2}")
        self.assert_same_state("straight", "run")

    def test_disk_use_is_bounded_and_given_back(self):
        state = 12 * 34976
        process = self.start("run", *self.options, "checkpoint.every=1", "train.steps=40", ranks=2)
        most = 0
        while process.poll() is None:
            most = max(most, self.bytes_of(self.folder / "run"))
            time.sleep(0.02)
        self.assertEqual(0, process.returncode, self.finish("run", process))
        checkpoint = self.bytes_of(self.checkpoints("run")[-1])
        # The live slots with their spare ones (three per rank), the newest two, and the one being saved.
        extent = 12 * 4096 + 16384
        slots = (state // (12 * 4096) + 4 + 2 * 4) * extent
        self.assertLess(most, slots + 3 * checkpoint)
        self.assertEqual(2, len(self.checkpoints("run")))
        self.assertLess(self.bytes_of(self.folder / "run"), 2 * checkpoint + 65536)

    def test_damage_in_an_extent_is_found_and_passed_over(self):
        self.train("run", *self.options, "train.steps=4", ranks=2)
        newest = self.checkpoints("run")[-1]
        extent = sorted(newest.glob("extent-0001-*.h5"))[-1]
        with open(extent, "r+b") as file:
            file.seek(9000)
            byte = file.read(1)[0]
            file.seek(9000)
            file.write(bytes([byte ^ 1]))
        verdict = self.call(OFFSTAGE, "checkpoint", "verify", newest)
        self.assertEqual(65, verdict.code, verdict)
        self.assertIn(extent.name, verdict.out + verdict.err)
        result = self.train("run", *self.options, ranks=2)
        self.assertIn("continuing after step 2", result.out)
        self.train("straight", *COMMON)
        self.assert_same_state("straight", "run")

    def test_h5dump_reads_it_without_offstage(self):
        if shutil.which("h5dump") is None:
            self.skipTest("h5dump is not installed (package hdf5-tools)")
        self.train("run", *self.options, ranks=2)
        self.train("plain", *COMMON)
        values = []
        for name in "run", "plain":
            checkpoint = self.checkpoints(name)[-1]
            for group in "parameter", "momentum", "variance":
                raw = self.folder / f"{name}-{group}"
                dump = self.call("h5dump", "-d", f"/{group}/model.layers.0.mlp.gate_proj.weight", "-b", "LE", "-o", raw,
                                 checkpoint / "master.h5")
                self.assertEqual(0, dump.code, dump)
                values.append(struct.unpack(f"<{64 * 32}f", raw.read_bytes()))
        self.assertEqual(values[:3], values[3:])
        extent = sorted(self.checkpoints("run")[-1].glob("extent-*.h5"))[0]
        self.assertIn("/variance", self.call("h5dump", "-n", extent).out)

    def test_its_weights_are_exported_and_taken(self):
        self.train("run", *self.options, ranks=2)
        self.train("plain", *COMMON)
        for name in "run", "plain":
            self.export(name, f"{name}-out", "--dtype=fp32")
        self.assertEqual((self.folder / "run-out/model.safetensors").read_bytes(),
                         (self.folder / "plain-out/model.safetensors").read_bytes())

    def test_another_file_system_is_refused_at_the_start(self):
        shared = Path("/dev/shm")
        if not shared.is_dir() or shared.stat().st_dev == self.folder.stat().st_dev:
            self.skipTest("there is no second file system at /dev/shm")
        before = set(shared.iterdir())
        result = self.train("run", *COMMON, f"tiers.path={shared},persistent", ranks=2, expect=74)
        self.assertIn("another file system", result.errors[0])
        self.assertIn("leave persistent out", result.errors[0])
        self.assertFalse((self.folder / "run").exists())
        self.assertEqual(set(), {p for p in set(shared.iterdir()) - before if p.name.startswith("offstage-")})


if __name__ == "__main__":
    main()
