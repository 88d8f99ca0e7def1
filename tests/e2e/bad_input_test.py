#!/usr/bin/env python3
"""Bad input: one line from Offstage that names key, value or file and what would be right, the exit code
of the design, no process left and nothing written."""
import os
import re
import signal
import struct
import subprocess
import unittest

from harness import MPI, OFFSTAGE, OffstageTest, main
from partner_test import NODES, may_pretend

USAGE, DATA, IO, OTHER = 64, 65, 74, 1


class Refusals(OffstageTest):
    def refuse(self, code, words, *options, ranks=1, name="run"):
        """A run that must fail with this code and all these words in its one line."""
        before = self.snapshot()
        result = self.call(*self.command(name, *options, ranks=ranks))
        self.check(result, code, words)
        self.assertEqual(before, self.snapshot(), "the run wrote something")
        self.assert_no_process_left()

    def check(self, result, code, words):
        self.assertEqual(code, result.code, result)
        lines = [line for line in result.err.splitlines() if line.strip()]
        self.assertEqual(1, len(result.errors), result)
        self.assertEqual(result.errors, lines, result)
        for word in words:
            self.assertIn(str(word), lines[0])


class BadInput(Refusals):
    def test_an_unknown_key_names_the_nearest(self):
        self.refuse(USAGE, ["train.step", "train.steps"], "--train.step=5")
        self.refuse(USAGE, ["tiers.pth", "tiers.path"], "--tiers.pth=/tmp", ranks=2)
        config = self.write("a.cfg", "[train]\n# comment\nmicro_batch = 3\n")
        self.refuse(USAGE, [f"{config}:3", "micro_batch", "train.micro-batch"], f"--config={config}")

    def test_ranks_that_are_told_different_things(self):
        def together(*of_rank_1):
            of_rank_0 = self.command("run")
            of_rank_1 = self.command("run", *of_rank_1)
            # In one program, as Debian 13's mpirun crashes at `mpirun FIRST : SECOND`.
            script = 'if [ "$OMPI_COMM_WORLD_RANK" = 0 ]; then exec "${@:1:$0}"; else exec "${@:$0+1}"; fi'
            return self.call(MPI, "2", "bash", "-c", script, len(of_rank_0), *of_rank_0, *of_rank_1)
        for options, code, words in (
                (["optimizer.lr=1"], USAGE, ["optimizer.lr is 1 ", "0.01", "told the same"]),
                (["train.steps=3"], USAGE, ["train.steps is 3 "]),
                ([f"tiers.path={self.folder}"], USAGE, ["tiers.path is ", "empty (default) on rank 0"]),
                ([f"data.train={self.valid}"], DATA, [str(self.valid), "tokens", "same data"])):
            with self.subTest(options=options):
                result = together(*options)
                self.assertEqual(code, result.code, result)
                self.assertEqual(1, len(result.errors), result)
                for word in ["rank 1 on ", *words]:
                    self.assertIn(word, result.errors[0])
                self.assertFalse((self.folder / "run").exists())
        copy = self.write("copy.txt", self.text.read_bytes())
        self.assertEqual(0, together(f"data.train={copy}", "run.threads=2").code)

    def test_a_prefix_of_a_key_is_no_key(self):
        self.refuse(USAGE, ["train.sequenc", "train.sequence"], "--train.sequenc=5")

    def test_a_value_that_does_not_parse(self):
        self.refuse(USAGE, ["train.steps", "ten", "whole number"], "train.steps=ten")
        self.refuse(USAGE, ["tiers.host-memory", "12 parsecs", "MiB"], "tiers.host-memory=12 parsecs")
        self.refuse(USAGE, ["numerics.dtype", "fp8", "bf16", "fp32"], "numerics.dtype=fp8")
        self.refuse(USAGE, ["model.family", "gpt9", "llama"], "model.family=gpt9")
        self.refuse(USAGE, ["train.max-time", "soon", "30min"], "train.max-time=soon")

        self.refuse(USAGE, ["checkpoint.every", "often", "auto"], "checkpoint.every=often")
        self.refuse(USAGE, ["checkpoint.mtbf=0"], "checkpoint.mtbf=0")
        self.refuse(USAGE, ["train.time-margin", "late"], "train.time-margin=late")

    def test_a_key_that_is_missing(self):
        self.refuse(USAGE, ["train.steps"], "train.steps=")
        self.refuse(USAGE, ["data.train"], "data.train=")

    def test_a_config_file_that_is_not_there(self):
        self.refuse(USAGE, ["nowhere.cfg", "No such file"], "--config=nowhere.cfg")
        self.refuse(USAGE, [f"--config={self.folder}: it is a directory"], f"--config={self.folder}")

    def test_shapes_that_do_not_divide(self):
        self.refuse(USAGE, ["model.heads=5", "model.hidden=32"], "model.heads=5", "model.kv-heads=5", ranks=2)
        self.refuse(USAGE, ["model.kv-heads=3", "model.heads=4"], "model.kv-heads=3")
        self.refuse(USAGE, ["train.global-batch=7", "train.micro-batch=2", "6 or 8"], "train.global-batch=7")

    def test_lengths_that_do_not_fit(self):
        self.refuse(USAGE, ["train.sequence=24", "model.max-sequence=16"], "model.max-sequence=16")
        self.refuse(USAGE, ["optimizer.warmup-steps=6", "train.steps=6"], "optimizer.warmup-steps=6")
        self.refuse(USAGE, ["checkpoint.keep=1", "2"], "checkpoint.keep=1")

    def test_memory_that_does_not_suffice(self):
        self.refuse(USAGE, ["tiers.host-memory", "tiers.path"], "tiers.host-memory=512KiB", ranks=2)
        self.refuse(USAGE, ["tiers.host-memory", "raise it"], "tiers.host-memory=64KiB", ranks=2)  # no key helps
        self.refuse(USAGE, ["device.memory", "KiB"], "device.memory=16KiB")

    def test_a_byte_beyond_the_vocabulary(self):
        text = self.write("utf8.txt", b"x" * 1000 + "é".encode() + b"x" * 1000)
        self.refuse(DATA, [f"data.train={text}", "195", "1000", "model.vocab=128"], f"data.train={text}",
                    "model.vocab=128", "data.format=text", ranks=2)
        self.refuse(DATA, [f"data.valid={text}", "195"], f"data.valid={text}", "model.vocab=128", "data.format=text")

    def test_data_that_is_no_tokens_of_this_model(self):
        self.refuse(DATA, [f"data.train={self.text}", "looks like text", "model.vocab=1024", "data.format=text"],
                    "model.vocab=1024", ranks=2)
        for name, contents, words in (("a.npy", b"\x93NUMPY\1\0" + b"x" * 99, "NumPy"), ("a.txt", b"\x1f\x8b\x08\0" + b"x" * 99, "gzip"),
                                      ("a.jsonl", b'{"text": "a"}\n' * 50, "JSON"),
                                      ("a.bin", b"".join(i.to_bytes(8, "little") for i in range(200)), "int64"),
                                      ("b.bin", b"".join(i.to_bytes(4, "little") for i in range(200)), "int32")):
            self.refuse(DATA, [f"data.train={self.folder / name}", words], f"data.train={self.write(name, contents)}")
        wide = self.write("wide.bin", b"".join(i.to_bytes(4, "little") for i in range(70_000, 70_200)))
        self.refuse(DATA, [f"data.train={wide}", "2 bytes", "model.vocab=100000", "data pack --format=megatron"],
                    f"data.train={wide}", "model.vocab=100000", ranks=2)
        self.check(self.call(OFFSTAGE, "data", "inspect", wide, "--vocab=100000"), DATA, [wide, "--vocab=100000"])
        self.assertEqual(0, self.call(OFFSTAGE, "data", "inspect", wide).code, "no vocabulary is given")

    def test_data_that_is_missing_empty_or_short(self):
        nowhere = self.folder / "nowhere.txt"
        self.refuse(DATA, [f"data.train={nowhere}", "No such file"], f"data.train={nowhere}", ranks=2)
        empty = self.write("empty.txt", "")
        self.refuse(DATA, [f"data.train={empty}", "empty"], f"data.train={empty}")
        self.refuse(DATA, [f"data.train={self.folder}", "not a regular file"], f"data.train={self.folder}")
        short = self.write("short.txt", "x" * 24)
        self.refuse(DATA, [f"data.valid={short}", "24 tokens", "train.sequence=24", "25"], f"data.valid={short}")

    def test_a_storage_directory_that_is_missing_or_no_directory(self):
        nowhere = self.folder / "nowhere"
        self.refuse(IO, ["tiers.path", nowhere], f"tiers.path={nowhere}", ranks=2)
        self.refuse(IO, ["tiers.path", self.text], f"tiers.path={self.text}")

    def test_one_of_two_storage_directories_is_missing_or_the_same(self):
        there, nowhere = self.folder / "there", self.folder / "nowhere"
        there.mkdir()
        (self.folder / "link").symlink_to(there)
        self.refuse(IO, ["tiers.path", nowhere, "No such file"], f"--tiers.path={there}", f"--tiers.path={nowhere}",
                    ranks=2)
        self.refuse(USAGE, ["tiers.path", there, self.folder / "link", "same directory"], f"--tiers.path={there}",
                    f"--tiers.path={self.folder}/link", ranks=2)

    def test_attributes_of_a_storage_path_and_choices_that_do_not_fit_it(self):
        path = f"tiers.path={self.folder}"
        self.refuse(USAGE, ["tiers.path", "unknown attribute 'raed'", "read"], f"{path},raed=5GB/s", ranks=2)
        self.refuse(USAGE, ["tiers.path", "duplex=both", "half", "full"], f"{path},duplex=both")
        self.refuse(USAGE, ["tiers.path", "read=fast", "6.9GB/s"], f"{path},read=fast")
        self.refuse(USAGE, ["tiers.path", "queue-depth", "twice"], f"{path},queue-depth=4,queue-depth=8")
        self.refuse(USAGE, ["tiers.split=2:1", "tiers.path"], path, "tiers.split=2:1")
        self.refuse(USAGE, ["tiers.split", "even", "auto", "paper"], path, "tiers.split=even")

    @unittest.skipUnless(os.path.isdir("/dev/shm"), "no tmpfs at /dev/shm")
    def test_a_storage_directory_in_host_memory(self):
        self.refuse(USAGE, ["tiers.path=/dev/shm", "tiers.allow-tmpfs"], "tiers.path=/dev/shm",
                    "tiers.allow-tmpfs=false", ranks=2)

    def test_a_path_with_a_comment_sign(self):
        self.refuse(USAGE, ["tiers.path", "#"], f"tiers.path={self.folder}/a#b")

    def test_a_run_directory_that_cannot_be_made(self):
        self.refuse(IO, ["run.dir", self.text], name="train.txt")
        self.refuse(IO, ["run.dir", "train.txt"], name="train.txt/run", ranks=2)
        self.refuse(IO, ["checkpoint.dir", "train.txt"], f"checkpoint.dir={self.text}/checkpoints")

    def test_directories_that_are_not_writable(self):
        closed = self.folder / "closed"
        closed.mkdir(0o555)
        # Root writes everywhere, unless it gives up that right.
        plain_user = ["setpriv", "--bounding-set=-dac_override"] if os.getuid() == 0 else []
        for name, key, option in ("run", "tiers.path", f"tiers.path={closed}"), ("closed/run", "run.dir", "x="):
            result = self.call(*plain_user, *self.command(name, option, ranks=2))
            self.check(result, IO, [key, closed])
            self.assertFalse((self.folder / name).exists())

    def test_a_checkpoint_of_another_model(self):
        self.train("run", "train.steps=2")
        self.refuse(DATA, ["model.hidden", "64", "32"], "model.hidden=64", "train.steps=4", "run.trace=on", ranks=2)
        self.refuse(DATA, ["model.tied-head"], "model.tied-head=true", "train.steps=4")
        step = self.checkpoints("run")[0]
        self.refuse(DATA, ["model.layers"], "model.layers=3", f"checkpoint.resume={step}", name="other")

    def test_a_checkpoint_to_resume_from_that_is_not_there(self):
        step = self.folder / "nowhere/step-000000100"
        before = self.snapshot()
        result = self.call(*self.command("run", f"checkpoint.resume={step}"))
        self.assertIn(result.code, (DATA, IO), result)
        self.check(result, result.code, [step])
        self.assertEqual(before, self.snapshot())

    def test_links_and_pipes_in_the_place_of_a_runs_files_are_refused(self):
        target = self.write("target", "another's")
        run = self.folder / "run"
        (run / "checkpoints").mkdir(parents=True)
        self.write("run/metrics.jsonl", "")
        for name, options in (("lock", []), ("checkpoints/lock", []), ("trace-0.json", ["run.trace=on"]),
                              ("metrics.jsonl.new", []), ("metrics.jsonl", []), ("header.txt", []), ("header.txt.new", []),
                              ("effective.cfg", []), ("effective.cfg.new", [])):
            place = run / name
            for make, words in ((lambda path: path.symlink_to(target), "is a symbolic link"),
                                (os.mkfifo, "is no regular file")):
                with self.subTest(name=name, words=words):
                    place.unlink(missing_ok=True)
                    make(place)
                    self.refuse(IO, [place, words, "remove it"], *options)
                    self.assertEqual("another's", target.read_text())
            place.unlink()

    def test_checkpoints_that_are_links_are_no_runs_own(self):
        self.train("old", "train.steps=2", "optimizer.schedule=constant")
        old = self.checkpoints("old")[-1]
        link = self.folder / "run/checkpoints" / old.name
        link.parent.mkdir(parents=True)
        link.symlink_to(old)
        self.refuse(IO, ["checkpoint.dir", old.name, "symbolic link", "checkpoint.resume"], ranks=2)
        # What the user names may be a link: a checkpoint to begin with, and the directories themselves.
        started = link.rename(self.folder / "started")
        (self.folder / "there/checkpoints").mkdir(parents=True)
        (self.folder / "named").symlink_to(self.folder / "there")
        self.train("named", f"checkpoint.resume={started}", "optimizer.schedule=constant")
        self.assertEqual([6], [self.step_of(each) for each in self.checkpoints("there")])
        self.assertTrue((old / "master.h5").exists())

    @unittest.skipUnless(os.getuid() == 0, "only root gives directories away")
    def test_directories_of_another_user(self):
        run, checkpoints = self.folder / "run", self.folder / "checkpoints"
        for path, options in (run, []), (checkpoints, [f"checkpoint.dir={checkpoints}"]):
            path.mkdir()
            os.chown(path, 54321, -1)
            self.refuse(IO, [f"dir={path} belongs to user 54321", "run.allow-foreign=true"], *options, ranks=2)
            self.train("run", "run.allow-foreign=true", "train.steps=2", *options)
            os.chown(path, 0, -1)
            self.train("run", "train.steps=2", *options)

    def test_two_runs_on_one_directory(self):
        first = self.start("run", "train.steps=1000000", "optimizer.schedule=constant")
        self.wait_for_step("run", 1, first)
        second = self.call(*self.command("run", ranks=2))
        self.check(second, OTHER, [self.folder / "run", "run.dir"])
        third = self.call(*self.command("other", f"checkpoint.dir={self.folder}/run/checkpoints"))
        self.check(third, OTHER, [self.folder / "run/checkpoints", "checkpoint.dir"])
        self.assertFalse((self.folder / "other").exists())
        self.assertIsNone(first.poll(), "the first run must go on")
        (self.folder / "run/STOP").touch()
        self.assertEqual(75, self.finish("run", first).code)

    def test_a_directory_that_probe_cannot_use_is_named_by_its_option(self):
        nowhere = self.folder / "nowhere"
        for ranks in 1, 2:
            result = self.offstage("probe", "--quick", "--device.kind=host", "--dir", nowhere, ranks=ranks, expect=IO)
            self.assertEqual(1, len(result.errors), result)
            self.assertIn(f"--dir={nowhere}: No such file or directory", result.errors[0])

    def test_a_validation_in_which_no_target_counts(self):
        tokens, counted = 2000, 40  # the first window has 24 targets
        self.write("mask.bin", struct.pack(f"<{tokens}H", *(i % 256 for i in range(tokens))))
        self.write("mask.mask", b"OFFMASK1" + struct.pack("<4Q", tokens, 1, 0, 0)
                   + bytes(int(i == counted) for i in range(tokens)))
        self.write("train.bin", struct.pack(f"<{tokens}H", *(i % 128 for i in range(tokens))))
        data = [f"data.train={self.folder}/train.bin", f"data.valid={self.folder}/mask.bin", "data.format=nanogpt",
                "train.valid-every=3", "train.valid-batches=1"]
        for ranks in 1, 2:
            self.refuse(DATA, [f"data.valid={self.folder}/mask.bin: no target of the first 1 windows counts"],
                        *data, "train.micro-batch=1", ranks=ranks)
        self.train("run", *data, "train.micro-batch=2")

    def test_help_explains_keys_and_commands_and_nothing_else(self):
        all_keys = self.offstage("train", "--help").out.splitlines()
        found = self.offstage("help", "warmup").out.splitlines()
        self.assertEqual([line for line in all_keys if line.startswith("  --") and "warmup" in line.split()[0]], found)
        self.assertIn("--checkpoint.every", self.offstage("help", "checkpoint.").out)
        self.assertEqual(self.offstage("checkpoint", "--help").out, self.offstage("help", "checkpoint").out)
        self.check(self.offstage("help", "warmip", expect=USAGE), USAGE, ["unknown command 'warmip'"])

    def test_output_that_is_lost(self):
        self.train("run")
        for command in ["--help"], ["--version"], ["train", "--help"], ["checkpoint", "ls", self.folder / "run"]:
            with open("/dev/full", "wb") as full:
                done = subprocess.run([OFFSTAGE, *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual(IO, done.returncode, command)
            self.assertEqual("offstage: error: cannot write to standard output: No space left on device\n", done.stderr)
        with open("/dev/full", "wb") as full:
            done = subprocess.run(self.command("other"), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(0, done.returncode, "a training goes on without its output")
        self.assertIn("warning: lines are missing in standard output (No space left on device); run.dir has metrics.jsonl\n", done.stderr)

    def test_a_reader_that_went_away_is_no_error(self):
        reading, writing = os.pipe()
        os.close(reading)
        # A shell's children have SIGPIPE. Where it is ignored a write fails with EPIPE.
        for restored, code in (True, -signal.SIGPIPE), (False, 0):
            done = subprocess.run([OFFSTAGE, "--help"], stdout=writing, stderr=subprocess.PIPE, check=False,
                                  restore_signals=restored)
            self.assertEqual((code, b""), (done.returncode, done.stderr))
        os.close(writing)

    def test_commands_that_do_not_exist(self):
        self.check(self.call(OFFSTAGE, "trian"), USAGE, ["trian", "train"])
        self.check(self.call(OFFSTAGE, "checkpoint", "lss", self.folder), USAGE, ["lss", "ls"])
        self.check(self.call(OFFSTAGE, "checkpoint", "ls"), USAGE, ["checkpoint ls [--json] PATH"])

    @unittest.skipUnless(may_pretend(), "no right to a host name and mounts of its own")
    def test_a_node_that_does_not_see_what_others_see_is_named(self):
        local = self.folder / "local"
        local.mkdir()

        def run(hosts, name, *options):
            return self.call(NODES, hosts, str(local), str(self.folder / "nodes"), *self.command(
                name, "checkpoint.every=2", "train.steps=4", *options))
        there = f"checkpoint.dir={local}/checkpoints"
        self.assertEqual(0, run("n1:2", "run", there).code)
        before = sorted((self.folder / "nodes/n1").rglob("*"))
        (self.folder / "nodes/n1/only.txt").write_bytes(self.text.read_bytes())
        for name, option, words in (
                ("run", there, [there, "is not the directory that the first rank's node has there", "that all nodes share"]),
                ("other", f"checkpoint.resume={local}/checkpoints/step-000000004",
                 ["step-000000004 is there for another node, but not for this one"]),
                ("third", f"data.train={local}/only.txt", [f"data.train={local}/only.txt", "the first rank's node has it"])):
            with self.subTest(option):
                result = run("n1:1,n2:1", name, option)
                self.assertEqual(IO, result.code, result)
                for word in ["rank 1 on n2: ", *words]:
                    self.assertIn(word, result.errors[0])
        (self.folder / "nodes/n1/only.txt").unlink()
        self.assertEqual(before, sorted((self.folder / "nodes/n1").rglob("*")))

    @unittest.skipUnless(may_pretend(), "no right to a host name and mounts of its own")
    def test_level_1_on_storage_that_nodes_share_is_refused_by_that_name(self):
        local, shared = self.folder / "local", self.folder / "shared"
        local.mkdir()
        shared.mkdir()
        result = self.call(NODES, "n1:1,n2:1", str(local), str(self.folder / "nodes"), *self.command(
            "run", f"checkpoint.local={shared}", "checkpoint.local-every=1", "train.steps=4"))
        self.check(result, USAGE, ["checkpoint.local", "is one directory for several nodes"])
        self.assertEqual([], list(shared.iterdir()))


def on_small_disk(folder, megabytes, command, options=""):
    """The command with a small tmpfs at `folder`, in a mount namespace of its own."""
    mount = f'mount -t tmpfs -o size={megabytes}m{options} none "$0" && exec "$@"'
    return ["unshare", *([] if os.getuid() == 0 else ["-r"]), "-m", "sh", "-c", mount, str(folder), *command]


def may_mount():
    probe = on_small_disk("/mnt", 1, ["true"])
    try:
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@unittest.skipUnless(may_mount(), "no right to mount a small file system")
class NoSpace(Refusals):
    def test_no_space_for_the_state(self):
        disk = self.folder / "disk"
        disk.mkdir()
        for ranks in 1, 2:
            command = self.command("run", f"tiers.path={disk}", "model.hidden=256", "run.trace=on",
                                   "update.gradients=flush-fp32", "update.overlap=off", ranks=ranks)
            result = self.call(*on_small_disk(disk, 1, command))
            self.check(result, IO, ["tiers.path", disk, "1.00 MiB is free"])
            self.assertNotIn("tiers.split", result.err)
            self.assertFalse((self.folder / "run").exists())
        needed = re.search(r"needs ([\d.]+ MiB)", result.errors[0]).group(1)
        other = self.folder / "other"
        other.mkdir()
        result = self.call(*on_small_disk(disk, 1, [*command, f"--tiers.path={other}"]))
        self.check(result, IO, ["tiers.path", disk, "give it a smaller part (tiers.split)"])
        enough = self.call(*on_small_disk(disk, 64, [*command, "--train.steps=2"]))
        self.assertEqual(0, enough.code, enough)
        self.assertRegex(enough.out, r" \d+ state slots? of [^,]+, \d+ flushed gradient slots? of [^;]+; "
                                     rf"on this node {needed} of 64.0 MiB free")

    def test_no_inodes_are_told_from_no_space(self):
        disk = self.folder / "disk"
        disk.mkdir()
        result = self.call(*on_small_disk(disk, 8, self.command("run", f"run.dir={disk}/a/b/c"), ",nr_inodes=3"))
        self.check(result, IO, [f"run.dir={disk}/a/b/c", "No space left on device (it has no inodes left; see df -i)"])
        result = self.call(*on_small_disk(disk, 8, self.command("run", f"tiers.path={disk}"), ",nr_inodes=1"))
        self.check(result, IO, [f"tiers.path = {disk}: cannot create {disk}/offstage-", "(it has no inodes left; see df -i)"])
        result = self.call(*on_small_disk(disk, 8, self.command("run", f"checkpoint.dir={disk}"), ",nr_inodes=3"))
        self.check(result, IO, [f"{disk}/step-", ".h5: cannot create the file", "(it has no inodes left; see df -i)"])

    def test_no_space_for_second_versions(self):
        disk = self.folder / "disk"
        disk.mkdir()

        def run(name, megabytes, overlap):
            return self.call(*on_small_disk(disk, megabytes, self.command(
                name, f"tiers.path={disk}", "model.hidden=256", "train.steps=4", f"update.overlap={overlap}", ranks=2)))
        wide = run("wide", 64, "on")
        self.assertEqual(0, wide.code, wide)
        room = int(float(re.search(r"on this node ([\d.]+) MiB", wide.out).group(1))) - 1
        self.check(run("refused", room, "on"), IO, ["tiers.path", disk, "is free", "update.overlap = off"])
        self.assertEqual([], list(disk.iterdir()))
        result = run("without", room, "auto")
        self.assertEqual(0, result.code, result)
        self.assertEqual([], [step for step in self.steps("without") if "overlap" in step])

    @unittest.skipUnless(may_pretend(), "no right to a host name and mounts of its own")
    def test_nodes_that_share_a_path_count_its_space_once(self):
        disk, local = self.folder / "disk", self.folder / "local"
        disk.mkdir()
        local.mkdir()

        def run(name, megabytes, overlap):
            nodes = [NODES, "n1:1,n2:1", str(local), str(self.folder / "nodes")]
            return self.call(*on_small_disk(disk, megabytes, [*nodes, *self.command(
                name, f"tiers.path={disk}", "model.hidden=256", "train.steps=4", f"update.overlap={overlap}")]))
        wide = run("wide", 64, "on")
        self.assertEqual(0, wide.code, wide)
        room = int(2 * float(re.search(r"on this node ([\d.]+) MiB", wide.out).group(1))) - 1
        self.check(run("refused", room, "on"), IO, ["tiers.path", disk, "the 2 nodes that share it", "is free"])
        self.assertEqual([], list(disk.iterdir()))
        result = run("without", room, "auto")
        self.assertEqual(0, result.code, result)
        self.assertEqual([], [step for step in self.steps("without") if "overlap" in step])

    @unittest.skipUnless(may_pretend(), "no right to a host name and mounts of its own")
    def test_a_node_without_its_second_drive_is_named_and_takes_part(self):
        disk, local, nodes = self.folder / "disk", self.folder / "local", self.folder / "nodes"
        for directory in disk, local, nodes / "n1/a", nodes / "n1/b", nodes / "n2/a":
            directory.mkdir(parents=True)
        (nodes / "n2/b").symlink_to(disk)
        run = [NODES, "n1:2,n2:2", str(local), str(nodes), *self.command(
            "run", f"--tiers.path={local}/a", f"--tiers.path={local}/b", "tiers.allow-tmpfs=true", "train.steps=2")]
        result = self.call(*on_small_disk(disk, 64, run))
        self.assertEqual(0, result.code, result)
        self.assertIn(f"n2: tiers.path={local}/b is not on the device of {local}/a, otherwise than on rank 0's node", result.err)

    def test_little_space_suffices_for_measuring(self):
        one, two = self.folder / "one", self.folder / "two"
        one.mkdir()
        two.mkdir()
        command = self.command("run", f"tiers.path={one}", f"--tiers.path={two}", ranks=2)
        result = self.call(*on_small_disk(one, 4, on_small_disk(two, 4, command)))
        self.assertEqual(0, result.code, result)
        self.assertEqual(2, result.out.count("(measured"), result)

    def test_no_space_for_any_checkpoint_is_said_before_the_first_step(self):
        disk = self.folder / "disk"
        disk.mkdir()
        command = self.command("run", f"checkpoint.dir={disk}/checkpoints", "model.hidden=256", ranks=2)
        self.check(self.call(*on_small_disk(disk, 1, command)), IO, ["checkpoint.dir", disk, "free"])
        self.assertFalse((self.folder / "run").exists())

    def test_no_space_for_a_checkpoint_keeps_the_one_before(self):
        # 0.5 MB a checkpoint: the third does not fit, because two are kept until it is complete.
        disk = self.folder / "disk"
        disk.mkdir()
        command = self.command("run", f"checkpoint.dir={disk}/checkpoints", "checkpoint.every=1", ranks=2)
        listing = f'{OFFSTAGE} checkpoint verify {disk}/checkpoints'
        script = ["sh", "-c", f'"$@"; echo "code $?"; {listing}', "sh", *command]
        result = self.call(*on_small_disk(disk, 1, script))
        self.assertIn("code 74", result.out, result)
        self.assertIn("checkpoints/step-000000001: good", result.out, result)
        self.assertEqual(1, len(result.errors), result)
        self.assertIn("checkpoint.keep=2", result.warnings[0])
        for words in "cannot save step 2", "earlier checkpoints are unchanged", "make room":
            self.assertIn(words, result.errors[0])
        self.assert_no_process_left()

    def test_space_that_killed_saves_took_is_found_again(self):
        disk = self.folder / "disk"
        disk.mkdir()
        script = """disk=$1 run=$2; shift 2
            "$@" & until find $disk -name master.h5 | grep -q .; do sleep 0.05; done
            kill -9 $!; wait
            left=$(dirname $(dirname $(find $disk -name master.h5 | head -1)))/step-000999999
            fallocate -l 64k $disk/room; mkdir $left; dd if=/dev/zero of=$left/rank-0000.h5; rm $disk/room
            touch $run/STOP; "$@"; echo "code $?"; find $disk -name step-000999999"""
        for key, *options in (("checkpoint.dir", "checkpoint.every=1"), ("checkpoint.local", "checkpoint.local-every=1"),
                              ("checkpoint.local", "checkpoint.local-every=1", f"tiers.path={disk}")):
            name = f"{key}-{len(options)}"
            command = self.command(name, f"{key}={disk}", *options, "train.steps=1000000")
            result = self.call(*on_small_disk(disk, 6, ["sh", "-c", script, "sh", str(disk), str(self.folder / name), *command]))
            self.assertTrue(result.out.endswith("code 75\n"), result)

    def test_no_space_for_those_kept_for_good_is_said_at_the_start(self):
        disk = self.folder / "disk"
        disk.mkdir()
        command = self.command("run", f"checkpoint.dir={disk}/checkpoints", "checkpoint.every=1", "train.steps=3")
        script = ["sh", "-c", '"$@" && "$@" --train.steps=8 --checkpoint.keep-every=1; echo "code $?"', "sh", *command]
        result = self.call(*on_small_disk(disk, 2, script))
        self.assertIn("code 74", result.out, result)
        about, = [line for line in result.warnings if "a later save may end the run with 74" in line]
        self.assertIn("up to 5 more checkpoints", about)
        self.assertIn("checkpoint.keep-every=1", about)

    def test_no_space_in_the_middle_of_a_save_keeps_the_one_before(self):
        # A file system with room for bytes but not for files: the second save begins and does not end.
        disk = self.folder / "disk"
        disk.mkdir()
        command = self.command("run", f"checkpoint.dir={disk}/checkpoints", "checkpoint.every=1")
        listing = f"{OFFSTAGE} checkpoint verify {disk}/checkpoints; ls {disk}/checkpoints"
        script = ["sh", "-c", f'"$@"; echo "code $?"; {listing}', "sh", *command]
        result = self.call(*on_small_disk(disk, 8, script, options=",nr_inodes=9"))
        self.assertIn("code 74", result.out, result)
        self.assertEqual(1, len(result.errors), result)
        for words in "cannot save step 2", "No space left on device", "earlier checkpoints are unchanged":
            self.assertIn(words, result.errors[0])
        self.assertIn("checkpoints/step-000000001: good", result.out, result)
        self.assertNotIn("step-000000002", result.out.split("code 74")[1], "what was written of it is gone")

    def test_once_there_is_room_the_same_command_goes_on(self):
        disk = self.folder / "disk"
        disk.mkdir()
        command = self.command("run", f"checkpoint.dir={disk}/checkpoints", "checkpoint.every=1", "train.steps=3")
        script = ["sh", "-c", 'disk=$1; shift; "$@"; echo "code $?"; mount -o remount,size=8m "$disk" && "$@"', "sh",
                  str(disk), *command]
        result = self.call(*on_small_disk(disk, 1, script))
        self.assertIn("code 74", result.out, result)
        self.assertEqual(0, result.code, result)
        self.assertIn("step-000000001 loaded", result.out)
        self.assertEqual([1, 2, 3], [r["step"] for r in self.steps("run")])


if __name__ == "__main__":
    main()
