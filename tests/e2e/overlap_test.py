#!/usr/bin/env python3
"""Updates that begin under backward, before the norm is known: whether they are kept, done again or undone, p, m and v
have the bits of a run that waited; also where it is killed in the middle of one."""
import os
import signal

from harness import OffstageTest, main
from pairs import chosen_rows

MODEL = ["model.layers=4", "train.steps=6"]

FACTORS = {
    "overlap": ["on", "auto"],
    "clip": ["0", "1", "some", "0.001"],  # never, hardly, in some of the steps, in every step
    "dtype": ["bf16", "fp32", "fp16"],    # fp16 overflows at first
    "batch": [2, 8],                      # one micro-batch, or several
    "ranks": [1, 2, 4],
    "paths": [0, 1, 2],
    "cache": ["0", "200KiB", "auto"],
    "memory": ["auto", "tight"],          # tight: gradients spill, and nothing in host memory has a spare
    "link": ["none", "slow", "queued"],
    "share": ["0", "0.5", "1"],
    "resident": ["0", "0.3"],
    "order": ["alternate", "ascending"],
    "transfers": ["overlap", "blocking"],
}
LINKS = {"none": [], "slow": ["--device.emulate=h2d=300MB/s,d2h=200MB/s,update=100M,host-update=50M"],
         "queued": ["--device.emulate=h2d=2GB/s,d2h=1GB/s,compute=1T,host-update=50M,host-sum=1GB/s"]}
# What a run in each type needs beside MODEL; the scale of fp16 overflows in the first steps.
DTYPES = {"bf16": [], "fp32": [], "fp16": ["numerics.loss-scale-start=262144", "numerics.loss-scale-window=2"]}
TIGHT = {1: "450KiB", 2: "900KiB", 4: "1800KiB"}


class Overlap(OffstageTest):
    def base_options(self, row):
        return [*MODEL, f"numerics.dtype={row['dtype']}", *DTYPES[row["dtype"]], f"train.global-batch={row['batch']}"]

    def reference(self, row):
        """The run that waits, in host memory, on one rank; and the limit of norms that strikes in some of its steps."""
        kind = (row["dtype"], row["batch"])
        if kind not in self.limits:
            name = f"free-{kind[0]}-{kind[1]}"
            self.train(name, *self.base_options(row), "update.overlap=off", "optimizer.clip=0")
            norms = sorted(r["grad_norm"] for r in self.steps(name) if not r.get("skipped"))
            self.limits[kind] = f"{norms[len(norms) // 2]:.3g}"
        clip = self.limits[kind] if row["clip"] == "some" else row["clip"]
        name = f"waits-{kind[0]}-{kind[1]}-{clip}"
        self.train_once(name, *self.base_options(row), "update.overlap=off", f"optimizer.clip={clip}")
        return name, clip

    def options_of(self, row, clip):
        options = [*self.base_options(row), f"optimizer.clip={clip}", f"update.overlap={row['overlap']}",
                   f"tiers.cache={row['cache']}", f"update.device-share={row['share']}",
                   f"update.device-resident={row['resident']}", f"update.order={row['order']}",
                   f"update.transfers={row['transfers']}", "update.device-chunk=4096"]
        options += LINKS[row["link"]]
        for number in range(row["paths"]):
            directory = self.folder / f"path{number}"
            directory.mkdir(exist_ok=True)
            options.append(f"--tiers.path={directory},read=1GB/s,write=1GB/s")
        if row["memory"] == "tight" and row["paths"] > 0 and row["link"] == "none":
            options.append(f"tiers.host-memory={TIGHT[row['ranks']]}")
        return options

    def test_pairs_of_choices(self):
        self.limits = {}
        seen = set()
        for number, row in enumerate(chosen_rows(FACTORS)):
            with self.subTest(**row):
                waits, clip = self.reference(row)
                name = f"row{number}"
                result = self.train(name, *self.options_of(row, clip), ranks=row["ranks"])
                self.assert_same_state(waits, name)
                began = [step["overlap"] for step in self.steps(name) if "overlap" in step]
                if began:
                    self.assertIn(f"updates under backward: {len(began)} of 6 steps, {began.count('redone')} of them done again",
                                  result.out)
                self.assertEqual([(r["loss"], r["grad_norm"]) for r in self.steps(waits)],
                                 [(r["loss"], r["grad_norm"]) for r in self.steps(name)])
                seen.update(self.check_steps(row, clip, self.steps(name)))
        self.assertEqual({"kept", "redone", "undone"}, seen)

    def check_steps(self, row, clip, steps):
        """What became of each step's update, where all of them begin under backward."""
        kinds = []
        for step in steps if row["overlap"] == "on" else []:
            clipped = float(clip) > 0 and step["grad_norm"] is not None and step["grad_norm"] + 1e-6 > float(clip)
            bad = step.get("skipped") or clipped
            self.assertEqual("redone" if bad else "kept", step["overlap"], step)
            kinds.append("undone" if step.get("skipped") else step["overlap"])
        return kinds

    def test_a_run_killed_under_a_trial_goes_on_with_the_same_bits(self):
        path = self.folder / "path"
        path.mkdir()
        common = ["model.layers=4", "train.steps=8", "checkpoint.every=1", "train.global-batch=8"]
        self.train("waits", *common, "update.overlap=off")
        slow = ["update.overlap=on", f"--tiers.path={path},emulate-read=4MB/s,emulate-write=2MB/s"]
        for ranks in (1, 2):
            name = f"killed{ranks}"
            for step in (2, 5):
                process = self.start(name, *common, *slow, ranks=ranks)
                self.wait_for_step(name, step, process)
                for pid in self.ranks_of(name):
                    os.kill(pid, signal.SIGKILL)
                process.wait()
                self.assert_no_process_left()
            self.train(name, *common, *slow, ranks=ranks)
            self.assert_same_state("waits", name)
            self.assertEqual([], list(path.iterdir()))

    def test_says_what_is_in_the_way(self):
        result = self.train("no", *MODEL, "update.overlap=perhaps", expect=64)
        self.assertRegex(result.err, r"update.overlap=perhaps.*auto.*on.*off")


if __name__ == "__main__":
    main()
