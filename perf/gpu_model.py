"""The whole model on a GPU, for gpu.py: forward and backward beside PyTorch, kernel by kernel, and training runs."""
import csv
import io
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

# A LLaMA of 1.1 G parameters (TinyLlama's shape); the same for every program.
LLAMA = {"layers": 22, "hidden": 2048, "heads": 32, "kv-heads": 4, "ffn-hidden": 5632, "vocab": 32000}
BATCH, SEQUENCE, STEPS = 4, 2048, 10
# Without a GPU the script is tried with this one.
SMALL = {"layers": 2, "hidden": 64, "heads": 2, "kv-heads": 1, "ffn-hidden": 96, "vocab": 256}
POLICIES = {"zero3": "zero3.cfg", "twinflow": "twinflow.cfg", "dos": "dos.cfg"}

# Runs in a process of its own, so that its memory is gone afterwards.
TORCH = r'''
import json, statistics, sys, time
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
a = json.loads(sys.argv[1])
C, H, K, FF, V, L, B, T = (a[k] for k in ("hidden", "heads", "kv-heads", "ffn-hidden", "vocab", "layers", "batch", "sequence"))
D = C // H
device = a["device"]
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(C, 1e-5), nn.RMSNorm(C, 1e-5)
        self.qkv, self.o = nn.Linear(C, (H + 2 * K) * D, bias=False), nn.Linear(C, C, bias=False)
        self.up, self.down = nn.Linear(C, 2 * FF, bias=False), nn.Linear(FF, C, bias=False)
    def forward(self, x, cos, sin):
        q, k, v = self.qkv(self.norm1(x)).split([H * D, K * D, K * D], -1)
        turn = lambda y, n: (lambda z: torch.cat((z[..., :D // 2] * cos - z[..., D // 2:] * sin,
                                                  z[..., D // 2:] * cos + z[..., :D // 2] * sin), -1))(y.view(B, T, n, D).transpose(1, 2))
        q, k, v = turn(q, H), turn(k, K), v.view(B, T, K, D).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=H != K)
        x = x + self.o(y.transpose(1, 2).reshape(B, T, C))
        gate, up = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(V, C), nn.ModuleList(Block() for _ in range(L))
        self.norm, self.head = nn.RMSNorm(C, 1e-5), nn.Linear(C, V, bias=False)
    def forward(self, tokens, targets, cos, sin):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, cos, sin, use_reentrant=False) if a["recompute"] == "block" else block(x, cos, sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())
torch.manual_seed(1)
with torch.device(device):
    model = Model().to(torch.bfloat16)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    tokens, targets = torch.randint(V, (B, T)), torch.randint(V, (B, T))
    angles = torch.outer(torch.arange(T).float(), 10000.0 ** (-torch.arange(0, D, 2).float() / D))
    cos, sin = angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)
run = torch.compile(model) if a["compile"] else model
wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
forward, backward = [], []
for step in range(-3, a["steps"]):
    model.zero_grad(set_to_none=True)
    wait(); begin = time.perf_counter()
    loss = run(tokens, targets, cos, sin)
    loss.item(); half = time.perf_counter()
    loss.backward()
    wait(); end = time.perf_counter()
    if step >= 0:
        forward.append(half - begin); backward.append(end - half)
peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
print(json.dumps({"forward_seconds": forward, "backward_seconds": backward, "loss": loss.item(), "device_peak": peak,
                  "torch": torch.__version__}))
'''


def last_json(text):
    return json.loads([line for line in text.splitlines() if line.startswith("{")][-1])


class Failed(Exception):
    pass


class Clock:
    """What is left of the call's time: no program gets more than that."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()

    def call(self, command, seconds, **options):
        """What it printed. Raises Failed."""
        name = pathlib.Path(command[0]).name
        if self.left() < 5:
            raise Failed(f"{name}: no time is left for it")
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=min(seconds, self.left()), check=False, **options)
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise Failed(f"{name}: {problem}") from problem
        if done.returncode != 0:
            raise Failed(f"{name} ended with {done.returncode}:\n{done.stdout[-2500:]}")
        return done.stdout


def seconds_of(figures):
    return statistics.median(f + b for f, b in zip(figures["forward_seconds"], figures["backward_seconds"]))


def arguments_of(shape, device, batch, sequence, recompute, steps):
    return [f"device={device}", f"batch={batch}", f"sequence={sequence}", f"recompute={recompute}", f"steps={steps}",
            *(f"{key}={value}" for key, value in shape.items())]


def measure_passes(build, on_gpu, clock, problems):
    """Forward and backward with and without recomputation: ours, PyTorch, PyTorch compiled."""
    device = "cuda" if on_gpu else "host"
    shape, batch, sequence = (LLAMA, BATCH, SEQUENCE) if on_gpu else (SMALL, 2, 32)
    found = {}
    print(f"forward and backward, bf16, batch {batch} x {sequence}: seconds, TFLOP/s, share of a product's rate, peak GiB")
    for recompute in "none", "block":
        printed = clock.call([str(build / "perf" / "perf_model"), *arguments_of(shape, device, batch, sequence, recompute, STEPS),
                              *([] if on_gpu else ["product=256"])], 90)
        rows = {"offstage": last_json(printed)}
        if on_gpu:
            for name, compiled in ("torch", False), ("torch compiled", True):
                given = {**shape, "batch": batch, "sequence": sequence, "device": "cuda", "recompute": recompute, "compile": compiled,
                         "steps": STEPS}
                try:
                    rows[name] = last_json(clock.call([sys.executable, "-c", TORCH, json.dumps(given)], 120))
                except Failed as failed:
                    problems.append(f"{name}, recompute={recompute}: {failed}")
        flops, rate = rows["offstage"]["product_flops"], rows["offstage"]["product_rate"]
        for name, row in rows.items():
            seconds = seconds_of(row)
            print(f"  recompute={recompute:6} {name:15} {seconds:9.4f} {flops / seconds / 1e12:8.1f} {flops / seconds / rate:6.3f} "
                  f"{row['device_peak'] / 2**30:7.2f}  loss {row['loss']:.3f}", flush=True)
        found[recompute] = rows
    return found


def measure_kernels(build, on_gpu, clock):
    """Seconds and share of each kernel in one forward and backward, by Nsight Compute; empty where there is none."""
    ncu = shutil.which("ncu") if on_gpu else None
    if ncu is None:
        print("no profile by kernel: " + ("ncu is not installed" if on_gpu else "no GPU"))
        return {}
    shape = {**LLAMA, "layers": 2}
    printed = clock.call([ncu, "--csv", "--clock-control", "none", "--print-kernel-base", "function", "--metrics",
                          "gpu__time_duration.sum", str(build / "perf" / "perf_model"),
                          *arguments_of(shape, "cuda", BATCH, SEQUENCE, "none", 1), "warm-up=0", "product=0"], 100)
    lines = [line for line in printed.splitlines() if line.startswith('"')]
    kernels = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        name = row["Kernel Name"]
        unit = {"ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3, "s": 1, "second": 1}[row["Metric Unit"]]
        time, count = kernels.get(name, (0, 0))
        kernels[name] = (time + float(row["Metric Value"].replace(",", "")) * unit, count + 1)
    total = sum(time for time, _ in kernels.values())
    print("kernels of a forward and a backward (2 blocks): ms, share, calls")
    for name, (time, count) in sorted(kernels.items(), key=lambda item: -item[1][0]):
        print(f"  {name:44} {time * 1e3:9.3f} {time / total:6.1%} {count:6}")
    return {name: {"seconds": time, "calls": count} for name, (time, count) in kernels.items()}


def train(clock, offstage, folder, name, shape, batch, sequence, on_gpu, *options):
    """The records of a run's steps. Raises Failed."""
    keys = {**{f"model.{key}": value for key, value in shape.items()}, "model.family": "llama", "train.sequence": sequence,
            "train.micro-batch": batch, "train.global-batch": 2 * batch, "train.log-every": 1, "optimizer.warmup-steps": 1,
            "device.kind": "cuda" if on_gpu else "host", "data.train": folder / "train.txt", "run.dir": folder / name}
    clock.call([offstage, "train", *(f"--{key}={value}" for key, value in keys.items()), *options], 120, cwd=folder)
    records = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if "loss" in record]


def measure_training(build, configs, on_gpu, clock, problems):
    """The 1 B model with its state in host memory under the policies, and on storage with a restart."""
    offstage = str(build / "offstage")
    shape, batch, sequence = (LLAMA, BATCH, SEQUENCE) if on_gpu else (SMALL, 2, 32)
    found = {"policies": {}}
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = pathlib.Path(name).resolve()
        numbers = random.Random(1)
        (folder / "train.txt").write_bytes(bytes(numbers.choices(range(97, 123), k=4 * 2 * batch * sequence * 8)))
        (folder / "path").mkdir()
        print("training with the state in host memory: seconds of a step, forward, backward, update; tokens/s")
        for policy, config in POLICIES.items():
            try:
                # Gradients by the same way in all of them: without storage none can be flushed.
                steps = train(clock, offstage, folder, policy, shape, batch, sequence, on_gpu, "--train.steps=4", "--config",
                              str(configs / config), "--update.gradients=delayed")
            except Failed as failed:
                problems.append(f"training, {policy}: {failed}")
                continue
            finally:
                shutil.rmtree(folder / policy, ignore_errors=True)  # with its checkpoint of 12 bytes per parameter
            row = {key: statistics.median(record[key] for record in steps[1:])
                   for key in ("step_seconds", "forward_seconds", "backward_seconds", "update_seconds")}
            row["losses"] = [record["loss"] for record in steps]
            found["policies"][policy] = row
            print(f"  {policy:10} {row['step_seconds']:8.3f} {row['forward_seconds']:8.3f} {row['backward_seconds']:8.3f} "
                  f"{row['update_seconds']:8.3f} {2 * batch * sequence / row['step_seconds']:9.0f}  last loss {row['losses'][-1]:.4f}",
                  flush=True)
        stored = [f"--tiers.path={folder}/path,read=1GB/s,write=1GB/s", "--tiers.allow-tmpfs=true", "--tiers.cache=0",
                  "--optimizer.schedule=constant"]
        try:
            for steps in 2, 3:
                rest = train(clock, offstage, folder, "stored", shape, batch, sequence, on_gpu, f"--train.steps={steps}", *stored)
            found["storage"] = {"losses": [record["loss"] for record in rest], "step_seconds": rest[-1]["step_seconds"]}
            print(f"  on storage, stopped after 2 steps and continued: losses {found['storage']['losses']}", flush=True)
        except Failed as failed:
            problems.append(f"training, storage: {failed}")
    return found


def results(passes, training):
    """RESULT figures, without the device's name."""
    found = {}
    rows = passes.get("none", {})
    torch = [seconds_of(row) for name, row in rows.items() if name != "offstage"]
    if len(torch) == 2:  # else the faster of them is not known
        found["forward_backward_vs_torch"] = min(torch) / seconds_of(rows["offstage"])
    if "offstage" in rows:
        found["forward_backward_vs_product"] = rows["offstage"]["product_flops"] / seconds_of(rows["offstage"]) / rows["offstage"]["product_rate"]
    policies = training.get("policies", {})
    if "zero3" in policies and "dos" in policies:
        found["dos_speedup_iteration"] = policies["zero3"]["step_seconds"] / policies["dos"]["step_seconds"]
    return found
