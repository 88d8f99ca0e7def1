#!/usr/bin/env python3
"""Checkpoints that are damaged, unfinished or left behind by a killed run; and what looks at them."""
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess

from harness import OFFSTAGE, OffstageTest, main

COMMON = ["checkpoint.every=2", "checkpoint.keep=3", "optimizer.schedule=constant"]


def flip_a_byte(path, position):
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


def damage_data(checkpoint):
    path = checkpoint / "rank-0000.h5"
    flip_a_byte(path, path.stat().st_size // 2)


def cut_data(checkpoint):
    path = checkpoint / "rank-0001.h5"
    os.truncate(path, path.stat().st_size // 2)


def damage_manifest(checkpoint):
    flip_a_byte(checkpoint / "rank-0000.json", 40)


def damage_master(checkpoint):
    flip_a_byte(checkpoint / "master.h5", 3)


def remove_master(checkpoint):
    (checkpoint / "master.h5").unlink()


def remove_rank(checkpoint):
    (checkpoint / "rank-0001.h5").unlink()


# And what a run says of each when it passes over the checkpoint.
DAMAGES = {
    damage_data: "checksum",
    cut_data: r"rank-0001\.h5 has \d+ bytes, expected \d+",
    damage_manifest: r"rank-0000\.json: does not match its checksum",
    damage_master: r"master\.h5: cannot open the file",
    remove_master: "its save did not finish",
    remove_rank: r"rank-0001\.h5 is missing",
}


class Checkpoints(OffstageTest):
    def copy_run(self, source, target):
        shutil.copytree(self.folder / source, self.folder / target)
        return self.checkpoints(target)

    def test_saves_under_the_next_step_hold_what_saves_between_steps_do(self):
        every = ["checkpoint.every=1", "checkpoint.keep=6"]
        # Updates that begin under backward are all done again, or none is.
        clips = {"plain": [], "clipped": ["optimizer.clip=0.05"], "unclipped": ["optimizer.clip=0"]}
        for base, clip in clips.items():
            result = self.train(base, *every, *clip, "checkpoint.overlap=off", ranks=2)
            self.assertNotIn("stood still", result.out, "no update goes on behind its step")
            self.assertEqual(6, len(self.checkpoints(base)))
        path = self.folder / "path"
        path.mkdir()
        slow = f"tiers.path={path},emulate-read=1MB/s"  # a save takes longer than a step
        for name, base, options in (
                ("memory", "plain", []),
                ("storage", "plain", [slow, "parameters.home=storage"]),
                ("persistent", "plain", [f"tiers.path={self.folder},persistent", "update.overlap=on"]),
                ("kept", "unclipped", [slow, "update.overlap=on"]),
                ("redone", "clipped", [slow, "update.overlap=on"]),
                ("device", "plain", ["device.emulate=h2d=1GB/s,d2h=1GB/s", "update.device-resident=0.3"])):
            with self.subTest(name):
                result = self.train(name, *every, *clips[base], *options, ranks=2)
                self.assertEqual(5, result.out.count(", training stood still for"), result)
                if name in ("kept", "redone"):  # an update that goes on behind its step has to end before the save
                    self.assertIn("before saves training stood still for ", result.out)
                    self.assertEqual({name}, {record.get("overlap") for record in self.steps(name)})
                for one, other in zip(self.checkpoints(base), self.checkpoints(name), strict=True):
                    self.assert_same_state(one, other)

    def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(self):
        self.train("whole", *COMMON, "train.steps=4", ranks=2)
        self.train("straight", *COMMON, "train.steps=6")
        for damage, why in DAMAGES.items():
            with self.subTest(damage.__name__):
                name = damage.__name__
                newest = self.copy_run("whole", name)[-1]
                self.assertEqual(4, self.step_of(newest))
                damage(newest)
                verdict = self.call(OFFSTAGE, "checkpoint", "verify", newest.parent)
                self.assertEqual(0 if damage is remove_master else 65, verdict.code, verdict)
                result = self.train(name, *COMMON, ranks=2)
                over = [line for line in result.warnings if "passed over" in line]
                self.assertRegex(over[0], rf"step-000000004 passed over: .*{why}")
                self.assertIn("step-000000002 loaded", result.out)
                self.assertIn("continuing after step 2", result.out)
                self.assert_same_state("straight", name)
                self.assertEqual(list(range(1, 7)), [r["step"] for r in self.steps(name)])

    def test_if_none_loads_the_run_ends_and_touches_nothing(self):
        self.train("run", *COMMON, "train.steps=4", ranks=2)
        for checkpoint in self.checkpoints("run"):
            damage_data(checkpoint)
        before = self.snapshot()
        result = self.train("run", *COMMON, ranks=2, expect=65)
        self.assertEqual(1, len(result.errors), result)
        self.assertIn(str(self.folder / "run/checkpoints"), result.errors[0])
        self.assertEqual(before, self.snapshot())

    def test_a_named_checkpoint_that_is_damaged_is_an_error(self):
        self.train("run", *COMMON, "train.steps=4", ranks=2)
        newest = self.checkpoints("run")[-1]
        damage_data(newest)
        result = self.train("other", *COMMON, f"checkpoint.resume={newest}", expect=65)
        self.assertIn(str(newest), result.errors[0])
        self.assertFalse((self.folder / "other").exists())

    def test_a_master_is_no_checkpoint(self):
        self.train("run", *COMMON)
        master = self.checkpoints("run")[-1] / "master.h5"
        for key in ("checkpoint.resume", "train.init-from"):
            result = self.train("other", *COMMON, f"{key}={master}", expect=65)  # 74 would be tried again and again
            self.assertIn(f"{key}={master}: ", result.errors[0])

    def test_a_run_to_resume_from_means_its_newest_checkpoint(self):
        self.train("run", *COMMON)
        newest = self.checkpoints("run")[-1]
        for path in self.folder / "run", self.folder / "run/checkpoints":
            result = self.train("run", *COMMON, f"checkpoint.resume={path}", "train.steps=7")  # itself: as auto
            self.assertNotIn("passed-over", str(list((self.folder / "run/checkpoints").iterdir())))
        name = "of-run"
        begun = self.train(name, *COMMON, f"checkpoint.resume={self.folder}/run", "train.steps=8", ranks=2)
        self.assertIn(f"checkpoint {self.checkpoints('run')[-1]} loaded", begun.out)
        self.assertNotEqual(newest, self.checkpoints("run")[-1])
        self.assertEqual([8], [r["step"] for r in self.steps(name)])
        empty = self.folder / "empty"
        empty.mkdir()
        result = self.train("other", *COMMON, f"checkpoint.resume={empty}", expect=65)
        self.assertIn(f"checkpoint.resume={empty}: no complete checkpoint", result.errors[0])

    def test_a_listing_is_json_for_programs(self):
        self.train("run", *COMMON, f"data.valid={self.valid}", "train.valid-every=2", "checkpoint.keep-best=on")
        (self.folder / "run/checkpoints/step-000000009").mkdir()
        damaged = self.checkpoints("run")[0] / "rank-0000.h5"
        size = damaged.stat().st_size
        damaged.unlink()
        listed = [json.loads(line) for line in self.offstage("checkpoint", "ls", "--json", self.folder / "run").out.splitlines()]
        self.assertEqual([(2, "incomplete", False), (4, "complete", False), (6, "complete", True), (9, "unfinished", False)],
                         [(each["step"], each["state"], each["best"]) for each in listed])
        self.assertIn(str(damaged), listed[0]["problem"])
        self.assertEqual({"ranks": 1, "parameters": 34976, "optimizer": "adamw", "moments": "fp32", "level": 2},
                         {key: listed[1][key] for key in ("ranks", "parameters", "optimizer", "moments", "level")})
        self.assertGreater(listed[1]["bytes"], size)
        table = self.offstage("checkpoint", "ls", self.folder / "run").out
        self.assertEqual([str(each["step"]) for each in listed], [line.split()[0] for line in table.splitlines()[1:5]])
        evaluate = ["evaluate", "--from", self.folder / "run", "--data", f"{self.valid},{self.text}", "--sequence=24"]
        found = json.loads(self.offstage(*evaluate, "--json").out)
        self.assertEqual((str(self.checkpoints("run")[-2]), "fp32", "true"), (found["from"], found["dtype"], found["cross_documents"]))
        said = self.offstage(*evaluate).out
        self.assertRegex(said, rf"loss {found['loss']:.7f} nats per token, .* over {found['targets']} targets in {found['windows']} windows")
        self.assertEqual([str(self.valid), str(self.text)], [each["path"] for each in found["sources"]])
        self.assertAlmostEqual(found["loss"] * found["targets"],
                               sum(each["loss"] * each["targets"] for each in found["sources"]), 4)

    def test_a_run_that_has_not_saved_yet_has_an_empty_listing_for_programs(self):
        (self.folder / "begun").mkdir()
        self.assertEqual("", self.offstage("checkpoint", "ls", "--json", self.folder / "begun").out)
        self.offstage("checkpoint", "ls", self.folder / "begun", expect=65)
        self.offstage("checkpoint", "ls", "--json", self.folder / "mistyped", expect=65)

    def test_resume_none_starts_afresh(self):
        self.train("run", *COMMON)
        self.train("again", *COMMON, f"checkpoint.dir={self.folder}/again/checkpoints")
        result = self.train("again", *COMMON, "checkpoint.resume=none", "train.steps=3")
        self.assertIn("sets them aside", "".join(result.warnings))
        self.assertNotIn("damaged", "".join(result.warnings))
        self.assertIn("the save of this step replaces it", "".join(result.warnings))
        self.assertEqual([1, 2, 3], [r["step"] for r in self.steps("again")])
        # The earlier run's checkpoints are aside, so that going on means going on from step 3.
        self.train("again", *COMMON, "train.steps=5")
        self.assertEqual([1, 2, 3, 4, 5], [r["step"] for r in self.steps("again")])
        self.assertTrue(list((self.folder / "again/checkpoints").glob("passed-over-step-*")))

    def test_only_the_newest_are_kept(self):
        self.train("run", "checkpoint.every=1")
        self.assertEqual([5, 6], [self.step_of(c) for c in self.checkpoints("run")])

    def test_a_killed_run_leaves_no_files_on_storage_and_goes_on(self):
        storage = self.folder / "storage"
        storage.mkdir()
        options = [*COMMON, f"tiers.path={storage}"]
        process = self.start("run", *options, "train.steps=1000000", ranks=2)
        self.wait_for_step("run", 7, process)
        self.assertEqual([], list(storage.iterdir()), "spill files are unlinked as soon as they are open")
        for pid in self.processes("run"):
            os.kill(pid, signal.SIGKILL)
        process.wait(60)
        self.assert_no_process_left()
        self.assertEqual([], list(storage.iterdir()))
        complete = [c for c in self.checkpoints("run") if (c / "master.h5").exists()]
        total = self.step_of(complete[-1]) + 3
        self.train("run", *options, f"train.steps={total}", ranks=2)
        self.assertEqual([], list(storage.iterdir()))
        self.assertEqual(list(range(1, total + 1)), [r["step"] for r in self.steps("run")])
        self.train("straight", *COMMON, f"train.steps={total}")
        self.assert_same_state("straight", "run")

    def test_some_are_kept_for_good(self):
        self.train("run", "checkpoint.keep-every=2", "train.steps=7")
        self.assertEqual([2, 4, 6, 7], [self.step_of(c) for c in self.checkpoints("run")])

    def test_what_a_killed_run_left_on_storage_is_removed_and_what_is_not_ours_is_reported(self):
        storage = self.folder / "storage"
        gone = subprocess.Popen(["true"])
        gone.wait()
        host = re.sub("[^A-Za-z0-9._]", "_", socket.gethostname())
        stale = storage / f"offstage-12-run-{host}-{gone.pid}-0"
        foreign = storage / f"offstage-13-run-elsewhere-{gone.pid}-0"
        for directory in stale, foreign:
            directory.mkdir(parents=True)
            (directory / "extents").touch()
        result = self.train("run", f"tiers.path={storage}", ranks=2)
        self.assertEqual([foreign], list(storage.iterdir()))
        self.assertTrue((foreign / "extents").exists())
        about = [line for line in result.warnings if "tiers.path" in line]
        self.assertEqual(2, len(about), result)
        self.assertIn(f"removed {stale}", about[0])
        self.assertIn("in job 12", about[0])
        self.assertIn(str(foreign), about[1])

    def test_ls_verify_and_diff(self):
        self.train("run", *COMMON, ranks=2)
        directory = self.folder / "run/checkpoints"
        listing = self.call(OFFSTAGE, "checkpoint", "ls", directory)
        self.assertEqual(0, listing.code, listing)
        for step in 2, 4, 6:
            self.assertIn(f"step-{step:09d}", listing.out)
        self.assertIn("34976", listing.out)
        self.assertEqual(0, self.call(OFFSTAGE, "checkpoint", "verify", directory).code)
        differ = self.call(OFFSTAGE, "checkpoint", "diff", *self.checkpoints("run")[:2])
        self.assertEqual(1, differ.code, differ)
        self.assertIn("model.embed_tokens.weight", differ.out)
        nothing = self.call(OFFSTAGE, "checkpoint", "ls", self.folder / "nowhere")
        self.assertIn(nothing.code, (65, 74), nothing)
        self.assertEqual(1, len(nothing.errors), nothing)

    def test_h5dump_reads_a_checkpoint_without_offstage(self):
        if shutil.which("h5dump") is None:
            self.skipTest("h5dump is not installed (package hdf5-tools)")
        self.train("run", ranks=2)
        self.train("moved-from", ranks=4)
        moved = self.folder / "elsewhere"
        shutil.move(self.checkpoints("moved-from")[-1], moved)
        tensors = []
        for checkpoint in self.checkpoints("run")[-1], moved:
            master = checkpoint / "master.h5"
            names = self.call("h5dump", "-n", master)
            self.assertEqual(0, names.code, names)
            for group in "parameter", "momentum", "variance":
                self.assertIn(f"/{group}/model.layers.0.self_attn.q_proj.weight", names.out)
            raw = checkpoint / "raw"
            dump = self.call("h5dump", "-d", "/parameter/model.layers.0.mlp.gate_proj.weight", "-b", "LE", "-o", raw, master)
            self.assertEqual(0, dump.code, dump)
            self.assertIn("( 64, 32 )", dump.out)
            tensors.append(struct.unpack(f"<{64 * 32}f", raw.read_bytes()))
            self.assertTrue(all(abs(x) < 1 for x in tensors[-1]), "a hole reads as NaN")
        self.assertEqual(*tensors)


if __name__ == "__main__":
    main()
