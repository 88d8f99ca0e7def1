#!/usr/bin/env python3
"""Tests of check_pages.py on small trees."""
import tempfile
import unittest
from pathlib import Path

import check_pages
import check_rooms


class CheckPages(unittest.TestCase):
    def offences(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            for name, text in {"README.md": "", **files}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return check_pages.check(root)

    def test_links_to_files_and_headings_are_fine(self):
        self.assertEqual([], self.offences({
            "README.md": "[a](jobs/README.md#what-a-run-writes) [b](https://example.org/x) [c](#here)\n# Here\n",
            "jobs/README.md": "## What a run writes\n[up](../README.md)\n",
        }))

    def test_a_link_that_leads_nowhere_is_named_with_its_line(self):
        self.assertEqual(["jobs/README.md:2: ../gone.md leads to no file",
                          "jobs/README.md:3: #no: jobs/README.md has no such heading"],
                         self.offences({"jobs/README.md": "\n[a](../gone.md)\n[b](#no)\n```\n# no\n```\n"}))

    def test_a_path_in_backticks_exists(self):
        self.assertEqual(["README.md:2: perf/gone.sh is not in the tree"],
                         self.offences({"README.md": "`perf/a.sh DIR` `perf/NAME.sh` `jobs/*.sh`\n`perf/gone.sh`\n",
                                        "perf/a.sh": ""}))

    def test_a_key_is_in_the_table(self):
        table = '    Key{"run.dir", "PATH"},\n    Key{\n        "train.log-every", "N"},\n'
        self.assertEqual(["README.md:2: run.gone is no key", "README.md:3: train.log is no key", "README.md:5: run.gone is no key"],
                         self.offences({"README.md": "`run.dir=x` `--train.log-every=1` train.sbatch others.gone a/run.gone\n"
                                                     "`run.gone`\ntrain.log, `train.*`\n```\n--run.gone=1\n```\n",
                                        "CHANGELOG.md": "`run.gone`", "src/config/key_table.cpp": table}))

    def test_the_first_page_stays_short(self):
        self.assertEqual([], self.offences({"README.md": "x\n" * 200}))
        self.assertEqual(1, len(self.offences({"README.md": "x\n" * 201})))

    def test_the_map_has_every_room_with_its_rank(self):
        rows = "".join(f"| {rank} | `{room}` | x |\n" for room, rank in check_rooms.RANK.items())
        self.assertEqual([], self.offences({"src/README.md": rows}))
        self.assertEqual(["src/README.md:1: room base has rank 7, in check_rooms.py 0",
                          "src/README.md:1: room tiers has rank None, in check_rooms.py 3"],
                         self.offences({"src/README.md": rows.replace("| 0 | `base`", "| 7 | `base`").replace("`tiers`", "tiers")}))

    def test_the_table_of_train_has_every_file(self):
        files = {"src/train/README.md": "| room | files |\n|---|---|\n| `step` | `a`; `gone` | x |\n",
                 "src/train/step/a.cpp": "", "src/train/step/a.hpp": "", "src/train/step/new.hpp": ""}
        self.assertEqual([f"src/train/README.md:3: step's row and step's directory differ in {name}" for name in ("gone", "new")],
                         self.offences(files))


if __name__ == "__main__":
    unittest.main()
