"""Measures the memory of gpt2_125m.sh: gpt2_125m.py OFFSTAGE DIRECTORY RANKS.

Writes a model with GPT-2's shape and random weights, as Hugging Face has it, and random tokens as llm.c has
them; runs Offstage on them and adds up the peak resident memory of all its processes.
"""
import json
import math
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path

from measure import steps_of

LIMIT_GIB = 4.0
STEPS = 5
SEQUENCE = 1024
HIDDEN, LAYERS, HEADS, VOCAB, POSITIONS = 768, 12, 12, 50257, 1024
DEVIATION = 0.02
PIECE = 1 << 16  # elements written at once

CONFIG = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
    "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_positions": POSITIONS, "vocab_size": VOCAB,
    "n_inner": None, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "torch_dtype": "float32",
    "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "initializer_range": DEVIATION,
}


def tensors():
    """Name, shape and what a tensor starts at: normal numbers, or a constant."""
    yield "transformer.wte.weight", [VOCAB, HIDDEN], None
    yield "transformer.wpe.weight", [POSITIONS, HIDDEN], None
    for layer in range(LAYERS):
        for part, shape in (("attn.c_attn", [HIDDEN, 3 * HIDDEN]), ("attn.c_proj", [HIDDEN, HIDDEN]),
                            ("mlp.c_fc", [HIDDEN, 4 * HIDDEN]), ("mlp.c_proj", [4 * HIDDEN, HIDDEN])):
            yield f"transformer.h.{layer}.{part}.weight", shape, None
            yield f"transformer.h.{layer}.{part}.bias", shape[1:], 0.0
        for part in "ln_1", "ln_2":
            yield f"transformer.h.{layer}.{part}.weight", [HIDDEN], 1.0
            yield f"transformer.h.{layer}.{part}.bias", [HIDDEN], 0.0
    yield "transformer.ln_f.weight", [HIDDEN], 1.0
    yield "transformer.ln_f.bias", [HIDDEN], 0.0


def write_model(directory, numbers):
    """Streamed. Normal numbers are drawn from a pool, piece by piece: a million of them would look the same."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=2))
    header, end = {}, 0
    for name, shape, _ in tensors():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pool = array("f", (numbers.gauss(0.0, DEVIATION) for _ in range(8 * PIECE)))
    with open(directory / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, shape, constant in tensors():
            left = math.prod(shape)
            while left > 0:
                count = min(left, PIECE)
                begin = numbers.randrange(len(pool) - count)
                piece = pool[begin:begin + count] if constant is None else array("f", [constant]) * count
                file.write(piece.tobytes())
                left -= count
    return end // 4


def write_tokens(path, numbers, count):
    tokens = array("H", (numbers.randrange(VOCAB) for _ in range(count)))
    path.write_bytes(struct.pack("<256i", 20240520, 1, count, *[0] * 253) + tokens.tobytes())


def descendants(root):
    """Process ids of root and all below it."""
    children = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has ended
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def high_water_mark(pid):
    """Peak resident bytes so far; 0 if the process has ended."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


class Phase:
    """One command, run to its end: its seconds, and the sum of the peaks of its processes. The kernel keeps
    each peak, so that only growth within the last 20 ms of a process can be missed, and of a command
    without children not even that."""

    def __init__(self, name, command, folder):
        started = time.monotonic()
        with open(folder / f"{name}.log", "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        peaks = {}
        try:
            while True:
                for pid in descendants(process.pid):
                    peaks[pid] = max(peaks.get(pid, 0), high_water_mark(pid))
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid != 0:
                    break
                time.sleep(0.02)
        except BaseException:
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit((folder / f"{name}.log").read_text() + f"{name} ended with {process.returncode}")
        self.name, self.seconds = name, time.monotonic() - started
        self.gib = max(sum(peaks.values()), usage.ru_maxrss * 1024) / 2**30
        print(f"{name}: {self.seconds:.1f} s, peak {self.gib:.2f} GiB", flush=True)


def measure(offstage, folder, ranks):
    numbers = random.Random(1)
    parameters = write_model(folder / "model", numbers)
    write_tokens(folder / "tokens.bin", numbers, (STEPS + 1) * ranks * SEQUENCE + 1)
    (folder / "state").mkdir()
    print(f"GPT-2 with {parameters / 1e6:.1f} M parameters, {ranks} ranks, {STEPS} steps of {ranks} x {SEQUENCE} tokens")

    launcher = ["tests/mpi.sh", str(ranks)] if ranks > 1 else []
    checkpoints = folder / "checkpoints"
    keys = {
        "run.dir": folder / "run", "checkpoint.dir": checkpoints, "data.train": folder / "tokens.bin",
        "train.steps": STEPS, "train.sequence": SEQUENCE, "train.micro-batch": 1, "train.global-batch": ranks,
        "train.log-every": 1, "tiers.path": folder / "state", "tiers.host-memory": "768MiB",
    }
    train = ["train", *(f"--{key}={value}" for key, value in keys.items())]
    phases = [
        Phase("import", [*launcher, offstage, "import", "--from", folder / "model", "--to", checkpoints], folder),
        Phase("train", [*launcher, offstage, *train], folder),
        Phase("export", [*launcher, offstage, "export", "--from", checkpoints, "--to", folder / "exported"], folder),
    ]
    steps = steps_of(folder / "run")
    losses = [step["loss"] for step in steps]
    assert len(losses) == STEPS and all(abs(loss - math.log(VOCAB)) < 1 for loss in losses), losses
    assert all(step["read_bytes"] > 0 for step in steps), "the state was not on storage"
    size = sum(file.stat().st_size for file in (folder / "exported").glob("*.safetensors"))
    print("losses " + " ".join(f"{loss:.3f}" for loss in losses) + f"; exported {size / 1e6:.0f} MB")
    return phases


def main():
    offstage, directory, ranks = os.path.abspath(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix="offstage-perf-", dir=directory))
    try:
        phases = measure(offstage, folder, ranks)
    finally:
        shutil.rmtree(folder)
    for phase in phases:
        print(f"RESULT gpt2_125m_{phase.name}_gib {phase.gib:.2f}")
    peak = max(phase.gib for phase in phases)
    print(f"RESULT gpt2_125m_peak_gib {peak:.2f}")
    return 0 if peak <= LIMIT_GIB else f"{peak:.2f} GiB are more than {LIMIT_GIB:.0f}"


if __name__ == "__main__":
    sys.exit(main())
