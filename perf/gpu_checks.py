"""What gpu.py runs on a GPU besides measuring: tests of label gpu, whole runs, and the tests under sanitizers, side by side,
as a GPU that is lent by the minute has room for all of them."""
import os
import re
import shutil
import sys

from gpu_run import Failed, Program, run_together

TESTS = ["device/device_gpu_test", "kernels/kernels_optimizer_gpu_test", "kernels/kernels_pointwise_gpu_test",
         "kernels/kernels_products_gpu_test", "kernels/kernels_attention_gpu_test", "model/model_attention_gpu_test",
         "update/shared_update_gpu_test"]
# Without cuBLASLt's kernels, whose program this is, and cuDNN's, whose cases these are.
OWN_KERNELS = [name for name in TESTS if name.startswith("kernels/") and "products" not in name]
OWN_CASES = {"GTEST_FILTER": "-*ByCudnn*"}
SANITIZERS = {"memcheck": (TESTS, {}), "racecheck": (OWN_KERNELS, OWN_CASES), "initcheck": (OWN_KERNELS, OWN_CASES)}
# Whole runs: 50 steps beside the CPU's losses, the same bits by every schedule, a restart. Without a GPU a short one, on two ranks.
E2E, E2E_ON_HOST = "tests/e2e/gpu_test.py", ("tests/e2e/same_bits_test.py", ["SameBits.test_recomputation"])
# These count warnings, and a GPU that others use is one. They come first, as memory of programs that were ended takes time to go.
ALONE = ["Gpu.test_auto_takes_the_gpus_where_there_is_one_for_each_rank",
         "Gpu.test_more_ranks_than_gpus_compute_on_the_cores_with_auto_and_are_an_error_with_cuda"]
CASE = re.compile(r"\[ +(OK|FAILED|SKIPPED) +\] ([\w/]+\.[\w/]+)(?:, .*)?(?: \(\d+ ms\))$", re.MULTILINE)
UNITTEST_END = re.compile(r"\b(ok|FAIL|ERROR|skipped .*)$", re.MULTILINE)


def google_test(section, kind, name, under=(), **environment):
    """A program of GoogleTest, perhaps under a tool."""
    file = section.build / "tests" / name
    return Program(kind, file.name, [*under, file], environment)


def unit_tests(section):
    return [google_test(section, "tests", name, OFFSTAGE_TESTS="all") for name in TESTS]


def sanitized(section):
    """The tests under each tool of compute-sanitizer; none where that is not installed, which is kept."""
    sanitizer = shutil.which("compute-sanitizer") if section.on_gpu else None
    found = []
    for kind, (names, environment) in SANITIZERS.items():
        if sanitizer is None:
            why = "compute-sanitizer is not installed" if section.on_gpu else "no GPU"
            section.keep(kind, why)
            section.say(f"{kind} not run: {why}")
            continue
        # One test pins memory twice on purpose. Thirteen run side by side and start slowly on busy cores; unless told, a tool
        # looks for its program on ten ports, and for a minute (compute-sanitizer --help).
        under = [sanitizer, "--tool", kind, "--report-api-errors", "no", "--error-exitcode", "9", "--max-connections", "64",
                 "--launch-timeout", "0"]
        found += [google_test(section, kind, name, under, **environment) for name in names]
    return found


def whole_runs(section, names=None):
    """Cases of tests/e2e, each a program: those that do not want to be alone, unless told."""
    script = E2E
    if not section.on_gpu:
        script, names = E2E_ON_HOST
    if names is None:
        with open(script, encoding="utf-8") as text:
            names = [f"Gpu.{name}" for name in re.findall(r"^    def (test_\w+)", text.read(), re.MULTILINE)]
        names = [name for name in names if name not in ALONE]
    environment = {"OFFSTAGE": str(section.build / "offstage"), "PYTHONDONTWRITEBYTECODE": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                   "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return [Program("e2e", name.partition(".")[2], [sys.executable, script, "--verbose", name], environment) for name in names]


def judge_case(section, program, printed, ended):
    """Keeps how a case of tests/e2e ended."""
    found = UNITTEST_END.search(printed)
    said = found[1] if found and ended == "0" else f"FAILED, {ended}"
    section.keep("e2e", program.name, said)
    section.say(f"  e2e {program.name}: {said}")
    if found is None or ended != "0":
        section.problem(f"e2e: {program.name}: {said}:\n{printed[-2000:]}")


def judge_tests(section, program, printed, ended):
    """Keeps what a program of GoogleTest said of its cases, also if it did not end in time."""
    cases = CASE.findall(printed)
    passed, skipped = (sum(how == wanted for how, _ in cases) for wanted in ("OK", "SKIPPED"))
    failed = [name for how, name in cases if how == "FAILED"]
    if ended == "0" and passed == 0 and (section.on_gpu or skipped == 0):
        ended = "no test ran"
    section.keep(program.kind, program.name, {"passed": passed, "skipped": skipped, "failed": failed, "ended": ended})
    section.say(f"  {program.kind} {program.name}: passed {passed}, skipped {skipped}, failed {len(failed)}" +
                ("" if ended == "0" else f": {ended}"))
    if ended != "0" or failed or (section.on_gpu and skipped > 0):
        section.problem(f"{program.kind}: {program.name}: {passed} passed, {skipped} skipped, failed {failed}, ended {ended}:\n"
                        f"{printed[-2000:] if ended != '0' else ''}")


def run_programs(section, programs, at_once):
    """Runs them side by side and judges each as it ends; DIR/tests has what each printed."""
    def ended(program, how):
        printed = (section.folder / "tests" / f"{program.kind}-{program.name}.log").read_text(errors="replace")
        (judge_case if program.kind == "e2e" else judge_tests)(section, program, printed, how)

    if not programs:
        raise Failed("there is nothing to run")
    (section.folder / "tests").mkdir(exist_ok=True)
    run_together(programs, section.folder / "tests", section.clock.left(), at_once, ended)


def check_all(section):
    """Those that take longest come first; but the sanitizers' long kernels, with which others would share the GPU by turns of
    milliseconds, begin where tests have ended, which wait for the GPU ten thousands of times."""
    programs = [*whole_runs(section), *unit_tests(section), *sanitized(section)]
    run_programs(section, programs, at_once=max(4, section.figures["cores"]))


def check_alone(section):
    if section.on_gpu:
        run_programs(section, whole_runs(section, ALONE), at_once=1)
