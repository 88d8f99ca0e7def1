#!/usr/bin/env python3
"""A few nodes of their own, without a distributed file system: what every test run has time for."""
import unittest

from nodes_harness import NodesTest


class Sample(NodesTest):
    NODES = 3

    def test_a_job_of_three_nodes_over_tcp(self):
        job = self.submit("train.sbatch", "--run.header=full")
        self.assert_completed(job)
        output = self.output(job)
        self.assertIn("6 ranks on 3 nodes", output)
        self.assertRegex(output, r"(?m)^  node\[1-3\]: 2 ranks each \(0-5\): ")


if __name__ == "__main__":
    unittest.main()
