#!/usr/bin/env python3
"""Several users on shared directories: who may go on with whose run, and what nobody may have another user load."""
import os
import re
import shutil
import stat
import tempfile
import unittest
from pathlib import Path

from harness import OFFSTAGE, OffstageTest, main

ANNA, BEN, CARL, GROUP = 7001, 7002, 7003, 7000  # Anna and Ben have the group
OTHERS = 7009
SHORT = ["train.steps=4", "checkpoint.every=2", "optimizer.schedule=constant"]


@unittest.skipUnless(os.getuid() == 0, "root alone can be several users: not run")
class Users(OffstageTest):
    def setUp(self):
        usual = Path(tempfile.gettempdir()).resolve()
        if not all(place.stat().st_mode & stat.S_IXOTH for place in (usual, *usual.parents)):  # in somebody's home, say
            tempfile.tempdir = "/tmp"
            self.addCleanup(setattr, tempfile, "tempdir", None)
        super().setUp()
        self.folder.chmod(0o1777)
        self.program = shutil.copy(OFFSTAGE, self.folder / "program")  # where all of them may read it
        self.shared = self.make("shared", 0o2775)

    def make(self, name, mode, owner=0, group=GROUP):
        path = self.folder / name
        path.mkdir(parents=True)
        os.chown(path, owner, group)
        path.chmod(mode)
        return path

    def run_as(self, user, command, umask=0o022, expect=0):
        words = [self.program if word == OFFSTAGE else word for word in command]
        group = GROUP if user in (ANNA, BEN) else OTHERS
        clean = ["env", "-u", "HWLOC_XMLFILE", "-u", "HWLOC_THISSYSTEM", f"TMPDIR={self.folder}"]
        result = self.call("setpriv", f"--reuid={user}", f"--regid={group}", f"--groups={group}", *clean, "bash", "-c",
                           'umask "$0" && exec "$@"', f"{umask:03o}", *words)
        self.assertEqual(expect, result.code, result)
        return result

    def train_as(self, user, name, *options, **more):
        return self.run_as(user, self.command(name, *SHORT, *options), **more)

    def evaluate_as(self, user, run, **more):
        words = ["evaluate", "--from", run, "--data", self.valid, "--format", "text", "--sequence", 24, "--windows", 4]
        return self.run_as(user, [OFFSTAGE, *words], **more)

    def mode(self, path):
        return stat.S_IMODE(path.stat().st_mode)

    def test_a_group_goes_on_with_each_others_run(self):
        self.train_as(ANNA, "shared/run", umask=0o002)
        run = self.shared / "run"
        self.assertEqual((0o660, 0o664), (self.mode(run / "lock"), self.mode(run / "metrics.jsonl")))
        refused = self.train_as(BEN, "shared/run", "train.steps=6", umask=0o002, expect=74)
        self.assertIn(f"belongs to user {ANNA}, not to you ({BEN})", refused.errors[0])
        self.train_as(BEN, "shared/run", "train.steps=6", "run.allow-foreign=true", umask=0o002)
        self.assertIn("continuing after step 6", self.train_as(ANNA, "shared/run", "train.steps=8", umask=0o002).out)
        self.train("straight", *SHORT, "train.steps=8")
        self.assertEqual(0, self.call(OFFSTAGE, "checkpoint", "diff", self.folder / "straight", run).code)

    def test_a_file_that_the_group_may_not_write_is_named_with_its_owner(self):
        self.train_as(ANNA, "shared/run")
        self.assertEqual(0o600, self.mode(self.shared / "run/lock"))  # who may read it may lock it
        (self.shared / "run").chmod(0o2775)
        refused = self.train_as(BEN, "shared/run", "run.allow-foreign=true", expect=74)
        self.assertRegex(refused.errors[0], rf"shared/run/lock: Permission denied; it belongs to user {ANNA}, .*umask 002")
        (self.shared / "run").chmod(0o2755)
        refused = self.train_as(BEN, "shared/run", "run.allow-foreign=true", expect=74)
        self.assertIn(f"shared/run: cannot write: Permission denied; it belongs to user {ANNA}; name", refused.errors[0])

    def test_a_newest_checkpoint_that_cannot_be_read_is_no_reason_to_take_an_older_one(self):
        self.train_as(ANNA, "shared/run")
        newest = self.shared / "run/checkpoints/step-000000004/master.h5"
        newest.chmod(0o600)
        self.assertIn("Permission denied", self.evaluate_as(BEN, self.shared / "run", expect=74).errors[0])
        verified = self.run_as(BEN, [OFFSTAGE, "checkpoint", "verify", self.shared / "run"], expect=74)
        self.assertRegex(verified.out, r"step-000000002: good\n.*step-000000004: cannot be read: .*Permission denied")
        other = self.shared / "run/checkpoints/step-000000002/master.h5"
        whole = other.read_bytes()
        other.write_bytes(os.urandom(len(whole)))
        verified = self.run_as(BEN, [OFFSTAGE, "checkpoint", "verify", self.shared / "run"], expect=65)
        self.assertRegex(verified.out, r"step-000000002: damaged: (.*\n)*.*step-000000004: cannot be read: ")
        other.write_bytes(whole)
        newest.chmod(0o644)
        newest.write_bytes(os.urandom(newest.stat().st_size))
        older = self.evaluate_as(BEN, self.shared / "run")
        self.assertRegex(older.warnings[0], r"step-000000004/master.h5.*; an older checkpoint is looked for")

    def test_level_1_of_another_user_is_not_read(self):
        node = self.make("node", 0o1777)
        self.train_as(ANNA, "shared/run", f"checkpoint.local={node}", "checkpoint.local-every=1")
        before = self.evaluate_as(ANNA, self.shared / "run")
        self.assertEqual([], before.warnings)
        name = (self.shared / "run/checkpoints/level-1").read_text().split()[0]
        self.make(f"node/{name}", 0o755, owner=CARL)
        self.train_as(CARL, f"node/{name}/other", "train.steps=6")
        shutil.move(node / name / "other/checkpoints/step-000000006", node / name)
        after = self.evaluate_as(ANNA, self.shared / "run")
        loss = re.compile(r"loss (\S+) nats")
        self.assertEqual(loss.findall(before.out), loss.findall(after.out))
        self.assertRegex(after.warnings[0], rf"node/{name}, which .*/level-1 names, is not looked at: it belongs to user {CARL}")
        self.assertEqual(1, len(after.warnings), after)

    def test_level_1_below_a_private_directory_leaves_level_2_to_others(self):
        node = self.make("private", 0o700, owner=ANNA)
        self.train_as(ANNA, "shared/run", f"checkpoint.local={node}", "checkpoint.local-every=1")
        listed = self.run_as(BEN, [OFFSTAGE, "checkpoint", "ls", self.shared / "run"])
        self.assertIn("step-000000004", listed.out)
        self.assertRegex(listed.warnings[0], r"is not looked at: Permission denied")

    def test_an_unfinished_save_that_may_not_be_removed_is_set_aside(self):
        self.train_as(ANNA, "shared/run", umask=0o002)
        step = self.shared / "run/checkpoints/step-000000006"
        step.mkdir(mode=0o755)
        (step / "rank-0000.h5").write_bytes(b"half")
        os.chown(step, ANNA, GROUP)
        told = self.train_as(BEN, "shared/run", "train.steps=6", "run.allow-foreign=true", umask=0o002)
        self.assertIn("passed-over-step-000000006", told.err)
        self.assertTrue((step / "master.h5").exists())

    def test_a_stop_that_cannot_be_removed_is_an_error(self):
        run = self.make("sticky", 0o1777)
        (run / "STOP").touch()
        os.chown(run / "STOP", BEN, GROUP)
        stopped = self.train_as(ANNA, "sticky", expect=74)
        self.assertRegex(stopped.errors[0], rf"sticky/STOP cannot be removed; it belongs to user {BEN}; have it removed")
        self.assertTrue((run / "checkpoints/step-000000001/master.h5").exists())

    def test_extents_by_reference_have_the_group_of_the_checkpoint(self):
        storage = self.make("storage", 0o1777)
        self.train_as(ANNA, "shared/run", f"tiers.path={storage},persistent,read=1GB/s,write=1GB/s", umask=0o027)
        files = list((self.shared / "run/checkpoints/step-000000004").glob("*.h5"))
        self.assertTrue(any(file.name.startswith("extent-") for file in files), files)
        self.assertEqual({(0o640, GROUP)}, {(self.mode(file), file.stat().st_gid) for file in files})
        self.assertEqual([], self.evaluate_as(BEN, self.shared / "run").warnings)

    def test_checkpoints_of_others_in_a_directory_that_all_may_write_are_not_loaded(self):
        place = self.make("all", 0o1777)
        self.train_as(BEN, "bens")
        shutil.copytree(self.folder / "bens/checkpoints/step-000000004", place / "step-000000004")
        os.chown(place / "step-000000004", BEN, GROUP)
        refused = self.train_as(ANNA, "annas", f"checkpoint.dir={place}", expect=74)
        self.assertIn(f"step-000000004 in it belongs to user {BEN}, not to you ({ANNA})", refused.errors[0])
        self.train_as(ANNA, "annas", f"checkpoint.dir={place}", "train.steps=6", "run.allow-foreign=true")

    def test_a_report_replaces_another_users(self):
        self.train_as(ANNA, "shared/run", umask=0o002)
        report = self.shared / "run/report.html"
        report.write_text("<!DOCTYPE html>\nold")
        os.chown(report, BEN, GROUP)
        self.run_as(ANNA, [OFFSTAGE, "report", self.shared / "run"])
        self.assertEqual(ANNA, report.stat().st_uid)


if __name__ == "__main__":
    main()
