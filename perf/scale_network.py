"""Predicted against real steps over a network whose rate is known: each rank on a node of its own on this machine (slurm/test-cluster), whose
interface sends so many bits per second and no more. perf/scale.py runs it where such nodes may be made."""
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

from measure import steps_of

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOLS = ROOT / "slurm/test-cluster"

# Layers of so many chunks that what a rank's last one lacks does not count, on an emulated machine far slower than this one.
MODEL = {"model.family": "llama", "model.layers": 4, "model.hidden": 512, "model.heads": 8, "model.ffn-hidden": 1408, "model.vocab": 256,
         "train.sequence": 64, "train.micro-batch": 2, "numerics.dtype": "bf16", "device.kind": "host", "run.threads": 1, "train.steps": 6,
         "update.subgroup-size": "1M", "update.device-chunk": "256k", "optimizer.clip": 0, "checkpoint.every": 0,
         "train.activations": "keep", "update.device-share": 0, "optimizer.warmup-steps": 0,
         "device.emulate": "h2d=500MB/s,d2h=500MB/s,compute=8G,update=100M,host-update=8M,host-sum=2GB/s"}

# Arguments: its address, the other's, 1 if it waits for the other. Prints the bytes per second that come while both send 4 MB, the
# median of three, and the seconds that a byte takes there and back.
EXCHANGE = """
import socket, sys, threading, time
me, other, first = sys.argv[1:]
size = 4_000_000
def take(s, count):
    while count: count -= len(s.recv(min(count, 1 << 20)))
if first == "1":
    s = socket.create_server((me, 7001)).accept()[0]
else:
    while True:
        try: s = socket.create_connection((other, 7001)); break
        except ConnectionRefusedError: time.sleep(0.05)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
trips = []
for _ in range(50):
    before = time.monotonic()
    if first == "1": s.sendall(b"x"); take(s, 1)
    else: take(s, 1); s.sendall(b"x")
    trips.append(time.monotonic() - before)
rates = []
for _ in range(3):
    before = time.monotonic()
    sender = threading.Thread(target=s.sendall, args=(bytes(size),))
    sender.start(); take(s, size); sender.join()
    rates.append(size / (time.monotonic() - before))
print(sorted(rates)[1], sorted(trips)[25])
"""


class Cluster:
    """Nodes 1 to `nodes`; they end with this process."""

    def __init__(self, nodes):
        self.nodes = nodes
        start = subprocess.run([TOOLS / "start.sh", "--nodes-of-their-own", str(nodes), str(os.getpid())], stdout=subprocess.PIPE,
                               text=True, check=True)
        self.directory = start.stdout.strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run([TOOLS / "stop.sh", self.directory], check=True)

    def command(self, node, *command):
        return [str(TOOLS / "nodes.sh"), "on", self.directory, node, *map(str, command)]

    def limit(self, megabits):
        for i in range(self.nodes):
            subprocess.run(self.command(f"node{i + 1}", "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", f"{megabits}mbit",
                                        "burst", "64kb", "latency", "2s"), check=True)

    def link(self):
        """Seconds until a message begins to arrive, and bytes per second each way while both send: of a TCP connection, not of MPI."""
        both = [subprocess.Popen(self.command(f"node{i + 1}", sys.executable, "-c", EXCHANGE, f"10.77.0.{i + 1}", f"10.77.0.{2 - i}",
                                              1 - i), stdout=subprocess.PIPE, text=True) for i in range(2)]
        found = [tuple(map(float, each.communicate()[0].split())) for each in both]
        return {"alpha": found[0][1] / 2, "beta": min(rate for rate, _ in found)}


def rank_link(layer, ranks, link):
    """Bytes per second that come to a rank of a layer whose parts go around a ring, or from rank to rank."""
    others = layer * (ranks - 1) / ranks
    return others / (link["alpha"] * (ranks - 1) + others / link["beta"])


def step(runs, cluster, folder, ranks, link):
    """Seconds predicted, what the plan says is busiest, and seconds found."""
    keys = {**MODEL, "train.global-batch": 2 * ranks, "data.train": folder / "train.txt", "run.dir": folder / f"run{runs.number}"}
    runs.number += 1
    words = [f"--{key}={value}" for key, value in keys.items()]
    layer = 2 * 3 * MODEL["model.hidden"] * MODEL["model.ffn-hidden"]
    out = runs.plan(*words, "--ranks", ranks, "--ranks-per-node", 1, f"--platform.rank-link={rank_link(layer, ranks, link) / 1e6:.3f}MB/s")
    row = re.search(r"^  this configuration +(.*)$", out, re.MULTILINE).group(1).split(maxsplit=7)
    done = subprocess.run(cluster.command("head", "env", "SLURM_PMIX_FENCE=ring", "OMP_NUM_THREADS=1", "srun", "--mpi=pmix",
                                          f"--nodes={ranks}", f"--ntasks={ranks}", "--cpus-per-task=1", runs.program, "train", *words),
                          capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.args}\n{done.stdout}{done.stderr}")
    return float(row[5]), row[7], [step["step_seconds"] for step in steps_of(keys["run.dir"])[2:]]


def measure(runs):
    """Prints steps predicted and found, and the worst error."""
    check = subprocess.run([TOOLS / "nodes.sh", "check"], stderr=subprocess.PIPE, text=True, check=False)
    if check.returncode or not shutil.which("tc"):
        print(f"network: left out: {check.stderr.strip() or 'tc is missing; package iproute2 has it'}")
        return
    worst = 0.0
    # The nodes share the disk, but not /dev/shm.
    with Cluster(4) as cluster, tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = pathlib.Path(name)
        shutil.copy(runs.text, folder / "train.txt")
        for ranks in 2, 4:
            for megabits in 400, 200, 100:
                cluster.limit(megabits)
                link = cluster.link()
                expected, busiest, found = step(runs, cluster, folder, ranks, link)
                error = expected / statistics.median(found) - 1
                worst = max(worst, abs(error))
                print(f"{ranks} nodes, {link['beta'] / 1e6:.1f} MB/s and {link['alpha'] * 1e6:.0f} us between them: {expected:.3f} s expected "
                      f"({busiest}), {statistics.median(found):.3f} s found (least {min(found):.3f}), {error:+.1%}; "
                      f"load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"RESULT scale_simulated_vs_real_network_error {worst:.3f}")
