#!/usr/bin/env python3
"""Many ranks, by counts and by simulation: perf/scale.sh runs it with the program and a directory."""
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

from measure import steps_of
import scale_network

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs"
MPI = ROOT / "tests" / "mpi.sh"

TINY = {"model.family": "llama", "model.hidden": 32, "model.heads": 4, "model.ffn-hidden": 64, "model.vocab": 256,
        "train.sequence": 24, "train.micro-batch": 1, "device.kind": "host", "run.threads": 1, "numerics.dtype": "bf16",
        "optimizer.schedule": "constant", "optimizer.warmup-steps": 0, "checkpoint.every": 0}


def fail(done):
    sys.exit(f"{' '.join(map(str, done.args))}\n{done.stdout}{done.stderr}")


class Runs:
    def __init__(self, program, folder):
        self.program, self.folder, self.number = program, folder, 0
        self.text = folder / "train.txt"
        self.text.write_bytes(b"a few words of text for a model, again and again; " * 4000)

    def command(self, ranks, keys, program=None):
        """A run's command and directory."""
        self.number += 1
        directory = self.folder / f"run{self.number}"
        arguments = [f"--{key}={value}" for key, value in {**keys, "run.dir": directory, "data.train": self.text}.items()]
        return [MPI, str(ranks), program or self.program, "train", *arguments], directory

    def train(self, ranks, keys, **environment):
        """The run's directory."""
        command, directory = self.command(ranks, keys)
        done = subprocess.run(command, text=True, capture_output=True, env=dict(os.environ, **environment), check=False)
        if done.returncode:
            fail(done)
        return directory

    def start(self, ranks, keys, program):
        """Seconds to when rank 0 begins the first step, and to the end of the run."""
        command, directory = self.command(ranks, keys, program)
        before = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            metrics, began = directory / "metrics.jsonl", None
            while began is None and process.poll() is None:
                time.sleep(0.005)
                if metrics.exists() and '"start":0' in metrics.read_text():
                    began = time.monotonic() - before
        if began is None or process.returncode:
            sys.exit(f"{command} ended with {process.returncode}")
        return began, time.monotonic() - before

    def plan(self, *arguments):
        done = subprocess.run([self.program, "plan", *map(str, arguments)], capture_output=True, text=True, check=False)
        if done.returncode:
            fail(done)
        return done.stdout


# ---- Messages

def layers_of(blocks):
    return 2 * blocks + 2  # attention and MLP of each, embedding and head


def messages(runs, ranks, blocks, more=()):
    """That a rank sends in a step, the most of any: Open MPI counts them, those of its collectives too."""
    found = []
    for steps in 1, 5:
        prefix = runs.folder / f"messages{runs.number}"
        runs.train(ranks, {**TINY, "model.layers": blocks, "train.steps": steps, "train.global-batch": ranks, **dict(more)},
                   OMPI_MCA_pml="ob1,monitoring", OMPI_MCA_pml_monitoring_enable="1", OMPI_MCA_pml_monitoring_enable_output="3",
                   OMPI_MCA_pml_monitoring_filename=str(prefix))
        found.append([sum(map(int, re.findall(r"^[EI]\t.*?(\d+) msgs sent", prefix.with_name(f"{prefix.name}.{rank}.prof").read_text(),
                                              re.MULTILINE))) for rank in range(ranks)])
    return max((b - a) / 4 for a, b in zip(*found))


LARGE = {"model.hidden": 512, "model.ffn-hidden": 2048}  # slices of a layer for 32 ranks have 64 KiB and more


def by_layers(runs, ranks, more=()):
    """Messages of a rank in a step: for each layer of a block, and beside them in a model of one block."""
    small, large = (messages(runs, ranks, blocks, more) for blocks in (1, 3))
    layer = (large - small) / (layers_of(3) - layers_of(1))
    return layer, small - layer * layers_of(1)


def count(runs):
    """A step's messages are those of its collectives, so many for each layer and some more, each O(log R)."""
    each = more = 0.0
    for ranks in 2, 4, 8, 16, 32:
        layer, rest = by_layers(runs, ranks)
        steps = math.log2(ranks)
        print(f"  {ranks:3} ranks: {layer:5.2f} messages of a rank for each layer and {rest:6.2f} more in a step: "
              f"{layer / steps:.2f} and {rest / steps:5.2f} times log2 of the ranks", flush=True)
        each, more = max(each, layer / steps), max(more, rest / steps)

    def reckoned(ranks, layers):
        return (each * layers + more) * math.log2(ranks)

    layers = layers_of(2)
    counted, expected = messages(runs, 64, 2), reckoned(64, layers)
    print(f"   64 ranks, {layers} layers: {counted:g} counted, {expected:g} reckoned from the most of those above")
    print(f"RESULT scale_messages_counted_vs_reckoned_64 {counted / expected:.3f}")
    layers = layers_of(48)
    print(f"RESULT scale_messages_per_rank_256 {reckoned(256, layers):.0f} bound {(3 * layers + 20) * 8}")

    # Slices beyond 16 KiB go from rank to rank, so that they cross the network once.
    def more_of_large(ranks):
        return ranks - 1 - math.log2(ranks)

    counted, expected = by_layers(runs, 32, LARGE)[0], each * 5 + more_of_large(32)
    print(f"   32 ranks, slices of 64 KiB and more: {counted:g} for each layer counted, {expected:g} reckoned")
    print(f"RESULT scale_messages_large_counted_vs_reckoned_32 {counted / expected:.3f}")
    print(f"RESULT scale_messages_per_rank_256_large_slices {reckoned(256, layers) + layers * more_of_large(256):.0f}")


# ---- Start

def start(runs):
    """Of 64 ranks; the programs take turns, as the load changes."""
    programs = {"": runs.program, **({"_older": os.environ["OLDER"]} if "OLDER" in os.environ else {})}
    keys = {**TINY, "model.layers": 2, "train.steps": 1, "train.global-batch": 64}
    found = {name: [] for name in programs}
    for _ in range(9):
        for name, program in programs.items():
            found[name].append(runs.start(64, keys, program))
    for name, seconds in found.items():
        began, ended = zip(*seconds)
        print(f"RESULT scale_start_64_seconds{name} {statistics.median(began):.2f} ({min(began):.2f} to {max(began):.2f}; with a step "
              f"and the end {statistics.median(ended):.2f}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)")


# ---- Figures of the papers

# Between nodes: seconds until a message begins to arrive, and bytes per second of a node's networks.
SLINGSHOT = {"alpha": 3e-6, "beta": 2 * 25e9}  # two links of 200 Gbit/s
INSIDE = {"alpha": 3e-6, "beta": 133e9}        # NVLink (DOS, section 5.1)
# What all nodes together get of the PFS, in the rates of one node.
PFS_NODES = 8


def rank_link(layer_bytes, ranks, ranks_per_node):
    """Bytes per second that come to a rank from the others, of a micro-batch: a layer is gathered for forward and for backward, and slices of its
    gradient are exchanged. Gathers go around a ring of all ranks, node after node, as NCCL and Open MPI gather what is large: each part comes
    into a node once (nccl-tests, doc/PERFORMANCE.md: S (n - 1) / (n B) seconds). Slices go from rank to rank: each rank of a node takes its own."""
    nodes = ranks // ranks_per_node
    if ranks == 1:
        return 0
    others = layer_bytes * (ranks - 1) / ranks
    if nodes == 1:
        return others / (INSIDE["alpha"] * (ranks - 1) + others / INSIDE["beta"])
    started = SLINGSHOT["alpha"] * (ranks - 1)
    gathered = started + others / min(INSIDE["beta"], SLINGSHOT["beta"])
    from_nodes = layer_bytes * ranks_per_node * (nodes - 1) / nodes
    exchanged = started + from_nodes / SLINGSHOT["beta"]
    return 3 * others / (2 * gathered + exchanged)


def block_bytes(model):
    """Of the larger layer of a block, in 16 bit."""
    keys = dict(line.split(" = ") for line in (CONFIGS / "models" / f"{model}.cfg").read_text().splitlines() if " = " in line)
    return 2 * 3 * int(keys["hidden"]) * int(keys["ffn-hidden"])


TESTBEDS = {
    # platform, products of a rank, storage of a node: NVMe and PFS, read and write in GB/s (MLP, Table 1)
    "Testbed-1": ("jlse-h100", "400T", (6.9, 5.3), (3.6, 3.6)),
    "Testbed-2": ("polaris", "150T", (13.5, 4.8), (6.9, 13.7)),
}
WEAK = [("mlp-40b", 1), ("mlp-70b", 2), ("mlp-100b", 3), ("mlp-130b", 4), ("mlp-280b", 8)]


def step_of(runs, model, testbed, ranks, policy, more=(), storage=True, layer=None):
    """Seconds of a step, and parameters that a rank updates in a second of it. `layer`: bytes of the largest, if not the model's."""
    platform, products, nvme, pfs = TESTBEDS[testbed]
    per_node = min(4, ranks)
    share = min(1.0, PFS_NODES / (ranks // per_node))
    link = rank_link(layer or block_bytes(model), ranks, per_node)
    out = runs.plan("--config", CONFIGS / "models" / f"{model}.cfg", "--config", CONFIGS / "platforms" / f"{platform}.cfg",
                    "--config", CONFIGS / "policies" / f"{policy}.cfg", "--ranks", ranks, "--ranks-per-node", per_node,
                    *([f"--tiers.path=/nvme,read={nvme[0]}GB/s,write={nvme[1]}GB/s",
                       f"--tiers.path=/pfs,read={pfs[0] * share}GB/s,write={pfs[1] * share}GB/s"] if storage else ["--tiers.path="]),
                    f"--platform.products={products}",
                    f"--platform.rank-link={link / 1e9:.3f}GB/s", "--platform.cpu-update=2G", "--platform.device-update=10G",
                    "--platform.host-sum=40GB/s", f"--train.global-batch={max(2, ranks)}", "--train.micro-batch=1", "--train.sequence=2048",
                    "--train.activations=recompute", *(["--parameters.home=host"] if storage else []), *more)
    row = re.search(r"^  this configuration +(.*)$", out, re.MULTILINE).group(1).split()
    parameters = float(re.search(r"^model +([\d.]+) B", out, re.MULTILINE).group(1)) * 1e9
    update = float(row[4])
    return float(row[5]), parameters / ranks / update if update else 0


def figures(runs):
    least = math.inf
    for testbed in TESTBEDS:
        for model, nodes in WEAK:
            zero3, _ = step_of(runs, model, testbed, 4 * nodes, "zero3")
            mlp, rate = step_of(runs, model, testbed, 4 * nodes, "mlp")
            least = min(least, zero3 / mlp)
            print(f"{testbed} {model:9} {nodes} nodes: zero3 {zero3:7.1f} s, mlp {mlp:7.1f} s, {zero3 / mlp:.2f} times; "
                  f"{4 * rate / 1e6:.0f} M parameters updated per node and second", flush=True)
    print(f"RESULT scale_mlp_speedup_least {least:.2f}")

    # Deep Optimizer States' Figure 17: the whole state in host memory, more and more nodes.
    for model in "dos-7b", "dos-13b", "dos-20b":
        speedups = []
        for nodes in 1, 2, 4, 8, 16, 32, 64, 128:
            zero3, dos = (step_of(runs, model, "Testbed-1", 4 * nodes, policy, storage=False)[0] for policy in ("zero3", "dos"))
            speedups.append(zero3 / dos)
        print(f"{model}: dos over zero3 on 4 to 512 ranks " + ", ".join(f"{each:.2f}" for each in speedups), flush=True)
    # As much of a model for each rank, however many there are: layers of a quarter to 128 times the size. Gradients of several
    # micro-batches are sums in FP32, on one rank too, which has two.
    rates = []
    for ranks, wider in (1, 0.5), (4, 1), (16, 2), (64, 4), (256, 8), (512, 11.3125):
        keys = {"model.hidden": 6144 * wider, "model.heads": 64 * wider, "model.ffn-hidden": 13824 * wider, "device.memory": 0,
                "tiers.host-memory": "1TiB"}  # a gradient of the largest layer has up to 61 GiB
        rates.append(step_of(runs, "dos-20b", "Testbed-1", ranks, "dos", [f"--{key}={value:g}" if isinstance(value, float) else f"--{key}={value}"
                             for key, value in keys.items()], storage=False, layer=block_bytes("dos-20b") * wider ** 2)[1])
        print(f"{ranks:3} ranks: {rates[-1] / 1e6:.0f} M parameters updated per rank and second", flush=True)
    print(f"RESULT scale_update_throughput_least_vs_most {min(rates) / max(rates):.3f}")


# ---- Predicted and real, on an emulated machine whose rates are far below this one's

def real(runs):
    model = {"model.family": "llama", "model.layers": 8, "model.hidden": 192, "model.heads": 4, "model.ffn-hidden": 512, "model.vocab": 256,
             "train.sequence": 128, "train.micro-batch": 4, "numerics.dtype": "bf16", "device.kind": "host", "run.threads": 1,
             "update.subgroup-size": "200k", "update.device-chunk": "64k", "optimizer.clip": 0, "checkpoint.every": 0,
             "train.activations": "keep", "update.device-share": 0, "optimizer.warmup-steps": 0,
             "device.emulate": "h2d=100MB/s,d2h=100MB/s,compute=4G,update=100M,host-update=1M,host-sum=1GB/s"}
    worst = 0.0
    for ranks in 1, 2, 4, 8:
        keys = {**model, "train.global-batch": 4 * ranks}
        out = runs.plan(*(f"--{key}={value}" for key, value in keys.items()), "--ranks", ranks, "--ranks-per-node", ranks,
                        "--platform.rank-link=500MB/s")
        expected = float(re.search(r"^  this configuration +(.*)$", out, re.MULTILINE).group(1).split()[5])
        directory = runs.train(ranks, {**keys, "train.steps": 8})
        found = [step["step_seconds"] for step in steps_of(directory)[3:]]
        error = expected / statistics.median(found) - 1
        worst = max(worst, abs(error))
        print(f"{ranks} ranks: {expected:.3f} s expected, {statistics.median(found):.3f} s found (least {min(found):.3f}), {error:+.1%}; "
              f"load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"RESULT scale_simulated_vs_real_error {worst:.3f}")


PARTS = {"messages": count, "start": start, "figures": figures, "real": real, "network": scale_network.measure}


def main():
    with tempfile.TemporaryDirectory(dir=sys.argv[2]) as name:
        runs = Runs(os.path.abspath(sys.argv[1]), pathlib.Path(name))
        for part in os.environ.get("PARTS", " ".join(PARTS)).split():
            PARTS[part](runs)


if __name__ == "__main__":
    main()
