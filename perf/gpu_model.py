"""The whole model on a GPU, for gpu.py: forward and backward beside PyTorch, kernel by kernel, and operations alone."""
import csv
import importlib.util
import json
import pathlib
import shutil
import statistics
import sys

from gpu_run import Failed, last_json

# A LLaMA of 1.1 G parameters (TinyLlama's shape); the same for every program.
LLAMA = {"layers": 22, "hidden": 2048, "heads": 32, "kv-heads": 4, "ffn-hidden": 5632, "vocab": 32000}
BATCH, SEQUENCE, STEPS = 4, 2048, 10
# Without a GPU the script is tried with this one.
SMALL = {"layers": 2, "hidden": 64, "heads": 2, "kv-heads": 1, "ffn-hidden": 96, "vocab": 256}
SMALL_BATCH, SMALL_SEQUENCE = 2, 32
# Batch, sequence, heads, kv-heads, head size: of the model, and of one with wider heads.
OPERATIONS = [(4, 2048, 32, 4, 64), (4, 2048, 32, 4, 128)]
SMALL_OPERATIONS = [(2, 32, 2, 1, 32)]
# Nsight Compute's metrics, and its names of units, old and new.
SECONDS, BYTES = "gpu__time_duration.sum", ("dram__bytes_read.sum", "dram__bytes_write.sum")
UNITS = {"ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3, "s": 1, "second": 1,
         "byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def shape_of(section):
    return (LLAMA, BATCH, SEQUENCE) if section.on_gpu else (SMALL, SMALL_BATCH, SMALL_SEQUENCE)


def seconds_of(figures):
    return statistics.median(f + b for f, b in zip(figures["forward_seconds"], figures["backward_seconds"]))


def perf_model(section, shape, steps):
    _, batch, sequence = shape_of(section)
    return [section.build / "perf" / "perf_model", f"device={'cuda' if section.on_gpu else 'host'}", f"batch={batch}",
            f"sequence={sequence}", "recompute=none", f"steps={steps}", *(f"{key}={value}" for key, value in shape.items())]


def say_pass(section, name, row):
    seconds = seconds_of(row)
    ours = section.figures["passes"].get("offstage")
    flops, rate = (ours["product_flops"], ours["product_rate"]) if ours else (float("nan"), float("nan"))
    section.say(f"  {name:22} {seconds:9.4f} {flops / seconds / 1e12:8.1f} {flops / seconds / rate:6.3f} "
                f"{row['device_peak'] / 2**30:7.2f}  loss {row['loss']:.3f}")


def measure_passes(section):
    """Forward and backward without recomputation: ours."""
    shape, batch, sequence = shape_of(section)
    section.say(f"forward and backward, bf16, batch {batch} x {sequence}: seconds, TFLOP/s, share of a product's rate, peak GiB")
    row = last_json(section.call([*perf_model(section, shape, STEPS), *([] if section.on_gpu else ["product=256"])]))
    section.keep("passes", "offstage", row)
    say_pass(section, "offstage", row)


def measure_torch(section):
    """The same in PyTorch, and its attention alone: one process, each of whose lines is kept as it comes."""
    if importlib.util.find_spec("torch") is None:
        if section.on_gpu:
            raise Failed(f"{sys.executable} has no PyTorch")
        section.keep("torch", "not installed")
        section.say("PyTorch is not installed")
        return
    shape, batch, sequence = shape_of(section)

    def hear(line):
        if not line.startswith("{"):
            return
        row = json.loads(line)
        kind, name = row.pop("kind"), row.pop("name")
        section.keep(kind, name, row)
        if "error" in row and kind == "passes" and name in ("eager", "compiled"):
            section.problem(f"PyTorch, {name}: {row['error']}")
        elif kind == "passes" and "error" not in row:
            say_pass(section, name, row)
        else:
            section.say(f"  {kind} {name}: {row}")

    given = {**shape, "batch": batch, "sequence": sequence, "device": "cuda" if section.on_gpu else "cpu", "steps": STEPS,
             "operations": OPERATIONS if section.on_gpu else SMALL_OPERATIONS}
    section.call([sys.executable, pathlib.Path(__file__).with_name("gpu_torch.py"), json.dumps(given)], heard=hear)


class Launches:
    """What Nsight Compute says of each launch, a line of CSV for each metric, by kernel and grid: the grid tells a kernel's shapes
    apart."""

    def __init__(self):
        self.columns, self.found = None, {}

    def hear(self, line):
        if not line.startswith('"'):
            return
        words = next(csv.reader([line]))
        if self.columns is None:
            self.columns = words
            return
        row = dict(zip(self.columns, words))
        kernel = self.found.setdefault(f"{row['Kernel Name']} {row['Grid Size']}", {"seconds": 0, "bytes": 0, "calls": 0})
        value = float(row["Metric Value"].replace(",", "")) * UNITS[row["Metric Unit"]]
        if row["Metric Name"] == SECONDS:
            kernel["seconds"] += value
            kernel["calls"] += 1
        else:
            kernel["bytes"] += value


def measure_kernels(section):
    """Seconds, share and bytes of memory of each kernel in one forward and backward of 2 blocks, by Nsight Compute."""
    ncu = shutil.which("ncu") if section.on_gpu else None
    if ncu is None:
        why = "ncu is not installed" if section.on_gpu else "no GPU"
        section.keep("profile", why)
        section.say(f"no profile by kernel: {why}")
        return
    launches = Launches()
    try:
        section.call([ncu, "--csv", "--clock-control", "none", "--print-kernel-base", "function", "--metrics",
                      ",".join((SECONDS, *BYTES)), *perf_model(section, {**LLAMA, "layers": 2}, 1), "warm-up=0", "product=0"],
                     heard=launches.hear)
    finally:
        kernels = launches.found
        section.keep("profile", kernels)
        total = sum(kernel["seconds"] for kernel in kernels.values())
        section.say(f"kernels of a forward and a backward (2 blocks), {total * 1e3:.2f} ms: ms, share, GB/s, calls")
        for name, kernel in sorted(kernels.items(), key=lambda item: -item[1]["seconds"]):
            section.say(f"  {name:60} {kernel['seconds'] * 1e3:9.3f} {kernel['seconds'] / total:6.1%} "
                        f"{kernel['bytes'] / kernel['seconds'] / 1e9:6.0f} {kernel['calls']:5}")
    if not kernels:
        raise Failed("Nsight Compute saw no kernel")


def measure_operations(section):
    """Attention and the pointwise kernels, each alone: the lines of their programs."""
    shapes = [",".join(map(str, shape)) for shape in OPERATIONS]
    programs = {"pointwise": ["cuda" if section.on_gpu else "host"], **({"attention": shapes} if section.on_gpu else {})}
    for index, (name, arguments) in enumerate(sorted(programs.items())):
        lines = []

        def hear(line, name=name, lines=lines):
            if line.startswith("{"):
                lines.append(json.loads(line))
                section.keep("operations", name, lines)
                section.say(f"  {line}")

        with section.guard(f"operations, {name}", len(programs) - index) as seconds:
            section.call([section.build / "perf" / f"perf_{name}", *arguments], seconds, hear)


def attention_seconds(figures):
    """Forward and backward together at the model's shape: ours in bf16, by own kernels, also with eight documents a sequence, and by cuDNN, and PyTorch's by backend."""
    batch, sequence, heads, kv_heads, head_dim = OPERATIONS[0]
    wanted = {"type": "bf16", "batch": batch, "sequence": sequence, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    lines = [line for line in figures.get("operations", {}).get("attention", []) if wanted.items() <= line.items()]
    ours = {by: [line["seconds"] for line in lines if line["by"] == by] for by in ("own", "own_documents", "cudnn")}
    torch = {row["backend"]: row["forward_seconds"] + row["backward_seconds"] for row in figures.get("attention", {}).values()
             if "error" not in row and row["shape"] == list(OPERATIONS[0])}
    return {by: sum(seconds) for by, seconds in ours.items() if len(seconds) == 2}, torch


def results(figures):
    """RESULT figures, without the device's name."""
    found = {}
    rows = {name: row for name, row in figures.get("passes", {}).items() if "error" not in row}
    ours = rows.pop("offstage", None)
    if ours is not None:
        found["forward_backward_vs_product"] = ours["product_flops"] / seconds_of(ours) / ours["product_rate"]
        if "eager" in rows and "compiled" in rows:  # else the fastest of them is not known
            found["forward_backward_vs_torch"] = min(map(seconds_of, rows.values())) / seconds_of(ours)
        if "deterministic" in rows:
            found["forward_backward_vs_torch_deterministic"] = seconds_of(rows["deterministic"]) / seconds_of(ours)
    attention, torch = attention_seconds(figures)
    if attention and "chosen" in torch:
        found["attention_vs_torch"] = min(torch.values()) / attention.get("cudnn", attention.get("own"))
    if attention and "deterministic" in torch:
        found["attention_vs_torch_deterministic"] = torch["deterministic"] / attention.get("cudnn", attention.get("own"))
    if {"own", "cudnn"} <= attention.keys():
        found["attention_cudnn_vs_own"] = attention["own"] / attention["cudnn"]
    if "own_documents" in attention:
        found["attention_documents_speedup"] = attention["own"] / attention["own_documents"]
    return found
