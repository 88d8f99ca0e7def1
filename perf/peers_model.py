"""What start.py and peers.py share: the model on which PyTorch, DeepSpeed and Offstage are compared, for each of them."""
import array
import os
import random

# A LLaMA of 134 M parameters, as gpu_torch.py names its shape.
SHAPE = {"layers": 12, "hidden": 768, "heads": 12, "kv-heads": 12, "ffn-hidden": 2048, "vocab": 32000}
if "TRY" in os.environ:  # a small one, to see that everything runs
    SHAPE |= {"layers": 2, "hidden": 256, "ffn-hidden": 512, "heads": 4, "kv-heads": 4, "vocab": 1000}
SEQUENCE, BATCH = 256, 2
# Far above the norms of these steps, on both sides: no step is clipped, so that overlapping updates are not redone.
CLIP = 1000.0


def torch_arguments(steps, threads, **more):
    """The JSON that torch_peer.py takes."""
    return SHAPE | {"sequence": SEQUENCE, "batch": BATCH, "clip": CLIP, "steps": steps, "threads": threads} | more


def offstage_arguments(program, folder, data, steps, **more):
    """The command of the same run by Offstage. `more`: further keys, with `__` for `.` and `_` for `-`."""
    keys = {f"model.{key}": value for key, value in SHAPE.items()} | {
        "model.family": "llama", "train.sequence": SEQUENCE, "train.micro-batch": BATCH, "train.global-batch": BATCH,
        "train.steps": steps, "optimizer.clip": CLIP, "numerics.dtype": "bf16", "device.kind": "host", "run.dir": folder,
        "data.train": data, "checkpoint.every": 0, "checkpoint.resume": "none"}
    keys |= {key.replace("__", ".").replace("_", "-"): value for key, value in more.items()}
    return [program, "train", *(f"--{key}={value}" for key, value in keys.items())]


def environment(**more):
    """The environment without what would choose threads or how they wait."""
    unset = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
    return {k: v for k, v in os.environ.items() if k not in unset} | more


def write_tokens(path):
    path.write_bytes(array.array("H", random.Random(1).choices(range(256), k=100_000)).tobytes())
    return path
