#!/usr/bin/env python3
"""Checkpoints of level 3 (checkpoint.partner): pretended nodes of this machine, of which one is lost with its storage."""
import errno
import os
import shutil
import signal
import subprocess
import unittest
from pathlib import Path

from harness import OffstageTest, main

NODES = str(Path(__file__).resolve().parent.parent / "nodes.sh")
COMMON = ["optimizer.schedule=constant", "tiers.cache=0"]


def may_pretend():
    """Whether a process may have a host name and mounts of its own."""
    user = [] if os.getuid() == 0 else ["--map-root-user"]
    try:
        probe = ["unshare", *user, "--mount", "--uts", "sh", "-c", "hostname n1 && mount --bind /tmp /tmp"]
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


class OnNodes(OffstageTest):
    def setUp(self):
        super().setUp()
        # The same path on each node; what n1 has there lies in nodes/n1.
        self.local, self.nodes = self.folder / "local", self.folder / "nodes"
        self.local.mkdir()
        self.options = [*COMMON, f"checkpoint.local={self.local}", "checkpoint.local-every=1", "checkpoint.every=1000",
                        "checkpoint.partner=copy", f"tiers.path={self.local}"]

    def on(self, hosts, name, *options):
        return [NODES, hosts, str(self.local), str(self.nodes), *self.command(name, *options)]

    def train_on(self, hosts, name, *options, expect=0):
        result = self.call(*self.on(hosts, name, *options))
        self.assertEqual(expect, result.code, result)
        return result

    def levels(self, node, level):
        """Steps of complete checkpoints."""
        found = (self.nodes / node).glob(f"level-{level}-*/step-*/master.h5")
        return sorted(self.step_of(master.parent) for master in found)

    def killed(self, hosts, *options, copies=2):
        """Kills all ranks of a run once so many copies have become complete."""
        process = self.begin("run", self.on(hosts, "run", *options, "train.steps=1000000"))
        said = self.folder / "run.out"
        self.wait_until(lambda: said.read_text().count(", level 3") >= copies, process, "copies")
        for pid in self.ranks_of("run"):
            os.kill(pid, signal.SIGKILL)
        process.wait(60)
        self.wait_until(lambda: not self.processes("run"), what="the end of all processes")

    def straight(self, steps):
        self.train(f"straight-{steps}", *COMMON, f"train.steps={steps}")
        return self.folder / f"straight-{steps}/checkpoints"


@unittest.skipUnless(may_pretend(), "no right to mount and to change the host name")
class Partner(OnNodes):
    def test_a_node_that_is_lost_comes_back_from_its_partner(self):
        self.killed("n1:1,n2:2,n3:1", *self.options)
        listing = self.offstage("checkpoint", "ls", self.nodes / "n3").out
        self.assertRegex(listing, r"(?m)^\d+ +another node's part +3 ")
        self.assertRegex(listing, r"(?m)^\d+ +this node's part +1 ")
        for copy in (self.nodes / "n3").glob("level-3-*/step-*/master.h5"):
            self.assertIn(": good", self.offstage("checkpoint", "verify", copy.parent).out)
        self.assertTrue(list((self.nodes / "n3").glob("level-3-*/step-*/extent-0002-*.h5")), "n2 has ranks 1 and 2")
        shutil.rmtree(self.nodes / "n2")
        begin = max(set(self.levels("n1", 1)) & set(self.levels("n3", 1)) & set(self.levels("n3", 3)))
        self.assertEqual([], self.checkpoints("run"), "level 2 has none")
        total = begin + 3
        result = self.train_on("n1:1,n4:2,n3:1", "run", *self.options, f"train.steps={total}")
        self.assertIn(f"continuing after step {begin}\n", result.out)
        self.assertIn("parts that nodes lacked came from other nodes", result.out)
        self.assert_same_state(self.straight(total), self.folder / "run/checkpoints")
        for node in "n1", "n3", "n4":
            self.assertEqual([], list((self.nodes / node).rglob("*")), "level 2 has all of it")

    def test_files_come_whole_where_reads_and_writes_move_a_part(self):
        with self.faulty(self.local, calls="read,write,aio-read-end,aio-write-end", error="SHORT"):
            self.killed("n1:1,n2:1", *self.options)
            shutil.rmtree(self.nodes / "n2")
            begin = max(set(self.levels("n1", 1)) & set(self.levels("n1", 3)))
            result = self.train_on("n1:1,n2:1", "run", *self.options, f"train.steps={begin + 1}")
        self.assertIn(f"continuing after step {begin}\n", result.out)
        self.assert_same_state(self.straight(begin + 1), self.folder / "run/checkpoints")

    def test_storage_without_links_has_copies_too(self):
        with self.faulty(self.local, calls="link", error=errno.EPERM):
            self.killed("n1:1,n2:1", *self.options)
        self.assertTrue(self.levels("n2", 3))
        for copy in (self.nodes / "n2").glob("level-3-*/step-*/master.h5"):
            self.assertIn(": good", self.offstage("checkpoint", "verify", copy.parent).out)

    def test_a_path_from_which_nothing_can_be_linked_is_named_once_for_all_nodes(self):
        (self.folder / "storage").mkdir()
        result = self.train_on("n1:1,n2:1", "run", *self.options, f"tiers.path={self.folder}/storage", "train.steps=2")
        self.assertEqual(1, result.out.count("checkpoint.local: no links from"), result)

    def test_other_nodes_and_ranks_take_what_is_left_of_it(self):
        self.killed("n1:2,n2:1", *self.options)
        shutil.rmtree(self.nodes / "n1")
        begin = max(set(self.levels("n2", 1)) & set(self.levels("n2", 3)))
        total = begin + 2
        options = [option for option in self.options if option != "checkpoint.partner=copy"]
        result = self.train_on("n2:2", "run", *options, f"train.steps={total}")
        self.assertIn(f"continuing after step {begin}\n", result.out)
        self.assert_same_state(self.straight(total), self.folder / "run/checkpoints")
        self.assertEqual([], list((self.nodes / "n2").rglob("*")))

    def test_a_damaged_copy_is_found_and_level_2_taken(self):
        self.train_on("n1:1,n2:1", "run", *self.options, "train.steps=2")
        self.killed("n1:1,n2:1", *self.options)
        shutil.rmtree(self.nodes / "n2")
        for extent in (self.nodes / "n1").glob("level-3-*/step-*/extent-*.h5"):
            with open(extent, "r+b") as file:
                file.seek(9000)
                byte = file.read(1)[0]
                file.seek(9000)
                file.write(bytes([byte ^ 1]))
        total = 4
        result = self.train_on("n1:1,n2:1", "run", *self.options, f"train.steps={total}")
        self.assertIn("continuing after step 2\n", result.out)
        self.assertRegex("".join(result.warnings), r"checkpoint \S+ passed over: .*does not match its checksum")
        self.assert_same_state(self.straight(total), self.folder / "run/checkpoints")


@unittest.skipUnless(may_pretend(), "no right to mount and to change the host name")
class Branches(OnNodes):
    def test_level_1_of_a_node_that_others_went_on_without_is_not_taken(self):
        options = [*COMMON, f"checkpoint.local={self.local}", "checkpoint.local-every=1", "checkpoint.every=1000"]
        self.train_on("n1:1", "run", *options, "train.steps=4")
        process = self.begin("run", self.on("n1:1", "run", *options, "train.steps=1000000"))
        self.wait_until(lambda: self.levels("n1", 1)[-1:] > [5], process, "level 1")
        for pid in self.ranks_of("run"):
            os.kill(pid, signal.SIGKILL)
        process.wait(60)
        self.wait_until(lambda: not self.processes("run"), what="the end of all processes")
        left = self.levels("n1", 1)[-1]
        slower = "optimizer.lr=0.001"
        result = self.train_on("n2:1", "run", *options, slower, "train.steps=5")
        self.assertIn("continuing after step 4\n", result.out)
        result = self.train_on("n1:1", "run", *options, slower, f"train.steps={left + 1}")
        self.assertIn(f"step-{left:09} passed over: a later start, without the node that has it, began at an earlier step", result.err)
        self.assertIn("continuing after step 5\n", result.out)
        self.train("straight", *COMMON, "train.steps=4")
        self.train("straight", *COMMON, slower, f"train.steps={left + 1}")
        self.assert_same_state("straight", "run")


class Refused(OnNodes):
    def test_without_partner_or_level_1(self):
        for options, message in (
                ([], "checkpoint.partner=copy: this run has one node.*leave checkpoint.partner out"),
                (["checkpoint.local="], "checkpoint.partner=copy: there is nothing to copy without checkpoint.local")):
            with self.subTest(options):
                result = self.train("bad", *self.options, *options, expect=64)
                self.assertRegex(result.errors[0], message)
                self.assertFalse((self.folder / "bad").exists())
                self.assertEqual([], list(self.local.iterdir()))


if __name__ == "__main__":
    main()
