#!/usr/bin/env python3
"""Updates under backward and after it on the machines of Fuyou's Table 3, to scale: overlap.py PROGRAM DIR [PICTURE]

PROGRAM is perf_overlap; DIR has an empty directory's room (a tmpfs will do: the path is emulated). GPT-3 13B on an A100
and an RTX 4090 with 1, 3, 6 and 12 SSDs. The GPU is a STAND-IN that sleeps for as long as it would compute; storage I/O,
AdamW and the ways of gradients and parameters are real, at emulated rates. Prints a table in the paper's seconds, draws
the picture if one is named and matplotlib is there, and ends with RESULT lines."""
import json
import os
import shutil
import statistics
import subprocess
import sys

from measure import save_picture

# The model (Table 4) and its sequence length (section 5.1).
LAYERS, HIDDEN, SEQUENCE = 40, 5120, 1024
PARAMETERS = 12 * LAYERS * HIDDEN ** 2
# FLOP/s of a transformer block, measured in the paper: 172 TFLOPS are 86 % of it on the A100, 87 are 53 % on the 4090
# (section 1).
GPUS = {"A100": 172e12 / 0.86, "4090": 87e12 / 0.53}
# Intel P5510 of 3.84 TB, one direction at a time: its data sheet's sequential read and write, as the paper gives none.
SSD_READ, SSD_WRITE = 6.5e9, 3.4e9
SSDS = [1, 3, 6, 12]
# Not in the paper either: PCIe 4.0 x16 each way, and AdamW's 28 bytes a parameter at 0.7 of eight channels DDR4-3200.
LINK = 25e9
CPU_UPDATE = 0.7 * 204.8e9 / 28
MOST_BATCH = 64  # of the paper's Figure 7

# The same here: parameters fewer, and times shorter so that storage takes STORAGE seconds in every row. So the emulated
# path is the same in all of them, and the rest of the machine changes around it.
SMALL_PARAMETERS = 160 * 1024 * LAYERS
STORAGE = 0.9
STEPS = 3


class Machine:
    """One of the paper's, with this many SSDs, which are one path with the rates of all (RAID 0): how extents are
    spread over several is perf/ablation.sh's matter."""

    def __init__(self, gpu, ssds):
        self.gpu, self.ssds = gpu, ssds
        self.storage = 12 * PARAMETERS * (1 / SSD_READ + 1 / SSD_WRITE) / ssds
        self.shorter = self.storage / STORAGE  # times, than in the paper
        self.rate = SMALL_PARAMETERS / PARAMETERS * self.shorter  # factor of every rate

    def forward(self, batch):
        return 2 * PARAMETERS * batch * SEQUENCE / GPUS[self.gpu]

    def batches(self):
        """The power of two that is nearest to where backward takes as long as storage, half of it and double."""
        middle = 1
        while self.forward(middle) * 2 * 2 ** 0.5 < self.storage:
            middle *= 2
        middle = min(middle, MOST_BATCH // 2)
        return [middle // 2, middle, 2 * middle]

    def arguments(self, directory, batch):
        ssds = self.ssds * self.rate
        return [f"tiers.path={directory},emulate-read={SSD_READ * ssds:.0f},emulate-write={SSD_WRITE * ssds:.0f}",
                f"device.emulate=h2d={LINK * self.rate:.0f},d2h={LINK * self.rate:.0f},"
                f"update={CPU_UPDATE * self.rate:.0f},host-update={CPU_UPDATE * self.rate:.0f}",
                f"pass-seconds={self.forward(batch) / self.shorter:.6f}"]


def call(program, *arguments):
    environment = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"{program} {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    figures = json.loads(done.stdout.splitlines()[-1])
    figures["seconds"] = statistics.median(figures["step_seconds"])
    return figures


def measure(program, directory, machine, batch):
    """A row of the table, in the paper's seconds."""
    shape = [f"parameters={SMALL_PARAMETERS}", f"layers={LAYERS}", f"subgroup={SMALL_PARAMETERS // LAYERS}",
             f"steps={STEPS}", *machine.arguments(directory, batch)]
    off = call(program, *shape, "update.overlap=off")
    on = call(program, *shape, "update.overlap=on")
    resources = {name: on[f"{name}_seconds"] * machine.shorter
                 for name in ("device", "storage", "cpu", "to_device", "to_host")}
    row = {"gpu": machine.gpu, "ssds": machine.ssds, "batch": batch, "off": off["seconds"] * machine.shorter,
           "on": on["seconds"] * machine.shorter, **resources}
    row["bound_by"] = max(resources, key=resources.get)
    row["bound"] = resources[row["bound_by"]]
    forward = row["device"] / 3
    row["paper"] = forward + max(2 * forward, *(row[name] for name in resources if name != "device"))
    row["of_bound"] = row["bound"] / row["on"]
    row["speedup"] = row["off"] / row["on"]
    print(f"{row['gpu']:5} {row['ssds']:4} {batch:5} {row['device']:8.1f} {row['storage']:8.1f} {row['cpu']:6.1f} "
          f"{max(row['to_device'], row['to_host']):6.1f} {row['off']:8.1f} {row['on']:8.1f} {row['paper']:8.1f} {row['speedup']:8.2f} "
          f"{row['of_bound']:8.2f} {row['device'] / row['off']:8.0%} {row['device'] / row['on']:8.0%}  {row['bound_by']}",
          flush=True)
    return row


def draw(plt, rows):
    figure, axes = plt.subplots(1, 2, figsize=(11, 4))
    for number, ssds in enumerate(SSDS):
        for gpu, style in zip(GPUS, ("o-", "s--")):
            mine = [row for row in rows if row["gpu"] == gpu and row["ssds"] == ssds]
            axes[0].plot([row["batch"] for row in mine], [row["speedup"] for row in mine], style, color=f"C{number}",
                         label=f"{gpu}, {ssds} SSD{'s' if ssds > 1 else ''}")
            # Against the crossover all machines are alike.
            ratio = [2 / 3 * row["device"] / row["storage"] for row in mine]
            axes[1].plot(ratio, [row["off"] / row["bound"] for row in mine], style[0], color=f"C{number}", fillstyle="none")
            axes[1].plot(ratio, [row["on"] / row["bound"] for row in mine], style[0], color=f"C{number}")
    axes[0].set_xscale("log", base=2)
    axes[0].set_xlabel("batch")
    axes[0].set_ylabel("speedup of the step by overlap")
    axes[0].legend(fontsize=8)
    axes[1].set_xscale("log", base=2)
    axes[1].axhline(1, color="grey", linewidth=0.8)
    axes[1].set_xlabel("backward / storage time")
    axes[1].set_ylabel("step / busiest resource (empty: without)")
    figure.suptitle("GPT-3 13B on Fuyou's machines, to scale; the GPU is a timed stand-in")
    return figure


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    program, directory = sys.argv[1:3]
    scratch = os.path.join(directory, f"offstage-overlap-{os.getpid()}")
    os.makedirs(scratch)
    rows = []
    print("GPT-3 13B, seconds at the paper's scale; the GPU is a timed stand-in, the rest is real at emulated rates")
    print(f"{'':16}{'each resource alone':>30}   {'step without and with overlap':>33} {'':8} {'device busy':>17}")
    print(f"{'GPU':5} {'SSDs':>4} {'batch':>5} {'device':>8} {'storage':>8} {'cpu':>6} {'link':>6} {'without':>8} {'with':>8} {'eq. 1':>8} "
          f"{'speedup':>8} {'of bound':>8} {'without':>8} {'with':>8}  bound by")
    try:
        for ssds in SSDS:
            for gpu in GPUS:
                machine = Machine(gpu, ssds)
                rows += [measure(program, scratch, machine, batch) for batch in machine.batches()]
    finally:
        shutil.rmtree(scratch)
    if len(sys.argv) == 4:
        save_picture(sys.argv[3], draw, rows)
    best = max(rows, key=lambda row: row["speedup"])
    print(f"best: {best['gpu']}, {best['ssds']} SSDs, batch {best['batch']}")
    print(f"RESULT overlap_speedup {best['speedup']:.2f}")
    print(f"RESULT overlap_vs_bound {min(row['of_bound'] for row in rows):.2f}")
    print(f"RESULT overlap_vs_bound_median {statistics.median(row['of_bound'] for row in rows):.2f}")
    print(f"RESULT overlap_device_busy {best['device'] / best['on']:.2f}")


if __name__ == "__main__":
    main()
