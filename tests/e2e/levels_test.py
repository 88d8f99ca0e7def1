#!/usr/bin/env python3
"""Checkpoints of level 1 (checkpoint.local): killed runs, restarts on other ranks, both levels, damage, rollbacks, bad places."""
import errno
import fcntl
import os
import re
import shutil
import signal
from pathlib import Path

from harness import OFFSTAGE, OffstageTest, main

COMMON = ["optimizer.schedule=constant", "tiers.cache=0"]
SAVED = re.compile(r"^\S+Z step +(\d+)  saved (\S+) in .*?(, level 1)?$", re.MULTILINE)


class Levels(OffstageTest):
    def setUp(self):
        super().setUp()
        self.storage, self.local = self.folder / "storage", self.folder / "local"
        for folder in self.storage, self.local:
            folder.mkdir()
        self.memory = [*COMMON, f"checkpoint.local={self.local}", "checkpoint.local-every=1", "checkpoint.every=1000"]
        self.options = [*self.memory, f"tiers.path={self.storage}"]

    def level_1(self):
        """Complete checkpoints of level 1, oldest first."""
        return sorted(master.parent for master in self.local.glob("level-1-*/step-*/master.h5"))

    def killed(self, *options, steps=4, ranks=2):
        """Kills a run after so many steps; the newest step that it has said to be saved."""
        process = self.start("run", *options, "train.steps=1000000", ranks=ranks)
        self.wait_for_step("run", steps, process)
        for pid in self.ranks_of("run"):
            os.kill(pid, signal.SIGKILL)
        process.wait(60)
        self.wait_until(lambda: not self.processes("run"), what="the end of all processes")
        said = SAVED.findall((self.folder / "run.out").read_text())
        self.assertTrue(said, (self.folder / "run.err").read_text())
        return int(said[-1][0])

    def begins(self, result):
        found = re.search(r"^\S+Z continuing after step (\d+)", result.out, re.MULTILINE)
        return int(found.group(1)) if found else 0

    def straight(self, steps):
        self.train(f"straight-{steps}", *COMMON, f"train.steps={steps}")
        return self.folder / f"straight-{steps}/checkpoints"

    def damage(self, path, at):
        with open(path, "r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))

    def test_a_killed_run_goes_on_from_level_1_on_any_number_of_ranks(self):
        saved = self.killed(*self.options)
        newest = self.level_1()[-1]
        self.assertGreaterEqual(self.step_of(newest), saved)
        self.assertTrue(list(newest.glob("extent-*.h5")), "by reference")
        self.assertEqual([], self.checkpoints("run"), "level 2 has none yet")
        for path in "run", "local":
            shutil.copytree(self.folder / path, self.folder / "kept" / path)
        total = self.step_of(newest) + 2
        straight = self.straight(total)
        for ranks, options in (2, self.options), (1, self.options), (3, self.memory):
            with self.subTest(ranks=ranks):
                for path in "run", "local":
                    shutil.rmtree(self.folder / path)
                    shutil.copytree(self.folder / "kept" / path, self.folder / path)
                result = self.train("run", *options, f"train.steps={total}", ranks=ranks)
                self.assertEqual(self.step_of(newest), self.begins(result), result)
                self.assert_same_state(straight, self.folder / "run/checkpoints")
                self.assertEqual([], list(self.local.iterdir()), "level 2 has all of it")
                self.assertEqual([], list(self.storage.iterdir()))

    def test_a_start_that_has_no_patience_left_keeps_the_steps_of_level_1(self):
        # A rate so high that no validation is as good as the first one.
        options = [*self.options, f"data.valid={self.valid}", "train.valid-every=1", "train.valid-first=on", "optimizer.lr=10"]
        self.killed(*options, steps=6)
        newest = self.step_of(self.level_1()[-1])
        result = self.train("run", *options, "train.patience=1", "train.steps=1000000", ranks=2)
        self.assertIn("nothing to do: ", result.out)
        self.assertEqual([newest], [self.step_of(path) for path in self.checkpoints("run")], result)
        self.assertEqual([], list(self.local.iterdir()), "level 2 has all of it")

    def test_a_validation_that_is_made_up_leaves_the_last_step_in_level_2(self):
        self.killed(*self.options)
        newest = self.step_of(self.level_1()[-1])
        valid = self.write("valid.txt", "The ship waits for the wind, and the wind for nobody. " * 400_000)
        last = [*self.options, f"train.steps={newest}", f"data.valid={valid}"]
        process = self.start("run", *last, ranks=2)
        self.wait_until(lambda: f"continuing after step {newest}" in (self.folder / "run.out").read_text(), process, "the start")
        (self.folder / "run/STOP").touch()
        result = self.finish("run", process)
        self.assertEqual(75, result.code, result)
        self.assertIn("its validation is left out, as the run stops", result.out)
        self.assertEqual([newest], [self.step_of(path) for path in self.checkpoints("run")], result)
        result = self.train("run", *last, "train.valid-batches=2", ranks=2)
        self.assertIn(f"step {newest:6}  validation loss", result.out)
        self.assert_same_state(self.straight(newest), self.folder / "run/checkpoints")
        self.assertEqual([], list(self.local.iterdir()), "level 2 has all of it")

    def test_what_is_in_host_memory_is_written(self):
        self.killed(*self.memory, ranks=1)
        newest = self.level_1()[-1]
        self.assertFalse(list(newest.glob("extent-*.h5")))
        result = self.train("run", *self.memory, f"train.steps={self.step_of(newest) + 1}")
        self.assertEqual(self.step_of(newest), self.begins(result), result)
        self.assert_same_state(self.straight(self.step_of(newest) + 1), self.folder / "run/checkpoints")

    def test_commands_take_level_1(self):
        self.killed(*self.options, "checkpoint.every=2")
        newest, checkpoints = self.level_1()[-1], self.folder / "run/checkpoints"
        listing = self.offstage("checkpoint", "ls", checkpoints).out
        self.assertRegex(listing, rf"(?m)^{self.step_of(newest)} +complete +1 .*{newest.name}")
        self.assertRegex(listing, r"(?m)^2 +complete +2 ")
        self.assertRegex(self.offstage("checkpoint", "ls", self.local).out, r"(?m)^\d+ +complete +1 ")
        for path in newest, checkpoints, self.local:
            self.assertIn(f"{newest}: good", self.offstage("checkpoint", "verify", path).out)
        straight = self.straight(self.step_of(newest))
        self.assert_same_state(straight, newest)
        for source, target in (newest, "of-level-1"), (straight, "of-level-2"):
            self.offstage("export", "--from", source, "--to", self.folder / target)
        self.assertEqual((self.folder / "of-level-1/model.safetensors").read_bytes(),
                         (self.folder / "of-level-2/model.safetensors").read_bytes())
        result = self.train("other", *COMMON, f"checkpoint.resume={newest}", f"train.steps={self.step_of(newest) + 1}")
        self.assertEqual(self.step_of(newest), self.begins(result), result)
        self.assert_same_state(self.straight(self.step_of(newest) + 1), self.folder / "other/checkpoints")

    def test_the_newest_of_both_levels_is_taken_and_damage_falls_back_to_level_2(self):
        saved = self.killed(*self.options, "checkpoint.every=3", steps=5)
        level_2 = max(self.step_of(path) for path in self.checkpoints("run") if (path / "master.h5").exists())
        newest = self.level_1()[-1]
        self.assertGreaterEqual(self.step_of(newest), saved)
        self.damage(sorted(newest.glob("extent-0001-*.h5"))[-1], 9000)
        verdict = self.call(OFFSTAGE, "checkpoint", "verify", self.folder / "run/checkpoints")
        self.assertEqual(65, verdict.code, verdict)
        total = self.step_of(newest) + 3
        older = [self.step_of(path) for path in self.level_1()[:-1]]  # the kill may have come within the removal of one
        result = self.train("run", *self.options, f"train.steps={total}", ranks=2)
        self.assertIn(self.begins(result), (level_2, *older), result)
        self.assertRegex("".join(result.warnings), rf"checkpoint \S*{newest.name} passed over: .*does not match its checksum")
        self.assert_same_state(self.straight(total), self.folder / "run/checkpoints")
        self.assertEqual([], list(self.local.rglob("*")))

    def test_level_2_drains_beside_saves_of_level_1(self):
        result = self.train("run", *self.options, "checkpoint.every=3", "checkpoint.rate=20KB/s", "train.steps=40",
                            "checkpoint.keep=9", ranks=2)
        said = [(int(step), bool(local)) for step, _, local in SAVED.findall(result.out)]
        self.assertLess(said.index((5, True)), said.index((3, False)), "it lasts steps")
        for step in 3, 40:
            self.assert_same_state(self.straight(step), self.folder / f"run/checkpoints/step-{step:09d}")

    def best_and_rest(self, *options):
        """A run's options, the step of its best validation and that of the best one before. The two steps after are worse."""
        options = [*self.options, f"data.valid={self.valid}", "train.valid-every=1", "checkpoint.keep-best=on", "optimizer.lr=0.1",
                   "optimizer.warmup-steps=0", *options]
        self.train("known", *options, "checkpoint.local=", "checkpoint.local-every=", "train.steps=6")
        losses = {record["step"]: record["valid_loss"] for record in self.records("known") if "valid_loss" in record}
        best = next(step for step in range(2, 4) if losses[step] < min(losses[step - 1], losses[step + 1], losses[step + 2]))
        return options, best, min(range(1, best), key=losses.get)

    def test_the_best_one_is_saved_where_only_level_1_has_it(self):
        options, best, _ = self.best_and_rest()
        checkpoints = self.folder / "run/checkpoints"
        with self.faulty(checkpoints, calls="rename", error="KILL", times=1, file=checkpoints / f"step-{best:09d}/master.h5.tmp"):
            killed = self.call(*self.command("run", *options, "train.steps=6"))
        self.assertEqual(-signal.SIGKILL, killed.code, killed)
        self.assertEqual(best, self.step_of(self.level_1()[-1]))
        result = self.train("run", *options, "checkpoint.every=1", f"train.steps={best + 2}", "checkpoint.keep=2")
        self.assertEqual(best, self.begins(result))
        self.assertRegex(result.out, f"best validation: loss .* at step {best}, whose checkpoint is kept")
        self.assertIn(best, [self.step_of(path) for path in self.checkpoints("run")], result)

    def kill_before_level_1_of(self, step, options):
        """A run that is killed before it makes level 1 of a step. Returns the name of its directory on the node's storage."""
        checkpoints, name = self.folder / "run/checkpoints", "level-1-0123456789abcdef"
        checkpoints.mkdir(parents=True)
        (checkpoints / "level-1").write_text(2 * f"{name}\n{self.local}\n{checkpoints}\n")
        with self.faulty(self.folder, calls="mkdir", error="KILL", times=1, file=self.local / name / f"step-{step:09d}"):
            killed = self.call(*self.command("run", *options, "train.steps=9"))
        self.assertEqual(-signal.SIGKILL, killed.code, killed)
        return name

    def test_the_best_one_is_not_saved_again_where_both_levels_have_it(self):
        options, best, _ = self.best_and_rest("checkpoint.every=1")
        name = self.kill_before_level_1_of(best + 1, options)
        self.assertEqual(best, self.step_of(self.checkpoints("run")[-1]))
        result = self.train("run", *options, f"train.steps={best + 1}")
        self.assertEqual(best, self.begins(result))
        self.assertRegex(result.out, f"{name}/step-{best:09d} loaded")
        self.assertEqual([], [line for line in result.warnings if "passed over" in line])
        self.assertNotIn(str(best), [step for step, *_ in SAVED.findall(result.out)], result)

    def test_the_best_one_before_stays_where_the_save_of_a_better_one_was_killed(self):
        options, best, before = self.best_and_rest("checkpoint.rate=1KB/s")
        self.kill_before_level_1_of(best + 2, options)
        complete = [self.step_of(path) for path in self.checkpoints("run") if (path / "master.h5").exists()]
        self.assertEqual([before], complete, "the better one is being saved")
        result = self.train("run", *options, "checkpoint.every=1", "checkpoint.rate=0", f"train.steps={best + 4}",
                            "optimizer.lr=0.5")  # validations become worse
        self.assertEqual(best + 1, self.begins(result))
        self.assertIn(f" at step {best}, which has no checkpoint", result.out)
        self.assertIn(before, [self.step_of(path) for path in self.checkpoints("run")], result)

    def test_a_stop_saves_both_and_leaves_node_storage_as_it_was(self):
        process = self.start("run", *self.options, "train.steps=1000000", ranks=2)
        self.wait_for_step("run", 3, process)
        for pid in self.ranks_of("run"):
            os.kill(pid, signal.SIGTERM)
        result = self.finish("run", process)
        self.assertEqual(75, result.code, result)
        said = [(int(step), bool(local)) for step, _, local in SAVED.findall(result.out)]
        self.assertEqual([(said[-1][0], True), (said[-1][0], False)], said[-2:])
        self.assertEqual([], list(self.local.rglob("*")))

    def test_a_rollback_is_not_undone_by_later_steps_of_level_1(self):
        self.killed(*self.options, "checkpoint.every=2", "checkpoint.keep=9", steps=7)
        self.assertGreater(self.step_of(self.level_1()[-1]), 2)
        back = ["checkpoint.every=1000", f"checkpoint.resume={self.folder / 'run/checkpoints/step-000000002'}",
                "optimizer.lr=0.02"]
        process = self.start("run", *self.options, *back, "train.steps=1000000", ranks=2)
        checkpoints = self.folder / "run/checkpoints"
        # Level 2 comes first: it has what is to be set aside. It is complete once that is.
        self.wait_until(lambda: list(checkpoints.glob("passed-over-*")) and self.level_1(), process, "a save of level 1")
        for pid in self.ranks_of("run"):
            os.kill(pid, signal.SIGKILL)
        process.wait(60)
        self.wait_until(lambda: not self.processes("run"), what="the end of all processes")
        newest = self.step_of(self.level_1()[-1])
        self.train("straight", *COMMON, "train.steps=2")
        self.train("straight", *COMMON, "optimizer.lr=0.02", f"train.steps={newest + 1}")
        result = self.train("run", *self.options, "optimizer.lr=0.02", f"train.steps={newest + 1}", ranks=2)
        self.assertEqual(newest, self.begins(result), result)
        self.assert_same_state("straight", "run")

    def test_a_start_that_makes_no_step_leaves_level_1_as_it_is(self):
        self.killed(*self.options, "checkpoint.every=2", "checkpoint.keep=9", steps=7)
        kept = self.level_1()
        newest = self.step_of(kept[-1])
        back = f"checkpoint.resume={self.folder / 'run/checkpoints/step-000000002'}"
        for options in (self.options, COMMON):
            result = self.train("run", *options, back, "train.steps=2", ranks=2)
            self.assertEqual(2, self.begins(result))
            self.assertEqual(kept, self.level_1(), result)
        result = self.train("run", *self.options, f"train.steps={newest + 1}", ranks=2)
        self.assertEqual(newest, self.begins(result), result)
        self.assert_same_state(self.straight(newest + 1), self.folder / "run/checkpoints")

    def test_a_run_without_level_1_makes_what_lies_there_nobodys(self):
        self.killed(*self.options, "checkpoint.every=2")
        newest = self.step_of(self.level_1()[-1])
        result = self.train("run", *COMMON, f"train.steps={newest + 4}")
        self.assertLess(self.begins(result), newest, result)
        self.assertIn("this run has no level 1: the one in", "".join(result.warnings))
        self.train("run", *self.options, f"train.steps={newest + 5}")
        self.assert_same_state(self.straight(newest + 5), self.folder / "run/checkpoints")
        self.assertEqual(1, len(list(self.local.iterdir())), "which the user removes")
        result = self.train("run", *COMMON, f"train.steps={newest + 6}")
        self.assertNotIn("level 1", "".join(result.warnings), "the run before left nothing")

    def test_another_run_on_the_same_node_storage_is_not_taken(self):
        self.killed(*self.options)
        result = self.train("other", *self.options, "train.steps=3")
        self.assertEqual(0, self.begins(result), result)
        newest, = self.level_1()[-1:]
        self.assertEqual([newest.parent], list(self.local.iterdir()))
        with open(newest.parent / "lock", "r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            result = self.train("run", *self.options, "train.steps=3", ranks=2, expect=1)
        self.assertIn(f"checkpoint.local={newest.parent} is in use by host", result.errors[0])
        self.assertIn("good", self.offstage("checkpoint", "verify", newest).out)

    def test_a_copy_of_a_runs_checkpoints_takes_nothing_of_its_level_1(self):
        self.killed(*self.options)
        newest = self.level_1()[-1]
        shutil.copytree(self.folder / "run/checkpoints", self.folder / "copy/checkpoints")
        self.assertIn("holds no checkpoint", self.call(OFFSTAGE, "checkpoint", "ls", self.folder / "copy/checkpoints").err)
        result = self.train("copy", *self.options, "train.steps=2")
        self.assertEqual(0, self.begins(result), result)
        self.assertIn(f"level-1 is a copy, made for checkpoint.dir={self.folder / 'run/checkpoints'}", "".join(result.warnings))
        self.assertEqual(newest, self.level_1()[-1])
        total = self.step_of(newest) + 1
        result = self.train("run", *self.options, f"train.steps={total}", ranks=2)
        self.assertEqual(self.step_of(newest), self.begins(result), result)
        self.assert_same_state(self.straight(total), self.folder / "run/checkpoints")

    def test_a_start_that_fails_elsewhere_loses_no_level_1(self):
        self.killed(*self.options)
        newest = self.level_1()[-1]
        for marker in "node-000000", "node-000001":
            (newest.parent / marker).write_text("of a start that was killed")
        mistyped = self.folder / "mistyped"
        mistyped.mkdir()
        result = self.train("run", *self.options, f"checkpoint.local={mistyped}", f"checkpoint.resume={self.folder}/none", expect=65)
        self.assertIn(f"checkpoint.local was {self.local}", "".join(result.warnings))
        self.assertEqual([], list(mistyped.iterdir()))
        result = self.train("run", *self.options, f"train.steps={self.step_of(newest) + 1}")
        self.assertEqual(self.step_of(newest), self.begins(result), result)
        self.assertEqual([], list(self.local.iterdir()))

    def test_level_1_that_cannot_be_tidied_stops_no_restart(self):
        self.killed(*self.options, "checkpoint.every=2")
        level_2 = max(self.step_of(path) for path in self.checkpoints("run") if (path / "master.h5").exists())
        newest = self.level_1()[-1]
        (newest.parent / f"replaced-{newest.name}").symlink_to(self.folder)
        result = self.train("run", *self.options, f"train.steps={self.step_of(newest) + 1}")
        self.assertEqual(level_2, self.begins(result), result)
        self.assertRegex("".join(result.warnings), "checkpoint.local=.*: level 1 is passed over: ")
        self.assert_same_state(self.straight(self.step_of(newest) + 1), self.folder / "run/checkpoints")

    def test_level_2_comes_first_where_it_has_what_was_passed_over(self):
        for steps in 2, 4:
            self.train("run", *self.memory, f"train.steps={steps}")
        self.damage(self.checkpoints("run")[-1] / "rank-0000.h5", 9000)
        result = self.train("run", *self.memory, "train.steps=6")
        self.assertEqual(2, self.begins(result))
        self.assertEqual([("3", ""), ("4", ", level 1")], [(step, level) for step, _, level in SAVED.findall(result.out)][:2], result)

    def test_a_start_that_is_killed_before_its_first_step_leaves_nothing_to_the_next_but_its_directory(self):
        memory = [*self.memory, f"tiers.path={self.local}", "train.steps=2"]
        for _ in range(2):
            with self.faulty(self.folder / "run", file=self.folder / "run/metrics.jsonl", calls="create,open", error="KILL"):
                self.train("run", *memory, expect=-signal.SIGKILL)
            self.assertEqual(1, len(list(self.local.glob("level-1-*"))))
        self.train("run", *memory)
        self.assertEqual([], list(self.local.iterdir()))
        self.assertEqual([], list((self.folder / "run/checkpoints").glob("level-1.*")))

    def test_level_1_that_cannot_be_read_now_is_no_reason_to_start_afresh(self):
        newest = self.killed(*self.options, ranks=1)
        kept = self.level_1()
        for calls in "open", "read":
            with self.faulty(kept[-1], calls=calls, error=errno.EIO):
                result = self.train("run", *self.options, "train.steps=1000000", expect=74)
            self.assertRegex(result.errors[0], "no checkpoint was loaded, and not all could be read: .*Input/output error; the same command tries again")
            self.assertEqual(kept, self.level_1())
        self.assertLessEqual(newest, self.step_of(kept[-1]))
        total = self.step_of(kept[-1]) + 1
        result = self.train("run", *self.options, f"train.steps={total}")
        self.assertEqual(total - 1, self.begins(result), result)
        self.assert_same_state(self.straight(total), self.folder / "run/checkpoints")

    def test_a_stop_saves_level_1_before_an_older_save_of_level_2_ends(self):
        process = self.start("run", *self.options, "checkpoint.every=3", "checkpoint.rate=1KB/s", "train.steps=1000000", ranks=2)
        self.wait_for_step("run", 4, process)
        for pid in self.ranks_of("run"):
            os.kill(pid, signal.SIGTERM)
        result = self.finish("run", process)
        self.assertEqual(75, result.code, result)
        said = [(int(step), bool(local)) for step, _, local in SAVED.findall(result.out)]
        last = said[-1][0]
        self.assertEqual([(last, True), (3, False), (last, False)], said[-3:])

    def test_a_save_of_level_2_that_goes_on_is_enough_for_level_1_to_begin(self):
        result = self.train("run", *self.options, "checkpoint.resume=none", "checkpoint.rate=1KB/s", "train.steps=5", ranks=2)
        said = [(int(step), bool(local)) for step, _, local in SAVED.findall(result.out)]
        self.assertEqual([1, 5], [step for step, local in said if not local], said)
        self.assertNotIn("its save waits: that of", result.out + result.err)

    def test_places_that_are_none_are_refused(self):
        for options, code, message in (
                ([f"checkpoint.local={self.folder}/nowhere"], 74, "there is no such directory on .*create it there"),
                ([f"checkpoint.local={self.text}"], 74, "there is no such directory"),
                (["checkpoint.local=bad/checkpoints", "checkpoint.dir=bad/checkpoints"], 64, "is checkpoint.dir or run.dir"),
                (["checkpoint.local-every=0"], 64, "checkpoint.local-every=0.*leave checkpoint.local out"),
                (["checkpoint.node-mtbf=0s"], 64, "checkpoint.node-mtbf")):
            with self.subTest(options):
                (self.folder / "bad/checkpoints").mkdir(parents=True, exist_ok=True)
                result = self.train("bad", *self.memory, *options, expect=code)
                self.assertRegex(result.errors[0], message)
                self.assertFalse((self.folder / "bad/checkpoints/level-1").exists())
        if Path("/dev/shm").is_dir():
            result = self.train("bad", *self.memory, "checkpoint.local=/dev/shm", "tiers.allow-tmpfs=false", expect=64)
            self.assertRegex(result.errors[0], r"checkpoint.local=/dev/shm lies in host memory \(tmpfs\).*tiers.allow-tmpfs")


if __name__ == "__main__":
    main()
