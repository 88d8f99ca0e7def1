#!/usr/bin/env python3
"""One working copy of the parameters per node (parameters.home=node): the same bits on any division of ranks into nodes, and
nothing left in shared memory, however a run ends."""
import json
import os
import shutil
import signal
import unittest
from pathlib import Path

from bad_input_test import may_mount, on_small_disk
from harness import OffstageTest, in_turn, main
from partner_test import NODES, may_pretend

# Three micro-batches, so that two and four ranks have an idle one.
MODEL = ["model.layers=3", "train.steps=3", "train.global-batch=6", "numerics.dtype=bf16"]
NODE = "parameters.home=node"
LINK = "--device.emulate=h2d=20GB/s,d2h=20GB/s"
SLOW = "--device.emulate=h2d=100MB/s,d2h=80MB/s,update=100M,host-update=50M"
SHARED = Path("/dev/shm")


def left_by(pids):
    """Names in shared memory that these processes gave."""
    return [path.name for path in SHARED.iterdir() if path.name.startswith(tuple(f"offstage-{pid}-" for pid in pids))]


class NodeHome(OffstageTest):
    def path(self):
        directory = self.folder / "path"
        directory.mkdir(exist_ok=True)
        return f"--tiers.path={directory},read=1GB/s,write=1GB/s"

    def check_ways(self, base, ways, *options, run=None):
        self.train_once(base, *MODEL, *options)
        for number, (ranks, more) in enumerate(ways):
            with self.subTest(base=base, ranks=ranks, options=more):
                name = f"{base}-{number}"
                result = (run or self.train)(name, *MODEL, *options, NODE, *more, ranks=ranks)
                self.assert_same_state(base, name)
                self.assertEqual([(r["loss"], r["grad_norm"]) for r in self.steps(base)],
                                 [(r["loss"], r["grad_norm"]) for r in self.steps(name)])
                self.assertIn("\nparameters: in host memory that the ranks of a node share, ", result.out)
                self.assertEqual([], [line for line in result.warnings if "tiers.host-memory" in line], result)
                shutil.rmtree(self.folder / name)

    def test_ranks_places_and_schedules_leave_the_bits_as_they_are(self):
        clipped = ["optimizer.clip=0.5"]
        bases = ("bf16", clipped), ("fp32", ["numerics.dtype=fp32"]), ("tied", ["model.tied-head=true"])
        for (base, options), way in in_turn(bases, [
                (1, []),
                (2, []),
                (4, []),
                (3, ["update.overlap=on", self.path(), "update.device-share=0"]),
                (4, ["train.schedule=vertical"]),
                (1, [LINK]),
                (2, [LINK]),
                (4, [LINK, "update.overlap=on", self.path()]),
                (3, [SLOW, "update.device-share=0.5", "update.device-chunk=4096", "update.device-resident=0.3"]),
                (4, [LINK, "train.schedule=vertical", "train.activations=host"]),
                (2, [LINK, "update.overlap=on", "update.device-share=1", self.path(), "tiers.host-memory=60MB"])]):
            self.check_ways(base, [way], *options)

    def test_a_layer_crosses_between_ranks_once_in_a_step(self):
        for number, link in enumerate(([], [LINK])):
            name = f"traced-{number}"
            self.train(name, *MODEL, NODE, *link, "run.trace=on", ranks=2)
            events = json.loads((self.folder / name / "trace-1.json").read_text())
            row, = (e["tid"] for e in events if e.get("name") == "thread_name" and e["args"]["name"] == "parameters from ranks")
            brought = [e for e in events if e.get("ph") == "X" and e["tid"] == row]
            self.assertEqual(3 * (2 * 3 + 2), len(brought), "two layers of each block, embedding and head, in each of three steps")

    def test_products_that_are_queued_leave_the_bits_as_they_are(self):
        self.check_ways("queued", [(2, ["--device.emulate=compute=2T"]), (4, ["--device.emulate=compute=2T", "update.overlap=on"])])

    def test_halves_of_parameters_leave_the_bits_as_they_are(self):
        self.check_ways("halves", [(4, ["tiers.split-parameters=on"]), (2, [LINK, "tiers.split-parameters=on"])], "optimizer.clip=0.5")

    def test_steps_that_overflow_are_skipped_alike(self):
        options = ["numerics.dtype=fp16", "numerics.loss-scale-start=1073741824", "train.steps=8"]
        self.train("device", *MODEL, *options)
        self.assertGreater(sum(r["skipped"] for r in self.steps("device")), 0)
        self.check_ways("device", [(4, []), (2, [LINK, "update.overlap=on", self.path()])], *options)

    def test_a_run_goes_on_with_parameters_elsewhere_and_is_validated(self):
        model = [*MODEL, "optimizer.schedule=constant", "optimizer.warmup-steps=0", f"--data.valid={self.valid}", "train.valid-every=1"]
        self.train("straight", *model)
        for number, (ranks, options) in enumerate([(2, [NODE]), (1, ["parameters.home=host", LINK]), (4, [NODE, LINK])]):
            self.train("moved", *model, *options, f"train.steps={number + 1}", ranks=ranks)
        self.assert_same_state("straight", "moved")
        self.assertEqual([r["valid_loss"] for r in self.records("straight") if "valid_loss" in r],
                         [r["valid_loss"] for r in self.records("moved") if "valid_loss" in r])

    @unittest.skipUnless(may_pretend(), "no right to mount and to change the host name")
    def test_any_division_into_nodes_leaves_the_bits_as_they_are(self):
        local = self.folder / "local"
        local.mkdir()

        def on_nodes(name, *options, ranks):
            result = self.call(NODES, ranks, str(local), str(self.folder / "nodes"), *self.command(name, *options))
            self.assertEqual(0, result.code, result)
            return result
        for (base, options), way in in_turn((("clipped", ["optimizer.clip=0.5"]), ("tied", ["model.tied-head=true"])), [
                ("n1:2,n2:2", []),
                ("n1:3,n2:1", []),
                ("n1:1,n2:2", ["train.schedule=vertical"]),
                ("n1:2,n2:2", [LINK, "update.overlap=on", f"--tiers.path={local}"]),
                ("n1:3,n2:1", [LINK, "update.overlap=on", f"--tiers.path={local}", "tiers.cache=auto"]),
                ("n1:1,n2:1,n3:1", [LINK])]):
            self.check_ways(base, [way], *options, run=on_nodes)

    def test_a_kill_leaves_nothing_in_shared_memory(self):
        for ranks in 1, 3:
            with self.subTest(ranks=ranks):
                name = f"run-{ranks}"
                process = self.start(name, *MODEL, NODE, "train.steps=1000000", ranks=ranks)
                self.wait_for_step(name, 2, process)
                pids = self.ranks_of(name)
                self.assertEqual(ranks, len(pids))
                self.assertTrue(any("/dev/shm/offstage-" in line and "(deleted)" in line
                                    for line in Path(f"/proc/{pids[0]}/maps").read_text().splitlines()))
                self.assertEqual([], left_by(pids), "while it runs")
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                process.wait(60)
                self.assertEqual([], left_by(pids))

    @unittest.skipUnless(may_mount(), "no right to mount a small file system")
    def test_no_room_in_shared_memory_is_said_with_what_helps(self):
        for ranks in 1, 2:
            command = self.command("run", *MODEL, NODE, "model.hidden=256", ranks=ranks)
            # MPI has its own memory there, too.
            listing = self.folder / f"left-{ranks}"
            script = '"$@"; code=$?; ls /dev/shm > "$0"; exit $code'
            result = self.call(*on_small_disk(SHARED, 1, ["sh", "-c", script, str(listing), "env", "OMPI_MCA_btl=self,tcp",
                                                          *map(str, command)]))
            self.assertEqual(74, result.code, result)
            self.assertEqual(1, len(result.errors), result)
            self.assertRegex(result.errors[0], r"/dev/shm has no room for the working copy of the parameters \(parameters\.home=node\), "
                                               r"[\d.]+ MiB \(\d+ bytes\) that the ranks of this node share: No space left on device")
            self.assertIn("make it larger (mount -o remount,size=..., of a container --shm-size), or set parameters.home=host",
                          result.errors[0])
            self.assertEqual([], [name for name in listing.read_text().split() if name.startswith("offstage")])

    @unittest.skipUnless(may_mount(), "no right to mount a small file system")
    def test_shared_memory_that_cannot_be_written_is_said_with_what_helps(self):
        result = self.call(*on_small_disk(SHARED, 1, self.command("run", *MODEL, NODE), ",ro"))
        self.assertEqual(74, result.code, result)
        self.assertRegex(result.errors[0], r"cannot create memory that ranks share as /dev/shm/offstage-\d+-\d+: Read-only file system\. "
                                           r"Have /dev/shm mounted so that you may write there, or set parameters\.home=host$")

    def test_whole_gradients_and_parameters_on_the_device_are_refused(self):
        for sharding in "zero2", "zero1":
            result = self.train("run", *MODEL, NODE, f"parameters.sharding={sharding}", "numerics.sum-block=2", ranks=2, expect=64)
            self.assertIn(f"parameters.sharding={sharding} keeps whole parameters on the device, but parameters.home=node brings them "
                          "there layer by layer; use parameters.home=device, or parameters.sharding=zero3", result.err)


if __name__ == "__main__":
    main()
