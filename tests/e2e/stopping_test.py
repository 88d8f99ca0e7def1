#!/usr/bin/env python3
"""Signals, STOP and the time limit: save after the current step, exit with 75, and the same command goes
on to the same bits."""
import os
import signal
import time

from harness import OFFSTAGE, OffstageTest, main

ENDLESS = ["train.steps=1000000", "optimizer.schedule=constant"]


class Stopping(OffstageTest):
    def check_goes_on(self, name, ranks, *options):
        """The stopped run, continued for three steps, equals a straight run of as many."""
        newest = self.step_of(self.checkpoints(name)[-1])
        self.assertEqual(newest, self.steps(name)[-1]["step"], "the save is of the last step")
        total = [f"train.steps={newest + 3}", "optimizer.schedule=constant", *options]
        self.train(name, *total, ranks=ranks)
        self.train(f"{name}-straight", *total)
        self.assert_same_state(f"{name}-straight", name)
        self.assertEqual(list(range(1, newest + 4)), [r["step"] for r in self.steps(name)])

    def stop_by(self, name, stop, ranks=1, options=()):
        """Starts a run, calls stop(process) after its third step and expects 75."""
        process = self.start(name, *ENDLESS, *options, ranks=ranks)
        self.wait_for_step(name, 3, process)
        stop(process)
        result = self.finish(name, process)
        self.assertEqual(75, result.code, result)
        self.assertEqual([], result.errors, result)
        self.assertIn("goes on", result.out)
        self.assert_no_process_left()

    def test_sigusr1_to_mpirun_reaches_the_ranks(self):
        self.stop_by("run", lambda process: process.send_signal(signal.SIGUSR1), ranks=2)
        self.check_goes_on("run", 2)

    def test_sigterm_to_all_ranks(self):
        def stop(_process):
            for pid in self.ranks_of("run"):
                os.kill(pid, signal.SIGTERM)
        storage = self.folder / "storage"
        storage.mkdir()
        self.stop_by("run", stop, ranks=2, options=[f"tiers.path={storage}"])
        self.check_goes_on("run", 2, f"tiers.path={storage}")

    def test_a_signal_to_one_rank_alone_stops_all(self):
        self.stop_by("run", lambda _: os.kill(self.ranks_of("run")[-1], signal.SIGUSR1), ranks=2)

    def test_a_process_without_mpirun(self):
        self.stop_by("run", lambda process: process.send_signal(signal.SIGTERM))
        self.check_goes_on("run", 1)

    def test_a_signal_before_the_first_step_counts(self):
        process = self.start("run", *ENDLESS)

        def caught():  # the mask of caught signals in /proc has a bit for SIGUSR1
            with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
                mask = next(line.split()[1] for line in status if line.startswith("SigCgt:"))
            return int(mask, 16) >> (signal.SIGUSR1 - 1) & 1
        self.wait_until(caught, process, "the handler")
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(75, self.finish("run", process).code)
        self.assertEqual([1], [r["step"] for r in self.steps("run")])

    def test_signals_after_the_save_do_not_change_the_exit_code(self):
        process = self.start("run", *ENDLESS)
        self.wait_for_step("run", 2, process)
        process.send_signal(signal.SIGUSR1)
        self.wait_until(lambda: "stopped after" in (self.folder / "run.out").read_text() or
                        process.poll() is not None, what="the save")
        for number in (signal.SIGTERM, signal.SIGUSR1):
            while process.poll() is None:  # until the process is gone
                process.send_signal(number)
        self.assertEqual(75, self.finish("run", process).code)

    def test_a_repeated_signal_within_two_seconds_counts_once(self):
        def stop(process):
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
        self.stop_by("run", stop)

    def test_a_stop_file_is_obeyed_once(self):
        self.stop_by("run", lambda _: (self.folder / "run/STOP").touch(), ranks=2)
        self.assertFalse((self.folder / "run/STOP").exists())
        self.check_goes_on("run", 2)

    def test_a_stop_file_that_comes_too_late_stops_no_later_start(self):
        (self.folder / "run").mkdir()
        (self.folder / "run/STOP").touch()
        self.train("run", "train.steps=1", "optimizer.warmup-steps=0")
        self.assertFalse((self.folder / "run/STOP").exists())

    def test_a_run_whose_directory_is_moved_writes_nothing_where_it_was(self):
        def in_directory():
            return {name: facts for name, facts in self.snapshot().items() if f"{self.folder}/run/" in str(name)}

        process = self.start("run", "train.steps=1000000", "checkpoint.every=1000000")
        self.wait_for_step("run", 3, process)
        process.send_signal(signal.SIGSTOP)
        (self.folder / "run").rename(self.folder / "moved")
        self.train("run")  # the next one
        before = in_directory()
        process.send_signal(signal.SIGCONT)
        result = self.finish("run", process)
        self.assertEqual(64, result.code, result)
        self.assertIn("run was moved or removed since the start", result.errors[-1])
        self.assertEqual(before, in_directory(), "it wrote into another run")

    def start_a_long_validation(self, *options):
        """A run on two ranks whose validation of step 3 takes minutes, and has begun."""
        valid = self.write("valid.txt", "The ship waits for the wind, and the wind for nobody. " * 400_000)
        process = self.start("run", f"data.valid={valid}", "train.valid-every=3", "optimizer.schedule=constant", *options, ranks=2)
        self.wait_for_step("run", 3, process)
        time.sleep(0.5)
        return process

    def test_a_stop_does_not_wait_for_a_validation(self):
        process = self.start_a_long_validation("train.steps=1000000")
        began = time.monotonic()
        (self.folder / "run/STOP").touch()
        result = self.finish("run", process)
        self.assertEqual(75, result.code, result)
        self.assertIn("step      3  its validation is left out, as the run stops", result.out)
        self.assertLess(time.monotonic() - began, 60)
        self.check_goes_on("run", 2)

    def test_the_last_validation_is_stopped_too_and_made_by_the_next_start(self):
        process = self.start_a_long_validation("train.steps=3")
        self.wait_until(lambda: [self.step_of(c) for c in self.checkpoints("run")] == [3], process, "the save of step 3")
        for rank in self.ranks_of("run"):
            os.kill(rank, signal.SIGKILL)
        self.finish("run", process)
        self.assert_no_process_left()
        few = ["train.steps=3", "train.valid-every=3", "optimizer.schedule=constant", "train.valid-batches=2"]
        valid = f"data.valid={self.folder}/valid.txt"
        process = self.start("run", valid, "train.valid-every=3", "optimizer.schedule=constant", "train.steps=3", ranks=2)
        self.wait_until(lambda: "continuing after step 3" in (self.folder / "run.out").read_text(), process, "the start")
        time.sleep(0.5)
        (self.folder / "run/STOP").touch()
        result = self.finish("run", process)
        self.assertEqual(75, result.code, result)
        self.assertIn("step      3  its validation is left out, as the run stops", result.out)
        self.assertIn("stopped after step 3 of 3", result.out)
        self.assertFalse((self.folder / "run/STOP").exists())
        self.assertEqual([], [r for r in self.records("run") if "valid_loss" in r])
        # Of another run's last step no validation is made up, as that run's checkpoint may go.
        other = self.train("other", valid, *few, f"checkpoint.resume={self.checkpoints('run')[-1]}", ranks=2)
        self.assertIn("nothing to do: step 3 is done", other.out)
        # A time that is too short for the validation would let a loop on code 75 never end.
        result = self.train("run", valid, *few, "checkpoint.keep-best=on", "train.max-time=0.01s", ranks=2)
        self.assertIn("best validation: loss", result.out)
        self.assertEqual([3], [r["step"] for r in self.records("run") if "valid_loss" in r])
        self.assertRegex(self.offstage("checkpoint", "ls", self.folder / "run").out, r"(?m)^3 +complete, best ")
        self.offstage("checkpoint", "verify", self.folder / "run/best")
        self.assertEqual("done", self.records("run")[-1]["end"])
        before = (self.folder / "run/metrics.jsonl").read_text()
        self.assertIn("nothing to do: step 3 is done", self.train("run", valid, *few, ranks=2).out)
        self.assertEqual(before, (self.folder / "run/metrics.jsonl").read_text())

    def test_max_time_holds_in_the_last_validation(self):
        valid = self.write("valid.txt", "The ship waits for the wind, and the wind for nobody. " * 400_000)
        self.train("run", "train.steps=2", "optimizer.schedule=constant")
        # However slow it is, a start makes a step before it looks at the time.
        result = self.train("run", f"data.valid={valid}", "train.steps=3", "optimizer.schedule=constant", "train.max-time=2s",
                            ranks=2, expect=75)
        self.assertIn("is near; a step takes", result.out)
        self.assertIn("3  its validation is left out, as the run stops", result.out)

    def test_a_terminal_that_is_lost_and_a_limit_of_cpu_time(self):
        self.addCleanup(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_DFL))  # whoever ignores it
        for number in signal.SIGHUP, signal.SIGXCPU:
            with self.subTest(number.name):
                def stop(process):
                    for _ in range(2):  # the kernel says so each second
                        process.send_signal(number)
                        time.sleep(0.1)
                self.stop_by(number.name, stop)

    def test_max_time(self):
        started = time.monotonic()
        result = self.train("run", *ENDLESS, "train.max-time=2s", ranks=2, expect=75)
        self.assertIn("train.max-time", result.out)
        self.assertNotIn("advice:", result.out, "the job's end does not wait for forecasts")
        self.assertLess(time.monotonic() - started, 200)
        self.check_goes_on("run", 2)

    def start_a_long_step(self, ranks):
        """A run that continues after step 2 with a step of minutes."""
        self.train("run", "train.steps=2")
        process = self.start("run", "train.steps=3", "train.global-batch=4000000", ranks=ranks)
        self.wait_until(lambda: "continuing after step 2" in (self.folder / "run.out").read_text(), process,
                        "the resumed run")
        time.sleep(0.5)
        return process

    def check_second_signal(self, process, began):
        result = self.finish("run", process)
        self.assertEqual(1, result.code, result)
        self.assertLess(time.monotonic() - began, 100)
        self.assertEqual([2], [self.step_of(c) for c in self.checkpoints("run")])
        self.assertEqual(0, self.call(OFFSTAGE, "checkpoint", "verify", self.checkpoints("run")[0]).code)
        self.assert_no_process_left()

    def test_the_same_signal_again_exits_at_once_and_leaves_the_last_checkpoint(self):
        process = self.start_a_long_step(ranks=1)
        began = time.monotonic()
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        time.sleep(2.5)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        self.assertIsNone(process.poll(), "the first signals and SIGTERM again wait for the end of the step")
        process.send_signal(signal.SIGUSR1)
        self.check_second_signal(process, began)

    def test_the_same_signal_again_through_mpirun(self):
        process = self.start_a_long_step(ranks=2)
        began = time.monotonic()
        process.send_signal(signal.SIGUSR1)
        time.sleep(2.5)
        self.assertIsNone(process.poll(), "the first signal waits for the end of the step")
        process.send_signal(signal.SIGUSR1)
        self.check_second_signal(process, began)


if __name__ == "__main__":
    main()
