#!/usr/bin/env python3
"""Ranks of a node on one path, each alone at a time, all at once, or as a trial at the start finds best:
contention.py PROGRAM DIR [ROUNDS [PATH...]]

PROGRAM is perf_ablation. Four ranks update states that lie on the path but for one subgroup in 20, in alternating rounds, with
tiers.exclusive true, false and auto. Paths: `real`, the directory DIR itself; and emulated ones there: `fair`, which serves several
processes as well as one; `torn`, which is slower where several processes use it at a time; `streams`, of which one transfer gets a
quarter. Prints for each throughput, time per transfer and waits, and ends with RESULT lines: those of exclusive access on the real
path, and for every path the throughput of auto against the better of the other two, and the least of those."""
import os
import shutil
import statistics
import sys

from measure import measure

RANKS = 4
ACCESS = {"exclusive": "true", "shared": "false", "auto": "auto"}
SHAPE = ["subgroup=1048576", "cached-share=0.05", "steps=3"]
SLOW = "emulate-read=400MB/s,emulate-write=400MB/s"
# Attributes, and parameters of each rank: an emulated path is slow, and less makes a step.
PATHS = {
    "real": ("", 33554432),
    "fair": (f",{SLOW}", 8388608),
    "torn": (f",{SLOW},emulate-sharing=0.5", 8388608),
    "streams": (f",{SLOW},emulate-stream=100MB/s", 8388608),
}


def rounds_of(name, program, scratch, rounds):
    """What perf_ablation found, by access, a list of as many."""
    attributes, parameters = PATHS[name]
    found = {access: [] for access in ACCESS}
    for _ in range(rounds):
        for access, exclusive in ACCESS.items():
            figures = measure(program, RANKS, SHAPE + [f"parameters={parameters}", f"tiers.exclusive={exclusive}",
                                                       f"tiers.path={scratch}{attributes}"])
            figures["rate"] = (figures["read_bytes"] + figures["write_bytes"]) / statistics.median(figures["step_seconds"])
            waits = figures["rank_wait_seconds"]
            figures["worst"] = max(waits) / statistics.mean(waits)
            found[access].append(figures)
            milliseconds = {key: 1e3 * figures[f"{key}_seconds"] for key in
                            ("mean_transfer", "longest_transfer", "mean_wait", "longest_wait")}
            print(f"{name:8} {access:10} {figures['rate'] / 1e9:6.2f} {milliseconds['mean_transfer']:12.1f} "
                  f"{milliseconds['longest_transfer']:8.1f} {milliseconds['mean_wait']:8.1f} "
                  f"{milliseconds['longest_wait']:8.1f}   {figures['locks'][0] or '-'}", flush=True)
    return found


def main():
    if len(sys.argv) < 3 or not set(sys.argv[4:]) <= set(PATHS):
        sys.exit(__doc__)
    program, directory = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    names = sys.argv[4:] or list(PATHS)
    scratch = os.path.join(directory, f"offstage-contention-{os.getpid()}")
    os.makedirs(scratch)
    print(f"{'path':8} {'access':10} {'GB/s':>6} {'transfer ms':>12} {'longest':>8} {'wait ms':>8} {'longest':>8}   the header says")
    try:
        found = {name: rounds_of(name, program, scratch, rounds) for name in names}
    finally:
        shutil.rmtree(scratch)

    def median(name, access, key):
        return statistics.median(figures[key] for figures in found[name][access])

    if "real" in found:
        ratio = median("real", "exclusive", "rate") / median("real", "shared", "rate")
        print(f"RESULT contention_exclusive_speedup {ratio:.2f}")
        ratio = median("real", "shared", "mean_transfer_seconds") / median("real", "exclusive", "mean_transfer_seconds")
        print(f"RESULT contention_exclusive_latency_gain {ratio:.2f}")
        worst = max(figures["worst"] for figures in found["real"]["exclusive"])
        print(f"RESULT contention_longest_rank_wait_vs_mean {worst:.2f}")
    against = {}
    for name in names:
        best = max(median(name, access, "rate") for access in ("exclusive", "shared"))
        against[name] = median(name, "auto", "rate") / best
        print(f"RESULT contention_auto_vs_best_{name} {against[name]:.3f}")
    print(f"RESULT contention_auto_vs_best {min(against.values()):.3f}")


if __name__ == "__main__":
    main()
