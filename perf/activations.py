#!/usr/bin/env python3
"""Steps of GPT-3 13B and 175B on Fuyou's machines, to scale, whose activations leave: activations.py PROGRAM [part...]

Parts are pipelined (Figure 8), choice (Figure 9), throughput (Figure 5); all by default. The device is EMULATED: it computes
on the cores, and products and copies take as long as the scaled GPU's and link's would. Prints a table for each part and ends with RESULT
lines of the parts that ran."""
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from measure import steps_of

SEQUENCE = 1024
# FLOP/s of a transformer block, measured in the paper: 172 TFLOPS are 86 % of it on the A100, 87 are 53 % on the 4090
# (section 1).
GPUS = {"A100": 172e12 / 0.86, "4090": 87e12 / 0.53}
# Not in the paper: PCIe 4.0 x16 each way, and AdamW's 28 bytes a parameter at 0.7 of eight channels DDR4-3200.
LINK = 25e9
CPU_UPDATE = 0.7 * 204.8e9 / 28
# 12 Intel P5510 of 3.84 TB by their data sheet, one direction at a time, at half of it: so storage bounds an iteration of 13B at batch 32 on the
# A100 and none at 64, which section 5.6 says of the paper's machine.
SSD_READ, SSD_WRITE = 0.5 * 12 * 6.5e9, 0.5 * 12 * 3.4e9
# Figure 5 and section 5.3: the highest throughput of each row, TFLOPS.
PAPER = {("13B", "A100"): 202, ("13B", "4090"): 156, ("175B", "A100"): 173, ("175B", "4090"): 86}
LAYERS = 20
HEAD_DIM = 32
STEPS = 4  # of which the first is not counted


class Scale:
    """A model that is narrower by `factor` in sequences that are shorter by as much: at the same batch products, activations
    and parameters of a block have the paper's proportions. Products shrink by its third power, bytes by its second, and times are
    shorter by `faster` beside. Layers are fewer, which changes no proportion but the head's: its vocabulary is less, too."""

    def __init__(self, name, hidden, layers, factor, faster):
        self.name, self.hidden, self.factor, self.faster = name, hidden // factor, factor, faster
        self.vocab = round(50257 / factor * LAYERS / layers / 32) * 32
        self.sequence = SEQUENCE // factor

    def model(self):
        return {"model.family": "gpt2", "model.layers": LAYERS, "model.hidden": self.hidden, "model.heads": self.hidden // HEAD_DIM,
                "model.vocab": max(256, self.vocab), "model.max-sequence": self.sequence, "train.sequence": self.sequence,
                "numerics.dtype": "bf16", "device.kind": "host", "run.threads": 2, "update.device-share": 0, "update.device-gradients": 0,
                "update.subgroup-size": 12 * self.hidden ** 2,
                "optimizer.clip": 0}  # an update under backward is never done again

    def compute(self, gpu):
        return GPUS[gpu] / self.factor ** 3 * self.faster

    def bytes(self, rate):
        return rate / self.factor ** 2 * self.faster

    def emulate(self, gpu):
        link = self.bytes(LINK)
        return f"compute={self.compute(gpu):.0f},h2d={link:.0f},d2h={link:.0f},host-update={self.bytes(CPU_UPDATE):.0f}"

    def path(self, directory):
        return f"{directory},emulate-read={self.bytes(SSD_READ):.0f},emulate-write={self.bytes(SSD_WRITE):.0f},emulate-duplex=half"


SCALES = {"13B": Scale("13B", 5120, 40, 32, 3), "175B": Scale("175B", 12288, 96, 64, 8)}


class Bench:
    def __init__(self, program, folder):
        self.program, self.folder, self.runs = program, folder, 0
        (folder / "train.txt").write_bytes(b"a few words of text for a model, again and again; " * 4000)
        (folder / "path").mkdir()

    def call(self, command, keys):
        arguments = [f"--{key}={value}" for key, value in keys.items()]
        done = subprocess.run([self.program, command, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def run(self, scale, batch, fate, emulate, more):
        """Figures of a step, the least of steps: other work on a machine only adds to them."""
        self.runs += 1
        directory = self.folder / str(self.runs)
        keys = {**scale.model(), "train.micro-batch": batch, "train.steps": STEPS, "train.activations": fate,
                "device.emulate": emulate, "data.format": "text", "data.train": self.folder / "train.txt",
                "run.dir": directory,
                "checkpoint.every": 0, **more}
        self.call("train", keys)
        steps = steps_of(directory)
        step = {key: min(step.get(key, 0) for step in steps[1:])
                for key in ("step_seconds", "forward_seconds", "backward_seconds", "activation_out_bytes", "activation_back_bytes", "read_bytes",
                            "write_bytes")}
        return {**step, "passes": step["forward_seconds"] + step["backward_seconds"], "loss": steps[-1]["loss"]}

    def parameter_bytes(self, scale):
        return 2e6 * float(re.search(r"^model +([0-9.]+) M parameters", self.call("plan", scale.model()), re.MULTILINE).group(1))

    def bound(self, scale, gpu, batch, fate, step):
        """Forward and backward of the busiest resource: products, with what is computed again, or a direction of the link, which brings the
        parameters twice and takes the gradients."""
        alone = self.run(scale, batch, fate, f"compute={scale.compute(gpu):.0f}", {"parameters.home": "host"})
        link, parameters = scale.bytes(LINK), self.parameter_bytes(scale)
        return max(alone["forward_seconds"], step["activation_out_bytes"] / link, parameters / link) + max(
            alone["backward_seconds"], (step["activation_back_bytes"] + parameters) / link, parameters / link)

    def fuyou(self, scale):
        """configs/policies/fuyou.cfg with all state on storage, as there, and the activations in host memory."""
        return {"config": "configs/policies/fuyou.cfg", "tiers.path": scale.path(self.folder / "path"), "tiers.cache": 0,
                "tiers.host-memory": "2GiB"}

    def choice(self, scale, gpu, batch, more):
        """What train.activations=auto settles on where not all fit."""
        keys = {**scale.model(), "train.micro-batch": batch, "train.global-batch": batch, "device.emulate": scale.emulate(gpu), **more}
        some, all_ = (self.device_bytes({**keys, "train.activations": fate}) for fate in ("storage", "keep"))
        table = self.call("plan", {**keys, "train.activations": "auto", "device.memory": f"{int((some + all_) / 2048)}KiB"})
        return re.search(r"^activations +(\S+)$", table, re.MULTILINE).group(1)

    def device_bytes(self, keys):
        number, unit = re.search(r"together +([0-9.]+) (\w+)", self.call("plan", keys)).groups()
        return float(number) * {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]


def same_losses(runs):
    if len({run["loss"] for run in runs}) > 1:
        sys.exit("the losses differ")


def pipelined(bench, results):
    print("Figure 8: 13B, parameters from host memory, all activations leave; seconds of forward and backward")
    print(f"{'GPU':>5} {'batch':>5} {'serial':>8} {'pipelined':>9} {'speedup':>7} {'paper':>5} {'bound':>8}", flush=True)
    scale = SCALES["13B"]
    paper = {"A100": (1.66, 1.88, 1.97), "4090": (1.85, 1.92, 2.28)}
    speedups, bounds = [], []
    for gpu in GPUS:
        for batch, theirs in zip((8, 16, 32), paper[gpu]):
            emulate, home = scale.emulate(gpu), {"parameters.home": "host"}
            serial = bench.run(scale, batch, "host", emulate, {**home, "update.transfers": "blocking"})
            ours = bench.run(scale, batch, "host", emulate, home)
            same_losses([serial, ours])
            bound = bench.bound(scale, gpu, batch, "host", ours)
            speedups.append(serial["passes"] / ours["passes"])
            bounds.append(bound / ours["passes"])
            print(f"{gpu:>5} {batch:5} {serial['passes']:8.3f} {ours['passes']:9.3f} {speedups[-1]:7.2f} {theirs:5.2f} {bound:8.3f}", flush=True)
    results["activations_pipelined_speedup"] = f"{statistics.median(speedups):.2f}"
    results["activations_pipelined_speedup_least"] = f"{min(speedups):.2f}"
    results["activations_vs_bound"] = f"{min(bounds):.2f}"


def choice(bench, results):
    coefficients = "0", "0.25", "0.5", "0.75", "1"
    print("Figure 9: 13B on the A100 with 12 SSDs, updates under backward; seconds of a step by swap coefficient")
    print(f"{'batch':>5} " + " ".join(f"{each:>7}" for each in coefficients) + "   chosen", flush=True)
    scale = SCALES["13B"]
    policy = bench.fuyou(scale)
    regrets = []
    for batch in 32, 64, 80:
        chosen = bench.choice(scale, "A100", batch, policy)
        fates = {each: f"storage:{each}" for each in coefficients}
        runs = {each: bench.run(scale, batch, fate, scale.emulate("A100"), policy) for each, fate in fates.items()}
        share = {"storage": "1", "recompute": "recompute"}.get(chosen, chosen.removeprefix("storage:"))
        if share not in runs:
            runs[share] = bench.run(scale, batch, chosen, scale.emulate("A100"), policy)
        same_losses(runs.values())
        regrets.append(runs[share]["step_seconds"] / min(run["step_seconds"] for run in runs.values()) - 1)
        print(f"{batch:5} " + " ".join(f"{runs[each]['step_seconds']:7.3f}" for each in coefficients)
              + f"   {share}: {runs[share]['step_seconds']:.3f}", flush=True)
    regrets.append(stored(bench, results))
    results["activations_choice_regret"] = f"{max(regrets):.3f}"


def stored(bench, results):
    """The choice where host memory has room for a part of the activations alone."""
    scale, batch = SCALES["13B"], 64
    emulate, policy = scale.emulate("A100"), {**bench.fuyou(scale), "tiers.host-memory": "100MiB"}
    chosen = bench.choice(scale, "A100", batch, policy)
    runs = {fate: bench.run(scale, batch, fate, emulate, policy) for fate in dict.fromkeys(("storage:0", "storage:0.5", "storage", chosen))}
    same_losses(runs.values())
    step = runs[chosen]
    storage = step["read_bytes"] / scale.bytes(SSD_READ) + step["write_bytes"] / scale.bytes(SSD_WRITE)
    alone = bench.run(scale, batch, chosen.removeprefix("storage:").replace("storage", "1"), f"compute={scale.compute('A100'):.0f}", {})
    print(f"batch {batch} with 100 MiB of host memory: " + ", ".join(f"{fate} {run['step_seconds']:.3f}" for fate, run in runs.items())
          + f"; chosen {chosen}; storage busy for {storage:.3f}, products for {alone['passes']:.3f}", flush=True)
    results["activations_storage_vs_bound"] = f"{max(storage, alone['passes']) / step['step_seconds']:.2f}"
    return step["step_seconds"] / min(run["step_seconds"] for run in runs.values()) - 1


def throughput(bench, results):
    print("Figure 5: policy fuyou with train.activations=auto; products of a step, without what is computed again, as TFLOPS of the paper's GPU")
    print(f"{'model':>5} {'GPU':>5} {'batch':>5} {'chosen':>12} {'step s':>7} {'TFLOPS':>6} {'paper, most':>11}", flush=True)
    reached = []
    for (name, gpu), most in PAPER.items():
        scale = SCALES[name]
        policy = bench.fuyou(scale)
        best = 0.0
        for batch in {"13B": (8, 16, 32, 64), "175B": (4, 8, 16) if gpu == "4090" else (16, 32, 64)}[name]:
            chosen = bench.choice(scale, gpu, batch, policy)
            step = bench.run(scale, batch, chosen, scale.emulate(gpu), policy)
            tokens = batch * scale.sequence
            products = 3 * tokens * (LAYERS * (24 * scale.hidden ** 2 + 2 * scale.sequence * scale.hidden)
                                     + 2 * scale.hidden * max(256, scale.vocab))
            share = products / step["step_seconds"] / scale.compute(gpu)
            best = max(best, share * GPUS[gpu] / 1e12)
            print(f"{name:>5} {gpu:>5} {batch:5} {chosen:>12} {step['step_seconds']:7.3f} {share * GPUS[gpu] / 1e12:6.0f} {most:11}", flush=True)
        reached.append(best / most)
    results["activations_throughput_vs_paper"] = f"{min(reached):.2f}"


def main():
    parts = {part.__name__: part for part in (pipelined, choice, throughput)}
    results = {}
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(sys.argv[1], pathlib.Path(name))
        for part in sys.argv[2:] or parts:
            parts[part](bench, results)
    for name, value in results.items():
        print(f"RESULT {name} {value}")


if __name__ == "__main__":
    main()
