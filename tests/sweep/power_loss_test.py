#!/usr/bin/env python3
"""What a disk may hold after a loss of power, by hand: of a file that is written and renamed as a checkpoint's master is."""
import tempfile
import unittest
from pathlib import Path

from power_loss import Disk, Event, Loss, Recorded

FOLDER, FILE = 101, 102  # inodes


def event(kind, inode=0, at=0, path="", to="", data=b"", request=0):
    return Event(kind, inode, at, request, path, to, data)


class PowerLoss(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "old").write_bytes(b"old")
        self.disk = Disk(self.root)
        self.root_inode = self.root.stat().st_ino

    def image(self, mode, *events):
        recorded = Recorded("test", self.disk, events)
        _, image = recorded.after(Loss("test", len(events), mode))
        return {path: data for path, (data, _) in image.items() if path != "old"}

    def test_what_was_there_is_there(self):
        _, image = Recorded("test", self.disk, []).after(Loss("test", 0, "lost"))
        self.assertEqual({"old": (b"old", (self.root / "old").stat().st_mtime_ns)}, image)

    def test_a_file_needs_its_sync_and_its_name_that_of_the_directory(self):
        made = event("create", FILE, path="f"), event("write", FILE, data=b"new")
        synced, named = event("sync", FILE), event("sync", self.root_inode)
        self.assertEqual({}, self.image("lost", *made))
        self.assertEqual({}, self.image("lost", *made, synced))
        self.assertEqual({"f": b""}, self.image("lost", *made, named))
        self.assertEqual({"f": b"new"}, self.image("lost", *made, synced, named))
        self.assertEqual({"f": b"new"}, self.image("kept", *made))
        self.assertEqual({"f": b""}, self.image("names", *made))
        self.assertEqual({}, self.image("data", *made))

    def test_a_write_that_has_not_ended_is_not_synced(self):
        begun = event("create", FILE, path="f"), event("write", FILE, data=b"new", request=7)
        named = event("sync", self.root_inode)
        self.assertEqual({"f": b""}, self.image("lost", *begun, event("sync", FILE), named))
        self.assertEqual({"f": b"new"}, self.image("lost", *begun, event("end", request=7), event("sync", FILE), named))

    def test_a_rename_is_one_change_after_those_before(self):
        events = (event("create", FILE, path="f"), event("sync", self.root_inode), event("rename", path="f", to="g"))
        self.assertEqual({"f": b""}, self.image("lost", *events))
        self.assertEqual({"g": b""}, self.image("kept", *events))
        self.assertEqual({"g": b""}, self.image("lost", *events, event("sync", self.root_inode)))

    def test_a_directory_of_one_that_was_not_synced_is_gone_with_all(self):
        events = (event("mkdir", FOLDER, path="d"), event("create", FILE, path="d/f"), event("write", FILE, data=b"x"),
                  event("sync", FILE), event("sync", FOLDER))
        self.assertEqual({}, self.image("lost", *events))
        self.assertEqual({"d": None, "d/f": b"x"}, self.image("lost", *events, event("sync", self.root_inode)))

    def test_a_second_name_outlives_the_first(self):
        events = (event("mkdir", FOLDER, path="d"), event("create", FILE, path="f"), event("write", FILE, data=b"x"),
                  event("sync", FILE), event("link", path="f", to="d/g"), event("sync", FOLDER),
                  event("sync", self.root_inode), event("unlink", path="f"))
        self.assertEqual({"d": None, "d/g": b"x", "f": b"x"}, self.image("lost", *events))
        self.assertEqual({"d": None, "d/g": b"x"}, self.image("lost", *events, event("sync", self.root_inode)))

    def test_writes_are_dropped_each_for_itself_and_in_sectors(self):
        made = (event("create", FILE, path="f"), event("sync", self.root_inode), event("write", FILE, data=b"a" * 1024),
                event("write", FILE, at=1024, data=b"b" * 1024))
        found = {tuple(bytes(data[i:i + 512][:1]) for i in range(0, len(data), 512))
                 for number in range(200) for data in self.image(f"4.{number}", *made).values()}
        self.assertIn((b"a", b"a", b"b", b"b"), found)
        self.assertIn((), found)
        self.assertIn((b"\0", b"\0", b"b", b"b"), found)
        self.assertIn((b"a", b"\0"), found)

    def test_names_come_in_any_order(self):
        made = event("create", 201, path="f"), event("create", 202, path="g")
        found = {tuple(sorted(self.image(f"2.{number}", *made))) for number in range(100)}
        self.assertEqual({(), ("f",), ("g",), ("f", "g")}, found)

    def test_one_name_may_be_lost_alone_with_what_builds_on_it(self):
        events = event("create", 201, path="f"), event("create", 202, path="g"), event("rename", path="g", to="h")
        self.assertEqual({"h": b""}, self.image("but-1", *events))
        self.assertEqual({"f": b""}, self.image("but-2", *events))
        self.assertEqual({"f": b"", "g": b""}, self.image("but-3", *events))
        modes = {loss.mode for loss in Recorded("test", self.disk, (event("mkdir", 301, path="run"),
                                                                    event("mkdir", 302, path="run/checkpoints"))).losses()}
        self.assertIn("kept", modes)

    def test_losses_that_leave_the_same_are_one(self):
        run, checkpoints = 301, 302
        events = (event("mkdir", run, path="run"), event("mkdir", checkpoints, path="run/checkpoints"),
                  event("said", data=b"2026-01-01T00:00:00Z step      1  saved x in 1 s\n"))
        found = list(Recorded("test", self.disk, events).losses())
        # Without a directory; with run alone, which is no checkpoint; with both: each before and after it was said.
        self.assertEqual(4, len(found), list(map(str, found)))
        self.assertEqual([(1, False)], Recorded("test", self.disk, events).after(found[-1])[0])


if __name__ == "__main__":
    unittest.main()
