#!/usr/bin/env python3
"""Threads, memory, open files and sizes of files that the system does not grant: a run ends and says which limit it met,
and the same command goes on once it is raised. $SCARCE_THREADS is preloaded, see scarce_threads.cpp."""
import os
from unittest import mock

from harness import OFFSTAGE, OffstageTest, main

MIB = 1 << 20


class Threads(OffstageTest):
    # Threads of the update, under backward, of its team, of a save and its team, of streamed parameters.
    OPTIONS = ["train.steps=3", "run.threads=2", "checkpoint.every=1", "update.overlap=on"]

    def options(self, name):
        (self.folder / f"{name}-path").mkdir(exist_ok=True)
        return [*self.OPTIONS, f"tiers.path={self.folder}/{name}-path", "parameters.home=storage"]

    def scarce(self, **variables):
        more = {f"THREADS_{key.upper()}": str(value) for key, value in variables.items()}
        return mock.patch.dict(os.environ, {"LD_PRELOAD": os.environ["SCARCE_THREADS"], **more})

    def refuse(self, result):
        self.assertEqual(74, result.code, result)
        self.assertEqual(1, len(result.errors), result)
        self.assertRegex(result.errors[0], r'cannot start the thread "[\w -]+": Resource temporarily unavailable; '
                                           r"raise ulimit -u \(RLIMIT_NPROC is \w+\) or the job's pids limit")

    def test_whichever_cannot_start_is_an_error_that_names_the_limit(self):
        log = self.folder / "log"
        with self.scarce(log=log):
            self.train("straight", *self.options("straight"))
        most = max(int(line) for line in log.read_text().split())
        self.assertGreater(most, 8)
        for allowed in range(most):
            with self.subTest(allowed=allowed), self.scarce(most=allowed):
                result = self.call(*self.command("run", *self.options("run")))
                if result.code != 0:  # fewer may do: not all of them always meet
                    self.refuse(result)
                else:
                    self.assertGreater(allowed, most // 2)
            self.assert_no_process_left()
        self.train("run", *self.options("run"))
        self.assert_same_state("straight", "run")

    def test_nor_do_streams_of_a_device_without_their_threads_end_the_process(self):
        for emulated in ("h2d=25GB/s,d2h=25GB/s", "h2d=25GB/s,d2h=25GB/s,compute=10G"):
            for allowed in range(1, 13):
                with self.subTest(emulated=emulated, allowed=allowed), self.scarce(most=allowed):
                    result = self.call(*self.command(f"run-{allowed}", "train.steps=2", "run.threads=2",
                                                     "--device.emulate=" + emulated))
                    if result.code != 0:
                        self.refuse(result)

    def test_openmp_has_as_many_as_are_said_or_none_at_all(self):
        options = ["train.steps=3", "run.threads=2"]
        self.train("straight", *options)
        for setting in "OMP_DYNAMIC=true", "OMP_MAX_ACTIVE_LEVELS=0", "OMP_THREAD_LIMIT=2":
            name, value = setting.split("=")
            with self.subTest(setting), mock.patch.dict(os.environ, {name: value}):
                self.train(setting, *options)
                self.assert_same_state("straight", setting)
        checkpoint = self.checkpoints("straight")[-1]
        with mock.patch.dict(os.environ, {"OMP_THREAD_LIMIT": "1"}):  # nobody asked for more
            self.train("one", "train.steps=3")
            self.offstage("generate", "--from", checkpoint, "--tokens", "1")
        self.assert_same_state("straight", "one")
        with mock.patch.dict(os.environ, {"OMP_THREAD_LIMIT": "1", "OMP_NUM_THREADS": "2"}):
            for result in (self.call(*self.command("none", *options)), self.call(OFFSTAGE, "generate", "--from", checkpoint, "--tokens", "1"),
                           self.call(OFFSTAGE, "evaluate", "--from", checkpoint, "--data", self.text)):
                self.assertEqual(64, result.code, result)
                self.assertIn("OpenMP gives 1 of 2 threads, as OMP_THREAD_LIMIT is 1", result.errors[0])

    def test_one_rank_without_its_thread_ends_all(self):
        for allowed in 0, 3, 6:
            with self.subTest(allowed=allowed), self.scarce(most=allowed):
                result = self.call(*self.command("run", *self.options("run"), ranks=2))
                self.assertEqual(74, result.code, result)
                self.assertRegex("\n".join(result.errors), r'cannot start the thread "[\w -]+": Resource temp')
            self.assert_no_process_left()

    def test_a_checkpoint_for_which_there_is_no_thread_is_not_taken_for_damaged(self):
        options = ["checkpoint.every=1", "optimizer.schedule=constant"]
        self.train("straight", *options, "train.steps=3")
        self.train("run", *options, "train.steps=2")
        refused = []
        for allowed in range(20):
            with self.subTest(allowed=allowed), self.scarce(most=allowed):
                verified = self.call(OFFSTAGE, "checkpoint", "verify", self.folder / "run")
                self.assertIn(verified.code, (0, 74), verified)
                self.assertNotIn("damaged", verified.out)
                result = self.call(*self.command("run", *options, "train.steps=3"))
                self.assertNotIn("passed over", result.err)
                if result.code == 0:
                    break
                self.refuse(result)
                refused.append(result.errors[0])
        self.assertIn('the thread "restore"', "\n".join(refused))
        self.assert_same_state("straight", "run")

    def test_other_commands_say_it_too(self):
        self.train("run", "train.steps=2")
        with self.scarce(most=0), mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "3"}):
            checkpoint = self.checkpoints("run")[-1]
            self.refuse(self.call(OFFSTAGE, "checkpoint", "verify", checkpoint))
            self.refuse(self.call(OFFSTAGE, "generate", "--from", checkpoint, "--tokens", "1"))
            self.refuse(self.call(OFFSTAGE, "export", "--from", checkpoint, "--to", self.folder / "out"))


class Memory(OffstageTest):
    OPTIONS = ["train.steps=2", "train.sequence=64", "model.hidden=128", "model.heads=4", "numerics.dtype=bf16"]

    def limited(self, limit):
        """A run with so much address space, and whether MPI has come up in it."""
        result = self.call("prlimit", f"--as={limit}", "--core=0", *self.command(f"run-{limit}", *self.OPTIONS))
        return result, bool(result.errors) or "offstage 0" in result.out

    def test_that_ends_is_said_and_crashes_nothing(self):
        enough = 128 * MIB
        while self.limited(enough)[0].code != 0:
            enough += enough // 4
            self.assertLess(enough, 1 << 40)
        codes = []
        for part in range(98, 58, -3):
            result, began = self.limited(enough * part // 100)
            if not began:  # Open MPI itself found no room
                continue
            codes.append(result.code)
            self.assertIn(result.code, (0, 1, 64, 74), result)
            if result.code != 0:
                self.assertRegex(result.errors[0], "out of memory|cannot start the thread|ulimit -v")
        self.assertGreater(len([code for code in codes if code != 0]), 2, codes)


    def test_a_limit_of_host_memory_that_is_too_small_is_told_before_the_model_takes_memory(self):
        # The parameters alone are 290 MiB in 16 bits, and 1.7 GiB with their state.
        command = self.command("run", "model.layers=12", "model.hidden=1024", "model.ffn-hidden=4096", "tiers.cache=",
                               "tiers.host-memory=64MiB")
        pid = os.posix_spawn(OFFSTAGE, [str(word) for word in command], os.environ,
                             file_actions=[(os.POSIX_SPAWN_OPEN, 2, self.folder / "err", os.O_WRONLY | os.O_CREAT, 0o600)])
        _, status, usage = os.wait4(pid, 0)
        self.assertEqual(64, os.waitstatus_to_exitcode(status))
        self.assertIn("tiers.host-memory=64.0 MiB is too small", (self.folder / "err").read_text())
        self.assertLess(usage.ru_maxrss, 200 << 10, "KiB")


class OpenFiles(OffstageTest):
    def test_that_may_be_too_few_are_said_at_the_start_and_a_low_soft_limit_is_raised(self):
        storage = self.folder / "storage"
        storage.mkdir()
        command = self.command("run", f"tiers.path={storage},persistent", "train.steps=2")
        few = self.call("prlimit", "--nofile=200:300", *command)
        self.assertEqual(74, few.code, few)
        self.assertRegex(few.errors[0], r"needs \d+ open files, but may have 300 \(ulimit -n\): raise that, raise update.subgroup-size")
        self.assertFalse((self.folder / "run").exists())
        enough = self.call("prlimit", "--nofile=200:1024", *command)
        self.assertEqual(0, enough.code, enough)


    def test_a_low_soft_limit_does_not_limit_data_files(self):
        for number in range(300):
            self.write(f"shards/{number}.txt", self.text.read_bytes()[:200])
        shards = f"data.train={self.folder}/shards/*.txt"
        few = self.call("prlimit", "--nofile=200:200", *self.command("few", shards, "train.steps=2"))
        self.assertEqual(74, few.code, few)
        self.assertIn("cannot open: Too many open files (raise ulimit -n)", few.errors[0])
        enough = self.call("prlimit", "--nofile=200:1024", *self.command("run", shards, "train.steps=2"))
        self.assertEqual(0, enough.code, enough)


class FileSize(OffstageTest):
    """Files that would grow beyond `ulimit -f`."""
    OPTIONS = ["checkpoint.every=1", "train.steps=2"]

    def limited(self, most, *command, launcher=()):
        result = self.call(*launcher, "prlimit", f"--fsize={most}", *command)
        self.assertEqual(74, result.code, result)
        self.assertEqual(1, len(result.errors), result)
        self.assertIn("File too large", result.errors[0])
        return result.errors[0]

    def test_a_checkpoint_is_an_error_and_leaves_nothing(self):
        for ranks in 1, 2:
            command = self.command("run", *self.OPTIONS, ranks=ranks)
            program = command.index(OFFSTAGE)  # the limit is the ranks' alone: mpirun has files of its own
            error = self.limited(64 << 10, *command[program:], launcher=command[:program])
            self.assertIn("cannot save step 1", error)
            self.assertEqual([], list((self.folder / "run/checkpoints").glob("step-*")))
        self.train("run", *self.OPTIONS)

    def test_a_record_of_level_1_leaves_nothing(self):
        (self.folder / "node").mkdir()
        command = self.command("run", *self.OPTIONS, f"checkpoint.local={self.folder}/node", "checkpoint.local-every=1")
        self.assertIn("level-1.next.tmp", self.limited(0, *command))
        self.assertFalse((self.folder / "run").exists())
        self.assertEqual([], list((self.folder / "node").iterdir()))
        self.assertEqual(0, self.call(*command).code)

    def test_an_export_leaves_no_directory(self):
        self.train("run", *self.OPTIONS)
        command = [OFFSTAGE, "export", "--from", self.folder / "run", "--to", self.folder / "out"]
        self.assertIn("model.safetensors", self.limited(64 << 10, *command))
        self.assertFalse((self.folder / "out").exists())
        self.assertEqual(0, self.call(*command).code)

    def test_a_pack_leaves_no_part_of_its_files(self):
        command = [OFFSTAGE, "data", "pack", "--from", self.text, "--to", self.folder / "packed", "--tokenizer=bytes"]
        self.assertIn("packed.bin", self.limited(4 << 10, *command))
        self.assertEqual([], list(self.folder.glob("packed*")))
        self.assertEqual(0, self.call(*command).code)


if __name__ == "__main__":
    main()
