#!/usr/bin/env python3
"""perf/gpu.sh on a machine that has nothing of what Offstage needs, with what jobs/carry-packages.sh brought along: each of its
sections, to the end and ended by force at a random moment.

$BUILD is the build whose programs are carried."""
import functools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

from bare_root import BareRoot, namespaces

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = Path(os.environ["BUILD"]).resolve()
SECTIONS = "TABC"
PATIENCE = 240  # seconds until a section counts as stuck
COMMAND = namespaces()
# What the file has when the section says that a part is complete.
FIGURES = {
    "machine": ["date", "cpu", "cores", "memory"], "tests": ["tests", "e2e", "memcheck", "racecheck", "initcheck"], "alone": [],
    "operations": ["operations"], "passes": ["passes"],
    "torch": ["torch"], "profile": ["profile"], "zero3": ["policies"], "twinflow": ["policies"], "dos": ["policies"],
    "storage": ["storage"], "link": ["link", "device"], "adamw": ["kernel"], "rates": ["rates"], "updates": ["policies", "state_bytes"],
}
RESULTS = {"T": [], "A": ["emulated_forward_backward_vs_product"], "B": ["emulated_dos_speedup_iteration"],
           "C": ["emulated_adamw_vs_copy", "emulated_accumulate_vs_copy", "emulated_norm_vs_copy", "emulated_dos_speedup_update", "emulated_dos_vs_makespan"]}


@unittest.skipIf(COMMAND is None, "this machine gives no namespaces of mounts and processes: not run")
class GpuBare(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = Path(tempfile.mkdtemp(prefix="offstage-bare-")).resolve()
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        cls.bare = BareRoot(folder / "root", COMMAND)
        done = subprocess.run([ROOT / "jobs/carry-packages.sh", cls.bare.root / "carried", BUILD], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0:
            raise AssertionError(done.stdout)
        for place in "perf", "configs", "tests/e2e":
            shutil.copytree(ROOT / place, cls.bare.root / "tree" / place, ignore=shutil.ignore_patterns("results", "__pycache__"))
        cls.bare.add(ROOT / "tests/mpi.sh", "tree/tests/mpi.sh")

    @classmethod
    def run_sections(cls, where, seconds):
        """Each section's output, exit code, time and file, run side by side; killed after so many seconds."""
        outcomes = {}
        shutil.rmtree(cls.bare.root / "out" / where, ignore_errors=True)

        def run(name):
            process = cls.bare.start("/tree/perf/gpu.sh", name, f"/out/{where}/{name}", DEVICE="host", CARRIED="/carried",
                                     STATE_GB="0.02")
            end = threading.Timer(seconds[name], lambda: os.kill(process.pid, signal.SIGKILL))
            end.start()
            began = time.monotonic()
            printed = process.communicate()[0]
            end.cancel()
            path = cls.bare.root / "out" / where / name / f"{name}.json"
            outcomes[name] = {"printed": printed, "code": process.returncode, "seconds": time.monotonic() - began,
                              "figures": json.loads(path.read_text()) if path.exists() else {}}

        threads = [threading.Thread(target=run, args=name) for name in seconds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return outcomes

    @classmethod
    @functools.cache
    def ended(cls):
        """All sections, run to the end."""
        return cls.run_sections("ended", dict.fromkeys(SECTIONS, PATIENCE))

    def assert_complete_parts_are_there(self, name, outcome):
        """What it said before it ended is in the file."""
        complete = re.findall(rf"^== {name}: (\w+) complete$", outcome["printed"], re.MULTILINE)
        for part in complete:
            self.assertTrue(outcome["figures"]["parts"][part]["complete"], outcome["printed"])
            for figure in FIGURES[part]:
                self.assertTrue(outcome["figures"].get(figure), f"{part}: no {figure} in {outcome}")
        for line in re.findall(r"^  ({\"kernel\".*})$", outcome["printed"], re.MULTILINE):
            self.assertIn(json.loads(line), outcome["figures"]["operations"]["pointwise"])
        for policy in re.findall(r"^  (zero3|twinflow|dos) .* last loss", outcome["printed"], re.MULTILINE):
            self.assertIn(policy, outcome["figures"]["policies"])
        return complete

    def test_there_is_nothing_of_what_is_carried(self):
        self.assertEqual([], [path for path in self.bare.root.rglob("*.so*") if "carried" not in path.parts and
                              re.match(r"lib(mpi|open-|hdf5|aio|boost|hwloc|dnnl|stdc)", path.name)])

    def call(self, *words, **environment):
        process = self.bare.start(*words, **environment)
        printed = process.communicate(timeout=60)[0]
        self.assertEqual(0, process.returncode, printed)
        return printed

    def test_no_module_of_python_is_taken_from_where_env_sh_is_read(self):
        with tempfile.TemporaryDirectory() as folder:
            programs = Path(folder, "programs")
            programs.mkdir()
            (programs / "ldconfig").write_text("#!/bin/sh\n")  # knows no library, so that Python is asked
            (programs / "ldconfig").chmod(0o755)
            Path(folder, "glob.py").write_text("open('taken', 'w')\n")
            subprocess.run(["bash", "-c", 'source "$0"', self.bare.root / "carried/env.sh"], cwd=folder, check=True,
                           env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "CUDA_HOME": folder},
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.assertEqual(["glob.py", "programs"], sorted(os.listdir(folder)))

    def test_what_is_carried_finds_its_libraries_by_itself_and_no_other_program_sees_them(self):
        self.assertIn("offstage", self.call("/carried/build/offstage", "--help"))
        self.assertIn("Open MPI", self.call("bash", "-c", "source /carried/env.sh; mpirun --version"))
        names = set(re.findall(r"(?m)^(\w+)=", self.call("bash", "-c", "source /carried/env.sh; env")))
        before = set(re.findall(r"(?m)^(\w+)=", self.call("bash", "-c", "env")))
        self.assertEqual({"OPAL_PREFIX", "OPAL_SYSCONFDIR", "PMIX_PREFIX", "PMIX_LIBDIR", "PMIX_PKGLIBDIR", "PMIX_PKGDATADIR",
                          "OMPI_MCA_plm"}, names - before)

    def test_programs_find_the_cublas_and_cudnn_of_the_machine(self):
        cublas, cudnn = re.search(r"(?m)^cublas=(\S*) cudnn=(\S*)", (self.bare.root / "carried/env.sh").read_text()).groups()
        if not cublas:
            self.skipTest("the build has no CUDA: not run")
        libraries = [cublas, *([cudnn, cudnn.replace(".so", "_graph.so")] if cudnn else [])]
        printed = self.call("bash", "-c", "mkdir -p /tmp/toolkit/lib64; cd /tmp/toolkit/lib64; touch " + " ".join(libraries) +
                            "; source /carried/env.sh; cd /carried/found; readlink " + " ".join(libraries), CUDA_HOME="/tmp/toolkit")
        self.assertEqual([f"/tmp/toolkit/lib64/{library}" for library in libraries], printed.splitlines())
        for program in (BUILD / "tests/device").glob("*_gpu_test"):
            carried = self.bare.root / "carried/build" / program.relative_to(BUILD)
            dynamic = subprocess.run(["readelf", "-d", carried], capture_output=True, text=True, check=True).stdout
            self.assertRegex(dynamic, r"RPATH.*\$ORIGIN/\.\./\.\./\.\./found\b")

    def test_all_sections_give_all_figures(self):
        for name, outcome in self.ended().items():
            with self.subTest(section=name):
                self.assertEqual(0, outcome["code"], outcome["printed"])
                self.assertEqual([], outcome["figures"]["problems"])
                self.assertEqual(list(outcome["figures"]["parts"]), self.assert_complete_parts_are_there(name, outcome))
                for result in RESULTS[name]:
                    self.assertRegex(outcome["printed"], rf"(?m)^RESULT {result} {outcome['figures']['results'][result]}$")
        self.assertEqual({"B.json", "B.log", "B-zero3.json.gz", "B-twinflow.json.gz", "B-dos.json.gz"},
                         {path.name for path in (self.bare.root / "out/ended/B").iterdir()})

    def test_a_section_that_is_killed_leaves_the_figures_that_were_complete(self):
        seed = int(os.environ.get("SEED", random.randrange(10**6)))
        chance = random.Random(seed)
        killed, ended = {}, self.ended()
        seconds = {name: outcome["seconds"] for name, outcome in ended.items()}
        if os.environ.get("OFFSTAGE_TESTS") != "all":
            seconds = {name: seconds[name] for name in [chance.choice(SECTIONS)]}
        while seconds:  # again those that were faster this time
            seconds = {name: chance.uniform(0.1, 0.9) * most for name, most in seconds.items()}
            killed |= self.run_sections("killed", seconds)
            seconds = {name: most for name, most in seconds.items() if killed[name]["code"] == 0}
        for name, outcome in killed.items():
            with self.subTest(section=name, seed=seed):
                self.assertEqual(-signal.SIGKILL, outcome["code"], outcome["printed"])
                complete = self.assert_complete_parts_are_there(name, outcome)
                print(f"section {name} killed after {outcome['seconds']:.1f} s, seed {seed}: {complete}", flush=True)


if __name__ == "__main__":
    unittest.main()
