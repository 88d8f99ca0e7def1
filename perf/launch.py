#!/usr/bin/env python3
"""Backward and what becomes of its gradients, on an emulated H100 to scale: launch.py PROGRAM

PROGRAM is perf_launch. Prints how long backward of a step's last micro-batch takes against what its products take alone,
where the device has room for the sums of gradients and where the cores add, and ends with a RESULT line."""
import json
import os
import statistics
import subprocess
import sys

# Layers as those of a LLaMA of 1.1 G parameters, 1/84 as large, so that one takes 26 ms instead of 3.6.
LAYERS = 24
LAYER = 512 * 1024
SCALE = 600  # of the rates

# A GPU of four on a node: FLOP/s that bf16 products reach; bytes per second over the link, and of memory by the cores, as
# Deep Optimizer States has them (section 5.4 and Table 1: 13.75 G FP32 numbers; 15.5 G numbers from 16 bit to FP32).
H100 = {"compute": 400e12, "d2h": 55e9, "h2d": 55e9, "host-sum": 15.5e9 * 6}

TOKENS = [4096, 8192, 16384]
LEAST_TOKENS = 8192  # with fewer the link takes longer than the products, whoever launches them
MICRO_BATCHES = {1: "16 bit", 2: "FP32"}
PLACES = {"device": "auto", "cores": "0"}


def backward(program, tokens, micro_batches, gradients):
    emulation = ",".join(f"{name}={rate / SCALE:.0f}" for name, rate in H100.items())
    done = subprocess.run(
        [program, f"parameters={LAYERS * LAYER}", f"layers={LAYERS}", f"subgroup={LAYER}", f"tokens={tokens}",
         f"micro-batches={micro_batches}", f"device.emulate={emulation}", f"update.device-gradients={gradients}"],
        env=dict(os.environ, OMP_WAIT_POLICY="passive"), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{program} failed:\n{done.stdout}{done.stderr}")
    figures = json.loads(done.stdout.splitlines()[-1])
    return statistics.median(figures["backward_seconds"]), figures["compute_seconds"]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(f"H100 / {SCALE}, {LAYERS} layers of {LAYER // 1024} Ki parameters: backward of the last micro-batch")
    print(f"  {'tokens':>7} {'sums':>7} {'made by':>8} {'products':>9} {'backward':>9} {'ratio':>6}")
    ratios = []
    for place, gradients in PLACES.items():
        for micro_batches, numbers in MICRO_BATCHES.items():
            for tokens in TOKENS:
                took, alone = backward(sys.argv[1], tokens, micro_batches, gradients)
                print(f"  {tokens:7} {numbers:>7} {place:>8} {alone:7.3f} s {took:7.3f} s {took / alone:6.2f}", flush=True)
                if place == "device" and tokens >= LEAST_TOKENS:
                    ratios.append(took / alone)
    print(f"RESULT launch_backward_vs_compute {max(ratios):.2f}")


if __name__ == "__main__":
    main()
