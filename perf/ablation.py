#!/usr/bin/env python3
"""The ablation of MLP-Offload (Figures 14 and 15) on an emulated Testbed-1, to scale:
ablation.py PROGRAM DIR [PICTURE]

PROGRAM is perf_ablation; DIR has two empty directories' room (a tmpfs will do: the paths are emulated).
Four ranks, a host cache of 20 % of the state, half-duplex paths; rates are Table 1's, divided by SCALE.
Prints a table, writes the picture if one is named and matplotlib is there, and ends with RESULT lines."""
import os
import shutil
import statistics
import sys

from measure import measure, save_picture

SCALE = 40
RANKS = 4
SHAPE = ["parameters=6553600", "subgroup=163840", "cached-share=0.2", "steps=3"]
NVME = (6.9e9 / SCALE, 5.3e9 / SCALE)  # Testbed-1, Table 1: read, write
PFS = (3.6e9 / SCALE, 3.6e9 / SCALE)

# What each step switches on, in the paper's order; the last is Offstage's own policy.
PRINCIPLES = [
    ("zero3", ["update.order=ascending", "tiers.evict=oldest", "update.gradients=flush-fp32",
               "tiers.exclusive=false"]),
    ("+ caching", ["update.order=alternate"]),
    ("+ skip gradients", ["update.gradients=delayed"]),
    ("+ exclusive", ["tiers.exclusive=true"]),
    ("offstage", ["tiers.evict=farthest"]),
]


def path_text(directory, rates):
    return f"tiers.path={directory},emulate-read={rates[0]:.0f},emulate-write={rates[1]:.0f}"


def settings_up_to(index):
    """The keys in force once principles 0 .. index are on."""
    keys = {}
    for _, changes in PRINCIPLES[:index + 1]:
        keys.update(change.split("=") for change in changes)
    return [f"{key}={value}" for key, value in keys.items()]


def row(name, paths, figures):
    seconds = statistics.median(figures["step_seconds"])
    figures["seconds"] = seconds
    print(f"{name:18} {paths:10} {seconds:8.2f} {figures['bound_seconds']:8.2f} "
          f"{figures['bound_seconds'] / seconds:8.2f} "
          f"{figures['read_bytes'] / 1e9:8.2f} {figures['write_bytes'] / 1e9:8.2f}   "
          + " ".join(f"{100 * share:.0f}%" for share in figures["residence"]), flush=True)
    return figures


def draw(plt, results):
    names = [name for name, _ in PRINCIPLES]
    figure, axes = plt.subplots(figsize=(8, 4))
    for offset, paths in ((-0.2, "nvme"), (0.2, "nvme + pfs")):
        seconds = [results[name, paths]["seconds"] for name in names]
        bars = axes.bar([i + offset for i in range(len(names))], seconds, 0.38, label=paths)
        axes.bar_label(bars, [f"{results['zero3', 'nvme']['seconds'] / s:.2f}x" for s in seconds], fontsize=8)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("gradient flush + update, seconds")
    axes.set_title(f"Emulated Testbed-1 / {SCALE}, {RANKS} ranks, host cache 20 % of the state")
    axes.legend()
    return figure


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    program, directory = sys.argv[1:3]
    scratch = os.path.join(directory, f"offstage-ablation-{os.getpid()}")
    nvme, pfs = os.path.join(scratch, "nvme"), os.path.join(scratch, "pfs")
    os.makedirs(nvme)
    os.makedirs(pfs)
    paths = {"nvme": [path_text(nvme, NVME)], "nvme + pfs": [path_text(nvme, NVME), path_text(pfs, PFS)]}
    try:
        results = {}
        print(f"{'policy':18} {'paths':10} {'seconds':>8} {'bound':>8} {'of bound':>8} {'read GB':>8} "
              f"{'write GB':>8}   host, paths")
        for kind, texts in paths.items():
            for index, (name, _) in enumerate(PRINCIPLES):
                results[name, kind] = row(name, kind, measure(program, RANKS, SHAPE + settings_up_to(index) + texts))
        base, best = results["zero3", "nvme"], results["offstage", "nvme + pfs"]
        accumulated = {1: base["seconds"] / best["seconds"]}
        for rounds in (4, 16):
            pair = []
            for index, kind in ((0, "nvme"), (len(PRINCIPLES) - 1, "nvme + pfs")):
                arguments = SHAPE + settings_up_to(index) + paths[kind] + [
                    f"rounds={rounds}", "numerics.accumulate=16bit"]
                pair.append(row(f"{PRINCIPLES[index][0]} x{rounds}", kind, measure(program, RANKS, arguments)))
            accumulated[rounds] = pair[0]["seconds"] / pair[1]["seconds"]
    finally:
        shutil.rmtree(scratch)
    if len(sys.argv) == 4:
        save_picture(sys.argv[3], draw, results)
    print(f"RESULT mlp_speedup_nvme {base['seconds'] / results['offstage', 'nvme']['seconds']:.2f}")
    print(f"RESULT mlp_speedup_multipath {base['seconds'] / best['seconds']:.2f}")
    print(f"RESULT mlp_vs_bandwidth_bound {best['bound_seconds'] / best['seconds']:.2f}")
    for rounds, gain in accumulated.items():
        print(f"RESULT mlp_speedup_accumulation_{rounds} {gain:.2f}")


if __name__ == "__main__":
    main()
