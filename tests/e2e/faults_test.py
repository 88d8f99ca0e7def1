#!/usr/bin/env python3
"""Storage that fails under whole runs: they go on with the same bits, or end with 74 and say what is lost, and
the same command goes on from the checkpoint. $FAULTY_FILES is preloaded, see tests/sweep/faulty_files.cpp."""
import contextlib
import errno
import os
import re
import shutil
import socket
import subprocess
import unittest
from pathlib import Path

from harness import OffstageTest, main
from partner_test import NODES, may_pretend

# Without a trial of locks, whose transfers are as many as there is time for.
COMMON = ["optimizer.schedule=constant", "checkpoint.every=2", "tiers.cache=0", "tiers.exclusive=true"]


class Faults(OffstageTest):
    def setUp(self):
        super().setUp()
        self.storage = self.folder / "storage"
        self.paths = [self.storage / name for name in ("a", "b")]
        for path in self.paths:
            path.mkdir(parents=True)
        self.both = [*(f"--tiers.path={path}" for path in self.paths), "tiers.split=1:1"]

    def failing(self, calls, path, error, **more):
        return self.faulty(path, calls=calls, error=error, **more)

    def calls(self):
        return self.log.read_text().splitlines() if self.log.exists() else []

    def straight(self, steps=6):
        self.train("straight", *COMMON[:2], f"train.steps={steps}")

    def check_goes_on(self, name, *options, step, ranks):
        """The same command, now that storage works, continues and ends with the bits of a run without faults."""
        result = self.train(name, *COMMON, *options, ranks=ranks)
        self.assertIn(f"continuing after step {step}", result.out)
        self.assert_same_state("straight", name)

    def test_a_path_that_fails_midway_is_left_out_once_and_the_bits_are_the_same(self):
        self.straight()
        for error, options in ((errno.EIO, []),
                               (errno.ENOSPC, ["update.gradients=flush-fp32"])):
            with self.subTest(error=error, options=options), self.failing("aio-write", self.paths[1], error, after=15):
                name = errno.errorcode[error]
                result = self.train(name, *COMMON, *self.both, *options, ranks=2)
                said = [line for line in result.warnings if "is left out" in line]
                self.assertEqual(1, len(said), result)  # by one of the two ranks
                self.assertIn(f"tiers.path = {self.paths[1]} is left out", said[0])
                self.assertIn(os.strerror(error), said[0])
                self.assertIn(" at offset ", said[0])
                self.assertTrue(any("failed" in call for call in self.calls()))
                self.assert_same_state("straight", name)

    def test_reads_and_writes_that_move_a_part_are_gone_on_with(self):
        self.straight(steps=4)
        short = "read,write,aio-read-end,aio-write-end"
        local = self.folder / "local"
        local.mkdir()
        options = [*COMMON, *self.both, f"checkpoint.local={local}", "checkpoint.local-every=1", "parameters.home=storage",
                   "train.activations=storage"]
        for steps in 3, 4:
            with self.failing(short, self.folder, "SHORT"):
                result = self.train("run", *options, f"train.steps={steps}", ranks=2)
            for kind in short.split(","):
                self.assertTrue(any(call.startswith(kind + " ") for call in self.calls()), kind)
        self.assertIn("continuing after step 3", result.out)
        self.assert_same_state("straight", "run")

    def test_a_sync_that_a_signal_interrupts_is_called_again(self):
        self.straight(steps=4)
        local = self.folder / "local"
        local.mkdir()
        for after in range(0, 40, 10):
            with self.subTest(after=after), self.failing("sync", self.folder, errno.EINTR, after=after, times=2):
                result = self.train(f"run-{after}", *COMMON, *self.both, f"checkpoint.local={local}", "checkpoint.local-every=1",
                                    "train.steps=4")
                self.assertEqual(2, sum(call.startswith("sync ") and "failed" in call for call in self.calls()))
                self.assertNotIn("sync", result.err)
                self.assert_same_state("straight", f"run-{after}")

    def test_the_sync_of_a_lock_that_a_signal_interrupts_is_called_again(self):
        with self.failing("sync", self.folder, errno.EINTR, file=self.folder / "run/lock", times=2):
            self.train("run", *COMMON, "train.steps=2")
            self.assertEqual(2, sum("failed" in call for call in self.calls()))

    def test_a_trial_of_links_that_fails_leaves_nothing(self):
        local = self.folder / "local"
        local.mkdir()
        with self.failing("sync", self.paths[0], errno.EIO):
            result = self.train("run", *COMMON, f"tiers.path={self.paths[0]}", f"checkpoint.local={local}",
                                "checkpoint.local-every=1", "train.steps=2")
        self.assertTrue(any("/offstage-level-1-" in call and "failed" in call for call in self.calls()))
        self.assertIn("checkpoint.local: no links from", result.out)
        self.assertEqual([], list(self.paths[0].iterdir()))

    def test_where_the_trial_of_locks_fails_processes_take_turns(self):
        self.straight()
        with self.failing("aio-write", self.paths[0], errno.EIO):
            result = self.train("run", *COMMON[:-1], *self.both, ranks=2)
        self.assertRegex(result.out, r"path .*/a  .*processes take turns \(not tried: .*cannot write .*" + os.strerror(errno.EIO))
        self.assertEqual(1, len([line for line in result.warnings if "is left out" in line]), result)
        self.assert_same_state("straight", "run")

    def test_the_removal_of_an_old_checkpoint_holds_up_the_next_save_alone(self):
        self.straight()
        old = self.folder / "run/checkpoints/step-000000001"
        options = [*COMMON[:1], "checkpoint.every=1", "checkpoint.overlap=off"]
        with self.failing("unlink", self.folder / "run", "DELAY", file=old / "rank-0000.h5", seconds=3):
            process = self.start("run", *options)
            self.wait_for_step("run", 4, process)
            self.assertTrue((old / "rank-0000.h5").exists(), "a step was done beside the removal")
            self.assertFalse((old / "master.h5").exists())
            result = self.finish("run", process)
        self.assertEqual(0, result.code, result)
        waits = [line for line in result.out.splitlines() if "waits until" in line]
        # A removal of those after it may take as long on a busy machine.
        self.assertRegex(waits[0], r"^\S+Z step      4  its save waits until older checkpoints are removed$", result)
        self.assertEqual([5, 6], [self.step_of(path) for path in self.checkpoints("run")])
        self.assert_same_state("straight", "run")

    def test_a_run_that_has_saved_all_ends_well_whatever_its_report_cannot_look_at(self):
        options = ["checkpoint.every=0", "train.steps=2", f"data.valid={self.valid}", "checkpoint.keep-best=on"]
        checkpoints = self.folder / "run/checkpoints"
        with self.failing("opendir", self.folder / "run", errno.EIO, after=10 ** 6, file=checkpoints):
            result = self.train("run", *options)
        self.assertIn("best validation: loss ", result.out)
        self.assertIn(", whose checkpoint is kept", result.out)
        last = len(self.calls()) - 1
        shutil.rmtree(self.folder / "run")
        with self.failing("opendir", self.folder / "run", errno.EIO, after=last, file=checkpoints, times=1):
            result = self.train("run", *options)
        self.assertIn(f"cannot read the directory {checkpoints}: ", "\n".join(result.warnings))
        self.assertIn("done: step 2 of 2", result.out)

    def test_without_a_path_left_the_run_ends_and_the_next_goes_on(self):
        self.straight()
        # Two ranks of five subgroups or so: the first versions take 5 writes of each, a step as many.
        with self.failing("aio-write", self.storage, errno.EIO, after=22):
            result = self.train("run", *COMMON, *self.both, ranks=2, expect=74)
        # Of two ranks either may be the one that has met all errors itself.
        self.assertRegex("\n".join(result.errors), r"state extent \d+ was not written, no tiers.path is left that takes it; .*"
                                                   r"(Input/output error|another process of the node could not write there)")
        for path in self.paths:
            self.assertRegex("\n".join(result.warnings), rf"{path} is left out.* at offset \d+ of .*Input/output error")
        self.assertEqual([], [path for path in self.paths if any(path.iterdir())])
        self.check_goes_on("run", *self.both, step=2, ranks=2)

    def test_the_free_space_of_a_file_without_a_name_may_be_unknown(self):
        self.straight()
        host = re.sub("[^A-Za-z0-9._]", "_", socket.gethostname())
        spill = self.paths[0] / f"offstage-nojob-run-{host}-PID-0/extents"
        with self.failing("statfs", self.paths[0], errno.ESTALE, file=spill):  # so on GlusterFS
            self.train("run", *COMMON, *self.both)
        self.assertIn(f"statfs {spill} failed", self.calls())
        self.assert_same_state("straight", "run")

    def test_a_path_without_quota_for_the_files_is_refused_before_the_first_step(self):
        with self.failing("allocate", self.paths[1], errno.EDQUOT):
            result = self.train("run", *COMMON, *self.both, ranks=2, expect=74)
        self.assertRegex("\n".join(result.errors), rf"tiers.path = {self.paths[1]}: cannot allocate .*quota exceeded")
        self.assertEqual([], [path for path in self.paths if any(path.iterdir())])
        self.assertEqual([], self.steps("run"))

    def test_an_extent_that_cannot_be_read_ends_the_run_and_the_next_goes_on(self):
        self.straight()
        with self.failing("aio-read", self.paths[0], errno.EIO, after=12):
            result = self.train("run", *COMMON, *self.both, ranks=2, expect=74)
        self.assertRegex("\n".join(result.errors), r"state extent \d+, version \d+, at offset \d+ of "
                                                   rf"{self.paths[0]}/\S+ is lost: cannot read .*Input/output error; "
                                                   r"resume the run from its last checkpoint")
        step = self.step_of(self.checkpoints("run")[-1])
        self.check_goes_on("run", *self.both, step=step, ranks=2)

    def test_parameters_that_cannot_be_read_end_the_run_and_the_next_goes_on(self):
        self.straight()
        lost = set()
        for ranks, after in (1, 90), (2, 24), (2, 32):
            name = f"run-{ranks}-{after}"
            # What cannot be read any more cannot be saved either: the save must be over by then.
            options = [*self.both, "parameters.home=storage", "checkpoint.overlap=off"]
            with self.subTest(name), self.failing("aio-read", self.paths[0], errno.EIO, after=after):
                result = self.train(name, *COMMON, *options, ranks=ranks, expect=74)
                found = re.search(r"(state|parameter) extent \d+, version \d+, at offset \d+ of \S+ is lost", result.err)
                self.assertTrue(found, result)
                lost.add(found.group(1))
            self.check_goes_on(name, *options, step=self.step_of(self.checkpoints(name)[-1]), ranks=ranks)
        self.assertIn("parameter", lost)

    def test_a_save_that_has_begun_is_finished_before_an_error_of_something_else_ends_the_run(self):
        self.straight()
        # The state lives in host memory; all reads are of parameters, and fail in the third step's forward or backward.
        options = [f"--tiers.path={self.paths[0]}", "parameters.home=storage", "tiers.cache=auto"]
        with self.failing("aio-read", self.paths[0], errno.EIO, after=1000000):
            self.train("whole", *COMMON, *options, "train.steps=2")
        reads = len(self.calls())
        with self.failing("aio-read", self.paths[0], errno.EIO, after=reads + 2):
            result = self.train("run", *COMMON, *options, expect=74)
        self.assertRegex("\n".join(result.errors), r"parameter extent \d+, .* is lost")
        self.assertTrue(any("once the save of step 2 is written" in line for line in result.warnings), result)
        self.check_goes_on("run", *options, step=2, ranks=1)

    def test_what_fails_twice_and_then_passes_changes_nothing(self):
        """So after the eviction of a client of Lustre, or the reset of a drive."""
        self.straight()
        for calls, place in (("aio-read", self.paths[0]), ("aio-write", self.paths[0]), ("aio-write-end", self.folder)):
            name = "saved" if place == self.folder else calls
            options = [] if place == self.folder else self.both
            with self.subTest(name), self.failing(calls, place, errno.EIO, after=8, times=2):
                result = self.train(name, *COMMON, *options)
                self.assertEqual(2, len(result.warnings), result)
                for line in result.warnings:
                    self.assertRegex(line, rf"cannot (read|write) \d+ bytes at offset \d+ of {place}/\S+: Input/output "
                                           "error; trying again")
                self.assert_same_state("straight", name)

    def test_data_that_cannot_be_read_for_a_moment_change_nothing(self):
        self.straight()
        with self.failing("read", self.text, errno.ESHUTDOWN, after=30, times=2):
            result = self.train("run", *COMMON)
        self.assertEqual(2, len(result.warnings), result)
        for line in result.warnings:
            self.assertRegex(line, rf"data\.train={self.text}: cannot read at byte \d+: Cannot send after transport endpoint "
                                   "shutdown; trying again")
        self.assert_same_state("straight", "run")

    def test_metrics_that_cannot_be_written_for_a_moment_lack_nothing(self):
        self.straight()
        for calls in "write", "close":  # which is said once the line is there
            with self.subTest(calls), self.failing(calls, self.folder / calls / "metrics.jsonl", errno.EIO, after=3, times=2):
                result = self.train(calls, *COMMON)
                self.assertEqual(2, len(result.warnings), result)
                for line in result.warnings:
                    self.assertRegex(line, r"run\.dir: cannot write \S+/metrics\.jsonl: Input/output error; trying again")
                self.assertEqual([1, 2, 3, 4, 5, 6], [record["step"] for record in self.steps(calls)])
                self.assert_same_state("straight", calls)

    def test_metrics_that_cannot_be_written_for_long_wait_in_memory(self):
        self.straight()
        goes_on = r"cannot write \S+/metrics\.jsonl: Disk quota exceeded; training goes on, and its records wait in memory"
        with self.failing("write", self.folder / "later" / "metrics.jsonl", errno.EDQUOT, after=2, times=6):
            result = self.train("later", *COMMON)
        self.assertEqual(4, len(result.warnings), result)
        self.assertRegex(result.warnings[-1], goes_on)
        self.assertEqual([1, 2, 3, 4, 5, 6], [record["step"] for record in self.steps("later")])
        self.assert_same_state("straight", "later")

        with self.failing("write", self.folder / "never" / "metrics.jsonl", errno.EDQUOT, after=2, times=1000):
            result = self.train("never", *COMMON, ranks=2, expect=74)
        self.assertRegex(result.warnings[-1], goes_on)
        self.assertEqual(1, len(result.errors), result)
        self.assertIn("all that was trained is saved, but metrics.jsonl lacks records of steps", result.errors[0])
        self.assertLess(len(self.steps("never")), 6)
        self.assert_same_state("straight", "never")

    def test_a_file_system_without_direct_transfers_is_told_and_the_bits_are_the_same(self):
        self.straight()
        with self.failing("direct", self.storage, errno.EINVAL):
            result = self.train("run", *COMMON, *self.both[:2], ranks=2)  # without a split rates are measured
        said = [line for line in result.warnings if "takes no O_DIRECT" in line]
        self.assertEqual([str(path) in line for path, line in zip(self.paths, said)], [True, True], result)
        self.assert_same_state("straight", "run")

    def flip_bits(self, pid, offset):
        """One in each 16 KiB of the rank's files of slots; how many."""
        found = 0
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if not os.readlink(link).startswith(str(self.paths[0])):
                    continue
                file = open(link, "r+b", buffering=0)  # pylint: disable=consider-using-with
            except FileNotFoundError:  # a file of a save, or a pipe, that the rank closed just now
                continue
            with file:
                for position in range(offset, os.fstat(file.fileno()).st_size, 16384):
                    byte = os.pread(file.fileno(), 1, position)[0]
                    os.pwrite(file.fileno(), bytes([byte ^ 4]), position)
                    found += 1
        return found

    def flip_bits_until_the_end(self, process):
        pid = self.ranks_of("run")[0]
        self.assertGreater(self.flip_bits(pid, 77), 0)
        for offset in range(78, 378):
            try:
                process.wait(0.2)
                return
            except subprocess.TimeoutExpired:  # what was flipped has been written again, it seems
                with contextlib.suppress(OSError):  # the rank is about to end
                    self.flip_bits(pid, offset)
        self.fail("no flipped bit was found")

    def test_a_flipped_bit_in_the_file_of_a_running_rank_is_found(self):
        endless = ["train.steps=1000000", f"--tiers.path={self.paths[0]}"]
        process = self.start("run", *COMMON, *endless, ranks=2)
        self.wait_for_step("run", 4, process)
        self.flip_bits_until_the_end(process)
        result = self.finish("run", process)
        self.assertEqual(74, result.code, result)
        self.assertRegex("\n".join(result.errors), r"state extent \d+, version \d+, at offset \d+ of "
                                                   rf"{self.paths[0]}/\S+ is lost: its checksum is \w{{16}} where "
                                                   r"\w{16} was written; resume the run from its last checkpoint")
        step = self.step_of(self.checkpoints("run")[-1])
        self.assertEqual([], list(self.paths[0].iterdir()))
        self.straight(step + 2)
        self.check_goes_on("run", f"train.steps={step + 2}", f"--tiers.path={self.paths[0]}", step=step, ranks=2)

    @unittest.skipUnless(may_pretend(), "no right to a host name and mounts of its own")
    def test_nodes_see_the_same_directory_where_its_file_system_has_no_locks(self):
        local = self.folder / "local"
        local.mkdir()
        with self.failing("lock", self.folder / "run", errno.ENOLCK, after=0, times=1000):
            result = self.call(NODES, "n1:1,n2:1", str(local), str(self.folder / "nodes"), *self.command("run", "train.steps=2"))
        self.assertEqual(0, result.code, result)
        self.assertIn("its file system has no locks (No locks available)", "\n".join(result.warnings))

    def test_a_lock_is_asked_for_again_before_each_save(self):
        lock = self.folder / "run/checkpoints/lock"
        with self.failing("lock", self.folder / "run", errno.EIO, file=lock, after=1, times=1):
            result = self.train("run", *COMMON, "train.steps=2")
        said, = result.warnings
        self.assertRegex(said, rf"checkpoint\.dir=\S+: cannot lock {lock}: Input/output error; trying again")
        self.assertEqual([f"lock {lock}", f"lock {lock} failed", f"lock {lock}"], self.calls())

    def test_a_lock_that_another_run_has_ends_the_run_though_its_file_cannot_be_looked_at(self):
        lock = self.folder / "run/checkpoints/lock"
        with self.failing("lock,stat", self.folder / "run", errno.EAGAIN, file=lock, after=10 ** 6):
            self.train("run", *COMMON, "train.steps=2")
        calls = self.calls()
        asked = calls.index(f"lock {lock}", calls.index(f"lock {lock}") + 1)
        self.assertEqual(f"stat {lock}", calls[asked - 1])
        for name, after in {"lost": asked, "not to be seen": asked - 1}.items():
            with self.subTest(name):
                shutil.rmtree(self.folder / "run")
                with self.failing("lock,stat", self.folder / "run", errno.EAGAIN, file=lock, after=after):
                    result = self.train("run", *COMMON, expect=1)
                self.assertRegex(result.errors[0], r"checkpoint\.dir=\S+ is in use by host ")
                self.assertEqual([], self.checkpoints("run"))

    def test_a_save_of_which_a_sync_failed_is_written_anew(self):
        self.straight(4)
        with self.failing("sync", self.folder / "whole", errno.EIO, after=1000000):
            self.train("whole", *COMMON, *self.both, "train.steps=4")
        syncs = len(self.calls())
        second = next(i for i, call in enumerate(self.calls()) if "step-000000004" in call)
        self.assertGreater(syncs, second + 5)
        for position in second, (second + syncs) // 2, syncs - 1:
            name = f"sync-{position}"
            with self.subTest(position=position):
                with self.failing("sync", self.folder / name, errno.EIO, after=position, times=1):
                    result = self.train(name, *COMMON, *self.both, "train.steps=4")
                said, = result.warnings
                self.assertRegex(said, r"cannot save step 4: cannot sync .*Input/output error; trying again")
                calls = self.calls()
                at, = (i for i, call in enumerate(calls) if call.endswith(" failed"))
                files = [call for call in calls[:at] if "step-000000004/" in call]
                self.assertEqual(files, [call for call in calls[at + 1:] if "step-000000004/" in call][:len(files)])
                self.assert_same_state("straight", name)

    def test_a_save_that_fails_twice_ends_the_run_and_the_next_goes_on(self):
        self.straight()
        for error, times in (errno.EIO, 2), (errno.ENOSPC, 1):
            name = errno.errorcode[error]
            with self.failing("create", self.folder / name / "checkpoints/step-000000004", error, times=times):
                result = self.train(name, *COMMON, *self.both, ranks=2, expect=74)
            self.assertEqual(times - 1, sum("cannot save step 4" in line for line in result.warnings), result)
            self.assertIn("cannot save step 4: ", result.errors[0])
            self.check_goes_on(name, *self.both, step=2, ranks=2)

    def test_a_save_that_fails_once_on_one_rank_changes_nothing(self):
        self.straight()
        for name, options in {"rank": [], "node": ["checkpoint.files=node"], "overlap": ["checkpoint.overlap=on"],
                              "persistent": [f"--tiers.path={self.paths[0]},persistent"]}.items():
            for calls in "create", "sync":
                run = f"{name}-{calls}"
                with self.subTest(run), self.failing(calls, self.folder / run / "checkpoints/step-000000004",
                                                     errno.ESHUTDOWN, rank=1, times=1):
                    result = self.train(run, *COMMON, *(options if name == "persistent" else [*self.both, *options]), ranks=2)
                    said, = (line for line in result.warnings if "cannot save" in line)
                    self.assertRegex(said, r"cannot save step 4: .*transport endpoint shutdown; trying again")
                    self.assert_same_state("straight", run)

    def test_a_sync_of_a_slot_that_becomes_a_checkpoints_is_never_tried_again(self):
        self.straight()
        persistent = f"--tiers.path={self.paths[0]},persistent"
        with self.failing("sync", self.folder, errno.EIO, after=1000000):
            self.train("whole", *COMMON, persistent)
        slots = sum("/slots/slot-" in call for call in self.calls())
        rank_file = f"sync {self.folder}/whole/checkpoints/step-000000002/rank-0000.h5"
        self.assertEqual(2, self.calls().count(rank_file), "the checksums' writer, and the whole; not for each subgroup")
        with self.failing("sync", self.folder / "run/checkpoints/slots", errno.EIO, after=slots // 2, times=1):
            result = self.train("run", *COMMON, persistent, expect=74)
        self.assertRegex(result.errors[0], r"cannot save step \d+: cannot sync .*slot-.*Input/output error")
        self.assertNotIn("trying again", "\n".join(result.warnings))
        self.train("run", *COMMON, persistent)
        self.assert_same_state("straight", "run")


if __name__ == "__main__":
    main()
