#!/usr/bin/env python3
"""A training run of PyTorch or DeepSpeed on the CPU: torch_peer.py KIND JSON

KIND is eager, compile, ds_zero3 (state in host memory) or ds_infinity (state and parameters on storage). The model is gpu_torch.py's
LLaMA with FP32 parameters and AdamW; products are bf16. The JSON has the model's shape, "steps", "threads", "clip" and, for ds_infinity, a
"directory". Prints `step N SECONDS` when a step is done, and `peak BYTES` of resident memory at the end."""
import json
import os
import resource
import sys
import time

# The compiler's own processes would compete with the threads that are measured.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch

from gpu_torch import Model

BETAS, EPSILON, DECAY, RATE = (0.9, 0.95), 1e-8, 0.1, 3e-4


def inputs(a):
    torch.manual_seed(1)
    length, size = a["sequence"], a["hidden"] // a["heads"]
    angles = torch.outer(torch.arange(length).float(), 10000.0 ** (-torch.arange(0, size, 2).float() / size))
    tokens = torch.randint(256, (a["batch"], length + 1))
    return tokens[:, :-1], tokens[:, 1:].contiguous(), angles.cos(), angles.sin()


def fresh_model(a):
    torch.manual_seed(1)
    model = Model(a)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02)
    return model


def run_torch(a, compiled):
    model, batch = fresh_model(a), inputs(a)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=DECAY, fused=True)
    forward = torch.compile(model) if compiled else model

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            loss = forward(*batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), a["clip"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def deepspeed_config(a, on_storage):
    offload = {"device": "cpu", "pin_memory": False}
    stored = {"device": "nvme", "nvme_path": a.get("directory"), "pin_memory": False, "buffer_count": 5}
    zero = {"stage": 3, "offload_optimizer": stored | {"pipeline_read": True, "pipeline_write": True} if on_storage else offload}
    if not on_storage:
        zero["offload_param"] = offload
    return {"train_micro_batch_size_per_gpu": a["batch"], "gradient_accumulation_steps": 1, "gradient_clipping": a["clip"],
            "bf16": {"enabled": True}, "zero_optimization": zero,
            "optimizer": {"type": "AdamW", "params": {"lr": RATE, "betas": BETAS, "eps": EPSILON, "weight_decay": DECAY}},
            "aio": {"block_size": 8 << 20, "queue_depth": 8, "single_submit": False, "overlap_events": True},
            "steps_per_print": 10**9, "wall_clock_breakdown": False}


def run_deepspeed(a, on_storage):
    os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(a["port"])}
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo")
    model = fresh_model(a)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=deepspeed_config(a, on_storage))
    tokens, targets, *angles = inputs(a)
    angles = [angle.to(torch.bfloat16) for angle in angles]

    def step():
        loss = engine(tokens, targets, *angles)
        engine.backward(loss)
        engine.step()
        return loss.item()

    return step


def main():
    kind, a = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(a["threads"])
    runs = {"eager": lambda: run_torch(a, False), "compile": lambda: run_torch(a, True),
            "ds_zero3": lambda: run_deepspeed(a, False), "ds_infinity": lambda: run_deepspeed(a, True)}
    step = runs[kind]()
    for number in range(1, a["steps"] + 1):
        began = time.perf_counter()
        loss = step()
        print(f"step {number} {time.perf_counter() - began:.4f} loss {loss:.4f}", flush=True)
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}", flush=True)


if __name__ == "__main__":
    main()
