#!/usr/bin/env python3
"""How the program starts: once more by itself, so that OpenMP's idle threads sleep soon; by which MPI."""
import os
import re
import signal
import unittest
from pathlib import Path
from unittest import mock

from harness import OFFSTAGE, OPEN_MPI, OffstageTest, main

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMPI_MCA_mpi_yield_when_idle")


class Start(OffstageTest):
    def with_environment(self, **variables):
        """Nothing but these says how idle threads wait."""
        rest = {key: value for key, value in os.environ.items() if key not in WAITING}
        return mock.patch.dict(os.environ, {**rest, **variables}, clear=True)

    def check_run(self, name, expected, **variables):
        """The environment that a run was started with, at last; it is there when OpenMP is loaded."""
        with self.subTest(**variables), self.with_environment(**variables):
            process = self.start(name, "train.steps=1000000", "optimizer.schedule=constant")
            self.wait_for_step(name, 1, process)
            pairs = [line.partition("=") for line in Path(f"/proc/{process.pid}/environ").read_text().split("\0")]
            found = {key: value for key, _, value in pairs if key in WAITING}
            process.send_signal(signal.SIGTERM)
            self.assertEqual(75, self.finish(name, process).code)
            self.assertEqual(expected, found)

    def test_no_library_is_looked_for_in_the_current_directory(self):
        """An empty part of the program's own search path would be that."""
        with mock.patch.dict(os.environ, {"LD_DEBUG": "libs"}):
            result = self.call(OFFSTAGE, "--version")
        self.assertEqual(0, result.code, result)
        self.assertIn("find library=libc.so", result.err)
        for places in re.findall(r"search path=(.*?)\t+\((?:RPATH|RUNPATH) from file", result.err):
            self.assertEqual([], [place for place in places.split(":") if not place.startswith("/")])

    def test_idle_threads_sleep_unless_the_environment_says_otherwise(self):
        self.check_run("default", {"GOMP_SPINCOUNT": "5000", "OMPI_MCA_mpi_yield_when_idle": "1"})
        self.check_run("turns", {"GOMP_SPINCOUNT": "7"}, GOMP_SPINCOUNT="7")
        self.check_run("policy", {"OMP_WAIT_POLICY": "active"}, OMP_WAIT_POLICY="active")
        self.check_run("mpi", {"GOMP_SPINCOUNT": "5000", "OMPI_MCA_mpi_yield_when_idle": "0"},
                       OMPI_MCA_mpi_yield_when_idle="0")

    @unittest.skipIf(OPEN_MPI >= 5, "Open MPI 5 makes a session directory in any case")
    def test_a_run_without_launcher_needs_no_session_directory_of_mpi(self):
        """All such runs of a user would share one, and one that ends would remove it under the others."""
        no_directory = self.write("file", "")
        with mock.patch.dict(os.environ, {"TMPDIR": str(no_directory)}):
            self.train("alone", "train.steps=2")

    def test_an_mpi_without_threads_is_refused_by_the_name_of_the_level(self):
        with mock.patch.dict(os.environ, {"LD_PRELOAD": os.environ["SINGLE_THREADED_MPI"]}):
            for ranks in 1, 2:
                result = self.call(*self.command("refused", ranks=ranks))
                self.assertEqual(1, result.code, result)
                said = (1, ranks) if OPEN_MPI >= 5 else (ranks,)  # it may end the other rank first
                self.assertIn(len(result.errors), said, result)
                self.assertRegex(result.errors[0], "MPI_Init_thread: .* gives .* MPI_THREAD_SINGLE .* needs MPI_THREAD_FUNNELED")

    def test_a_sites_choice_for_one_sided_messages_does_not_matter(self):
        """With osc=ucx Open MPI 4 makes no window of shared memory."""
        storage = self.folder / "storage"
        storage.mkdir()
        with mock.patch.dict(os.environ, {"OMPI_MCA_osc": "ucx"}):
            self.train("run", "train.steps=2", f"--tiers.path={storage}", ranks=2)

    def test_the_loader_may_be_named(self):
        with self.with_environment():
            result = self.call("/lib64/ld-linux-x86-64.so.2", OFFSTAGE, "--version")
        self.assertEqual(0, result.code, result)
        self.assertTrue(result.out.startswith("offstage "), result)


if __name__ == "__main__":
    main()
