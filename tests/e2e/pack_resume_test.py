#!/usr/bin/env python3
"""A pack that ends anywhere: the same command goes on and leaves the bytes of one that nothing disturbed. $FAULTY_FILES is
preloaded, see tests/sweep/faulty_files.cpp; tests/sweep/power_loss.py says what a disk may hold after a loss of power."""
import errno
import fcntl
import functools
import gzip
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

from harness import ALL, OFFSTAGE, OffstageTest, in_turn, main

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "sweep"))
# pylint: disable=wrong-import-position
from cases import CHANGING  # noqa: E402
from power_loss import Disk, images, read_events, write_image  # noqa: E402

LOCKED, USAGE, DATA, IO = 1, 64, 65, 74
# Of a pack's calls that change something, one in so many is tried as its last.
EVERY = {} if ALL else {"bytes": 11, "rows": 8, "chats": 17}
TOKENIZER = Path(__file__).resolve().parent.parent / "tokens" / "files" / "gpt2.json"
SENTENCES = Path(__file__).resolve().parent.parent / "data" / "sea.model"
TEMPLATE = 'eos = "<|endoftext|>"\nuser = "<|im_start|>{content}\\n"\nassistant = "{learn}{content}{eos}{/learn}\\n"\n'


def zstd_of(data):
    """Frames of zstd that hold `data` as it is."""
    frames = []
    for begin in range(0, len(data), 1 << 16):
        part = data[begin:begin + (1 << 16)]
        header = b"\x28\xb5\x2f\xfd" + bytes([0xA0]) + struct.pack("<I", len(part))  # single segment, size of 4 bytes
        frames.append(header + struct.pack("<I", len(part) << 3 | 1)[:3] + part)
    return b"".join(frames)


@functools.cache
def inputs():
    """Texts by name, the same ones for each test."""
    numbers = random.Random(2)
    words = ["ship", "waits", "for", "nothing", "tide", "leaves", "the", "harbour"]
    def text(count):
        return " ".join(numbers.choices(words, k=count))
    # Three batches of 1 MiB and some, then several files of one.
    lines = "".join(text(40) + "\n" for _ in range(15_000))
    rows = "".join(json.dumps({"text": text(8)}) + "\n" for _ in range(300)).encode()
    # A batch of 16384 documents and some.
    chats = "".join(
        json.dumps({"messages": [{"role": "user", "content": text(1)}, {"role": "assistant", "content": text(1 + i % 2)}]}) + "\n"
        for i in range(20_000))
    return {"lines.txt": lines.encode(), "rows.jsonl.gz": gzip.compress(rows), "rows.jsonl.zst": zstd_of(rows * 5),
            "chats.jsonl.gz": gzip.compress(chats.encode())}


class PackResume(OffstageTest):
    def setUp(self):
        super().setUp()
        self.work = self.folder / "work"
        self.work.mkdir()
        texts = {name: self.write(name, contents) for name, contents in inputs().items()}
        self.lines, self.chats = texts["lines.txt"], texts["chats.jsonl.gz"]
        self.template = self.write("template.txt", TEMPLATE)
        self.commands = {
            "bytes": ["--from", self.lines, self.text, "--documents=line", "--tokenizer=bytes", "--format=nanogpt"],
            "rows": ["--from", self.folder / "rows.jsonl.*", self.folder / "rows.jsonl.gz", "--tokenizer", TOKENIZER,
                     "--format=megatron"],
            "chats": ["--from", self.chats, self.chats, "--tokenizer", TOKENIZER, "--template", self.template, "--format=megatron"],
        }

    def pack(self, name, *options, expect=0):
        result = self.call(OFFSTAGE, "data", "pack", *self.commands[name], "--to=work/out", "--progress=0",
                           *(options or ("--threads=2", "--save=0")))
        self.assertIn(result.code, expect if isinstance(expect, tuple) else (expect,), result)
        return result

    def contents(self, folder=None):
        return {path.name: path.read_bytes() for path in (folder or self.work).iterdir()}

    def killed(self, number, name):
        """A pack that is killed at its call of this number that changes something; true if it was."""
        with self.faulty(self.work, calls=",".join(CHANGING), after=number, error="KILL"):
            return self.pack(name, expect=(0, -signal.SIGKILL)).code != 0

    def straight(self, name):
        """The files of a pack that nothing disturbs, and how many calls change something."""
        with self.faulty(self.work, calls=",".join(CHANGING), times=0):
            self.pack(name)
        files = self.contents()
        self.assertFalse([name for name in files if name.endswith(".part")])
        self.clear()
        return files, len(self.log.read_text().splitlines())

    def clear(self):
        shutil.rmtree(self.work)
        self.work.mkdir()

    def check_nothing_half(self, whole, said):
        """What has its name is whole. The note of the tokenizer comes last."""
        found = self.contents()
        for name, data in found.items():
            if not name.endswith(".part"):
                self.assertEqual(whole[name], data, f"{name} {said}")
        if "out.bin" in found:
            later = {"out.tokenizer"} if "out.pack.part" in found else set()
            self.assertEqual(set(), whole.keys() - found.keys() - later, said)

    def test_killed_at_any_call_it_goes_on_with_the_same_bytes(self):
        for name in self.commands:
            whole, calls = self.straight(name)
            self.assertGreater(calls, 20, name)
            for number in range(0, calls, EVERY.get(name, 1)):
                with self.subTest(f"{name}, call {number}"):
                    self.assertTrue(self.killed(number, name))
                    self.check_nothing_half(whole, number)
                    if "out.bin" not in self.contents() or "out.pack.part" in self.contents():
                        self.pack(name)
                    self.assertEqual(whole, self.contents())
                self.clear()

    def test_killed_again_and_again_it_comes_to_its_end(self):
        numbers = random.Random(3)
        for name in self.commands:
            whole, calls = self.straight(name)
            for _ in range(3):
                kills = 0
                while "out.bin" not in self.contents() or "out.pack.part" in self.contents():
                    kills += self.killed(numbers.randrange(8, calls // 2), name)
                self.assertGreater(kills, 0)
                self.assertEqual(whole, self.contents())
                self.clear()

    def test_a_loss_of_power_at_any_moment_loses_nothing_that_was_saved(self):
        whole, _ = self.straight("rows")
        disk = Disk(self.work)
        with self.faulty(self.work, times=0, record=self.folder / "recording"):
            self.pack("rows")
        count = 0
        for number, mode, image in images(disk, read_events(self.folder / "recording", self.work)):
            count += 1
            with self.subTest(f"event {number}, {mode}"):
                write_image(image, self.work)
                self.check_nothing_half(whole, number)
                if "out.bin" not in image or "out.pack.part" in image:
                    self.pack("rows")
                self.assertEqual(whole, self.contents())
        self.assertGreater(count, 20)

    def test_a_full_disk_ends_it_by_name_and_the_same_command_goes_on(self):
        wholes = {name: self.straight(name)[0] for name in ("bytes", "chats")}
        failing = ("write", errno.ENOSPC), ("sync", errno.EIO), ("truncate", errno.EIO)
        for (name, whole), (calls, error), after in in_turn(list(wholes.items()), failing, (0, 1, 2, 4, 8, 16, 30)):
            with self.subTest(f"{name}, {calls} {after}"):
                with self.faulty(self.work, calls=calls, after=after, error=error):
                    result = self.pack(name, expect=(0, IO))
                if result.code != 0:
                    self.assertIn(os.strerror(error), result.errors[0])
                    self.check_nothing_half(whole, after)
                    saved = "out.pack.part" in self.contents()
                    self.assertEqual(saved, "the same command goes on behind" in result.out, result)
                    self.assertTrue(saved or not self.contents(), self.contents().keys())
                    self.pack(name)
                self.assertEqual(whole, self.contents())
            self.clear()

    def test_a_signal_saves_and_the_same_command_goes_on(self):
        text = self.write("long.txt", "".join(f"line {i * i} of a long text that takes some seconds\n" for i in range(200_000)))
        command = [OFFSTAGE, "data", "pack", "--from", text, "--to", self.work / "out", "--tokenizer", TOKENIZER,
                   "--documents=line", "--format=megatron", "--progress=0", "--threads=1"]
        self.assertEqual(0, self.call(*command).code)
        whole = self.contents()
        part = self.work / "out.bin.part"
        for number in signal.SIGTERM, signal.SIGINT:
            for _ in range(20):  # on a busy machine the pack may be done before the signal
                self.clear()
                with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as pack:
                    while pack.poll() is None and not (part.exists() and part.stat().st_size > 1024):
                        time.sleep(0.005)
                    pack.send_signal(number)
                    said = pack.communicate()[0]
                if pack.returncode != 0:
                    break
            self.assertEqual(75, pack.returncode, said)
            self.assertIn(f"stopped by signal {int(number)}\n", said)
            self.assertRegex(said, r"out\.pack\.part: the same command goes on behind [1-9]\d* tokens\n")
            self.assertIn("this one goes on there", self.call(*command).out)
            self.assertEqual(whole, self.contents())

    def test_a_signal_ends_a_pack_in_the_middle_of_a_document(self):
        text = self.write("large.txt", " ".join(f"ship {i * i} tide" for i in range(200_000)))
        command = [OFFSTAGE, "data", "pack", "--from", text, "--to", self.work / "out", "--tokenizer", SENTENCES, "--progress=0", "--threads=1"]
        with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as pack:
            while pack.poll() is None and not (self.work / "out.bin.part").exists():
                time.sleep(0.005)
            time.sleep(0.5)  # some of the seconds that the document takes
            pack.send_signal(signal.SIGTERM)
            said = pack.communicate()[0]
        self.assertEqual(75, pack.returncode, said)
        self.assertIn("the same command goes on behind 0 tokens\n", said)
        self.assertEqual(0, self.call(*command).code)
        self.assertEqual({"out.bin", "out.idx", "out.tokenizer"}, set(self.contents()))

    def kill_midway(self, name, places=2):
        """Kills a pack when it has saved so many places."""
        with self.faulty(self.work, calls="sync", file=self.work / "out.pack.part", after=places, error="KILL"):
            self.pack(name, expect=-signal.SIGKILL)
        self.assertEqual(places, (self.work / "out.pack.part").read_text().count('"documents-written"'))
        return self.contents()

    def test_warnings_at_the_end_count_what_was_packed_before_a_kill(self):
        lines = self.write("bad.txt", b"The ship \xff waits\n" * 40_000)
        self.commands = {"bad": ["--from", lines, "--documents=line", "--tokenizer", TOKENIZER, "--format=megatron", "--end-token=none"],
                         "chats": self.commands["chats"]}
        rows = gzip.decompress(self.chats.read_bytes()).replace(b'{"messages"', b'{"id": 7, "messages"')
        self.chats.write_bytes(gzip.compress(rows))
        for name, words in {"bad": "U+FFFD: 40000; the first", "chats": "does not use: id 40000"}.items():
            straight = self.pack(name).warnings
            self.assertIn(words, straight[-1])
            self.clear()
            self.kill_midway(name)
            self.assertEqual(straight, self.pack(name).warnings)
            self.clear()

    def test_other_options_are_refused_by_name_and_change_nothing(self):
        changes = {"--format=megatron": ["--format nanogpt, not megatron"], "--documents=blank": ["--documents line, not blank"],
                   "--field=x": ["--field left out, not x"], "--add-special-tokens=yes": ["--add-special-tokens no, not yes"],
                   f"--tokenizer={TOKENIZER}": ["--tokenizer bytes, not with contents"]}
        half = self.kill_midway("bytes")
        for option, words in changes.items():
            command = self.commands["bytes"]
            key = option.partition("=")[0]
            self.commands["bytes"] = [part for part in command if not str(part).startswith(key + "=")] + [option]
            result = self.pack("bytes", expect=USAGE)
            self.commands["bytes"] = command
            for word in [*words, "work/out.pack.part", "remove the .part files"]:
                self.assertIn(word, result.errors[0])
            self.assertEqual(half, self.contents())
        self.pack("bytes", "--threads=3", "--save=100")

    def test_another_template_or_tokenizer_is_one_of_other_contents(self):
        tokenizer = self.write("tokenizer/tokenizer.json", TOKENIZER.read_text())
        command = self.commands["chats"]
        self.commands["chats"] = [tokenizer.parent if part == TOKENIZER else part for part in command]
        whole, _ = self.straight("chats")
        self.kill_midway("chats")
        for path, name in (tokenizer, "--tokenizer"), (self.template, "--template"):
            contents = path.read_text()
            path.write_text(contents + "\n")
            self.assertRegex(self.pack("chats", expect=USAGE).errors[0], f"begun with {name} with contents [0-9a-f]+, not with")
            path.write_text(contents)
        config = self.write("tokenizer/tokenizer_config.json", '{"eos_token": "<|im_start|>"}')
        self.assertRegex(self.pack("chats", expect=USAGE).errors[0], r"begun with --end-token \S+.*, not token \d+")
        config.unlink()
        self.assertIn("begun with --longest 0, not 9", self.pack("chats", "--longest=9", expect=USAGE).errors[0])
        self.pack("chats")
        self.assertEqual(whole, self.contents())

    def test_a_pack_of_another_build_is_refused_by_its_commit(self):
        half = self.kill_midway("bytes")
        progress = self.work / "out.pack.part"
        progress.write_bytes(half["out.pack.part"].replace(b", commit ", b", commit x", 1))
        self.assertRegex(self.pack("bytes", expect=USAGE).errors[0], r"begun with offstage [0-9.]+, commit x\S+, not [0-9.]+, commit ")
        progress.write_bytes(half["out.pack.part"])
        self.pack("bytes")

    def test_a_text_that_changed_is_refused_as_far_as_it_was_read(self):
        command = self.commands["bytes"]
        parts = [self.write(f"part{i}.txt", self.lines.read_bytes()[i::3]) for i in range(3)]
        later = self.folder / "later.txt"
        self.commands["bytes"] = ["--from", *parts, self.text, *command[3:]]
        half = self.kill_midway("bytes", 3)
        place = json.loads((self.work / "out.pack.part").read_text().splitlines()[-1])
        self.assertEqual(1, place["text"])
        self.assertGreater(place["documents"], 0)
        original = parts[0].stat()
        os.utime(parts[0], ns=(0, 0))
        self.assertIn(f"--from={parts[0]} has changed since it was packed", self.pack("bytes", expect=DATA).errors[0])
        os.utime(parts[0], ns=(original.st_atime_ns, original.st_mtime_ns))
        data = parts[1].read_bytes()
        parts[1].write_bytes(b"S" + data[1:])
        self.assertIn(f"--from={parts[1]}: its first {place['documents']} documents are not those that were packed",
                      self.pack("bytes", expect=DATA).errors[0])
        parts[1].write_bytes(data[:1000])
        self.assertIn(f"--from={parts[1]}: its first", self.pack("bytes", expect=DATA).errors[0])
        parts[1].write_bytes(data)
        self.commands["bytes"][1] = later
        later.write_bytes(b"x")
        self.assertIn(f"text 1 of --from was {parts[0]} for this pack, and is {later} now", self.pack("bytes", expect=USAGE).errors[0])
        self.commands["bytes"] = ["--from", parts[0], *command[3:]]
        self.assertIn("text 2 of --from was a file that was read in part for this pack, and is none now",
                      self.pack("bytes", expect=USAGE).errors[0])
        self.assertEqual(half, self.contents())
        self.commands["bytes"] = ["--from", *parts, self.text, *command[3:]]
        # What comes later may change: the bytes are those of a pack of what is there now.
        parts[2].write_bytes(b"another end\n")
        result = self.pack("bytes")
        self.assertIn(f"an earlier pack reached {place['tokens']} tokens in {place['documents-written']} documents; this one goes on there", result.out)
        resumed = self.contents()
        self.clear()
        self.pack("bytes")
        self.assertEqual(resumed, self.contents())

    def test_a_line_that_is_no_json_ends_it_and_once_mended_it_goes_on(self):
        rows = [json.dumps({"text": f"the ship {i}"}) for i in range(40_000)]
        path = self.write("bad.jsonl", "\n".join([*rows[:35_000], "no json", *rows[35_000:]]))
        self.commands["bad"] = ["--from", path, "--tokenizer=bytes", "--format=megatron"]
        result = self.pack("bad", expect=DATA)
        self.assertIn("line 35001", result.errors[0])
        self.assertIn("the same command goes on behind", result.out)
        path.write_text("\n".join(rows))
        self.assertIn("goes on there", self.pack("bad").out)
        resumed = self.contents()
        self.clear()
        self.pack("bad")
        self.assertEqual(resumed, self.contents())

    def test_a_second_pack_into_the_same_files_is_refused(self):
        self.kill_midway("bytes")
        with (self.work / "out.pack.part").open("r+b") as file:
            fcntl.fcntl(file, 37, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))  # F_OFD_SETLK
            self.assertIn("another process packs into these files", self.pack("bytes", expect=LOCKED).errors[0])
        self.pack("bytes")

    def test_a_damaged_progress_file_is_named(self):
        half = self.kill_midway("bytes")
        progress = self.work / "out.pack.part"
        for damaged in (b"precious\n", b"\0" * 100 + half["out.pack.part"], half["out.pack.part"].replace(b'"tokens"', b'"tokns"')):
            progress.write_bytes(damaged)
            self.assertIn("out.pack.part is no progress of a pack, or is damaged", self.pack("bytes", expect=DATA).errors[0])
            self.assertEqual(damaged, progress.read_bytes())
        # A line that was not written to its end was never said.
        progress.write_bytes(half["out.pack.part"] + b'{"text":1,"docu')
        self.pack("bytes")
        (self.work / "out.bin").unlink()
        (self.work / "out.bin.part").write_bytes(b"precious")
        self.assertIn("out.bin.part is there already; no pack says that it left it", self.pack("bytes", expect=USAGE).errors[0])
        left = self.contents()
        self.assertEqual(b"precious", left.pop("out.bin.part"))
        self.assertEqual(["out.tokenizer"], list(left))


if __name__ == "__main__":
    main()
