"""gpu.py's section B: training runs of the model with its state in host memory under the policies, and on storage."""
import gzip
import os
import pathlib
import random
import shutil
import statistics
import tempfile

from gpu_model import shape_of
from gpu_run import Failed, memory
from measure import steps_of

CONFIGS = pathlib.Path(__file__).resolve().parent.parent / "configs" / "policies"
LAYERS, STORED_LAYERS, SMALL_LAYERS = 8, 4, 2
STEPS = 4
# Given, as a machine's free memory may grow late: what is free at the start would decide how a run is planned.
HOST_BYTES, SMALL_HOST_BYTES = 48e9, 2e9
PHASES = ("step_seconds", "forward_seconds", "backward_seconds", "update_seconds")


def host_memory(section):
    if "HOST_GB" in os.environ:  # a virtual machine may show less than it has until that is used
        return int(float(os.environ["HOST_GB"]) * 1e9)
    return int(min(HOST_BYTES if section.on_gpu else SMALL_HOST_BYTES, 0.75 * memory()["total"]))


class Runs:
    """Runs of one shape in a folder of their own, which goes with them."""

    def __init__(self, section, layers):
        self.section = section
        shape, self.batch, self.sequence = shape_of(section)
        self.shape = {**shape, "layers": layers if section.on_gpu else SMALL_LAYERS}

    def __enter__(self):
        # In the tree, as the usual place for temporary files may be memory.
        self.place = tempfile.TemporaryDirectory(dir=".", prefix="gpu-runs-")
        self.folder = pathlib.Path(self.place.name).resolve()
        letters = random.Random(1).choices(range(97, 123), k=4 * 2 * self.batch * self.sequence * 8)
        (self.folder / "train.txt").write_bytes(bytes(letters))
        return self

    def __exit__(self, *_):
        self.place.cleanup()

    def tokens(self):
        return 2 * self.batch * self.sequence

    def train(self, name, seconds, *options):
        """The records of a run's steps. Raises Failed."""
        keys = {**{f"model.{key}": value for key, value in self.shape.items()}, "model.family": "llama",
                "train.sequence": self.sequence, "train.micro-batch": self.batch, "train.global-batch": 2 * self.batch,
                "train.log-every": 1, "optimizer.warmup-steps": 1, "tiers.host-memory": host_memory(self.section),
                "device.kind": "cuda" if self.section.on_gpu else "host", "data.train": self.folder / "train.txt", "data.format": "text",
                "run.dir": self.folder / name}
        self.section.call([self.section.build / "offstage", "train", *(f"--{key}={value}" for key, value in keys.items()), *options],
                          seconds, cwd=self.folder)
        return self.steps(name)

    def steps(self, name):
        records = self.folder / name / "metrics.jsonl"
        return steps_of(self.folder / name) if records.exists() else []


def keep_trace(section, policy, run):
    """The run's trace for Perfetto, beside the figures."""
    with open(run / "trace-0.json", "rb") as trace, gzip.open(section.folder / f"B-{policy}.json.gz", "wb") as kept:
        shutil.copyfileobj(trace, kept)


def policy(name):
    """A part that trains 8 layers with the state in host memory under a policy."""
    def part(section):
        with Runs(section, LAYERS) as runs:
            late = None
            try:
                # Gradients by the same way in all of them: without storage none can be flushed.
                steps = runs.train(name, float("inf"), f"--train.steps={STEPS}", "--config", CONFIGS / f"{name}.cfg",
                                   "--update.gradients=delayed", "--run.trace=on")
            except Failed as failed:  # perhaps in the save behind the last step
                late, steps = failed, runs.steps(name)
                if len(steps) < STEPS:
                    raise
            row = {key: statistics.median(record[key] for record in steps[1:]) for key in PHASES}
            section.keep("policies", name, {**row, "losses": [record["loss"] for record in steps]})
            section.say(f"  {name:10} " + ", ".join(f"{key.removesuffix('_seconds')} {row[key]:.3f} s" for key in PHASES) +
                        f"; {runs.tokens() / row['step_seconds']:.0f} tokens/s, last loss {steps[-1]['loss']:.4f}")
            keep_trace(section, name, runs.folder / name)
            if late:
                raise late
        others = {other: row["losses"] for other, row in section.figures["policies"].items()}
        if any(losses != others[name] for losses in others.values()):
            raise Failed(f"policies do not give the same losses: {others}")
    return part


def measure_storage(section):
    """4 layers with the state on storage: stopped after 2 steps and continued, beside a run that is not stopped."""
    with Runs(section, STORED_LAYERS) as runs:
        (runs.folder / "path").mkdir()
        stored = [f"--tiers.path={runs.folder}/path,read=1GB/s,write=1GB/s", "--tiers.allow-tmpfs=true", "--tiers.cache=0",
                  "--optimizer.schedule=constant"]
        for steps in 2, 3:
            records = runs.train("stored", float("inf"), f"--train.steps={steps}", *stored)
            losses = [record["loss"] for record in records]
            section.keep("storage", {"losses": losses, **{key: records[-1][key] for key in PHASES}})
            section.say(f"  on storage, after {steps} steps: losses {losses}, {records[-1]['step_seconds']:.3f} s a step")
        shutil.rmtree(runs.folder / "stored")
        plain = [record["loss"] for record in runs.train("memory", float("inf"), "--train.steps=3", "--optimizer.schedule=constant")]
        section.keep("storage", "losses_in_memory", plain)
        if plain != losses:
            raise Failed(f"losses of the stopped run on storage {losses}, of a straight one in host memory {plain}")


def results(figures):
    """RESULT figures, without the device's name."""
    policies = figures.get("policies", {})
    if "zero3" in policies and "dos" in policies:
        return {"dos_speedup_iteration": policies["zero3"]["step_seconds"] / policies["dos"]["step_seconds"]}
    return {}
