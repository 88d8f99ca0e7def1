#!/usr/bin/env python3
"""checkpoint.rate: saves that last many steps, of the state as it was when they began; killed runs, later saves, restarts."""
import os
import re
import signal

from harness import OFFSTAGE, OffstageTest, main

COMMON = ["optimizer.schedule=constant", "tiers.cache=0"]
STEPS = 50
SAVED = re.compile(r"^\S+Z step +(\d+)  saved \S+ in \S+ \S+, training stood still for ", re.MULTILINE)


class Drain(OffstageTest):
    def setUp(self):
        super().setUp()
        self.storage = self.folder / "storage"
        self.storage.mkdir()
        # 210 kB of each of two ranks: longer than many steps.
        self.options = [*COMMON, f"tiers.path={self.storage}", "checkpoint.rate=40KB/s", "checkpoint.keep=9"]

    def saved(self, result):
        """The steps whose saves went on under others."""
        return [int(step) for step in SAVED.findall(result.out)]

    def assert_bits_of_then(self, name, step, *options):
        self.train(f"straight-{step}", *COMMON, *options, f"train.steps={step}")
        checkpoint = self.folder / name / f"checkpoints/step-{step:09d}"
        self.assert_same_state(self.folder / f"straight-{step}/checkpoints", checkpoint)
        verdict = self.call(OFFSTAGE, "checkpoint", "verify", checkpoint)
        self.assertEqual(0, verdict.code, verdict)

    def check_lasts_steps(self, name, *options, ranks=2):
        result = self.train(name, *self.options, *options, "checkpoint.every=3", f"train.steps={STEPS}", ranks=ranks)
        saved = self.saved(result)
        self.assertIn(3, saved, result)
        self.assertLess(result.out.index(f"step {9:6}/{STEPS}"), result.out.index("step      3  saved "), result)
        self.assertIn("step      6  its save waits: that of step 3 is still being written", result.out)
        steps = [self.step_of(path) for path in self.checkpoints(name)]
        self.assertEqual([3, *sorted(saved)[1:], STEPS], steps)
        for step in steps[:2]:
            self.assert_bits_of_then(name, step, *options)
        self.assert_bits_of_then(name, STEPS, *options)
        self.assertEqual([], list(self.storage.iterdir()))
        return result

    def test_it_lasts_many_steps_and_has_the_bits_of_the_step_that_it_began_after(self):
        self.check_lasts_steps("run")

    def test_its_rate_may_be_a_share_of_what_the_node_writes(self):
        path = f"tiers.path={self.storage},read=8GB/s,write=2GB/s"  # on the device of the checkpoints
        result = self.check_lasts_steps("run", path, "checkpoint.rate=0.002%", "checkpoint.files=node")
        self.assertIn("checkpoint.rate=0.002%: 39.1 KiB per node and second, of 1.86 GiB that checkpoint.dir takes", result.out)

    def test_a_share_of_a_directory_that_no_path_knows_is_measured(self):
        path = f"tiers.path={self.storage},emulate-read=2GB/s,emulate-write=2GB/s"
        result = self.train("run", *self.options, path, "checkpoint.rate=50%", "checkpoint.every=3", "train.steps=9", ranks=2)
        self.assertRegex(result.out, r"checkpoint\.rate=50%: \S+ \S+ per node and second, of \S+ \S+ that checkpoint\.dir takes")
        self.assert_bits_of_then("run", 9)
        self.assertEqual([], list(self.storage.iterdir()))
        self.assertEqual([], list(self.folder.glob("run/checkpoints/offstage-*")), "what was measured with")

    def test_files_of_nodes_restart_on_any_number_of_ranks(self):
        options = ["checkpoint.files=node", f"tiers.path={self.storage},persistent", "checkpoint.every=2"]
        self.train("run", *self.options, *options, "train.steps=4", ranks=3)
        first = self.checkpoints("run")[-1]
        self.assertEqual(["node-0000.h5"], [path.name for path in first.glob("*.h5") if path.name[0] in "nr"])
        result = self.train("run", *self.options, *options, "train.steps=6", ranks=2)
        self.assertIn("continuing after step 4", result.out)
        result = self.train("run", *COMMON, "checkpoint.files=rank", "train.steps=8", ranks=1)
        self.assertIn("continuing after step 6", result.out)
        self.assert_bits_of_then("run", 6)
        self.assert_bits_of_then("run", 8)

    def test_it_holds_versions_beside_those_on_trial(self):
        self.check_lasts_steps("run", "update.overlap=on", "optimizer.clip=0.5", ranks=1)

    def test_its_end_takes_nothing_from_the_figures_of_updates_under_backward(self):
        # Nothing is clipped, so each step fetches every subgroup once; the last ones may come after the step.
        steps = 60
        result = self.train("run", *COMMON, f"tiers.path={self.storage}", "checkpoint.rate=200KB/s", "checkpoint.every=2",
                            "update.overlap=on", "optimizer.clip=0", f"train.steps={steps}")
        self.assertIn(2, self.saved(result), result)
        subgroups = int(re.search(r"in (\d+) subgroups? per rank", result.out).group(1))
        fetched = sum(record["hits"] + record["misses"] for record in self.steps("run"))
        self.assertLessEqual(subgroups * (steps - 1), fetched)
        self.assertLessEqual(fetched, subgroups * steps)

    def test_what_is_in_host_memory_is_written_first(self):
        self.check_lasts_steps("run", "tiers.cache=200KB")

    def test_what_enters_by_reference_is_that_of_then_as_well(self):
        self.train("run", *self.options, f"tiers.path={self.storage},persistent", "checkpoint.every=3",
                   "train.steps=12", ranks=2)
        steps = [self.step_of(path) for path in self.checkpoints("run")]
        self.assertLessEqual({3, 12}, set(steps))
        for step in steps:
            self.assert_bits_of_then("run", step)

    def test_a_step_that_is_kept_for_good_is_saved_at_once(self):
        result = self.train("run", *self.options, "checkpoint.every=3", "checkpoint.keep-every=8", "train.steps=40", ranks=2)
        steps = [self.step_of(path) for path in self.checkpoints("run")]
        self.assertLessEqual({8, 16, 24, 32, 40}, set(steps), result)
        self.assert_bits_of_then("run", 16)

    def test_killed_in_the_middle_it_goes_on_from_the_one_before(self):
        process = self.start("run", *self.options, "checkpoint.rate=300KB/s", "checkpoint.every=3", "train.steps=1000000",
                             ranks=2)
        checkpoints = self.folder / "run/checkpoints"
        self.wait_until(lambda: (checkpoints / "step-000000003/master.h5").exists(), process, "the first checkpoint")
        self.wait_until(lambda: len(self.checkpoints("run")) == 2, process, "the second")
        self.wait_for_step("run", self.step_of(self.checkpoints("run")[-1]) + 2, process)
        for pid in self.ranks_of("run"):
            os.kill(pid, signal.SIGKILL)
        process.wait(60)
        self.assertFalse((self.checkpoints("run")[-1] / "master.h5").exists(), "it goes on beside steps")
        result = self.train("run", *self.options, "train.steps=9")
        self.assertIn("continuing after step 3", result.out)
        self.assert_bits_of_then("run", 9)

    def test_stopped_in_the_middle_it_ends_soon(self):
        process = self.start("run", *self.options, "checkpoint.every=3", "train.steps=1000000", ranks=2)
        self.wait_for_step("run", 6, process)
        for pid in self.ranks_of("run"):
            os.kill(pid, signal.SIGTERM)
        result = self.finish("run", process)
        self.assertEqual(75, result.code, result)
        steps = [self.step_of(path) for path in self.checkpoints("run")]
        self.assertEqual(3, steps[0])
        self.assertEqual(2, len(steps))
        for step in steps:
            self.assert_bits_of_then("run", step)

    def test_versions_of_several_pieces_are_whole(self):
        self.train("run", *self.options, "data.format=text", "model.vocab=20000", "update.subgroup-size=1048576",
                   "checkpoint.rate=50MB/s", "checkpoint.every=2", "train.steps=6")
        for checkpoint in self.checkpoints("run"):
            self.assertEqual(0, self.call(OFFSTAGE, "checkpoint", "verify", checkpoint).code, checkpoint)

    def test_a_save_that_waited_is_made_once(self):
        # That of step 51 waits for that of step 50; the next one that is due is of step 100.
        result = self.train("run", *self.options, "checkpoint.rate=6MB/s", "checkpoint.every=51", "checkpoint.keep-every=50",
                            "train.steps=100")
        steps = [self.step_of(path) for path in self.checkpoints("run")]
        self.assertEqual([50, 100], [steps[0], steps[-1]])
        self.assertLessEqual(len(steps), 3, result)

    def test_a_save_that_waited_is_made_as_soon_as_the_one_before_is_written(self):
        result = self.train("run", *self.options, "checkpoint.rate=1MB/s", "checkpoint.every=7", "checkpoint.keep=99", "train.steps=300", ranks=2)
        steps = [self.step_of(path) for path in self.checkpoints("run")]
        waited = 0
        for step, later in zip(steps, steps[1:-1]):
            before = result.out[:result.out.index(f"step {step:6}  saved ")]
            if f"that of step {step} is still being written" in before:
                now = int(re.findall(r"step +(\d+)/300", before)[-1])
                self.assertIn(later, (now, now + 1), result)
                waited += 1
        self.assertGreater(waited, 0, result)

    def test_the_space_is_asked_for(self):
        once = self.train("once", *COMMON, f"tiers.path={self.storage}", "update.overlap=off")
        twice = self.train("twice", *self.options, "update.overlap=off")
        def needed(result):
            found = re.search(r"per rank (\d+) state slots", result.out)
            return int(found.group(1)) if found else self.fail(result)
        self.assertGreater(needed(twice), 1.5 * needed(once))


if __name__ == "__main__":
    main()
