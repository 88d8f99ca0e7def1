#!/usr/bin/env python3
"""An export or an import that ends anywhere: what has its name is whole, and the same command makes the files of one that
nothing disturbed. $FAULTY_FILES is preloaded, see tests/sweep/faulty_files.cpp; tests/sweep/power_loss.py says what a disk
may hold after a loss of power."""
import collections
import errno
import itertools
import os
import shutil
import signal
import sys
from pathlib import Path

from harness import ALL, OFFSTAGE, OffstageTest, main

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "sweep"))
# pylint: disable=wrong-import-position
from cases import CHANGING, FAILING, KINDS, READING  # noqa: E402
from power_loss import Disk, images, read_events, write_image  # noqa: E402

USAGE, IO = 64, 74
TOKENIZER = Path(__file__).resolve().parent.parent / "tokens" / "files" / "gpt2.json"
LARGER = ("model.hidden=128", "model.ffn-hidden=512", "model.vocab=1024", "train.steps=2", "data.format=text")  # two files of 1 MiB and some
EVERY = 10  # unless ALL, of the calls that look, of kills and of losses of power one in so many is tried, or gone on from
EVERY_CHANGE = 3  # the same of other calls
LOOKING = (*READING, "open", "opendir", "close")
# What a reader takes for a model, or for a checkpoint, as soon as it is there.
MARK = {"export": "new/model/config.json", "import": "new/checkpoints/step-000000000/master.h5"}


class ConvertFaults(OffstageTest):
    maxDiff = 1000

    def setUp(self):
        super().setUp()
        self.work = self.folder / "work"
        self.work.mkdir()
        self.train("run", *LARGER)
        self.write("like/tokenizer.json", TOKENIZER.read_text())
        self.write("like/tokenizer_config.json", '{"eos_token": "<|endoftext|>"}')
        export = ["export", "--from=run", "--to=work/new/model", "--shard-size=1MiB", "--like=like"]
        self.commands = {"export": export, "import": ["import", "--from=straight/new/model", "--to=work/new/checkpoints"]}
        self.wholes = {}
        for name in self.commands:
            self.convert(name)
            self.wholes[name] = self.contents()
            shutil.copytree(self.work, self.folder / "straight", dirs_exist_ok=True)
            self.clear()

    def convert(self, name, expect=0):
        result = self.call(OFFSTAGE, *self.commands[name])
        self.assertIn(result.code, expect if isinstance(expect, tuple) else (expect,), result)
        return result

    def contents(self):
        """Bytes by names; of HDF5 files, which have times in them, the size."""
        return {str(path.relative_to(self.work)): path.stat().st_size if path.suffix == ".h5" else path.read_bytes()
                for path in self.work.rglob("*") if path.is_file()}

    def names(self):
        return sorted(self.folder.rglob("*"))

    def assert_whole(self, name, said=None):
        self.assertEqual(self.wholes[name], self.contents(), said)
        if name == "import":
            step = Path(MARK[name]).parent
            self.offstage("checkpoint", "diff", self.folder / "straight" / step, self.work / step)

    def clear(self):
        shutil.rmtree(self.work)
        self.work.mkdir()

    def calls(self, name, kinds):
        """(kind, path) of the calls of an undisturbed command, in order."""
        with self.faulty(self.folder, calls=",".join(kinds), times=0):
            self.convert(name)
        self.assert_whole(name)
        self.clear()
        return [tuple(line.split(" ", 1)) for line in self.log.read_text().splitlines()]

    def check_nothing_half(self, name, said):
        """A model or a checkpoint is whole if there is one."""
        if MARK[name] in self.contents():
            self.assert_whole(name, said)

    def check_goes_on(self, name, said):
        """The same command makes what is not there yet."""
        self.convert(name, expect=USAGE if MARK[name] in self.contents() else 0)
        self.assert_whole(name, said)

    def test_a_call_that_fails_once_leaves_all_or_nothing(self):
        for name in self.commands:
            calls, seen = self.calls(name, KINDS), collections.Counter()
            before = self.names()
            for number, (kind, path) in enumerate(calls):
                seen[kind, path] += 1
                if not ALL and (seen[kind, path] > 1 or number % (EVERY if kind in LOOKING else EVERY_CHANGE)):
                    continue
                error = errno.ENOSPC if kind in FAILING["ENOSPC"] else errno.EIO
                with self.subTest(f"{name}, {number}: {kind} {path}"):
                    with self.faulty(self.folder, calls=",".join(KINDS), after=number, times=1, error=error):
                        result = self.convert(name, expect=(0, IO))
                    self.assertIn(" failed\n", self.log.read_text())
                    if result.code == 0:
                        self.assert_whole(name)
                    else:
                        self.assertRegex(result.errors[0], f"{os.strerror(error)}|is free there|HDF5 could not look")
                        self.assertEqual(before, self.names(), "it left something, from which the same command would go on")
                self.clear()
            self.assertGreater(len(seen), 50, name)

    def test_killed_at_any_call_the_same_command_makes_it_anew(self):
        for name in self.commands:
            calls = self.calls(name, CHANGING)
            self.assertGreater(len(calls), 10, name)
            for number in range(0, len(calls), 1 if ALL else EVERY):
                with self.subTest(f"{name}, {number}: {calls[number]}"):
                    with self.faulty(self.folder, calls=",".join(CHANGING), after=number, error="KILL"):
                        self.convert(name, expect=-signal.SIGKILL)
                    self.check_nothing_half(name, number)
                    self.check_goes_on(name, number)
                self.clear()

    def test_what_is_removed_of_a_killed_export_may_fail_or_end_too(self):
        renames = [number for number, (kind, _) in enumerate(self.calls("export", CHANGING)) if kind == "rename"]
        for first, (way, after) in itertools.product(renames if ALL else renames[::EVERY // 2], (("KILL", 0), ("KILL", 2), (errno.EIO, 0), (errno.EIO, 2))):
            with self.subTest(f"killed at {first}, then {way} at {after}"):
                with self.faulty(self.folder, calls=",".join(CHANGING), after=first, error="KILL"):
                    self.convert("export", expect=-signal.SIGKILL)
                with self.faulty(self.work, calls="unlink,sync", after=after, times=1, error=way):
                    self.convert("export", expect=(-signal.SIGKILL, IO, 0))
                self.check_nothing_half("export", first)
                self.check_goes_on("export", first)
            self.clear()

    def test_files_of_others_stay(self):
        files = {"config.json.part": b"{}", "my-adapter.safetensors": b"mine", "tokenizer.json.part": b"half"}
        for name, data in files.items():
            self.write(f"work/new/model/{name}", data)
        for _ in range(2):
            self.assertIn("my-adapter.safetensors", self.convert("export", expect=USAGE).errors[0])
            self.assertEqual({f"new/model/{name}": data for name, data in files.items()}, self.contents())

    def test_a_loss_of_power_at_any_moment_leaves_what_was_said(self):
        for name in self.commands:
            disk = Disk(self.work)
            recording = self.folder / f"recording-{name}"
            with self.faulty(self.work, times=0, record=recording):
                self.convert(name)
            self.clear()
            count = 0
            for number, mode, image in images(disk, read_events(recording, self.work)):
                count += 1
                with self.subTest(f"{name}, event {number}, {mode}"):
                    write_image(image, self.work)
                    self.check_nothing_half(name, number)
                    if ALL or count % EVERY == 0:
                        self.check_goes_on(name, number)
            self.clear()
            self.assertGreater(count, 20)
            write_image(disk.image("lost"), self.work)  # the command has ended
            self.assert_whole(name)
            self.clear()


if __name__ == "__main__":
    main()
