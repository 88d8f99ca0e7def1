#!/usr/bin/env python3
"""Updates shared by cores and device: whoever updates what, in what chunks and when, p, m and v have the bits of a run
that the cores updated alone; and what a run with a device says about it."""
import json
import re

from harness import OffstageTest, main
from pairs import chosen_rows

MODEL = ["model.layers=4", "train.steps=4"]

FACTORS = {
    "dtype": ["bf16", "fp32"],
    "ranks": [1, 2, 4],
    "share": ["0", "0.25", "0.33", "0.5", "0.75", "1", "auto"],
    "resident": ["0", "0.3", "1"],
    "chunk": ["4096", "20k", "4M"],
    "link": ["none", "slow", "fast", "queued"],
    "transfers": ["overlap", "blocking"],
    "paths": [0, 1, 2],
    "accumulate": ["fp32", "16bit"],
    "gradients": ["auto", "0", "40KB"],
    "activations": ["keep", "recompute", "host", "0.4"],
}
LINKS = {"none": [], "slow": ["--device.emulate=h2d=300MB/s,d2h=200MB/s,update=100M,host-update=50M"],
         "fast": ["--device.emulate=h2d=20GB/s,d2h=20GB/s"],
         "queued": ["--device.emulate=h2d=2GB/s,d2h=1GB/s,compute=1T,update=500M,host-sum=1GB/s"]}


class SharedUpdate(OffstageTest):
    def options_of(self, row):
        options = [*MODEL, f"numerics.dtype={row['dtype']}", f"numerics.accumulate={row['accumulate']}",
                   f"train.activations={row['activations']}", f"update.device-share={row['share']}",
                   f"update.device-resident={row['resident']}", f"update.device-chunk={row['chunk']}",
                   f"update.transfers={row['transfers']}", f"update.device-gradients={row['gradients']}", *LINKS[row["link"]]]
        for number in range(row["paths"]):
            directory = self.folder / f"path{number}"
            directory.mkdir(exist_ok=True)
            options.append(f"--tiers.path={directory},read=1GB/s,write=1GB/s")
        return options

    def test_pairs_of_choices(self):
        for number, row in enumerate(chosen_rows(FACTORS)):
            with self.subTest(**row):
                name, base = f"row{number}", f"alone-{row['dtype']}-{row['accumulate']}"
                self.train_once(base, *MODEL, f"numerics.dtype={row['dtype']}", f"numerics.accumulate={row['accumulate']}")
                self.train(name, *self.options_of(row), ranks=row["ranks"])
                self.assert_same_state(base, name)
                self.assertEqual([(r["loss"], r["grad_norm"]) for r in self.steps(base)],
                                 [(r["loss"], r["grad_norm"]) for r in self.steps(name)])
                self.check_share(row, self.steps(name))

    def check_share(self, row, steps):
        """The row did what it is there for."""
        used = row["link"] != "none" or row["resident"] != "0" or row["share"] not in ("0", "auto")
        for step in steps:
            self.assertEqual(used, "device_share" in step)
        held = [step.get("device_gradient_bytes", 0) for step in steps]
        if row["link"] == "none" or row["gradients"] == "0" or (row["share"] == "0" and row["resident"] == "0"):
            self.assertEqual({0}, set(held))
        elif row["gradients"] == "auto" and row["share"] != "auto":
            self.assertGreater(min(held), 0)
        else:
            self.assertLessEqual(max(held), 40_000 if row["gradients"] == "40KB" else max(held))
        if used and row["share"] != "auto":
            self.assertEqual(float(row["share"]), steps[-1]["device_share"])

    def test_a_run_goes_on_where_another_placement_stopped(self):
        shared = ["update.device-share=0.5", "update.device-resident=0.25", "update.device-chunk=4096",
                  *LINKS["slow"]]
        model = [*MODEL, "optimizer.schedule=constant"]
        self.train("straight", *model)
        self.train("stopped", *model, "train.steps=2", *shared, ranks=2)
        self.train("stopped", *model)
        self.assert_same_state("straight", "stopped")
        self.train("other", *model, "train.steps=2")
        self.train("other", *model, *shared, "update.device-resident=0.5", ranks=2)
        self.assert_same_state("straight", "other")

    def test_the_share_follows_what_the_updates_measure(self):
        self.train("auto", *MODEL, "train.steps=6", "model.layers=8", "update.subgroup-size=4096", "update.device-chunk=4096",
                   "--device.emulate=h2d=20MB/s,d2h=20MB/s,update=50M,host-update=1M")
        steps = self.steps("auto")
        self.assertEqual(0.5, steps[0]["device_share"], "everything is measured first")
        self.assertIsNone(steps[0]["expected_update_seconds"])
        # 1 M/s on the cores; 14 B there at 20 MB/s make 1.4 M/s on the device: it gets more than half.
        self.assertGreater(steps[-1]["device_share"], 0.4)
        self.assertLess(steps[-1]["device_share"], 0.7)
        self.assertGreater(steps[-1]["expected_update_seconds"], 0)

    def test_what_an_update_is_expected_to_take_counts_storage(self):
        path = self.folder / "slow"
        path.mkdir()
        self.train("stored", *MODEL, "model.layers=4", "update.transfers=blocking", "update.device-chunk=4096",
                   f"--tiers.path={path},emulate-read=5MB/s,emulate-write=5MB/s", *LINKS["slow"])
        steps = self.steps("stored")
        self.assertIsNone(steps[0]["expected_update_seconds"], "the cores' rate is not known yet")
        # 12 B there and back of some 70,000 parameters, at 5 MB/s; a busy machine disturbs most steps, not all.
        self.assertGreater(min(step["update_seconds"] for step in steps[1:]), 0.2)
        self.assertTrue(any(1 / 2 < step["expected_update_seconds"] / step["update_seconds"] < 2 for step in steps[1:]), steps)

    def test_device_memory_that_does_not_suffice_is_found_before_the_first_step(self):
        result = self.train("small", *MODEL, "device.memory=1000KiB", "update.device-resident=1", *LINKS["fast"],
                            expect=64)
        self.assertRegex(result.err, r"device.memory=1000 KiB is too small: .* are needed, .* more; raise it, lower .*update.device-resident")
        self.assertNotIn("step ", result.out)

    def device_memory_of(self, name):
        """The values of the trace's row "device memory", by series, in the order of their times."""
        events = json.loads((self.folder / name / "trace-0.json").read_text())
        counters = [event for event in events if event["ph"] == "C"]
        self.assertEqual({"device memory"}, {event["name"] for event in counters})
        return [event["args"] for event in sorted(counters, key=lambda event: event["ts"])]

    def device_bytes(self, row, out):
        """The column of the device in the table of memory."""
        number, unit = re.search(rf"^ *{row} +([0-9.]+) (KiB|MiB)", out, re.MULTILINE).groups()
        return float(number) * {"KiB": 1 << 10, "MiB": 1 << 20}[unit]

    def test_the_trace_shows_what_of_device_memory_is_in_use(self):
        options = [*MODEL, "run.trace=on", "update.device-share=0.5", "update.device-resident=0.25", "update.device-chunk=4096",
                   *LINKS["slow"]]
        # Slots are the update's own where there is room; else activations lend what they can.
        for name, limit, overlap in ("roomy", 4096, "off"), ("tight", 840, "off"), ("ahead", 4096, "on"):
            with self.subTest(name):
                out = self.train(name, *options, f"device.memory={limit}KiB", f"update.overlap={overlap}", "run.header=full").out
                rows = self.device_memory_of(name)
                most = {series: max(row[series] for row in rows) for series in rows[0]}
                for series, what in (("parameters", "16-bit parameters"), ("activations", "activations and scratch"),
                                     ("resident state", "optimizer state")):
                    self.assertAlmostEqual(1, most[series] / self.device_bytes(what, out), 2, series)
                self.assertEqual(name == "tight", most["lent chunks"] > 0)
                self.assertTrue(all(row["activations"] == 0 for row in rows if row["lent chunks"] > 0))
                self.assertEqual(most["parameters"] + most["resident state"], sum(rows[-1].values()), "nothing else stays")
                together = max(sum(row.values()) for row in rows)
                self.assertLessEqual(together, limit << 10)
                slots = self.device_bytes("chunks of the update", out)
                self.assertIn(most["update chunks"], range(64 << 10, int(slots) + 1, 64 << 10))
                if overlap == "off":
                    # At the end of backward, of all that is allocated: the slots are idle, and of the gradients' room
                    # and that of their way less than a subgroup and a layer each; the table has three digits.
                    peak = self.device_bytes("device memory per rank: peak", out)
                    self.assertLess(peak - slots - together, 40 << 10, most)


if __name__ == "__main__":
    main()
