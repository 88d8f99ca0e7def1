#!/usr/bin/env python3
"""Tests of tests/skipped.py on what GoogleTest, unittest and ctest print."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import skipped  # noqa: E402  pylint: disable=wrong-import-position

LOG = """Start testing: Nov 21 21:00 UTC
----------------------------------------------------------
1/3 Testing: adamw_test
1/3 Test: adamw_test
[ RUN      ] Adamw.IsRight
[       OK ] Adamw.IsRight (0 ms)
[ RUN      ] Adamw.OnAGpu
/src/adamw_gpu_test.cpp:69: Skipped
no GPU: not run

[  SKIPPED ] Adamw.OnAGpu (3 ms)
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Adamw.OnAGpu
2/3 Testing: large.2ranks
/src/large.cpp:9: Skipped
needs 6 GiB
/src/large.cpp:9: Skipped

needs 6 GiB

[  SKIPPED ] Large.Message/2, where GetParam() = 2 (0 ms)
[  SKIPPED ] Large.Message/2, where GetParam() = 2 (0 ms)
3/3 Testing: e2e_checkpoints
test_h5dump_reads_it (__main__.Checkpoints.test_h5dump_reads_it) ... skipped 'h5dump is not installed'
test_b (__main__.Checkpoints.test_b)
What it is for. ... skipped "it's not there"
test_c (__main__.Checkpoints.test_c) ... ok
"""


class Skipped(unittest.TestCase):
    def test_names_each_case_once_with_its_reason(self):
        self.assertEqual([("adamw_test", "Adamw.OnAGpu", "no GPU: not run"),
                          ("large.2ranks", "Large.Message/2", "needs 6 GiB"),
                          ("e2e_checkpoints", "test_h5dump_reads_it", "h5dump is not installed"),
                          ("e2e_checkpoints", "test_b", "it's not there")],
                         skipped.skipped(LOG.splitlines()))

    def test_nothing_is_skipped_in_a_log_of_passes(self):
        self.assertEqual([], skipped.skipped(["1/1 Testing: a", "[       OK ] A.B (0 ms)", "test_c (x) ... ok"]))


if __name__ == "__main__":
    unittest.main()
