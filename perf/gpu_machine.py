"""What machine gpu.py ran on: memory, driver and tools, for its section A; in short for all of them."""
import datetime
import importlib.metadata
import os
import pathlib
import platform
import re
import resource
import shutil
import sys

from gpu_run import Failed, memory

ASKED = ["name", "driver_version", "compute_cap", "memory.total", "memory.free", "power.limit", "clocks.max.sm", "clocks.max.memory",
         "temperature.gpu", "pcie.link.gen.max", "pcie.link.gen.current", "pcie.link.width.max", "pcie.link.width.current",
         "ecc.mode.current", "mig.mode.current"]
TOOLS = {"nvcc": "release ([0-9.]+)", "ncu": "Version ([0-9.]+)", "compute-sanitizer": "[Vv]ersion ([0-9.]+)", "gcc": "([0-9]+[0-9.]+)",
         "mpirun": "([0-9]+[0-9.]+)"}


def commit(section):
    if shutil.which("git") is None:
        return "unknown"
    try:
        return section.call(["git", "rev-parse", "--short=12", "HEAD"], 10).strip()
    except Failed:
        return "unknown"  # a copy without its history


def cpu():
    found = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


def nvidia_smi(section, fields):
    printed = section.call(["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader", "--id=0"], 30)
    return dict(zip(fields, printed.strip().split(", ")))


def gpu(section):
    """Of the first GPU and its driver; a driver that does not know one of the questions is asked the usual ones."""
    try:
        facts = nvidia_smi(section, ASKED)
    except Failed:
        facts = nvidia_smi(section, ASKED[:2])
    version = re.search(r"CUDA Version: ([0-9.]+)", section.call(["nvidia-smi"], 30))
    return {**facts, "driver_cuda": version[1] if version else "unknown"}


def measure_facts(section):
    """What every section's file says."""
    section.keep("date", datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"))
    section.keep("commit", commit(section))
    section.keep("cpu", cpu())
    section.keep("cores", len(os.sched_getaffinity(0)))
    section.keep("memory", memory())
    section.say(f"{section.figures['cores']} cores of {section.figures['cpu']}, "
                f"{section.figures['memory']['available'] / 1e9:.0f} of {section.figures['memory']['total'] / 1e9:.0f} GB free" +
                ("" if section.on_gpu else "; the emulated device: no figure of a GPU"))
    if section.on_gpu:
        section.keep("gpu", gpu(section))
        section.say(", ".join(f"{name} {value}" for name, value in section.figures["gpu"].items()))


def version_of(section, tool, pattern):
    if shutil.which(tool) is None:
        return "not installed"
    try:
        found = re.search(pattern, section.call([tool, "--version"], 20))
    except Failed as failed:
        return str(failed).splitlines()[0]
    return found[1] if found else "unknown"


def module_version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def text_of(path):
    path = pathlib.Path(path)
    return path.read_text().strip() if path.exists() else "unknown"


def measure_machine(section):
    """What may explain a figure, or a failure: section A's."""
    measure_facts(section)
    section.keep("host", "kernel", platform.release())
    section.keep("host", "glibc", " ".join(platform.libc_ver()))
    section.keep("host", "locked_memory_limit", resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    section.keep("host", "huge_pages", text_of("/sys/kernel/mm/transparent_hugepage/enabled"))
    for name, place in ("tree", "."), ("shared_memory", "/dev/shm"), ("temporary", "/tmp"):
        if pathlib.Path(place).exists():
            section.keep("host", "free_bytes", name, shutil.disk_usage(place).free)
    section.keep("tools", "python", sys.version.split()[0])
    section.keep("tools", "torch", module_version("torch"))
    for tool, pattern in TOOLS.items():
        section.keep("tools", tool, version_of(section, tool, pattern))
    section.say(f"host {section.figures['host']}")
    section.say(f"tools {section.figures['tools']}")
