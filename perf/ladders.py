#!/usr/bin/env python3
"""Figures of the papers beside steps that `offstage plan` simulates: perf/ladders.sh runs it with the program.

Models, machines and policies are those of configs/. No constant is fitted to a figure. All that is put in:
- PRODUCTS, the one efficiency constant of the H100's machine, from one published time. Forward and backward alone follow it.
- Figures that the papers publish of their baseline and that are no part of its principle: GRADIENTS_OUT and runtime_bytes.
- FUYOU: what its drives' data sheet says, and the rate of its update, which follows from where its Figure 7 has its peak.
Numbers are those of the papers' text; a picture that gives none has none here. `derived`: it follows from two of them."""
import concurrent.futures
import os
import pathlib
import re
import statistics
import subprocess
import sys

CONFIGS = pathlib.Path(__file__).resolve().parent.parent / "configs"
GPUS = 4
# MLP section 3.1: forward of 40B takes 0.6 s: 2 operations for each of 40.7 G parameters and 2048 tokens. 28 % of what an H100's data sheet has.
PRODUCTS = "278T"
# DOS section 4.1: gradients of DeepSpeed leave the device through memory that is not pinned, at 2.5 GB/s, after the GPUs have summed them. Our cores
# sum those of all ranks with zero3.cfg, so as many times the bytes leave; this makes a shard's take as long as there.
GRADIENTS_OUT = {"platform.device-to-host": f"{2.5 * GPUS}GB/s"}
# As both papers run it: sections 5.3 of DOS and 4.1 of MLP.
RUN = {"train.micro-batch": 1, "train.sequence": 2048, "train.global-batch": GPUS, "train.activations": "recompute", "update.subgroup-size": "100M",
       "platform.products": PRODUCTS, "numerics.dtype": "fp16",
       "numerics.accumulate": "16bit"}
# Fuyou section 5: 12 P5510 drives, whose data sheet has 6.5 GB/s of reads and 3.4 of writes. Section 5.4: overlap gains most, at batch 32 of 13B, where the
# update takes as long as backward. With all recomputed (section 5.6: nothing is swapped at 32) that is 6 operations for each of 12.85 G parameters and
# 32768 tokens, at the 164T of fuyou-4090.cfg: 15.4 s. All state waits on the drives; PyTorch 2.0 has no attention of cuDNN.
FUYOU = {"train.sequence": 1024, "numerics.dtype": "fp16", "tiers.path": f"/ssds,read={6.5 * 12}GB/s,write={3.4 * 12}GB/s", "tiers.cache": 0,
         "platform.cpu-update": "0.83G", "device.attention": "own"}
FUYOU_SIZES = ("13b", "33b", "65b", "135b", "175b", "276b", "412b", "805b")
DOS_SIZES = ("7b", "8.3b", "10b", "13b", "20b")
MLP_SIZES = {"40b": (242.3, 101.7), "52b": (238.6, 92.2), "70b": (370.6, 151.3), "100b": (572.0, 275.5), "120b": (550.4, 288.2)}
FAR = 0.25
DOES_NOT_FIT = 64


def runtime_bytes(size):
    """MLP section 4.3: DeepSpeed's structures take 250 to 350 GB of host memory in proportion to the model."""
    billions = float(size[:-1])
    return (250 + 100 * (billions - 40) / (120 - 40)) * 1e9


class Step:
    """A simulated step: seconds of its phases, and the shares of the paths of what waits on storage."""

    def __init__(self, text):
        self.fits = re.search(r"^does it fit +yes", text, re.MULTILINE) is not None
        if not self.fits:
            return
        row = re.search(r"^  this configuration +(.*)$", text, re.MULTILINE)
        cells = row.group(1).split(maxsplit=7) if row else []
        if len(cells) < 8 or cells[2] == "?":
            sys.exit(f"no step is known:\n{text}")
        self.forward, self.backward, self.update, self.step = (float(cell) for cell in cells[2:6])
        self.paths = [float(share) / 100 for share in re.findall(r"([\d.]+) % of what waits there", text)]
        self.parameters = 1e9 * float(re.search(r"^model +([\d.]+) B parameters", text, re.MULTILINE).group(1))
        cached = re.search(r"^subgroups +(\d+) of .* buffers, (\d+) cached", text, re.MULTILINE)
        self.cached = float(cached.group(2)) / float(cached.group(1)) if cached else 1.0
        swapped = re.search(r"^activations +storage(?::([\d.]+))?", text, re.MULTILINE)
        self.swapped = float(swapped.group(1) or 1) if swapped else 0.0


class Plans:
    """Steps on a machine of configs/platforms that were asked for, simulated beside each other."""

    def __init__(self, program, platform, ranks, run):
        self.program, self.platform, self.ranks, self.run = program, platform, ranks, run
        self.pool = concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", "2")))
        self.asked = {}

    def call(self, model, policy, keys):
        arguments = [f"--config={CONFIGS}/models/{model}.cfg", f"--config={CONFIGS}/platforms/{self.platform}.cfg",
                     f"--config={CONFIGS}/policies/{policy}.cfg", f"--ranks={self.ranks}", *(f"--{key}={value}" for key, value in keys.items())]
        done = subprocess.run([self.program, "plan", *arguments], capture_output=True, text=True, check=False)
        if done.returncode not in (0, DOES_NOT_FIT):
            raise RuntimeError(f"plan {' '.join(arguments)}\n{done.stdout}{done.stderr}")
        return Step(done.stdout)

    def ask(self, model, policy, **keys):
        keys = {**self.run, **{key.replace("__", ".").replace("_", "-"): value for key, value in keys.items()}}
        if policy in ("zero3", "twinflow"):
            keys |= GRADIENTS_OUT
        key = (model, policy, tuple(sorted(keys.items())))
        if key not in self.asked:
            self.asked[key] = self.pool.submit(self.call, model, policy, keys)
        return self.asked[key]


class Ladder:
    """Rows of a paper's figures."""

    def __init__(self, name):
        self.name, self.errors, self.far = name, [], 0

    def head(self, text):
        print(f"{self.name}, {text}")

    def row(self, what, paper, simulated, why=""):
        """`why`: it may be off."""
        error = simulated / paper - 1
        self.errors.append(abs(error))
        print(f"  {what:66} {paper:8.2f} {simulated:8.2f} {error:+7.0%}", flush=True)
        if abs(error) > FAR:
            self.far += 1
            print(f"    {why or 'not explained'}")

    @staticmethod
    def note(text):
        print(f"  {text}")

    def result(self):
        print(f"RESULT ladder_{self.name.lower()}_error_median {statistics.median(self.errors):.3f}")
        print(f"RESULT ladder_{self.name.lower()}_error_worst {max(self.errors):.3f}")
        print(f"RESULT ladder_{self.name.lower()}_rows_far {self.far} of {len(self.errors)}")


def dos(plans):
    """In host memory. The paper updates every alternate subgroup on the device, a half; `auto` is beside it."""
    memory = {"tiers__path": ""}
    zero3 = {size: plans.ask(f"dos-{size}", "zero3", **memory) for size in DOS_SIZES}

    def twinflow(size, resident):
        # DOS section 4.1: gradients of what resides on the device stay there.
        held = resident * 2 * zero3[size].result().parameters / GPUS
        return plans.ask(f"dos-{size}", "twinflow", update__device_resident=resident, update__device_gradients=int(held), **memory)

    half = {size: plans.ask(f"dos-{size}", "dos", update__device_share=0.5, **memory) for size in DOS_SIZES}
    blocking = {size: plans.ask(f"dos-{size}", "dos", update__device_share=0, update__transfers="blocking", **memory) for size in DOS_SIZES}
    auto = plans.ask("dos-20b", "dos", **memory)
    twin = {size: twinflow(size, 0.2) for size in DOS_SIZES}
    twin_half = twinflow("20b", 0.5)
    slower = plans.ask("dos-20b", "dos", update__device_share=0.5, platform__products="400T", **memory)
    resident = {size: plans.ask(f"dos-{size}", "dos", update__device_share=0.5, update__device_resident=0.2, **memory) for size in DOS_SIZES}
    zero3, half, blocking, twin, resident = ({size: asked.result() for size, asked in each.items()}
                                             for each in (zero3, half, blocking, twin, resident))

    ladder = Ladder("DOS")
    spread = ("The paper's gain differs by size, 8.3B takes longer there than 10B for its 72 layers: DeepSpeed's time per layer, which is not "
              "published. Here all phases grow with the parameters.")
    ladder.head("Figure 7, iteration by model size: the paper's number, the simulated one, the difference")
    a, b = zero3["20b"], half["20b"]
    ladder.row("20B, Deep Optimizer States, seconds", 3.0, b.step)
    ladder.row("20B, ZeRO-3, seconds (derived: 2.5 times 3.0)", 7.5, a.step)
    ladder.row("20B, quicker than ZeRO-3 by", 2.5, a.step / b.step)
    ladder.row("20B, by gradients' transfers alone", 1.9, a.step / blocking["20b"].step)
    speedups = [zero3[size].step / half[size].step for size in DOS_SIZES]
    ladder.row("all sizes, quicker by: least", 2.0, min(speedups), spread)
    ladder.row("all sizes, quicker by: most", 2.5, max(speedups))
    ladder.row("20B with it beside 7B with ZeRO-3, seconds (Figure 9)", 1.0, b.step / zero3["7b"].step)
    for size in DOS_SIZES:
        x, y = zero3[size], half[size]
        ladder.note(f"{size:5} forward, backward, update: ZeRO-3 {x.forward:.2f} {x.backward:.2f} {x.update:.2f}, "
                    f"Deep Optimizer States {y.forward:.2f} {y.backward:.2f} {y.update:.2f}")
    ladder.note("The text's 1.9 by transfers and 60 % more by updates make 3.0, not its 2.5.")
    ladder.note(f"20B with products of 400T: {slower.result().step:.2f} s; with update.device-share=auto, which the paper lacks: {auto.result().step:.2f} s")

    ladder.head("Figure 8, update throughput")
    ratios = [zero3[size].update / half[size].update for size in DOS_SIZES]
    contention = ("The paper's cores slow down to some 60 % while the link moves state (its Figure 15), as both share host memory; it publishes "
                  "no rate of that, and without platform.host-memory nothing contends here.")
    ladder.row("all sizes, parameters/s beside ZeRO-3's, mean", 1.7, statistics.mean(ratios), contention)
    ladder.note("G parameters/s: ZeRO-3 " + ", ".join(f"{zero3[s].parameters / zero3[s].update / 1e9:.1f}" for s in DOS_SIZES)
                + "; Deep Optimizer States " + ", ".join(f"{half[s].parameters / half[s].update / 1e9:.1f}" for s in DOS_SIZES))

    ladder.head("Figure 12, 20 % of the state on the device")
    ladder.row("all sizes, TwinFlow's update beside ZeRO-3's, mean", 1.2, statistics.mean(zero3[s].update / twin[s].update for s in DOS_SIZES))
    ratios = [twin[size].step / resident[size].step for size in DOS_SIZES]
    ladder.row("all sizes, iterations quicker than TwinFlow's by: least", 1.7, min(ratios), spread)
    ladder.row("all sizes, iterations quicker than TwinFlow's by: most", 2.3, max(ratios), contention)
    ladder.head("Figure 11, 50 % of the state on the device")
    ladder.row("20B, TwinFlow, seconds", 4.3, twin_half.result().step)
    ladder.result()
    return ladder.errors


def mlp(plans):
    """On the NVMe drives, and with MLP-Offload on the parallel file system beside them."""
    def memory(size):
        limit = 0.9 * 512e9  # section 4.1
        return {"tiers__host_memory": int(limit), "tiers__cache": int(limit - runtime_bytes(size)), "device__memory": "80GB"}

    zero3 = {size: plans.ask(f"mlp-{size}", "zero3", **memory(size)) for size in MLP_SIZES}
    ours = {size: plans.ask(f"mlp-{size}", "mlp", **memory(size)) for size in MLP_SIZES}
    in_memory = plans.ask("dos-20b", "zero3", tiers__path="")
    zero3, ours = ({size: asked.result() for size, asked in each.items()} for each in (zero3, ours))

    ladder = Ladder("MLP")
    ladder.head("Figure 3, 40B with ZeRO-3, seconds")
    first = zero3["40b"]
    ladder.note(f"forward: {first.forward:.2f}, of which the paper's 0.6 is the rate of products that is put in")
    ladder.row("backward", 28.0, first.backward)
    ladder.row("update", 213.0, first.update)
    ladder.row("20B in host memory: its update is quicker than 40B's by", 30.0, first.update / in_memory.result().update,
               "That makes an update of 7 s. DOS has the same model on the same machine, at MLP's own 8 G parameters/s (section 4.2), in less than 3.")

    ladder.head("Figure 7, iteration by model size, seconds")
    shorter = ("The paper's 40B is slower than its 52B, which has 28 % more parameters to move; by bytes and rates it cannot be. Its 128 layers, twice "
               "those of 52B, cost DeepSpeed something that it does not publish.")
    for size, (theirs, _) in MLP_SIZES.items():
        ladder.row(f"{size}, ZeRO-3", theirs, zero3[size].step, shorter if size == "40b" else "")
    for size, (_, theirs) in MLP_SIZES.items():
        ladder.row(f"{size}, MLP-Offload", theirs, ours[size].step, shorter if size == "40b" else "")
    ladder.row("all sizes, quicker by: most", 2.7, max(zero3[size].step / ours[size].step for size in MLP_SIZES), shorter)

    ladder.head("Figure 8, update throughput")
    ratios = {size: zero3[size].update / ours[size].update for size in MLP_SIZES}
    ladder.row("all sizes, parameters/s beside ZeRO-3's: least", 1.8, min(ratios.values()))
    ladder.row("all sizes, parameters/s beside ZeRO-3's: most", 2.4, max(ratios.values()), shorter)
    ladder.note("M parameters/s: ZeRO-3 " + ", ".join(f"{zero3[s].parameters / zero3[s].update / 1e6:.0f}" for s in MLP_SIZES)
                + "; MLP-Offload " + ", ".join(f"{ours[s].parameters / ours[s].update / 1e6:.0f}" for s in MLP_SIZES))

    ladder.head("Figure 9, effective I/O throughput: bytes of a subgroup over the sum of its read's and its write's time")
    # ZeRO-3 reads 16 bytes a parameter and writes 12. Both go on at once, each subgroup's beside others', so their times add up to twice the update's.
    effective = [28 * zero3[size].parameters / (2 * zero3[size].update) / 1e9 for size in MLP_SIZES]
    ladder.row("all sizes, ZeRO-3, GB/s, mean", 3.2, statistics.mean(effective))
    # All subgroups count, also those that stay in host memory.
    ladder.row("40B, MLP-Offload's beside that", 2.6, 24 / 28 * ratios["40b"], shorter)
    ladder.row("120B, MLP-Offload's beside that", 2.0, 24 / 28 * ratios["120b"])

    ladder.head("Figure 10, where the state is")
    ladder.row("all sizes, NVMe over parallel file system", 2.0, statistics.mean(ours[s].paths[0] / ours[s].paths[1] for s in MLP_SIZES),
               "Equation 1 with Table 1, which mlp.cfg takes, is 5.3 to 3.6, not the 2 to 1 of the text.")
    ladder.note("in host memory: " + ", ".join(f"{size} {100 * ours[size].cached:.0f} %" for size in MLP_SIZES))
    ladder.result()
    return ladder.errors


def operations(step, batch):
    """Fuyou's TFLOPS: 6 operations for each parameter and token, whatever is computed again."""
    return 6 * step.parameters * 1024 * batch / step.step / 1e12


def fuyou(rtx, a100):
    """One GPU; parameters and state on drives, activations too where that is quicker than to compute them again."""
    def batch(size):
        return {"train__micro_batch": size, "train__global_batch": size}

    small, large = (8, 16, 32, 64), (8, 16)
    theirs = {("13b", b): rtx.ask("fuyou-13b", "fuyou", **batch(b)) for b in small} | {("175b", b): rtx.ask("fuyou-175b", "fuyou", **batch(b)) for b in large}
    apart = {key: rtx.ask(f"fuyou-{key[0]}", "fuyou", update__overlap="off", **batch(key[1])) for key in theirs}
    far = {("13b", b): a100.ask("fuyou-13b", "fuyou", **batch(b)) for b in (32, 64, 80)}
    far |= {("175b", b): a100.ask("fuyou-175b", "fuyou", **batch(b)) for b in (16, 32, 64)}
    far |= {(size, 64): a100.ask(f"fuyou-{size}", "fuyou", **batch(64)) for size in ("276b", "412b")}
    one = {(plans, size): plans.ask(f"fuyou-{size}", "fuyou", **batch(1)) for plans in (rtx, a100) for size in FUYOU_SIZES}
    little = {size: rtx.ask(f"fuyou-{size}", "fuyou", tiers__host_memory=int(0.9 * 128e9), **batch(1)) for size in FUYOU_SIZES}
    offstage = {("13b", b): rtx.ask("fuyou-13b", "offstage", platform__device_update="20G", tiers__cache="auto", **batch(b)) for b in small}
    offstage |= {("175b", b): rtx.ask("fuyou-175b", "offstage", platform__device_update="20G", tiers__cache="auto", **batch(b)) for b in large}
    theirs, apart, far, one, little, offstage = ({key: asked.result() for key, asked in each.items()}
                                                 for each in (theirs, apart, far, one, little, offstage))

    def best(steps, size):
        return max(operations(step, b) for (name, b), step in steps.items() if name == size and step.fits)

    def largest(steps):
        return [size for size in FUYOU_SIZES if steps[size].fits][-1]

    ladder = Ladder("Fuyou")
    ladder.head("Figure 4, the largest model of Table 4 that fits, at batch 1")
    for where, paper, steps in (("A100, 768 GB", "805b", {size: step for (plans, size), step in one.items() if plans is a100}),
                                ("RTX 4090, 768 GB", "276b", {size: step for (plans, size), step in one.items() if plans is rtx}),
                                ("RTX 4090, 128 GB", "65b", little)):
        ladder.note(f"{where}: the paper's {paper.upper()}, here {largest(steps).upper()}")
    ladder.head("Figures 5 and 6, TFLOPS at the best batch")
    ladder.row("13B on the RTX 4090", 156, best(theirs, "13b"))
    ladder.row("175B on the RTX 4090", 86, best(theirs, "175b"))
    ladder.row("13B on the A100", 202, best(far, "13b"))
    ladder.row("175B on the A100", 173, best(far, "175b"))
    ladder.row("276B on the A100, batch 64", 168, best(far, "276b"))
    ladder.row("412B on the A100, batch 64", 163, best(far, "412b"))
    ladder.note("172 of 175B are 86 % of the A100's peak (section 1), so that 202 of 13B are above it. Here one rate of products serves all models and batches.")
    ladder.head("Figure 7, on the RTX 4090: quicker by updates under backward")
    smaller = ("At 16 of 175B the paper's backward is much longer than its update, or much shorter, and it publishes neither. Here both grow with the parameters, "
               "so that 175B gains what 13B does.")
    for key, gain in {("13b", 8): 1.09, ("13b", 16): 1.25, ("13b", 32): 1.38, ("13b", 64): 1.22, ("175b", 8): 1.16, ("175b", 16): 1.18}.items():
        ladder.row(f"{key[0].upper()}, batch {key[1]}", gain, apart[key].step / theirs[key].step, smaller)
    ladder.head("Figure 9, 13B on the A100: the part of activations that is swapped")
    ladder.note("the paper: 0 at batch 32, some at 64 and 80; here " + ", ".join(f"{far['13b', b].swapped:.2f} at {b}" for b in (32, 64, 80)))
    ladder.note("policies/offstage.cfg on the RTX 4090, with 20G of updates on the device, which the paper lacks: seconds of a step, and Fuyou's over them")
    for key, step in offstage.items():
        ladder.note(f"  {key[0].upper()}, batch {key[1]}: {step.step:.1f}, {theirs[key].step / step.step:.2f}")
    ladder.result()
    return ladder.errors


def main():
    program = sys.argv[1]
    plans = Plans(program, "jlse-h100", GPUS, RUN)
    print(f"{GPUS} H100; products {PRODUCTS}; DeepSpeed's gradients leave at {GRADIENTS_OUT['platform.device-to-host']}")
    try:
        errors = dos(plans) + mlp(plans) + fuyou(Plans(program, "fuyou-4090", 1, FUYOU), Plans(program, "fuyou-a100", 1, FUYOU))
    except RuntimeError as error:
        sys.exit(str(error))
    print(f"RESULT ladder_error_median {statistics.median(errors):.3f}")
    print(f"RESULT ladder_error_worst {max(errors):.3f}")


if __name__ == "__main__":
    main()
