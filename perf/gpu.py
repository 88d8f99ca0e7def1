#!/usr/bin/env python3
"""Tests and measures a GPU: gpu.py cuda|host BUILD [JSON]; gpu.sh calls it and says what for.

Every program runs once per figure, so that what one leaves behind cannot help the next. Prints tables, writes JSON and
ends with RESULT lines; with 1 if a test, the sanitizer or a program failed."""
import datetime
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

import gpu_model

# Bytes per parameter: p, m and v; beside them in host memory the accumulated gradient.
STATE, HOST = 12, 14
# Parameters are a multiple of what perf_share's 16 layers take in whole chunks.
GRANULE = 16 * 65536
TESTS = ["device/device_gpu_test", "kernels/kernels_optimizer_gpu_test", "kernels/kernels_pointwise_gpu_test",
         "kernels/kernels_products_gpu_test", "kernels/kernels_attention_gpu_test", "update/shared_update_gpu_test"]
POLICIES = {
    "zero3": ["update.transfers=blocking", "update.device-share=0"],
    "twinflow 20 %": ["update.transfers=blocking", "update.device-share=0", "update.device-resident=0.2"],
    "dos": ["update.device-share=auto"],
    "dos 20 %": ["update.device-share=auto", "update.device-resident=0.2"],
}
# What DEVICE=host pretends to be: a link and rates in the proportions of the H100 machine of Deep Optimizer States.
EMULATION = "device.emulate=h2d=275MB/s,d2h=275MB/s,update=125M,host-update=8860000"
TEST_SECONDS, SANITIZER_SECONDS, PROGRAM_SECONDS = 120, 120, 150


class Failure(Exception):
    pass


def run(command, seconds):
    """Its exit code and everything that it printed."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as late:
        printed = late.stdout or b""
        return 124, (printed if isinstance(printed, str) else printed.decode(errors="replace")) + f"\nended after {seconds} s"
    return done.returncode, done.stdout


def measure(program, *arguments):
    """What perf_share found, as its last line says."""
    code, printed = run([program, *arguments], PROGRAM_SECONDS)
    if code != 0:
        raise Failure(f"{program} {' '.join(arguments)} ended with {code}:\n{printed[-4000:]}")
    return json.loads(printed.splitlines()[-1])


def test(build, sanitizer, programs, clock):
    """passed, FAILED, skipped or not built, of each program."""
    outcomes = {}
    for name in programs:
        program = build / "tests" / name
        if not program.exists():
            outcomes[program.name] = "not built"
        else:
            began = time.monotonic()
            code, printed = run([*sanitizer, program],
                                min(clock.left(), SANITIZER_SECONDS if sanitizer else TEST_SECONDS))
            skipped = re.search(r"\[  SKIPPED \] (\d+) tests?", printed)
            passed = re.search(r"\[  PASSED  \] (\d+) tests?", printed)
            count = int(passed.group(1)) if passed else 0
            if code != 0:
                outcomes[program.name] = "FAILED"
                print(printed[-4000:])
            elif skipped:
                outcomes[program.name] = f"skipped {skipped.group(1)}, passed {count}"
            else:
                outcomes[program.name] = f"passed {count}" if count > 0 else "FAILED: no test ran"
            outcomes[program.name] += f" in {time.monotonic() - began:.0f} s"
        print(f"  {program.name:28} {outcomes[program.name]}", flush=True)
    return outcomes


def machine():
    facts = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
             "cores": len(os.sched_getaffinity(0)), "cpu": "unknown"}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            facts["cpu"] = line.split(":", 1)[1].strip()
            break
    code, printed = run(["git", "rev-parse", "--short=12", "HEAD"], 10) if shutil.which("git") else (1, "")
    facts["commit"] = printed.strip() if code == 0 else "unknown"
    return facts


def gpu_facts():
    code, printed = run(["nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader", "--id=0"], 60)
    driver, memory = (printed.strip().split(", ") + ["unknown"])[:2] if code == 0 else ("unknown", "unknown")
    return {"driver": driver, "gpu_memory": memory}


def available_bytes():
    """What this process may still take of the host: of the machine, and of its cgroup if that has a limit."""
    found = re.search(r"MemAvailable:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())
    available = int(found.group(1)) * 1024
    limit, used = pathlib.Path("/sys/fs/cgroup/memory.max"), pathlib.Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        available = min(available, int(limit.read_text()) - int(used.read_text()))
    return available


def parameters_for(state_gb):
    wanted = int(state_gb * 1e9 / STATE)
    # The rest is for the probe, the working copy where the device is emulated, and everyone else.
    room = int(0.75 * available_bytes() / HOST)
    if wanted > room:
        print(f"state cut from {state_gb:g} GB to {room * STATE / 1e9:.1f} GB, which host memory has room for")
    return max(1, min(wanted, room) // GRANULE) * GRANULE


def print_link(link):
    print("link, GB/s              to the device    to the host")
    for name, suffix in (("pinned", ""), ("pinned, both at once", "_both"), ("pageable", "_pageable")):
        print(f"  {name:22} {link['to_device' + suffix] / 1e9:12.2f} {link['to_host' + suffix] / 1e9:14.2f}")


def measure_policies(program, setting, rates, parameters, on_gpu):
    known = [f"platform.{name}={rate}" for name, rate in rates.items()]
    # 32 subgroups and chunks as long as a run's; where the state is small, as many of both in proportion.
    subgroup = max(65536, parameters // 32 // 65536 * 65536)
    chunk = min(4 * 1024 * 1024, subgroup) if on_gpu else 65536
    print(f"update of {parameters * STATE / 1e9:.1f} GB of state, {parameters / 1e9:.3f} G parameters")
    print(f"  {'policy':16} {'seconds':>8} {'Gparam/s':>9} {'share':>6} {'expected':>9} {'makespan':>9}")
    policies = {}
    for name, keys in POLICIES.items():
        steps = measure(program, "update", f"parameters={parameters}", f"subgroup={subgroup}", "steps=3", setting,
                        f"update.device-chunk={chunk}", *known, *keys)
        row = {key: statistics.median(values) for key, values in steps.items()}
        policies[name] = {**row, "all_update_seconds": steps["update_seconds"]}
        print(f"  {name:16} {row['update_seconds']:8.3f} {parameters / row['update_seconds'] / 1e9:9.3f} {row['share']:6.3f} "
              f"{row['expected_seconds']:9.3f} {row['bound_seconds']:9.3f}", flush=True)
    return policies


def report(figures):
    """The RESULT lines, of what was measured; those of the emulated device have a name of their own."""
    results, device = {}, "emulated" if figures["emulated"] else "gpu"
    for name, value in gpu_model.results(figures.get("passes", {}), figures.get("training", {})).items():
        results[f"{device}_{name}"] = value
    if "kernel" in figures:
        results[f"{device}_adamw_vs_copy"] = figures["kernel"]["update_vs_copy"]
    policies = figures.get("policies", {})
    if "zero3" in policies and "dos" in policies:
        dos = policies["dos"]
        results[f"{device}_dos_speedup_update"] = policies["zero3"]["update_seconds"] / dos["update_seconds"]
        results[f"{device}_dos_vs_makespan"] = dos["bound_seconds"] / dos["update_seconds"]
    return {name: round(value, 3) for name, value in results.items()}


def measure_all(figures, program, setting, on_gpu):
    figures["link"] = measure(program, "link", setting)
    figures["device"] = figures["link"].pop("device")
    figures["device_bytes"] = figures["link"].pop("device_bytes")
    print(f"device {figures['device']}" + (f", {figures['device_bytes'] / 1e9:.1f} GB free" if on_gpu else ""))
    print_link(figures["link"])
    elements = 256 * GRANULE if on_gpu else GRANULE
    # An emulated update rate would be what the copy is held against.
    kernel = figures["kernel"] = measure(program, "kernel", f"parameters={elements}", "steps=7",
                                         "device.kind=cuda" if on_gpu else "device.kind=host")
    print(f"AdamW on the device: {kernel['parameters_per_second'] / 1e9:.2f} G parameters/s, "
          f"{kernel['update_bytes_per_second'] / 1e9:.0f} GB/s; a copy within it {kernel['copy_bytes_per_second'] / 1e9:.0f} GB/s")
    rates = figures["rates"] = measure(program, "probe", setting)
    print("rates: " + ", ".join(f"{name} {rate / 1e9:.2f} G/s" for name, rate in rates.items()), flush=True)
    parameters = parameters_for(float(os.environ.get("STATE_GB", 24 if on_gpu else 0.1)))
    figures["state_bytes"] = parameters * STATE
    figures["policies"] = measure_policies(program, setting, rates, parameters, on_gpu)


def measure_ops(build, on_gpu):
    """Attention and the pointwise kernels, each alone: the lines of their programs."""
    found = {}
    for name in ("attention", "pointwise") if on_gpu else ():
        code, printed = run([str(build / "perf" / f"perf_{name}"), *(["cuda"] if name == "pointwise" else [])], PROGRAM_SECONDS)
        print(printed, flush=True)
        if code != 0:
            raise Failure(f"perf_{name} ended with {code}")
        found[name] = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return found


def run_e2e(build, clock):
    """tests/e2e/gpu_test.py: 50 steps beside the CPU's losses, the same bits by every schedule, a restart."""
    environment = {**os.environ, "OFFSTAGE": str(build / "offstage"), "PYTHONDONTWRITEBYTECODE": "1",
                   "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    printed = clock.call([sys.executable, "tests/e2e/gpu_test.py", "--verbose"], 150, env=environment)
    summary = " ".join(printed.splitlines()[-3:])
    print(f"  e2e/gpu_test.py: {summary}", flush=True)
    return summary


def main():
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in ("cuda", "host"):
        sys.exit(__doc__)
    began = time.monotonic()
    clock = gpu_model.Clock(float(os.environ.get("SECONDS_LEFT", 560)))
    on_gpu = sys.argv[1] == "cuda"
    build = pathlib.Path(sys.argv[2]).resolve()
    figures = {**machine(), "emulated": not on_gpu, **(gpu_facts() if on_gpu else {})}
    problems = figures["problems"] = []
    path = sys.argv[3] if len(sys.argv) == 4 else ("perf/results/gpu-unfinished.json" if on_gpu else None)

    def section(name, measured):
        """Keeps what it found, and a machine's time that ends takes away only what comes later."""
        if clock.left() < 20:
            problems.append(f"{name}: no time was left")
            return
        try:
            found = measured()
            if found is not None:
                figures[name] = found
        except Exception as problem:  # whatever it is, the other sections count
            problems.append(f"{name}: {type(problem).__name__}: {problem}")
            print(problems[-1], flush=True)
        figures["results"] = report(figures)
        figures["seconds"] = round(time.monotonic() - began, 1)
        if path is not None:
            pathlib.Path(path).write_text(json.dumps(figures, indent=2) + "\n")

    def checked(kind, *options, programs=TESTS):
        sanitizer = shutil.which("compute-sanitizer") if on_gpu else None
        if sanitizer is None:
            print(f"{kind} not run: " + ("compute-sanitizer is not installed" if on_gpu else "no GPU"))
            return
        print(f"tests under compute-sanitizer {kind}")
        # One test pins memory twice on purpose.
        section(kind, lambda: test(build, [sanitizer, "--tool", kind, "--report-api-errors", "no", "--error-exitcode", "9", *options],
                                   programs, clock))

    print(f"{figures['cores']} cores of {figures['cpu']}" +
          (f", driver {figures['driver']}" if on_gpu else "; the emulated device: no figure of a GPU"))
    print("tests of label gpu")
    section("tests", lambda: test(build, [], TESTS, clock))
    # What matters most comes first: a lent machine's time may end.
    section("passes", lambda: gpu_model.measure_passes(build, on_gpu, clock, problems))
    section("training", lambda: gpu_model.measure_training(build, pathlib.Path("configs/policies").resolve(), on_gpu, clock, problems))
    if on_gpu:
        section("e2e", lambda: run_e2e(build, clock))
    section("profile", lambda: gpu_model.measure_kernels(build, on_gpu, clock))
    section("ops", lambda: measure_ops(build, on_gpu))
    section("update", lambda: measure_all(figures, str(build / "perf" / "perf_share"), "device.kind=cuda" if on_gpu else EMULATION, on_gpu))
    own = [name for name in TESTS if name.startswith("kernels/")]
    checked("memcheck")
    checked("racecheck", programs=own)
    checked("initcheck", programs=own)
    wanted = "passed" if on_gpu else ("passed", "skipped", "not built")
    problems += [f"{name} {outcome}" for kind in ("tests", "memcheck", "racecheck", "initcheck")
                 for name, outcome in figures.get(kind, {}).items() if not outcome.startswith(wanted)]
    figures["seconds"] = round(time.monotonic() - began, 1)
    if path is not None and len(sys.argv) == 3:
        name = re.sub(r"[^a-z0-9]+", "-", figures.get("device", "unknown").lower()).strip("-")
        pathlib.Path(path).unlink(missing_ok=True)
        path = f"perf/results/gpu-{name}.json"
    if path is not None:
        pathlib.Path(path).write_text(json.dumps(figures, indent=2) + "\n")
        print(f"wrote {path}")
    for problem in problems:
        print(f"perf/gpu.sh: {problem}", file=sys.stderr)
    for name, value in figures.get("results", {}).items():
        print(f"RESULT {name} {value}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
