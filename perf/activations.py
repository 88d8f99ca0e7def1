#!/usr/bin/env python3
"""Steps of a model whose activations leave an emulated device: perf/activations.sh runs it with the program."""
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

BATCHES = 2, 4, 8
COEFFICIENTS = "0", "0.25", "0.5", "0.75", "1"
MODEL = {
    "model.family": "llama", "model.layers": 8, "model.hidden": 192, "model.heads": 4, "model.ffn-hidden": 512, "model.vocab": 256,
    "train.sequence": 128, "numerics.dtype": "bf16", "device.kind": "host", "run.threads": 2,
    "update.device-share": 0, "update.device-gradients": 0,
}
COMPUTE = "compute=10G"
LINK_RATE = 40e6
LINK = f"h2d=40MB/s,d2h=40MB/s,{COMPUTE}"
PATH_RATE = 30e6
PATH = "emulate-read=30MB/s,emulate-write=30MB/s,emulate-duplex=half"
# All that is on storage is activations, of which host memory has room for a part.
ON_STORAGE = {"update.device-resident": 1, "update.overlap": "off", "update.subgroup-size": "200k", "tiers.host-memory": "20MiB"}
STEPS = 4  # of which the first is not counted


class Bench:
    def __init__(self, program, folder):
        self.program, self.folder, self.runs = program, folder, 0
        (folder / "train.txt").write_bytes(b"a few words of text for a model, again and again; " * 4000)
        (folder / "path").mkdir()
        parameters = re.search(r"^model +([0-9.]+) M parameters", self.call("plan", MODEL), re.MULTILINE).group(1)
        self.gradient_bytes = 2e6 * float(parameters)

    def call(self, command, keys):
        arguments = [f"--{key}={value}" for key, value in keys.items()]
        done = subprocess.run([self.program, command, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def run(self, batch, fate, emulate=LINK, **more):
        """Figures of a step, the median over steps."""
        self.runs += 1
        directory = self.folder / str(self.runs)
        keys = {**MODEL, "train.micro-batch": batch, "train.steps": STEPS, "train.activations": fate, "device.emulate": emulate,
                "data.train": self.folder / "train.txt", "run.dir": directory, "checkpoint.every": 0,
                **{key.replace("_", "."): value for key, value in more.items()}}
        self.call("train", keys)
        steps = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        steps = [step for step in steps if "loss" in step][1:]
        step = {key: statistics.median(step.get(key, 0) for step in steps)
                for key in ("forward_seconds", "backward_seconds", "activation_out_bytes", "activation_back_bytes", "read_bytes", "write_bytes")}
        return {**step, "seconds": step["forward_seconds"] + step["backward_seconds"], "loss": steps[-1]["loss"]}

    def bound(self, step, batch, fate):
        """Forward and backward of the busiest resource: products, the link's directions, the path."""
        alone = self.run(batch, fate.removeprefix("storage:"), COMPUTE)
        return max(alone["forward_seconds"], step["activation_out_bytes"] / LINK_RATE, step["write_bytes"] / PATH_RATE) + max(
            alone["backward_seconds"], step["activation_back_bytes"] / LINK_RATE, step["read_bytes"] / PATH_RATE,
            self.gradient_bytes / LINK_RATE)

    def device_bytes(self, keys):
        number, unit = re.search(r"together +([0-9.]+) (\w+)", self.call("plan", keys)).groups()
        return float(number) * {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]

    def choice(self, batch):
        """What train.activations=auto settles on where not all fit."""
        keys = {**MODEL, "train.micro-batch": batch, "device.emulate": LINK}
        some, all_ = (self.device_bytes({**keys, "train.activations": fate}) for fate in ("host", "keep"))
        table = self.call("plan", {**keys, "train.activations": "auto", "device.memory": f"{int((some + all_) / 2048)}KiB"})
        chosen = re.search(r"^activations +(\S+)$", table, re.MULTILINE).group(1)
        return "1" if chosen == "host" else chosen


def main():
    speedups, regrets, bounds = [], [], []
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(sys.argv[1], pathlib.Path(name))
        print("seconds of forward and backward; swap coefficients:")
        print(f"{'batch':>5} {'all kept':>8} {'serial':>8} " + " ".join(f"{each:>8}" for each in COEFFICIENTS) + "   chosen, its bound")
        for batch in BATCHES:
            kept = bench.run(batch, "keep", COMPUTE)
            runs = {each: bench.run(batch, each) for each in COEFFICIENTS}
            serial = bench.run(batch, "host", update_transfers="blocking")
            chosen = bench.choice(batch)
            if chosen not in runs:
                runs[chosen] = bench.run(batch, chosen)
            if any(run["loss"] != kept["loss"] for run in (serial, *runs.values())):
                sys.exit("the losses differ")
            least = bench.bound(runs[chosen], batch, chosen)
            print(f"{batch:5} {kept['seconds']:8.3f} {serial['seconds']:8.3f} "
                  + " ".join(f"{runs[each]['seconds']:8.3f}" for each in COEFFICIENTS)
                  + f"   {chosen}: {runs[chosen]['seconds']:.3f}, {least:.3f}", flush=True)
            speedups.append(serial["seconds"] / runs["1"]["seconds"])
            regrets.append(runs[chosen]["seconds"] / min(run["seconds"] for run in runs.values()) - 1)
            bounds.append(least / runs[chosen]["seconds"])
        batch, fate = BATCHES[-1], "storage:0.5"
        stored = bench.run(batch, fate, **ON_STORAGE, tiers_path=f"{bench.folder}/path,{PATH}")
        least = bench.bound(stored, batch, fate)
        print(f"{batch:5} {fate}, {stored['write_bytes'] / 1e6:.0f} of {stored['activation_out_bytes'] / 1e6:.0f} MB on a path: "
              f"{stored['seconds']:.3f}, its bound {least:.3f}")
    print(f"RESULT activations_pipelined_speedup {max(speedups):.2f}")
    print(f"RESULT activations_choice_regret {max(regrets):.3f}")
    print(f"RESULT activations_vs_bound {min(bounds):.2f}")
    print(f"RESULT activations_storage_vs_bound {least / stored['seconds']:.2f}")


if __name__ == "__main__":
    main()
