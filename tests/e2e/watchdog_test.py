#!/usr/bin/env python3
"""A run that hangs says what it waits for and ends; the same command goes on from its checkpoint."""
import os
import signal
import time

from harness import MPI, OffstageTest, main

ENDLESS = ["train.steps=1000000", "optimizer.schedule=constant", "checkpoint.every=2"]


class Watchdog(OffstageTest):
    def hang(self, name, *options):
        """Stops the last of two ranks after a few steps; the result of the run, which ends by itself."""
        process = self.start(name, *ENDLESS, "run.watchdog=6s", *options, ranks=2)
        self.wait_for_step(name, 5, process)
        stopped = max(self.ranks_of(name))
        os.kill(stopped, signal.SIGSTOP)
        began = time.monotonic()
        result = self.finish(name, process)
        self.assertLess(time.monotonic() - began, 200, result)
        self.assert_no_process_left()
        return result

    def check_dump(self, result):
        self.assertEqual(1, result.code, result)
        self.assertRegex(result.err, r"offstage: error: rank [01] on \S+: no progress for [67]\.?\d* s "
                                     r"\(run.watchdog\)")
        # The stopped rank may hold a storage path: then the other's threads wait for that.
        self.assertRegex(result.err, r"offstage: error: rank [01]: thread (main has been \d\S* s in "
                                     r"(all_gather|all_to_all|all_reduce|gather|broadcast|barrier|"
                                     r"(sending to|a message of) rank [01])|"
                                     r"\S+ has been \d\S* s in the storage path, which another process)")

    def check_goes_on(self, name, *options):
        newest = self.step_of(self.checkpoints(name)[-1])
        self.assertGreaterEqual(newest, 4)
        total = [f"train.steps={newest + 3}", "optimizer.schedule=constant", *options]
        self.train(name, *total, ranks=2)
        self.train(f"{name}-straight", *total)
        self.assert_same_state(f"{name}-straight", name)

    def test_a_stopped_rank_ends_the_job_and_the_same_command_goes_on(self):
        self.check_dump(self.hang("run"))
        self.check_goes_on("run")

    def test_with_state_on_storage_nothing_is_left_there(self):
        storage = self.folder / "storage"
        storage.mkdir()
        self.check_dump(self.hang("run", f"tiers.path={storage}"))
        self.assertEqual([], list(storage.iterdir()))
        self.check_goes_on("run", f"tiers.path={storage}")

    def test_a_job_that_was_stopped_as_a_whole_goes_on(self):
        process = self.start("run", *ENDLESS, "run.watchdog=6s", ranks=2)
        self.wait_for_step("run", 3, process)
        ranks = self.ranks_of("run")
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(8)
        for pid in ranks:
            os.kill(pid, signal.SIGCONT)
        before = len(self.steps("run"))
        self.wait_until(lambda: len(self.steps("run")) > before + 3, process, "more steps")
        process.send_signal(signal.SIGUSR1)
        result = self.finish("run", process)
        self.assertEqual(75, result.code, result)
        self.assertEqual([], result.errors, result)

    def test_a_rank_that_does_not_start_mpi_ends_the_job(self):
        # 20 s later than in a run.
        program = '[ "$OMPI_COMM_WORLD_RANK" = 0 ] && exec "$@"; exec sleep 3000'
        result = self.call(MPI, 2, "sh", "-c", program, "sh", *self.command("run", "run.watchdog=1s"))
        self.assertEqual(1, result.code, result)
        self.assertRegex(result.err, r"offstage: error: a rank on \S+: no progress for 2\d\S* s \(run.watchdog\)")
        self.assertRegex(result.err, r"offstage: error: a rank: thread main has been 2\d\S* s in the start of MPI")

    def test_zero_watches_nothing_and_less_than_a_second_is_refused(self):
        self.train("run", "run.watchdog=0")
        result = self.train("other", "run.watchdog=0.5s", expect=64)
        self.assertIn("run.watchdog=0.5 must be 1 or more seconds; 0 watches nothing", result.errors[0])


if __name__ == "__main__":
    main()
