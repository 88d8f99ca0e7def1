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
LINK = f"h2d=40MB/s,d2h=40MB/s,{COMPUTE}"
STEPS = 4  # of which the first is not counted


class Bench:
    def __init__(self, program, folder):
        self.program, self.folder, self.runs = program, folder, 0
        (folder / "train.txt").write_bytes(b"a few words of text for a model, again and again; " * 4000)

    def call(self, command, keys):
        arguments = [f"--{key}={value}" for key, value in keys.items()]
        done = subprocess.run([self.program, command, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def seconds(self, batch, fate, emulate=LINK, **more):
        """Forward and backward, the median over steps, and the loss of the last."""
        self.runs += 1
        directory = self.folder / str(self.runs)
        keys = {**MODEL, "train.micro-batch": batch, "train.steps": STEPS, "train.activations": fate, "device.emulate": emulate,
                "data.train": self.folder / "train.txt", "run.dir": directory, "checkpoint.every": 0,
                **{key.replace("_", "."): value for key, value in more.items()}}
        self.call("train", keys)
        steps = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        steps = [step for step in steps if "loss" in step][1:]
        return statistics.median(step["forward_seconds"] + step["backward_seconds"] for step in steps), steps[-1]["loss"]

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
        print(f"{'batch':>5} {'no link':>8} {'serial':>8} " + " ".join(f"{each:>8}" for each in COEFFICIENTS) + "   chosen")
        for batch in BATCHES:
            alone, loss = bench.seconds(batch, "keep", COMPUTE)
            times = {each: bench.seconds(batch, each) for each in COEFFICIENTS}
            serial = bench.seconds(batch, "host", update_transfers="blocking")
            chosen = bench.choice(batch)
            if chosen not in times:
                times[chosen] = bench.seconds(batch, chosen)
            if any(other != loss for _, other in (serial, *times.values())):
                sys.exit("the losses differ")
            print(f"{batch:5} {alone:8.3f} {serial[0]:8.3f} " + " ".join(f"{times[each][0]:8.3f}" for each in COEFFICIENTS)
                  + f"   {chosen}: {times[chosen][0]:.3f}", flush=True)
            speedups.append(serial[0] / times["1"][0])
            regrets.append(times[chosen][0] / min(seconds for seconds, _ in times.values()) - 1)
            bounds.append(alone / times[chosen][0])
    print(f"RESULT activations_pipelined_speedup {max(speedups):.2f}")
    print(f"RESULT activations_choice_regret {max(regrets):.3f}")
    print(f"RESULT activations_vs_compute {min(bounds):.2f}")


if __name__ == "__main__":
    main()
