#!/usr/bin/env python3
"""PyTorch's side of gpu.py's section A, in a process of its own: gpu_torch.py JSON with the model's shape. Prints a line of
JSON for each figure as soon as it is known: what PyTorch this is, scaled_dot_product_attention alone, and forward and
backward of a whole LLaMA in bf16, with the backend that was chosen, and flash, cuDNN and deterministic by force."""
import contextlib
import json
import os
import statistics
import sys
import time

# cuBLAS has deterministic products with it; on Hopper it is what PyTorch gives cuBLAS anyway.
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

FORCED = {"chosen": None, "flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
          "deterministic": SDPBackend.FLASH_ATTENTION}
WARM_UP = 3


def tell(kind, name, **facts):
    print(json.dumps({"kind": kind, "name": name, **facts}), flush=True)


@contextlib.contextmanager
def backend(name):
    """What FORCED says, and no other."""
    deterministic = name == "deterministic"
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(deterministic)
    try:
        with sdpa_kernel(FORCED[name]) if FORCED[name] is not None else contextlib.nullcontext():
            yield
    finally:
        torch.use_deterministic_algorithms(False)


def attend(q, k, v, expand):
    """Causal attention of grouped heads; `expand`: for backends that take no groups, each head gets its own k and v."""
    if expand:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def choice(q, k, v):
    """The name of the backend that scaled_dot_product_attention takes for these."""
    number = torch._fused_sdp_choice(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return SDPBackend(number).name


def kernels_of(device, work):
    """The names of the kernels that it runs: what was chosen, beyond doubt."""
    if device != "cuda":
        return []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    return sorted({event.key[:120] for event in profile.key_averages()})


def waits(device):
    return torch.cuda.synchronize if device == "cuda" else (lambda: None)


def time_attention(device, shape, expand):
    """Seconds of a forward and of a backward, the backend, and the kernels' names."""
    batch, sequence, heads, kv_heads, size = shape
    wait = waits(device)
    q, k, v = (torch.randn(batch, sequence, n, size, device=device, dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
               for n in (heads, kv_heads, kv_heads))
    gradient = torch.randn(batch, sequence, heads, size, device=device, dtype=torch.bfloat16).transpose(1, 2)
    forward, backward = [], []
    rounds, calls = (12, 4) if device == "cuda" else (3, 1)
    for step in range(-WARM_UP, rounds):
        wait()
        begin = time.perf_counter()
        for _ in range(calls):
            out = attend(q, k, v, expand)
        wait()
        half = time.perf_counter()
        for _ in range(calls):
            torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)
        wait()
        if step >= 0:
            forward.append((half - begin) / calls)
            backward.append((time.perf_counter() - half) / calls)
    chosen = choice(q, *((x.repeat_interleave(heads // kv_heads, 1) if expand else x) for x in (k, v)))
    kernels = kernels_of(device, lambda: torch.autograd.grad(attend(q, k, v, expand), (q, k, v), gradient))
    return {"forward_seconds": statistics.median(forward), "backward_seconds": statistics.median(backward), "sdpa": chosen,
            "expanded": expand, "kernels": kernels}


def first_that_works(work):
    """work(False), or where grouped heads are refused work(True)."""
    try:
        return work(False)
    except RuntimeError:
        torch.cuda.empty_cache()
        return work(True)


def forced(device):
    """What can be had by force: a CPU has no cuDNN."""
    return [name for name in FORCED if name != "chosen" and (device == "cuda" or name != "cudnn")]


def measure_attention(device, shape):
    for name in ("chosen", *forced(device)):
        label = f"{name} {'x'.join(map(str, shape))}"
        try:
            with backend(name):
                row = first_that_works(lambda expand: time_attention(device, shape, expand))
            tell("attention", label, backend=name, shape=shape, **row)
        except Exception as problem:
            tell("attention", label, error=str(problem)[:500])


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        hidden, self.heads, self.kv_heads, self.wide = a["hidden"], a["heads"], a["kv-heads"], a["ffn-hidden"]
        self.size, self.expand = hidden // self.heads, False
        self.norm1, self.norm2 = nn.RMSNorm(hidden, 1e-5), nn.RMSNorm(hidden, 1e-5)
        self.qkv = nn.Linear(hidden, (self.heads + 2 * self.kv_heads) * self.size, bias=False)
        self.o = nn.Linear(hidden, hidden, bias=False)
        self.up, self.down = nn.Linear(hidden, 2 * self.wide, bias=False), nn.Linear(self.wide, hidden, bias=False)

    def turn(self, x, heads, cos, sin):
        x, half = x.unflatten(-1, (heads, self.size)).transpose(1, 2), self.size // 2
        first, second = x[..., :half], x[..., half:]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def forward(self, x, cos, sin):
        sizes = [n * self.size for n in (self.heads, self.kv_heads, self.kv_heads)]
        q, k, v = self.qkv(self.norm1(x)).split(sizes, -1)
        y = attend(self.turn(q, self.heads, cos, sin), self.turn(k, self.kv_heads, cos, sin),
                   v.unflatten(-1, (self.kv_heads, self.size)).transpose(1, 2), self.expand)
        x = x + self.o(y.transpose(1, 2).flatten(-2))
        gate, up = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class End(nn.Module):
    """From the last block to the loss."""

    def __init__(self, a):
        super().__init__()
        self.norm, self.head = nn.RMSNorm(a["hidden"], 1e-5), nn.Linear(a["hidden"], a["vocab"], bias=False)

    def forward(self, x, targets):
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Model(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embedding = nn.Embedding(a["vocab"], a["hidden"])
        self.blocks, self.end = nn.ModuleList(Block(a) for _ in range(a["layers"])), End(a)

    def forward(self, tokens, targets, cos, sin):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.end(x, targets)

    def expand(self, expand):
        for block in self.blocks:
            block.expand = expand

    def compile_parts(self):
        """Block by block: all have the same code, so that it is compiled once, in seconds and not minutes."""
        for part in (*self.blocks, self.end):
            part.compile()


class Passes:
    def __init__(self, a):
        torch.manual_seed(1)
        self.device, self.steps, length = a["device"], a["steps"], a["sequence"]
        with torch.device(self.device):
            self.model = Model(a).to(torch.bfloat16)
            for parameter in self.model.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)
            tokens, targets = (torch.randint(a["vocab"], (a["batch"], length)) for _ in range(2))
            size = a["hidden"] // a["heads"]
            angles = torch.outer(torch.arange(length).float(), 10000.0 ** (-torch.arange(0, size, 2).float() / size))
            self.inputs = tokens, targets, angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)
            self.heads = [torch.empty(a["batch"], n, length, size, dtype=torch.bfloat16, requires_grad=True)
                          for n in (a["heads"], a["kv-heads"], a["kv-heads"])]

    def time(self):
        wait, forward, backward = waits(self.device), [], []
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        for step in range(-WARM_UP, self.steps):
            self.model.zero_grad(set_to_none=True)
            wait()
            begin = time.perf_counter()
            loss = self.model(*self.inputs)
            loss.item()
            half = time.perf_counter()
            loss.backward()
            wait()
            if step >= 0:
                forward.append(half - begin)
                backward.append(time.perf_counter() - half)
        peak = torch.cuda.max_memory_allocated() if self.device == "cuda" else 0
        return {"forward_seconds": forward, "backward_seconds": backward, "loss": loss.item(), "device_peak": peak}

    def attempt(self, expand):
        self.model.expand(expand)
        return {**self.time(), "expanded": expand}

    def measure(self, label, name):
        try:
            with backend(name):
                row = first_that_works(self.attempt)
                q, k, v = self.heads
                row["sdpa"] = "by force" if row["expanded"] else choice(q, k, v)
            tell("passes", label, **row)
        except Exception as problem:
            tell("passes", label, error=str(problem)[:500])
        self.model.zero_grad(set_to_none=True)


def main():
    a = json.loads(sys.argv[1])
    cuda = a["device"] == "cuda"
    tell("torch", "build", version=torch.__version__, cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version() if cuda else None,
         nccl=list(torch.cuda.nccl.version()) if cuda else None, device=torch.cuda.get_device_name(0) if cuda else "cpu")
    passes = Passes(a)
    passes.measure("eager", "chosen")
    for name in forced(a["device"]):
        passes.measure(name, name)
    passes.model.compile_parts()
    began = time.perf_counter()
    passes.measure("compiled", "chosen")
    tell("torch", "compiled", graphs=torch._dynamo.utils.counters["stats"]["unique_graphs"], seconds=time.perf_counter() - began)
    for shape in a["operations"]:  # last: without it the whole model is compared all the same
        measure_attention(a["device"], shape)


if __name__ == "__main__":
    main()
