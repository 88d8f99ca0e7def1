"""What gpu.py runs on a GPU besides measuring: tests of label gpu, whole runs, and the tests under a sanitizer."""
import os
import re
import shutil
import sys
import time

from gpu_run import Failed

TESTS = ["device/device_gpu_test", "kernels/kernels_optimizer_gpu_test", "kernels/kernels_pointwise_gpu_test",
         "kernels/kernels_products_gpu_test", "kernels/kernels_attention_gpu_test", "model/model_attention_gpu_test",
         "update/shared_update_gpu_test"]
# Without cuBLASLt's kernels, whose program this is, and cuDNN's, whose cases these are.
OWN_KERNELS = [name for name in TESTS if name.startswith("kernels/") and "products" not in name]
OWN_CASES = "GTEST_FILTER=-*ByCudnn*"
# Whole runs: 50 steps beside the CPU's losses, the same bits by every schedule, a restart. Without a GPU a short one, on two ranks.
E2E = ["tests/e2e/gpu_test.py"]
E2E_ON_HOST = ["tests/e2e/same_bits_test.py", "SameBits.test_recomputation"]
CASE = re.compile(r"\[ +(OK|FAILED|SKIPPED) +\] ([\w/]+\.[\w/]+)(?:, .*)?(?: \(\d+ ms\))$")
UNITTEST = re.compile(r"^(test_\w+) \(")
UNITTEST_END = re.compile(r"\b(ok|FAIL|ERROR|skipped .*)$")


class Cases:
    """Counts what a program of GoogleTest says of its cases."""

    def __init__(self):
        self.passed, self.skipped, self.failed = 0, 0, []

    def hear(self, line):
        case = CASE.search(line)
        if case is None:
            return
        if case[1] == "OK":
            self.passed += 1
        elif case[1] == "SKIPPED":
            self.skipped += 1
        else:
            self.failed.append(case[2])


def run_test(section, kind, under, program, seconds):
    """Keeps what came of one program, also if it did not end in time."""
    cases, began, ended = Cases(), time.monotonic(), "0"
    try:
        section.call([*under, program], seconds, cases.hear)
    except Failed as failed:
        ended = str(failed)
    skipped_all = not section.on_gpu and cases.skipped > 0
    if ended == "0" and cases.passed == 0 and not skipped_all:
        ended = "no test ran"
    section.keep(kind, program.name, {"passed": cases.passed, "skipped": cases.skipped, "failed": cases.failed,
                                      "ended": ended.splitlines()[0], "seconds": round(time.monotonic() - began, 1)})
    section.say(f"  {program.name:28} passed {cases.passed}, skipped {cases.skipped}, failed {len(cases.failed)}"
                f" in {time.monotonic() - began:.0f} s" + ("" if ended == "0" else f": {ended}"))
    if ended != "0" or cases.failed or (section.on_gpu and cases.skipped > 0):
        section.problem(f"{kind}: {program.name}: {cases.passed} passed, {cases.skipped} skipped, failed {cases.failed}, "
                        f"ended {ended.splitlines()[0]}")


def run_tests(section, kind, under, names):
    """Each program has its share of the time that is left."""
    for index, name in enumerate(names):
        program = section.build / "tests" / name
        if program.exists():
            run_test(section, kind, under, program, section.clock.left() / (len(names) - index))
        else:
            section.keep(kind, program.name, {"ended": "not built"})
            section.say(f"  {program.name:28} not built")
            if section.on_gpu:
                section.problem(f"{kind}: {program.name} is not in {section.build}")


def check_tests(section):
    run_tests(section, "tests", ["env", "OFFSTAGE_TESTS=all"], TESTS)


def sanitize(kind, names, *environment):
    """A part that runs the tests under one of compute-sanitizer's tools, with VARIABLE=VALUE beside the environment."""
    def part(section):
        sanitizer = shutil.which("compute-sanitizer") if section.on_gpu else None
        if sanitizer is None:
            why = "compute-sanitizer is not installed" if section.on_gpu else "no GPU"
            section.keep(kind, why)
            section.say(f"{kind} not run: {why}")
            return
        # One test pins memory twice on purpose.
        run_tests(section, kind, ["env", *environment, sanitizer, "--tool", kind, "--report-api-errors", "no", "--error-exitcode", "9"], names)
    return part


def check_runs(section):
    """tests/e2e, case by case."""
    script, *names = E2E if section.on_gpu else E2E_ON_HOST
    name = ""

    def hear(line):
        nonlocal name
        if begun := UNITTEST.search(line):
            name = begun[1]
        if name and (ended := UNITTEST_END.search(line)):
            section.keep("e2e", name, ended[1])
            section.say(f"  {name}: {ended[1]}")
            name = ""

    environment = {**os.environ, "OFFSTAGE": str(section.build / "offstage"), "PYTHONDONTWRITEBYTECODE": "1",
                   "PYTHONUNBUFFERED": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    section.call([sys.executable, script, "--verbose", *names], heard=hear, env=environment)
    if not section.figures.get("e2e"):
        raise Failed(f"{script} ran no case")
