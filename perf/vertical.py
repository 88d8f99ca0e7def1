#!/usr/bin/env python3
"""Steps whose parameters come from storage, horizontal and vertical: perf/vertical.sh runs it with the program."""
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from measure import steps_of

MICRO_BATCHES = 8
MODEL = {
    "model.family": "llama", "model.layers": 8, "model.hidden": 192, "model.heads": 4, "model.ffn-hidden": 512, "model.vocab": 256,
    "train.sequence": 64, "train.micro-batch": 1, "train.global-batch": MICRO_BATCHES, "numerics.dtype": "bf16", "device.kind": "host",
    "run.threads": 1, "parameters.home": "storage", "update.subgroup-size": "100k", "train.activations": "host",
    "tiers.cache": 0, "update.device-gradients": 0, "update.overlap": "on", "tiers.allow-tmpfs": "true",
}
PRODUCT_RATE = 60e9
COMPUTE = "compute=60G"
LINK_RATE = 200e6
LINK = f"h2d=200MB/s,d2h=200MB/s,{COMPUTE}"
PATH_RATE = 60e6
PATH = "emulate-read=60MB/s,emulate-write=60MB/s,emulate-duplex=half"
# State and parameters are on storage; of the gradients, which are 15 MB, what host memory has no room for. The device has none for them.
CASES = {"gradients in host memory": {"tiers.host-memory": "80MiB"}, "gradients on storage": {"tiers.host-memory": "11MiB"}}
ROUNDS = 2  # of which the faster one counts, as other programs only make it longer
# Nothing but parameters is.
PARAMETERS_ALONE = {"update.device-resident": 1, "tiers.host-memory": "200MiB"}
STEPS = 5  # of which the first is not counted


class Bench:
    def __init__(self, program, folder):
        self.program, self.folder, self.runs = program, folder, 0
        (folder / "train.txt").write_bytes(b"a few words of text for a model, again and again; " * 4000)
        (folder / "path").mkdir()
        parameters = re.search(r"^model +([0-9.]+) M parameters", self.call("plan", MODEL), re.MULTILINE).group(1)
        self.parameter_bytes = 2e6 * float(parameters)

    def call(self, command, keys):
        arguments = [f"--{key}={value}" for key, value in {**keys, "tiers.path": f"{self.folder}/path,{PATH}"}.items()]
        done = subprocess.run([self.program, command, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def run(self, schedule, emulate=LINK, **more):
        """Figures of a step, the median over steps."""
        self.runs += 1
        directory = self.folder / str(self.runs)
        keys = {**MODEL, "train.steps": STEPS, "train.schedule": schedule, "device.emulate": emulate,
                "data.train": self.folder / "train.txt", "data.format": "text", "run.dir": directory, "checkpoint.every": 0, **more}
        if schedule == "horizontal":
            keys["train.activations"] = "recompute"
        self.call("train", keys)
        steps = steps_of(directory)[1:]
        step = {key: statistics.median(step.get(key, 0) for step in steps)
                for key in ("step_seconds", "forward_seconds", "backward_seconds", "update_seconds", "activation_out_bytes", "activation_back_bytes", "read_bytes",
                            "write_bytes")}
        return {**step, "seconds": step["step_seconds"], "loss": steps[-1]["loss"]}

    def bound(self, step):
        """The busiest resource: the path, a direction of the link, the products with what is computed again."""
        tokens = MICRO_BATCHES * MODEL["train.micro-batch"] * MODEL["train.sequence"]
        return max((step["read_bytes"] + step["write_bytes"]) / PATH_RATE,
                   (step["activation_back_bytes"] + 2 * self.parameter_bytes) / LINK_RATE,
                   (step["activation_out_bytes"] + MICRO_BATCHES * self.parameter_bytes) / LINK_RATE,
                   8 * self.parameter_bytes / 2 * tokens / PRODUCT_RATE)


def main():
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(sys.argv[1], pathlib.Path(name))
        print(f"{bench.parameter_bytes / 2e6:.1f} M parameters in 16 bit, {MICRO_BATCHES} micro-batches; seconds of a step, MB on the path")
        print(f"{'':<25} {'schedule':<11} {'step':>7} {'forward':>8} {'backward':>8} {'update':>7} {'read':>7} {'written':>7} {'bound':>7}")
        for title, keys in CASES.items():
            rounds = [{schedule: bench.run(schedule, **keys) for schedule in ("horizontal", "vertical")} for _ in range(ROUNDS)]
            if len({run["loss"] for each in rounds for run in each.values()}) != 1:
                sys.exit("the losses differ")
            steps = {schedule: min((each[schedule] for each in rounds), key=lambda step: step["seconds"]) for schedule in rounds[0]}
            for schedule, step in steps.items():
                print(f"{title:<25} {schedule:<11} {step['seconds']:7.3f} {step['forward_seconds']:8.3f} {step['backward_seconds']:8.3f} "
                      f"{step['update_seconds']:7.3f} {step['read_bytes'] / 1e6:7.1f} {step['write_bytes'] / 1e6:7.1f} {bench.bound(step):7.3f}",
                      flush=True)
        speedup = steps["horizontal"]["seconds"] / steps["vertical"]["seconds"]
        alone = bench.run("vertical", **PARAMETERS_ALONE)
    print(f"RESULT vertical_speedup {speedup:.2f}")
    print(f"RESULT vertical_vs_bound {bench.bound(steps['vertical']) / steps['vertical']['seconds']:.2f}")
    print(f"RESULT vertical_parameter_reads {alone['read_bytes'] / (2 * bench.parameter_bytes):.2f}")


if __name__ == "__main__":
    main()
