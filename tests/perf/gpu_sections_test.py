#!/usr/bin/env python3
"""perf/gpu.sh on a GPU, where the GPU's tools and the programs are stand-ins: deadlines, what fails, what is kept."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "perf"))
import gpu  # noqa: E402
import gpu_model  # noqa: E402
import gpu_run  # noqa: E402

PASS = {"forward_seconds": [0.02, 0.04, 0.03], "backward_seconds": [0.05, 0.05, 0.05], "product_flops": 4e13, "product_rate": 8e14,
        "device_peak": 2**30, "loss": 10.5}
UPDATE = {"update_seconds": [1, 3, 2], "iteration_seconds": [2, 2, 2], "share": [0, 0, 0], "expected_seconds": [1, 1, 1],
          "bound_seconds": [1]}
LINK = {"device": "NVIDIA H100", "device_bytes": 8e10, "to_device": 5e10, "to_host": 5e10, "to_device_both": 4e10,
        "to_host_both": 4e10, "to_device_pageable": 1e10, "to_host_pageable": 1e10}
KERNEL = {"parameters_per_second": 1e10, "update_vs_copy": 0.9, "update_bytes_per_second": 2e12, "copy_bytes_per_second": 2.2e12,
          "accumulate_vs_copy": 0.8, "accumulate_bytes_per_second": 1.8e12, "norm_vs_copy": 0.7, "norm_bytes_per_second": 1.5e12}
CASES = "[       OK ] Kernels.Add/0 (3 ms)\n[       OK ] Kernels.Sum (1 ms)\n"
# The columns in this order, as Nsight Compute prints them.
PROFILE = '''==PROF== Connected
"ID","Process Name","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"
"0","perf_model","gemm","(8, 1, 1)","dram__bytes_read.sum","Mbyte","2"
"0","perf_model","gemm","(8, 1, 1)","dram__bytes_write.sum","byte","1,000,000"
"0","perf_model","gemm","(8, 1, 1)","gpu__time_duration.sum","ns","1,500,000"
"1","perf_model","rmsnorm","(4, 1, 1)","gpu__time_duration.sum","usecond","500"
"2","perf_model","gemm","(8, 1, 1)","gpu__time_duration.sum","ms","2"
"3","perf_model","gemm","(9, 1, 1)","gpu__time_duration.sum","ms","1"
'''
OFFSTAGE = '''import json, pathlib, sys
keys = dict(word[2:].split("=", 1) for word in sys.argv[2:] if "=" in word)
run = pathlib.Path(keys["run.dir"])
run.mkdir(exist_ok=True)
with open(run / "metrics.jsonl", "a") as records:
    done = sum(1 for line in open(run / "metrics.jsonl"))
    for step in range(done, int(keys["train.steps"])):
        phases = {f"{name}_seconds": 1.5 for name in ("step", "forward", "backward", "update")}
        records.write(json.dumps({"loss": 5 - step / 8, **phases}) + "\\n")
(run / "trace-0.json").write_text("[]")
(pathlib.Path(__file__).parent / "calls").open("a").write(" ".join(sys.argv[1:]) + "\\n")
'''
# Hangs, and so does what it started in a process group of its own; both say who they are.
HANG = '''setsid sleep 600 &
echo "$$ $!" > "$(dirname "$0")/pids"
echo hanging
sleep 600
'''
SHARE = f'''case $1 in
  link) echo \'{json.dumps(LINK)}\' ;;
  kernel) echo \'{json.dumps(KERNEL)}\' ;;
  probe) echo \'{{"cpu-update": 1e9}}\' ;;
  update) echo \'{json.dumps(UPDATE)}\' ;;
esac
'''
# Cases of tests/e2e, which are read from the text; `MORE` is for one more.
RUNS = '''import sys
name = sys.argv[-1].partition(".")[2]
assert sys.argv[1:-1] == ["--verbose"]
class Gpu:
    def test_one(self): return "ok"
    def test_two(self): return "Says what it is for ... skipped 'one GPU'"
    def test_auto_takes_the_gpus_where_there_is_one_for_each_rank(self): return "ok"
    def test_more_ranks_than_gpus_compute_on_the_cores_with_auto_and_are_an_error_with_cuda(self): return "ok"
    # MORE
print(f"{name} (gpu_test.Gpu.{name}) ... " + getattr(Gpu(), name)())
'''


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Stage(unittest.TestCase):
    """A folder with stand-ins and a build of stand-ins."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="offstage-gpu-")).resolve()
        self.addCleanup(shutil.rmtree, self.folder)
        self.build, self.out = self.folder / "build", self.folder / "out"
        self.says("bin/nvidia-smi", "GPU 0: NVIDIA H100, 580.1, CUDA Version: 13.0\n")
        self.says("bin/nvcc", "release 13.0, V13.0.88\n")
        self.says("bin/ncu", PROFILE)
        self.says("bin/compute-sanitizer", CASES)
        self.says("build/perf/perf_model", json.dumps(PASS))
        self.write("build/perf/perf_share", SHARE)
        for name in "attention", "pointwise":
            self.says(f"build/perf/perf_{name}", json.dumps({"kernel": name, "seconds": 0.001}))
        for name in gpu.checks.TESTS:
            self.says(f"build/tests/{name}", CASES)
        self.write("build/offstage", OFFSTAGE, sys.executable)
        # A copy, as runs leave their files in the tree.
        shutil.copytree(ROOT / "perf", self.folder / "tree/perf", ignore=shutil.ignore_patterns("results", "__pycache__"))
        self.write("tree/tests/e2e/gpu_test.py", RUNS)

    def write(self, name, program, language="/usr/bin/env bash"):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!{language}\n{program}")
        path.chmod(0o755)
        return path

    def says(self, name, text, code=0):
        return self.write(name, f"cat << 'END'\n{text}\nEND\nexit {code}\n")

    def environment(self, **more):
        return {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "BUILD_DIR": str(self.build), "STATE_GB": "0.02",
                **more}

    def run_section(self, name, seconds=60, **environment):
        self.done = subprocess.run([self.folder / "tree/perf/gpu.sh", name, self.out], env=self.environment(**environment), text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds, check=False)
        return self.figures(name)

    def figures(self, name):
        path = self.out / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def incomplete(self, figures):
        return {name for name, part in figures["parts"].items() if not part["complete"]}

    def hung(self, place):
        """The processes of HANG there."""
        pids = (place / "pids").read_text().split()
        self.assertEqual(2, len(pids))
        return pids

    def wait_until(self, condition):
        deadline = time.monotonic() + 30
        while not condition():
            self.assertLess(time.monotonic(), deadline, "it did not come")
            time.sleep(0.02)


class Programs(Stage):
    def test_one_that_takes_too_long_ends_with_all_that_it_started(self):
        began = time.monotonic()
        with self.assertRaisesRegex(gpu_run.Failed, "took longer than 1 s") as raised:
            gpu_run.run([self.write("hang", HANG)], 1)
        self.assertLess(time.monotonic() - began, 300)
        self.assertEqual("hanging\n", raised.exception.printed)
        self.assertEqual([False, False], [alive(pid) for pid in self.hung(self.folder)])

    def test_what_one_leaves_behind_neither_goes_on_nor_holds_up_the_next(self):
        began = time.monotonic()
        printed = gpu_run.run(["bash", "-c", "sleep 600 & echo $!"], 60)
        self.assertLess(time.monotonic() - began, 300)
        self.assertFalse(alive(printed.strip()))

    def test_lines_are_heard_as_they_come_and_a_failed_one_says_what_it_printed(self):
        heard = []
        with self.assertRaisesRegex(gpu_run.Failed, "(?s)bash ended with 3.*second") as raised:
            gpu_run.run(["bash", "-c", "echo first; echo second; exit 3"], 60, heard.append)
        self.assertEqual(["first", "second"], heard)
        self.assertEqual("first\nsecond\n", raised.exception.printed)

    def test_one_that_is_not_there_is_a_failure_like_any_other(self):
        with self.assertRaisesRegex(gpu_run.Failed, "No such file"):
            gpu_run.run([self.folder / "none"], 1)


class Clock(unittest.TestCase):
    def test_what_a_part_leaves_is_the_next_ones_and_none_takes_what_is_a_later_ones(self):
        now = 100.0
        with mock.patch("gpu_run.time.monotonic", lambda: now):
            clock = gpu_run.Clock()
            clock.allot(10)
            self.assertEqual(10, clock.left())
            now += 4
            clock.allot(20)
            self.assertEqual(26, clock.left())
            now += 28  # two seconds too long
            clock.allot(5)
            self.assertEqual(3, clock.left())

    def test_the_parts_of_each_section_end_within_nine_minutes(self):
        for name, parts in gpu.SECTIONS.items():
            self.assertLessEqual(sum(seconds for _, seconds, _ in parts), gpu.MOST_SECONDS, name)
        self.assertLessEqual(gpu.MOST_SECONDS + gpu_run.GONE_SECONDS, 9 * 60)


class Sections(Stage):
    def test_t_keeps_facts_and_what_came_of_each_test(self):
        figures = self.run_section("T")
        self.assertEqual(0, self.done.returncode, self.done.stdout)
        self.assertEqual("13.0", figures["gpu"]["driver_cuda"])
        self.assertEqual("13.0", figures["tools"]["nvcc"])
        self.assertEqual({"passed": 2, "skipped": 0, "failed": [], "ended": "0"}, figures["tests"]["device_gpu_test"])
        self.assertEqual(len(gpu.checks.TESTS), len(figures["memcheck"]))
        for kind in "racecheck", "initcheck":
            self.assertEqual(len(gpu.checks.OWN_KERNELS), len(figures[kind]))
        alone = {name.partition(".")[2]: "ok" for name in gpu.checks.ALONE}
        self.assertEqual({"test_one": "ok", "test_two": "skipped 'one GPU'", **alone}, figures["e2e"])
        self.assertIn("Kernels.Sum", (self.out / "tests/tests-device_gpu_test.log").read_text())

    def test_programs_run_side_by_side_and_some_alone(self):
        # Each waits until as many have begun as there are to be at once.
        note = """order=$(dirname "$0")/order; echo "$1 begins" >> "$order"
for _ in {1..600}; do (($(grep -c begins "$order") >= $2)) && break; sleep 0.1; done
echo "$1 ends" >> "$order"
"""
        self.out.mkdir()
        for at_once, begin in (3, 3), (1, 1):
            programs = [gpu_run.Program("tests", f"p{index}", [self.write("slow", note), f"p{index}", at_once], {}) for index in range(3)]
            (self.folder / "order").unlink(missing_ok=True)
            ended = []
            gpu_run.run_together(programs, self.out, 60, at_once, lambda program, how, ended=ended: ended.append((program.name, how)))
            self.assertEqual([("p0", "0"), ("p1", "0"), ("p2", "0")], sorted(ended))
            order = (self.folder / "order").read_text().splitlines()
            self.assertEqual(begin, [line.endswith("begins") for line in order].index(False), order)

    def test_a_keeps_operations_passes_and_kernels(self):
        figures = self.run_section("A")
        self.assertEqual({"attention", "pointwise"}, set(figures["operations"]))
        self.assertEqual({"gemm (8, 1, 1)": {"seconds": 0.0035, "bytes": 3e6, "calls": 2},
                          "gemm (9, 1, 1)": {"seconds": 0.001, "bytes": 0, "calls": 1},
                          "rmsnorm (4, 1, 1)": {"seconds": 0.0005, "bytes": 0, "calls": 1}}, figures["profile"])
        self.assertIn("RESULT gpu_forward_backward_vs_product 0.625", self.done.stdout)

    def test_b_trains_with_host_memory_given_and_keeps_losses_and_traces(self):
        figures = self.run_section("B")
        self.assertEqual(0, self.done.returncode, self.done.stdout)
        self.assertEqual([5, 4.875, 4.75, 4.625], figures["policies"]["dos"]["losses"])
        self.assertEqual(figures["storage"]["losses_in_memory"], figures["storage"]["losses"])
        self.assertEqual({"B.json", "B.log", "B-zero3.json.gz", "B-twinflow.json.gz", "B-dos.json.gz"},
                         {path.name for path in self.out.iterdir()})
        calls = (self.build / "calls").read_text().splitlines()
        self.assertEqual(6, len(calls))
        for call in calls:
            self.assertRegex(call, r"--tiers\.host-memory=\d+ ")
        self.assertIn("RESULT gpu_dos_speedup_iteration 1.0", self.done.stdout)

    def test_a_run_that_hangs_in_its_last_save_leaves_its_figures(self):
        self.write("build/offstage", OFFSTAGE + "import time\nif run.name == 'zero3': time.sleep(600)\n", sys.executable)
        figures = self.run_section("B", PARTS="zero3 dos", SECONDS_LEFT="20")
        self.assertEqual({"zero3"}, self.incomplete(figures))
        self.assertEqual(figures["policies"]["dos"], figures["policies"]["zero3"])

    def test_policies_whose_losses_differ_are_a_failure_and_are_kept(self):
        self.write("build/offstage", OFFSTAGE.replace('"loss": 5', '"loss": (6 if run.name == "dos" else 5)'), sys.executable)
        figures = self.run_section("B")
        self.assertEqual(1, self.done.returncode)
        self.assertEqual({"dos"}, self.incomplete(figures))
        self.assertEqual(6, figures["policies"]["dos"]["losses"][0])

    def test_c_measures_updates(self):
        figures = self.run_section("C")
        self.assertEqual(0, self.done.returncode, self.done.stdout)
        self.assertEqual({"zero3", "twinflow 20 %", "dos", "dos 20 %"}, set(figures["policies"]))
        for result in "adamw_vs_copy 0.9", "accumulate_vs_copy 0.8", "norm_vs_copy 0.7", "dos_speedup_update 1.0", "dos_vs_makespan 0.5":
            self.assertIn(f"RESULT gpu_{result}\n", self.done.stdout)

    def test_a_test_that_fails_hangs_or_is_not_there_is_named_and_costs_the_others_nothing(self):
        self.says("build/tests/kernels/kernels_products_gpu_test", CASES + "[  FAILED  ] Kernels.Product (1 ms)", code=1)
        self.write("build/tests/kernels/kernels_pointwise_gpu_test", f"cat << 'END'\n{CASES}END\n{HANG}")
        (self.build / "tests/device/device_gpu_test").unlink()
        self.write("tree/tests/e2e/gpu_test.py", RUNS.replace("# MORE", "def test_bad(self): sys.exit('test_bad ... FAIL')"))
        figures = self.run_section("T", SECONDS_LEFT="25")
        self.assertEqual(1, self.done.returncode)
        self.assertEqual({"passed": 2, "skipped": 0, "failed": ["Kernels.Product"], "ended": "1"},
                         figures["tests"]["kernels_products_gpu_test"])
        self.assertEqual(2, figures["tests"]["kernels_attention_gpu_test"]["passed"])
        self.assertRegex(figures["tests"]["kernels_pointwise_gpu_test"]["ended"], "it took longer than the .* of all")
        self.assertEqual(2, figures["tests"]["kernels_pointwise_gpu_test"]["passed"])
        self.assertIn("No such file", figures["tests"]["device_gpu_test"]["ended"])
        self.assertEqual(("FAILED, 1", "ok"), (figures["e2e"]["test_bad"], figures["e2e"]["test_one"]))
        self.assertEqual({"tests"}, self.incomplete(figures))
        self.assertEqual([False, False], [alive(pid) for pid in self.hung(self.build / "tests/kernels")])

    def test_programs_that_hang_or_print_nonsense_cost_the_others_nothing(self):
        self.write("build/perf/perf_model", HANG)
        self.says("build/perf/perf_pointwise", "{nonsense")
        began = time.monotonic()
        figures = self.run_section("A", SECONDS_LEFT="40")  # enough for those that do not hang, on a busy machine
        self.assertLess(time.monotonic() - began, 300)
        self.assertEqual({"operations", "passes"}, self.incomplete(figures) - {"torch"})
        self.assertEqual(1, len(figures["operations"]["attention"]))
        self.assertIn("gemm (8, 1, 1)", figures["profile"])
        self.assertEqual([False, False], [alive(pid) for pid in self.hung(self.build / "perf")])

    def test_a_section_that_is_told_to_end_takes_what_it_started_with_it(self):
        self.write("build/perf/perf_share", HANG)
        process = subprocess.Popen([ROOT / "perf/gpu.sh", "C", self.out], env=self.environment(), stdout=subprocess.DEVNULL)
        pids = self.build / "perf/pids"
        self.wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"))
        process.terminate()
        self.assertEqual(128 + signal.SIGTERM, process.wait(30))
        self.assertEqual([False, False], [alive(pid) for pid in self.hung(self.build / "perf")])
        self.assertTrue(self.figures("C")["parts"]["machine"]["complete"])

    def test_a_program_does_not_outlive_a_section_that_is_killed(self):
        self.write("build/perf/perf_share", HANG.replace("setsid sleep 600", "sleep 0"))
        process = subprocess.Popen([ROOT / "perf/gpu.sh", "C", self.out], env=self.environment(), stdout=subprocess.DEVNULL)
        pids = self.build / "perf/pids"
        self.wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"))
        process.kill()
        process.wait(30)
        self.wait_until(lambda: not alive(self.hung(self.build / "perf")[0]))

    def test_parts_that_are_named_run_alone_in_the_sections_order(self):
        figures = self.run_section("C", PARTS="adamw link")
        self.assertEqual(0, self.done.returncode, self.done.stdout)
        self.assertEqual(["machine", "link", "adamw"], list(figures["parts"]))
        self.assertIn("adamw, at most 5", self.done.stdout)  # all of the section's time is theirs
        self.assertEqual({"gpu_adamw_vs_copy": 0.9, "gpu_accumulate_vs_copy": 0.8, "gpu_norm_vs_copy": 0.7}, figures["results"])

    def test_a_part_that_the_section_does_not_have_is_refused(self):
        for parts in "link dos", " ":
            self.assertEqual({}, self.run_section("C", PARTS=parts))
            self.assertEqual(64, self.done.returncode)
            self.assertIn("the parts of C are machine link adamw", self.done.stdout)

    def test_a_call_that_is_wrong_is_refused(self):
        for words in [], ["A"], ["D", self.out], ["A", self.out, "more"]:
            done = subprocess.run([ROOT / "perf/gpu.sh", *words], env=self.environment(), capture_output=True, check=False)
            self.assertEqual(64, done.returncode)


class Torch(Stage):
    """What gpu_torch.py prints, by a stand-in for it."""

    def measure(self, lines, code=0):
        section = gpu_run.Section("A", self.out, "cuda", self.build)
        section.clock.allot(60)
        self.addCleanup(section.log.close)
        python = self.says("python", "\n".join(map(json.dumps, lines)), code)
        with mock.patch("sys.executable", str(python)), mock.patch("importlib.util.find_spec"), mock.patch("builtins.print"):
            section.figures["passes"] = {"offstage": PASS}
            with section.guard("torch"):
                gpu_model.measure_torch(section)
        return section.figures

    def test_lines_are_kept_and_the_fastest_is_compared_with(self):
        slow = {**PASS, "backward_seconds": [0.09] * 3}
        figures = self.measure([{"kind": "torch", "name": "build", "version": "2.11"},
                                {"kind": "passes", "name": "eager", "sdpa": "CUDNN_ATTENTION", **slow},
                                {"kind": "passes", "name": "cudnn", "error": "refused"},
                                {"kind": "passes", "name": "deterministic", **slow},
                                {"kind": "passes", "name": "compiled", **PASS}])
        self.assertEqual([], figures["problems"])
        self.assertEqual("CUDNN_ATTENTION", figures["passes"]["eager"]["sdpa"])
        found = gpu_model.results(figures)
        self.assertAlmostEqual(1.0, found["forward_backward_vs_torch"])
        self.assertAlmostEqual(0.12 / 0.08, found["forward_backward_vs_torch_deterministic"])

    def test_a_process_that_dies_leaves_what_it_had_said(self):
        figures = self.measure([{"kind": "passes", "name": "eager", **PASS}], code=9)
        self.assertEqual(1, len(figures["problems"]))
        self.assertIn("eager", figures["passes"])
        self.assertNotIn("forward_backward_vs_torch", gpu_model.results(figures))

    def test_attention_alone_is_compared_at_the_models_shape(self):
        line = dict(zip(("batch", "sequence", "heads", "kv_heads", "head_dim"), gpu_model.OPERATIONS[0]), type="bf16")
        rows = {name: {"backend": name, "shape": list(gpu_model.OPERATIONS[0]), "forward_seconds": 1, "backward_seconds": seconds}
                for name, seconds in (("chosen", 2), ("flash", 3), ("deterministic", 4))}
        own = [{**line, "by": "own", "seconds": 1}, {**line, "by": "own", "seconds": 1.5}, {**line, "by": "own", "type": "fp16", "seconds": 9}]
        figures = {"operations": {"attention": own},
                   "attention": {**rows, "cudnn": {"error": "refused"}}}
        found = gpu_model.results(figures)
        self.assertAlmostEqual(3 / 2.5, found["attention_vs_torch"])
        self.assertAlmostEqual(5 / 2.5, found["attention_vs_torch_deterministic"])
        self.assertNotIn("attention_cudnn_vs_own", found)
        figures["operations"]["attention"] += [{"cudnn": "cuDNN 9.19.0"}, {**line, "by": "cudnn", "seconds": 0.5},
                                               {**line, "by": "cudnn", "seconds": 0.75}]
        found = gpu_model.results(figures)
        self.assertAlmostEqual(3 / 1.25, found["attention_vs_torch"])
        self.assertAlmostEqual(2, found["attention_cudnn_vs_own"])


if __name__ == "__main__":
    unittest.main()
