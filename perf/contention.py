#!/usr/bin/env python3
"""Ranks of a node on one real path, each alone at a time or all at once: contention.py PROGRAM DIR [ROUNDS]

PROGRAM is perf_ablation. Four ranks update states of 1.6 GB each that lie in DIR but for one subgroup in 20; alternating
rounds. Prints throughput, time per transfer and waits, and ends with RESULT lines."""
import os
import shutil
import statistics
import sys

from measure import measure

RANKS = 4
KINDS = {"exclusive": "true", "shared": "false"}
SHAPE = ["parameters=134217728", "subgroup=4194304", "cached-share=0.05", "steps=3"]


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    program, directory = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) == 4 else 3
    scratch = os.path.join(directory, f"offstage-contention-{os.getpid()}")
    os.makedirs(scratch)
    found = {kind: [] for kind in KINDS}
    print(f"{'access':10} {'GB/s':>6} {'transfer ms':>12} {'longest':>8} {'wait ms':>8} {'longest':>8}   "
          "mean wait of each rank")
    try:
        for _ in range(rounds):
            for kind, exclusive in KINDS.items():
                figures = measure(program, RANKS, SHAPE + [f"tiers.exclusive={exclusive}", f"tiers.path={scratch}"])
                seconds = statistics.median(figures["step_seconds"])
                figures["rate"] = (figures["read_bytes"] + figures["write_bytes"]) / seconds
                waits = figures["rank_wait_seconds"]
                figures["worst"] = max(waits) / statistics.mean(waits)
                found[kind].append(figures)
                milliseconds = {key: 1e3 * figures[f"{key}_seconds"] for key in
                                ("mean_transfer", "longest_transfer", "mean_wait", "longest_wait")}
                print(f"{kind:10} {figures['rate'] / 1e9:6.2f} {milliseconds['mean_transfer']:12.1f} "
                      f"{milliseconds['longest_transfer']:8.1f} {milliseconds['mean_wait']:8.1f} "
                      f"{milliseconds['longest_wait']:8.1f}   "
                      + " ".join(f"{1e3 * wait:.1f}" for wait in waits), flush=True)
    finally:
        shutil.rmtree(scratch)

    def median(kind, key):
        return statistics.median(figures[key] for figures in found[kind])

    print(f"RESULT contention_exclusive_speedup {median('exclusive', 'rate') / median('shared', 'rate'):.2f}")
    ratio = median("shared", "mean_transfer_seconds") / median("exclusive", "mean_transfer_seconds")
    print(f"RESULT contention_exclusive_latency_gain {ratio:.2f}")
    print(f"RESULT contention_longest_rank_wait_vs_mean {max(figures['worst'] for figures in found['exclusive']):.2f}")


if __name__ == "__main__":
    main()
