#!/usr/bin/env python3
"""A run does what its simulation foresees: the same things in the same order, under every policy.

With run.trace=on a run whose rates are given writes trace-RANK.json, what happened, and foreseen-RANK.json, the same of
simulated steps. Times are not compared, nor is what legitimately races:
- Workers fetch, update and flush beside each other. The order in which subgroups are dealt to them is fixed, that in which they
  reach the cores' lane or the cache is so only for those that are dealt far enough from each other. Where the order follows what is
  in the cache (tiers.evict=farthest) it races, too.
- Where the device has a share, workers come to its side and to that of the cores as they are free: each side has its order.
- Under backward, what is left is dealt again as gradients complete: what is updated is fixed, not when.
"""
import bisect
import collections
import json
import re
import unittest
from pathlib import Path

from harness import OffstageTest, main

POLICIES = Path(__file__).resolve().parents[2] / "configs/policies"
STEPS = 4  # as many as are simulated
MODEL = ["model.layers=4", f"train.steps={STEPS}", "optimizer.clip=0", "checkpoint.every=0", "run.trace=on",
         "numerics.dtype=bf16", "tiers.host-memory=128MiB", "update.device-chunk=4096"]
# A subgroup's update takes as long as a busy machine lets a thread wait.
RATES = "device.emulate=h2d=40MB/s,d2h=40MB/s,compute=1G,update=4M,host-update=400k,host-sum=1GB/s"
# What a policy leaves to rates that are measured as the run goes on, and what makes its parts show in so small a model.
PINNED = {
    "zero3": ["tiers.cache=200KiB"],
    "twinflow": ["update.device-resident=0.3"],
    "dos": ["update.device-share=0.5"],
    "mlp": ["tiers.cache=200KiB", "train.global-batch=4"],
    "fuyou": ["tiers.cache=200KiB", "train.activations=host", "train.global-batch=4"],
}
IN_MEMORY = {"twinflow", "dos"}
# Where the order of an update follows what is in the cache, it races with that.
OTHERS = ["update.overlap=off", "update.device-share=0", "tiers.cache=200KiB"]


class Events:
    """Spans of one rank by row, in order of their begin; rows of buffers without number."""

    def __init__(self, path):
        events = json.loads(path.read_text())
        names = {e["tid"]: re.sub(r" \(\d+\)$", "", e["args"]["name"]) for e in events if e["name"] == "thread_name"}
        self.rows = collections.defaultdict(list)
        for e in events:
            if e["ph"] == "X":
                row = re.sub(r" buffer( \d+)?$", " buffer", names[e["tid"]])
                row = re.sub(r"^worker \d+$", "worker", row)
                arguments = e.get("args", {})
                self.rows[row].append((e["ts"], e["ts"] + e["dur"], e["name"], arguments.get("key"), arguments.get("bytes", 0)))
        for spans in self.rows.values():
            spans.sort(key=lambda span: span[0])  # simulated things happen at the same moment, too, and stay in order
        self.first = min(span[0] for span in self.rows["model"])
        deals = self.rows["worker"]
        # A run has spans for the parts of a trip, a simulation one for all of it.
        ends = collections.defaultdict(list)
        for span in deals:
            ends[span[3]].append(span[1])
        self.deals = []
        for begin, _, _, key, _ in (d for d in deals if d[2] in ("fetch", "trip")):
            self.deals.append((begin, key))
        self.size = len({key for _, key in self.deals})
        self.begins = [begin for begin, _ in self.deals[::self.size]]

    def keys(self, row, name=None):
        """Those of a row's spans, all steps; the first versions were written before."""
        return [s[3] for s in self.rows[row] if (s[0] >= self.first or s[2] != "write") and name in (None, s[2])]

    def steps(self, row, name=None):
        """Those of a row by the update that they belong to: all of it comes before the next one's first trip."""
        steps = [[] for _ in self.begins]
        for begin, _, what, key, _ in self.rows[row]:
            if begin >= self.begins[0] and name in (None, what):
                steps[bisect.bisect_right(self.begins, begin) - 1].append(key)
        return steps

    def updates(self):
        """Subgroups as they are dealt, step by step."""
        keys = [key for _, key in self.deals]
        return [keys[i:i + self.size] for i in range(0, len(keys), self.size)]

    def bytes(self, prefix):
        """What paths have moved in the steps."""
        last = max(span[1] for span in self.rows["worker"])
        return {row[len(prefix):]: sum(s[4] for s in spans if self.first <= s[0] <= last)
                for row, spans in sorted(self.rows.items()) if row.startswith(prefix)}


def distinct(keys):
    """Without repetition of neighbours: a block's parts, a subgroup's chunks."""
    return [key for i, key in enumerate(keys) if i == 0 or key != keys[i - 1]]


class Conformance(OffstageTest):
    def both(self, name, *options, ranks=1):
        """What happened on each rank and what was foreseen there."""
        self.train(name, *MODEL, RATES, *options, ranks=ranks)
        return [(Events(self.folder / name / f"trace-{rank}.json"), Events(self.folder / name / f"foreseen-{rank}.json"))
                for rank in range(ranks)]

    def paths(self):
        options = []
        for path in "one", "two":
            (self.folder / path).mkdir(exist_ok=True)
            options.append(f"--tiers.path={self.folder}/{path},emulate-read=40MB/s,emulate-write=20MB/s")
        return options

    def assert_alike(self, run, plan, *, ordered=True, slow=True, workers=4):
        """`ordered`: the order of an update depends on nothing that races. `slow`: so do those of the cores' lane, if not much."""
        self.assertEqual(STEPS, len(plan.updates()))
        self.assertEqual(STEPS, len(run.updates()))
        with self.subTest("places"):
            self.assert_places(run, plan)
        with self.subTest("order"):
            if ordered:
                self.assert_order(run, plan)
        with self.subTest("lane"):
            if ordered and slow:
                self.assert_lane(run, plan, workers)
        with self.subTest("layers"):
            self.assert_layers(run, plan)
        with self.subTest("extents"):
            self.assert_extents(run, plan, workers)

    def assert_places(self, run, plan):
        """Which subgroups the cores update and which the device, step by step."""
        for row in "update", "device update":
            self.assertEqual([sorted(set(step)) for step in plan.steps(row)], [sorted(set(step)) for step in run.steps(row)], row)

    def assert_order(self, run, plan):
        """Subgroups as they are dealt to workers, each side's in its order."""
        for step, (mine, theirs) in enumerate(zip(run.updates(), plan.updates())):
            device = set(plan.steps("device update")[step])
            for side in (device, set(theirs) - device):
                self.assertEqual([k for k in theirs if k in side], [k for k in mine if k in side], f"dealt in step {step}")

    def assert_lane(self, run, plan, workers):
        """The cores update early subgroups before late ones. A worker that waits for a core of a busy machine is passed by the others."""
        for step, order in enumerate(plan.updates()):
            place = {key: i for i, key in enumerate(order)}
            lane = [place[key] for key in run.steps("update")[step]]
            passed = [one for i, one in enumerate(lane) if any(other >= one + 2 * workers for other in lane[:i])]
            self.assertLess(len(passed), workers, f"the lane in step {step}: {lane}")

    def assert_layers(self, run, plan):
        """Layers in the order in which they are brought, their gradients leave and their activations leave and return."""
        self.assertEqual(plan.keys("parameters ahead"), run.keys("parameters ahead"))
        self.assertEqual(plan.keys("parameters from ranks"), run.keys("parameters from ranks"))
        rows = ["gradients to host"]
        if not plan.rows["activation buffer"]:  # those on their way to storage have no rows of their own
            rows += ["activations out", "activations back"]
        for row in rows:
            self.assertEqual(distinct(plan.keys(row)), distinct(run.keys(row)), row)
        sizes = [[s[4] for s in each.rows["gradients to host"]] for each in (plan, run)]
        self.assertEqual(*sizes, "bytes of gradients")

    def assert_extents(self, run, plan, workers):
        """Which extents are read from storage and which are found in host memory, and what that moves."""
        for step, (mine, theirs) in enumerate(zip(run.steps("state buffer", "read"), plan.steps("state buffer", "read"))):
            if step + 1 == STEPS:
                mine = mine[:len(theirs)]  # the save at the end reads, too
            # A subgroup whose extent is still on its way out when its next turn comes is found in memory.
            self.assertLessEqual(abs(len(theirs) - len(mine)), workers - 1, f"state read in step {step}: {mine} for {theirs}")
            self.assertLessEqual(len(set(theirs) ^ set(mine)), 2 * (workers - 1), f"state read in step {step}: {mine} for {theirs}")
        for kind in "gradient", "flushed gradient", "parameter":
            for name in "read", "write":
                self.assertEqual(collections.Counter(plan.keys(f"{kind} buffer", name)),
                                 collections.Counter(run.keys(f"{kind} buffer", name)), f"{kind}s, {name}")
        extent = 4096 * 12
        for direction in "read ", "write ":
            mine, theirs = run.bytes(direction), plan.bytes(direction)
            self.assertLessEqual(abs(sum(mine.values()) - sum(theirs.values())), workers * extent, f"{direction}{mine} for {theirs}")

    def test_every_policy_does_what_is_foreseen(self):
        for policy in sorted(POLICIES.glob("*.cfg")):
            name = policy.stem
            pinned = PINNED.get(name, OTHERS)
            place = [] if name in IN_MEMORY else self.paths()
            for ranks in 1, 2:
                with self.subTest(name, ranks=ranks):
                    for run, plan in self.both(f"{name}-{ranks}", f"--config={policy}", *pinned, *place, ranks=ranks):
                        self.assert_alike(run, plan, ordered=name in PINNED and name != "fuyou")

    def test_so_does_a_run_of_defaults_whose_cache_follows_the_order(self):
        for run, plan in self.both("defaults", *OTHERS, *self.paths(), "tiers.split=1:1"):
            self.assert_alike(run, plan, ordered=False)

    def test_so_do_activations_and_gradients_for_which_host_memory_has_no_room(self):
        options = ["train.activations=storage", "model.layers=8", "model.hidden=64", "train.micro-batch=16", "train.global-batch=32",
                   "update.overlap=off", "update.device-share=0", *self.paths()]
        for memory in range(1200, 20000, 100):
            result = self.call(*self.command("stored", *MODEL, RATES.replace("400k", "4M"), *options, f"tiers.host-memory={memory}KiB"))
            if result.code != 64:
                break
        self.assertEqual(0, result.code, result)
        run, plan = (Events(self.folder / "stored" / f"{name}-0.json") for name in ("trace", "foreseen"))
        self.assertGreater(len(plan.keys("gradient buffer")), 0)
        self.assert_alike(run, plan, slow=False)
        for name in "write", "read":
            expected = plan.keys("activation buffer", name)
            self.assertGreater(len(expected), 0)
            self.assertEqual(collections.Counter(expected), collections.Counter(run.keys("activation buffer", name)), name)
            mine, theirs = (list(each.bytes(f"{name} ").values()) for each in (run, plan))
            self.assertEqual(2, len(mine))
            self.assertGreater(min(theirs), 0, "both paths have activations")
            for one, other in zip(mine, theirs):
                self.assertAlmostEqual(one, other, delta=0.15 * max(theirs))

    def test_so_do_micro_batches_whose_gradients_all_leave(self):
        options = ["update.device-gradients=0", "update.device-share=0", "train.activations=0.5", "update.overlap=off"]
        for run, plan in self.both("gradients", *options, "train.micro-batch=1"):
            self.assert_alike(run, plan)
            self.assertEqual(8 * 10 * STEPS, len(run.keys("gradients to host")))

    def test_so_do_micro_batches_that_pass_layers_together(self):
        options = ["train.schedule=vertical", "train.activations=host", "parameters.home=host", "train.global-batch=24",
                   "update.overlap=off", "update.device-share=0"]
        for ranks in 1, 2:
            with self.subTest(ranks=ranks):
                for run, plan in self.both(f"vertical-{ranks}", *options, *self.paths(), ranks=ranks):
                    self.assertGreater(len(plan.keys("activations out")), 0)
                    self.assert_alike(run, plan, ordered=False)


class Report(OffstageTest):
    """What a run says of its prediction."""

    def test_the_end_holds_the_steps_against_what_given_rates_foresaw(self):
        (self.folder / "path").mkdir()
        result = self.train("run", *MODEL, RATES, "update.overlap=off", "run.header=full", "update.device-share=0",
                            f"tiers.path={self.folder}/path,emulate-read=40MB/s,emulate-write=20MB/s")
        steps = self.steps("run")
        predicted = steps[0]["predicted_step_seconds"]
        self.assertGreater(predicted, 0)
        self.assertEqual([predicted] * STEPS, [step["predicted_step_seconds"] for step in steps])
        tokens = 8 * 24
        for step in steps:
            self.assertGreater(step["tflops"], 0)
            self.assertAlmostEqual(step["tflops"] * 1e3, step["mfu"], 9, "the device's products reach 1 GFLOP/s")
            self.assertLess(step["mfu"], 1)
            # Six operations for each weight of a product and token are most of them.
            self.assertGreater(step["tflops"] * step["step_seconds"] * 1e12, 6 * 4 * (32 * 64 + 32 * 32 + 3 * 32 * 64) * tokens)
        self.assertRegex(result.out, r"predicted, achieved, mean of 3 steps; by rates that were given or measured at the start\n")
        apart = r"([+-][0-9.]+ %|x \d+)"  # a busy machine may take ten times as long
        line = re.search(rf"(?m)^  step +([0-9.]+) s +([0-9.]+) s +{apart}$", result.out)
        self.assertAlmostEqual(predicted, float(line.group(1)), 4)
        self.assertAlmostEqual(sum(step["step_seconds"] for step in steps[1:]) / 3, float(line.group(2)), 4)
        for phase in "forward", "backward", "update":
            self.assertRegex(result.out, rf"(?m)^  {phase} +[0-9.]+ s +[0-9.]+ s +{apart}$")
        # Nothing is cached but what the last commits leave in buffers: an update reads and writes all of the state.
        for what, rate in ("read", "40.0"), ("written", "20.0"):
            bytes_of = rf"(?m)^  {re.escape(str(self.folder))}/path {what}: ([0-9.]+) KiB at {rate} MB/s, ([0-9.]+) KiB at [0-9.]+ [kMG]B/s$"
            foreseen, reached = (float(number) for number in re.search(bytes_of, result.out).groups())
            self.assertAlmostEqual(foreseen, reached, delta=0.25 * foreseen)  # the last flushes are not in it
        host = re.search(r"host memory per node: (.*) planned", result.out).group(1)
        self.assertRegex(result.out, rf"host memory of state and gradients per node: peak .*, limit 128 MiB, planned {host}, libraries some 12.5 MiB\n")
        device = re.search(r"(?m)^  together +([0-9.]+ [KM]iB)", result.out).group(1)
        self.assertRegex(result.out, rf"device memory per rank: peak {device}, limit none, planned {device}\n")
        self.assertRegex(result.out, r"step +1/4 .* tokens/s  [0-9.e-]+ TFLOP/s  left")
        self.assertRegex(result.out, r"4 steps, [0-9]+ tokens/s, [0-9.e-]+ TFLOP/s")

    def test_without_rates_the_first_steps_have_them(self):
        result = self.train("run", "train.steps=6", "update.overlap=off")
        steps = self.steps("run")
        self.assertNotIn("predicted_step_seconds", steps[0])
        self.assertGreater(steps[2]["predicted_step_seconds"], 0)
        self.assertNotIn("mfu", steps[-1])
        self.assertIn("; by rates of the first steps where none were given", result.out)
        result = self.train("vertical", "train.steps=3", "train.schedule=vertical")
        self.assertNotIn("predicted_step_seconds", self.steps("vertical")[0])
        self.assertGreater(self.steps("vertical")[2]["predicted_step_seconds"], 0)


if __name__ == "__main__":
    main()
