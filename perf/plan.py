#!/usr/bin/env python3
"""Predicted and measured seconds per step, and what the plan chooses: perf/plan.sh runs it with the program and a directory.

Every row is a configuration on an emulated machine: its products, link, updates and storage paths take as long as their rates
say, which is far longer than this machine needs for them. The plan knows those rates and nothing else."""
import concurrent.futures
import itertools
import math
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile

from measure import quiet_environment, steps_of

# 3.7 M parameters; products of a step: 11 GFLOP at a batch of 4.
MODEL = {
    "model.family": "llama", "model.layers": 8, "model.hidden": 192, "model.heads": 4, "model.ffn-hidden": 512, "model.vocab": 256,
    "train.sequence": 128, "train.micro-batch": 4, "train.global-batch": 4, "numerics.dtype": "bf16", "device.kind": "host",
    "run.threads": 2, "update.subgroup-size": "200k", "update.device-chunk": "64k", "optimizer.clip": 0, "checkpoint.every": 0,
    "train.activations": "keep", "tiers.allow-tmpfs": "true",
}
STEPS = 8
SKIPPED = 3  # caches and learned shares have settled then

# Products, link and updates so slow that each of them can be the one that bounds.
FAST_LINK = "h2d=400MB/s,d2h=400MB/s"
SLOW_LINK = "h2d=20MB/s,d2h=20MB/s"


CONFIGS = pathlib.Path(__file__).resolve().parent.parent / "configs"
POLICY, MODELS = CONFIGS / "policies", CONFIGS / "models"


def emulate(link=FAST_LINK, compute="20G", device="100M", host="20M", total="2GB/s"):
    return f"{link},compute={compute},update={device},host-update={host},host-sum={total}"


def path(read, write, duplex="half"):
    return f"emulate-read={read}MB/s,emulate-write={write}MB/s,emulate-duplex={duplex}"


STATE = {"tiers.cache": 0, "update.overlap": "off", "tiers.split-parameters": "off", "tiers.host-memory": "200MiB"}
VERTICAL = {"train.schedule": "vertical", "train.global-batch": 32, "parameters.home": "host", "update.device-share": 0,
            "update.device-gradients": 0, "train.activations": "recompute"}
TWO_RANKS = {"ranks": 2, "train.global-batch": 8, "run.threads": 1}
# name, device.emulate, storage paths, further keys; `ranks` is no key: so many ranks run
ROWS = [
    ("device bound", emulate(compute="8G"), [], {"update.device-share": 0}),
    ("device bound, recomputed", emulate(compute="8G"), [], {"update.device-share": 0, "train.activations": "recompute"}),
    ("cores bound", emulate(host="4M"), [], {"update.device-share": 0}),
    ("cores and link, blocking", emulate(SLOW_LINK, host="8M"), [], {"update.device-share": 0, "update.transfers": "blocking"}),
    ("share 0.5", emulate("h2d=100MB/s,d2h=100MB/s", host="8M"), [], {"update.device-share": 0.5}),
    ("share 1", emulate("h2d=100MB/s,d2h=100MB/s"), [], {"update.device-share": 1}),
    ("resident 0.5", emulate(host="8M"), [], {"update.device-share": 0, "update.device-resident": 0.5}),
    ("link bound, host parameters", emulate(SLOW_LINK), [], {"update.device-share": 0, "parameters.home": "host"}),
    ("micro-batches", emulate("h2d=60MB/s,d2h=60MB/s", compute="10G"), [],
     {"update.device-share": 0, "train.global-batch": 16, "update.device-gradients": 0}),
    ("activations leave", emulate("h2d=60MB/s,d2h=60MB/s", compute="10G"), [], {"update.device-share": 0, "train.activations": "host"}),
    ("one path", emulate(), [path(100, 80)], {"update.device-share": 0, **STATE}),
    ("two paths", emulate(), [path(100, 80), path(60, 60)], {"update.device-share": 0, **STATE}),
    ("full duplex", emulate(), [path(100, 80, "full")], {"update.device-share": 0, **STATE}),
    ("half cached", emulate(), [path(100, 80)], {"update.device-share": 0, **STATE, "tiers.cache": "24MiB"}),
    ("thrashing", emulate(), [path(100, 80)],
     {"update.device-share": 0, **STATE, "tiers.cache": "24MiB", "tiers.evict": "oldest", "update.order": "ascending"}),
    ("flushed gradients", emulate(), [path(100, 80)], {"update.device-share": 0, **STATE, "update.gradients": "flush-fp32"}),
    ("path and share", emulate(host="8M"), [path(100, 80)], {"update.device-share": 0.5, **STATE}),
    ("overlap, path bound", emulate(compute="8G"), [path(60, 60)], {"update.device-share": 0, **STATE, "update.overlap": "on"}),
    ("overlap, device bound", emulate(compute="4G"), [path(100, 100)], {"update.device-share": 0, **STATE, "update.overlap": "on"}),
    ("overlap, host memory", emulate(compute="8G", host="4M"), [], {"update.device-share": 0, "update.overlap": "on"}),
    ("parameters on a path", emulate(compute="8G"), [path(60, 60)], {"update.device-share": 0, **STATE, "parameters.home": "storage"}),
    ("all on a path, overlap", emulate(compute="8G"), [path(60, 60)],
     {"update.device-share": 0, **STATE, "parameters.home": "storage", "update.overlap": "on"}),
    ("vertical, device bound", emulate(compute="10G"), [], {**VERTICAL}),
    ("vertical, link bound", emulate(SLOW_LINK, compute="30G"), [], {**VERTICAL, "train.activations": "host"}),
    ("vertical, path bound", emulate(compute="30G"), [path(60, 60)], {**STATE, **VERTICAL, "parameters.home": "storage"}),
    ("vertical, overlap", emulate(compute="20G"), [path(60, 60)],
     {**STATE, **VERTICAL, "parameters.home": "storage", "train.activations": "host", "update.overlap": "on"}),
    ("activations on a path", emulate(compute="10G"), [path(100, 80)], {"update.device-share": 0, **STATE, "train.activations": "storage"}),
    ("learned share", emulate(host="8M"), [], {"update.device-share": "auto"}),
    ("every step clips", emulate(compute="8G"), [path(60, 60)],
     {"update.device-share": 0, **STATE, "update.overlap": "on", "optimizer.clip": 1e-6, "plan.clip-rate": 1}),
    ("two ranks, host memory", emulate(compute="8G", host="4M"), [], {**TWO_RANKS, "update.device-share": 0}),
    ("two ranks, one path", emulate(), [path(100, 80)], {**TWO_RANKS, "update.device-share": 0, **STATE}),
    ("two ranks, overlap", emulate(compute="8G"), [path(60, 60)], {**TWO_RANKS, "update.device-share": 0, **STATE, "update.overlap": "on"}),
]


# 25 M parameters on quick machines, some hundred MiB: libraries are a small part.
LARGER = {**MODEL, "model.hidden": 512, "model.ffn-hidden": 1376, "model.heads": 8, "update.subgroup-size": "2M", "update.device-chunk": "512k",
          "device.emulate": "h2d=4GB/s,d2h=4GB/s,update=4G,host-update=1G"}
MEMORY_ROWS = [
    ("in host memory", [], {"update.device-share": 0}),
    ("a fifth resident", [], {"update.device-share": 0.5, "update.device-resident": 0.2}),
    ("parameters and activations", [], {"update.device-share": 0, "parameters.home": "host", "train.activations": "host"}),
    ("half cached", [path(4000, 4000)], {"update.device-share": 0, "tiers.host-memory": "300MiB", "tiers.cache": "150MiB", "update.overlap": "off"}),
    ("second versions", [], {"update.device-share": 0, "update.overlap": "on"}),
    ("vertical, parameters stored", [path(4000, 4000)], {**VERTICAL, "parameters.home": "storage", "tiers.host-memory": "300MiB", "train.global-batch": 16}),
]

# Four emulated machines with different bottlenecks: device.emulate, paths, further keys by the model's size. The device has no room for all.
MACHINES = {
    "device": (emulate("h2d=200MB/s,d2h=200MB/s", compute="10G", host="20M"), [path(200, 150)], {}),
    "path": (emulate("h2d=200MB/s,d2h=200MB/s", compute="40G", host="20M"), [path(60, 40), path(40, 40)], {}),
    "cores": (emulate("h2d=100MB/s,d2h=100MB/s", compute="40G", host="2M"), [path(300, 200)], {}),
    "memory": (emulate("h2d=100MB/s,d2h=100MB/s", compute="10G", device="20M", host="4M"), [],
               {"small": {"tiers.host-memory": "60MiB"}, "large": {"device.memory": "40MiB", "tiers.host-memory": "200MiB"}}),
}
CHOICE = {**{key: value for key, value in MODEL.items() if key != "train.activations"}, "train.micro-batch": 2, "train.global-batch": 8,
          "device.memory": "24MiB", "tiers.host-memory": "60MiB"}
# A model so small that a hundred configurations take minutes: steps of a few tenths of a second, nearly all of them emulated.
SMALL = {**CHOICE, "model.layers": 6, "model.hidden": 128, "model.ffn-hidden": 352, "train.sequence": 64, "device.memory": "6MiB",
         "tiers.host-memory": "25MiB", "update.subgroup-size": "64k", "update.device-chunk": "32k"}
POLICIES = ("zero3", "twinflow", "dos", "mlp", "fuyou")
# What is tried beside the choice, as far as it fits: 144 configurations.
TRIED = [{"parameters.home": home, "train.schedule": schedule, "train.activations": fate, "update.overlap": overlap,
          "update.device-share": share, "update.device-resident": resident}
         for home in ("device", "host", "storage")
         for schedule, fate in (("horizontal", "keep"), ("horizontal", "recompute"), ("horizontal", "storage"), ("vertical", "storage"))
         for overlap in ("off", "on") for share in (0, 0.5) for resident in (0, 0.2, 0.6)]
NEAR = 4  # of those that are tried, which are measured again
LARGEST = ("fuyou-805b", "fuyou-412b", "mlp-280b")


class Bench:
    def __init__(self, program, folder):
        self.program, self.folder, self.runs, self.directories = program, folder, itertools.count(1), itertools.count(1)
        (folder / "train.txt").write_bytes(b"a few words of text for a model, again and again; " * 4000)

    def call(self, command, keys, paths, fails=False, config=()):
        keys = dict(keys)
        ranks = keys.pop("ranks", 1)
        arguments = [f"--config={each}" for each in config] + [f"--{key}={value}" for key, value in keys.items()] + [f"--tiers.path={each}" for each in paths]
        launcher = ["mpirun", "-n", str(ranks)] if command == "train" and ranks > 1 else []
        if command == "plan":
            arguments += [f"--ranks={ranks}"]
        done = subprocess.run([*launcher, self.program, command, *arguments], capture_output=True, text=True, check=False, env=quiet_environment())
        if done.returncode == 64 and fails:
            return None
        if done.returncode:
            sys.exit(f"{command} {' '.join(arguments)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def paths(self, attributes):
        number = next(self.directories)
        found = []
        for i, each in enumerate(attributes):
            directory = self.folder / f"path{number}.{i}"
            directory.mkdir()
            found.append(f"{directory},{each}")
        return found

    def simulated(self, keys, paths):
        """Seconds of a step, infinite where it does not fit."""
        out = self.call("plan", keys, paths, fails=True)
        return float(self.row(out)[5]) if out else math.inf

    @staticmethod
    def row(out):
        return re.search(r"^  this configuration +(.*)$", out, re.MULTILINE).group(1).split(maxsplit=7)

    def call_plan(self, keys, paths):
        """What it says; `planned` has bytes of the device and of the host."""
        out = self.call("plan", keys, paths)
        device, host, libraries = (size(re.search(pattern, out, re.MULTILINE).group(1)) for pattern in (
            r"^  together +(\S+ \S+)", r"^host memory, per node +(\S+ \S+)", r"^host memory, per node .* libraries some (\S+ \S+)"))
        self.planned = [device, host + libraries]
        return out

    def predict(self, keys, paths):
        """Seconds of forward, backward, update and step, and what is busiest."""
        row = self.row(self.call_plan(keys, paths))
        return [float(cell) for cell in row[2:6]] + [row[7]]

    def measure(self, keys, paths, fails=False, steps=STEPS, skipped=SKIPPED):
        directory = self.folder / str(next(self.runs))
        out = self.call("train", {**keys, "train.steps": steps, "data.train": self.folder / "train.txt", "data.format": "text",
                                  "run.header": "full", "run.dir": directory,
                                  "optimizer.warmup-steps": 0}, paths, fails)
        if out is None:
            return None
        self.peaks = [size(re.search(pattern + r".*peak (\S+ \S+),", out).group(1)) for pattern in ("device memory", "host memory of")]
        entries = steps_of(directory)[skipped:]
        # Two steps go through their subgroups in two orders.
        pairs = list(zip(entries, entries[1:]))
        keys = ("forward_seconds", "backward_seconds", "update_seconds", "step_seconds")
        return [statistics.median((a[key] + b[key]) / 2 for a, b in pairs) for key in keys] + [
            min((a["step_seconds"] + b["step_seconds"]) / 2 for a, b in pairs)]


def size(text):
    """Bytes of "23.9 GiB"."""
    number, unit = text.split()
    return float(number) * 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(unit)


def predictions(bench, words):
    errors, quickest, memory = [], [], []
    print("seconds of a step, predicted and measured (median), the errors against the median and the quickest steps, and the\n"
          "seconds of forward, backward and update, predicted and measured")
    for row, device, paths, more in ROWS:
        if words and not any(word in row for word in words):
            continue
        keys = {**MODEL, "device.emulate": device, **more}
        directories = bench.paths(paths)
        expected = bench.predict(keys, directories)
        found = bench.measure(keys, directories)
        errors.append(abs(expected[3] / found[3] - 1))
        quickest.append(abs(expected[3] / found[4] - 1))
        memory.append([planned / peak - 1 for planned, peak in zip(bench.planned, bench.peaks)])
        phases = "  ".join(f"{a:.3f} {b:.3f}" for a, b in zip(expected[:3], found[:3]))
        print(f"{row:28} {expected[3]:7.3f} {found[3]:7.3f} {expected[3] / found[3] - 1:+7.1%} {expected[3] / found[4] - 1:+7.1%}   {phases}   "
              f"memory {memory[-1][0]:+.1%} {memory[-1][1]:+.1%}   {expected[4].replace(str(bench.folder) + '/', '')}", flush=True)
    print(f"RESULT plan_error_median {statistics.median(errors):.3f}")
    print(f"RESULT plan_error_worst {max(errors):.3f}")
    # Neighbours of a busy machine only add to steps.
    print(f"RESULT plan_error_quickest_median {statistics.median(quickest):.3f}")
    print(f"RESULT plan_error_quickest_worst {max(quickest):.3f}")
    print(f"RESULT plan_memory_error {max(abs(device) for device, _ in memory):.3f}")
    print(f"RESULT plan_host_memory_error {max(abs(host) for _, host in memory):.3f}")


def memory(bench):
    """Peaks of a model of some hundred MiB; its steps are few and their time does not count."""
    errors = []
    for row, paths, more in MEMORY_ROWS:
        keys = {**LARGER, **more}
        directories = bench.paths(paths)
        bench.call_plan(keys, directories)
        bench.measure(keys, directories, steps=3, skipped=0)
        device, host = (planned / peak - 1 for planned, peak in zip(bench.planned, bench.peaks))
        errors.append((abs(device), abs(host)))
        print(f"{row:28} device {bench.peaks[0] / 2**20:5.0f} MiB {device:+.1%}, host {bench.peaks[1] / 2**20:5.0f} MiB {host:+.1%}", flush=True)
    print(f"RESULT plan_memory_error_larger {max(device for device, _ in errors):.3f}")
    print(f"RESULT plan_host_memory_error_larger {max(host for _, host in errors):.3f}")


def seconds_of(bench, keys, directories, steps=STEPS, skipped=SKIPPED):
    """Median step of a configuration, infinite where it does not fit."""
    found = bench.measure(keys, directories, fails=True, steps=steps, skipped=skipped)
    return found[3] if found else math.inf


def beside_each_other(job, items):
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", "3"))) as pool:
        return list(pool.map(job, items))


def search(bench, machines):
    """The choice against all that is tried, both simulated: whether it looks where the quickest is."""
    worst = -math.inf
    for name in machines:
        device, paths, more = MACHINES[name]
        for size, model in (("small", SMALL), ("large", CHOICE)):
            common, directories = {**model, "device.emulate": device, **more.get(size, {})}, bench.paths(paths)
            found = beside_each_other(lambda each: bench.simulated({**common, **each}, directories), TRIED)
            chosen = bench.simulated({**common, "config": POLICY / "offstage.cfg"}, directories)
            worst = max(worst, chosen / min(found) - 1)
            fit = sum(each < math.inf for each in found)
            print(f"{name:8} {size}: chosen {chosen:.3f} s, the quickest of {fit} that fit {min(found):.3f} s, simulated", flush=True)
    print(f"RESULT plan_search_regret {worst:.3f}")


def random_machine(draw):
    """The arguments of a model of the papers on a machine of random rates and memories."""
    ranks = draw.choice([1, 1, 1, 2, 4, 4, 8, 16])
    each, micro = min(ranks, draw.choice([1, 2, 4, 8])), draw.choice([1, 1, 2, 4, 8, 16])

    def spread(least, most):
        return least * (most / least) ** draw.random()
    link = spread(2, 450)
    keys = {"ranks": ranks, "ranks-per-node": each, "train.micro-batch": micro, "train.global-batch": micro * draw.choice([1, 1, 2, 4, 16]) * ranks,
            "train.sequence": 1024, "device.memory": f"{draw.choice([16, 24, 40, 48, 80, 96, 141])}GB", "tiers.host-memory": f"{spread(32, 2000):.0f}GB",
            "platform.products": f"{spread(30, 1000):.0f}T", "platform.cpu-update": f"{spread(100, 8000):.0f}M",
            "platform.device-update": f"{spread(5, 90):.1f}G", "platform.host-to-device": f"{link:.1f}GB/s",
            "platform.device-to-host": f"{link * draw.choice([1, 0.8]):.1f}GB/s"}
    for key, low, high in ("host-sum", 10, 200), ("host-memory", 20, 300), ("rank-link", 2, 400):
        if draw.random() < 0.6 or key == "rank-link":
            keys[f"platform.{key}"] = f"{spread(low, high):.0f}GB/s"
    paths = [f"/p{i},read={spread(0.5, 60):.1f}GB/s,write={spread(0.4, 40):.1f}GB/s" for i in range(draw.choice([0, 0, 1, 1, 2, 3]))]
    model = draw.choice(["dos-7b", "dos-13b", "dos-20b", "fuyou-13b", "fuyou-33b", "fuyou-65b", "mlp-40b", "mlp-70b", "llama2-7b", "tinyllama-1b"])
    return [f"--config={MODELS}/{model}.cfg", *(f"--{key}={value}" for key, value in keys.items()), *([f"--tiers.path={each}" for each in paths] or ["--tiers.path="])]


# The values among which a hand would look, key by key.
BY_HAND = {"parameters.home": ["device", "host", "storage", "node"], "parameters.sharding": ["zero3", "zero2"], "train.schedule": ["horizontal", "vertical"],
           "train.activations": ["keep", "recompute", "host", "0", "0.5", "storage:0", "storage:0.5", "storage"], "update.overlap": ["off", "on"],
           "update.device-share": ["auto", "0", "0.2", "0.4", "0.6", "0.8", "1"], "update.device-resident": ["0", "0.1", "0.2", "0.4", "0.6", "0.8", "1"]}


def random_machines(bench, count, hand):
    """The choice on machines of random rates against a search by hand: `hand` random configurations, then the best one changed key by key."""
    def plan(arguments, keys):
        done = subprocess.run([bench.program, "plan", *arguments, *(f"--{key}={value}" for key, value in keys.items())], capture_output=True, text=True, check=False)
        return (float(bench.row(done.stdout)[5]) if done.returncode == 0 else math.inf), done.stdout

    def one(number):
        draw = random.Random(number)
        arguments = random_machine(draw)
        chosen, said = plan(arguments, {"config": POLICY / "offstage.cfg"})
        values_of = {key: [value for value in values if value != "node" or "parameters.home=node is left out" not in said] for key, values in BY_HAND.items()}
        tried = {}

        def consider(keys):
            if (name := tuple(sorted(keys.items()))) not in tried:
                tried[name] = plan(arguments, keys)[0]
            return tried[name]
        for _ in range(hand):
            consider({key: draw.choice(values) for key, values in values_of.items()})
        best = dict(min(tried, key=tried.get))
        for key, values in values_of.items() if tried[tuple(sorted(best.items()))] < math.inf else ():
            best[key] = min(values, key=lambda value: consider({**best, key: value}))
        return number, chosen, min(tried.values()), best
    ratios, refused = [], 0
    for number, chosen, found, best in beside_each_other(one, range(count)):
        if found < math.inf or chosen < math.inf:
            refused += chosen == math.inf
            ratios.append(chosen / found if found < math.inf else 0.0)
            if chosen > 1.05 * found:
                print(f"machine {number}: chosen {chosen:.3f} s, by hand {found:.3f} s: {' '.join(f'{key}={value}' for key, value in best.items())}", flush=True)
    fitting = [ratio for ratio in ratios if 0.0 < ratio < math.inf]
    print(f"{count} random machines, {len(ratios)} of which have room; chosen over by hand: median {statistics.median(fitting):.3f}, "
          f"{sum(ratio > 1.05 for ratio in fitting)} above 1.05; only the choice fits on {sum(ratio == 0.0 for ratio in ratios)}")
    print(f"RESULT plan_random_regret {max(fitting) - 1:.3f}")
    print(f"RESULT plan_random_refused {refused}")


def regret(bench, machines, most):
    """The choice against all that is tried: its time over that of the quickest. All are measured beside each other, for their time is emulated; those that
    came near are measured again, one at a time, so that the luckiest of a hundred does not count as the quickest."""
    worst = 0.0
    for name in machines:
        device, paths, more = MACHINES[name]
        common = {**SMALL, "device.emulate": device, **more.get("small", {})}
        tried = [{**common, **each} for each in TRIED[::max(1, len(TRIED) // most)]]
        first = beside_each_other(lambda keys: seconds_of(bench, keys, bench.paths(paths), 6, 2), tried)
        fitting = sorted((seconds, i) for i, seconds in enumerate(first) if seconds < math.inf)
        again = [(seconds_of(bench, tried[i], bench.paths(paths), 12), i) for _, i in fitting[:NEAR]]
        best, which = min(again)
        chosen = seconds_of(bench, {**common, "config": POLICY / "offstage.cfg"}, bench.paths(paths), 12)
        worst = max(worst, chosen / best - 1)
        words = ", ".join(f"{key.split('.')[1]}={value}" for key, value in tried[which].items() if key not in common)
        print(f"{name:8} chosen {chosen:.3f} s; of {len(tried)} tried {len(fitting)} fit, the quickest {best:.3f} s: {words}; the slowest {fitting[-1][0]:.3f} s",
              flush=True)
    print(f"RESULT plan_regret {worst:.3f}")


def policies(bench, machines):
    gains = []
    for name in machines:
        device, paths, more = MACHINES[name]
        directories = bench.paths(paths)
        seconds = {}
        for policy in (*POLICIES, "offstage"):
            keys = {**CHOICE, "device.emulate": device, **more.get("large", {}), "config": POLICY / f"{policy}.cfg"}
            found = bench.measure(keys, directories, fails=True)
            if found:
                seconds[policy] = found[3]
        offstage = seconds.pop("offstage")
        gains.append(min(seconds.values()) / offstage)
        print(f"{name:8} offstage {offstage:.3f} s; " + ", ".join(f"{each} {found:.3f}" for each, found in seconds.items())
              + "; others do not fit" * (len(seconds) < len(POLICIES)), flush=True)
    print(f"RESULT offstage_vs_best_policy {statistics.median(gains):.2f}")
    print(f"RESULT offstage_vs_best_policy_least {min(gains):.2f}")


def seconds_of_choice(bench):
    """For the papers' largest models, on their machines."""
    longest = 0.0
    for model in LARGEST:
        out = bench.call("plan", {"train.global-batch": 64, "device.memory": "79GiB", "tiers.host-memory": "740GiB", "platform.cpu-update": "1G",
                                  "platform.device-update": "30G", "platform.products": "200T", "platform.host-to-device": "20GB/s",
                                  "platform.device-to-host": "20GB/s"}, ["/nvme,read=30GB/s,write=20GB/s"],
                         config=[f"{MODELS}/{model}.cfg", f"{POLICY}/offstage.cfg"])
        longest = max(longest, float(re.search(r"chosen in ([\d.]+) s", out).group(1)))
        print(f"{model:12} {re.search(r'chosen in .*', out).group(0)}")
    print(f"RESULT plan_seconds {longest:.2f}")


def main():
    words = os.environ.get("ROWS", "").split()
    parts = os.environ.get("PARTS", "predictions memory seconds search random policies regret").split()
    machines = os.environ.get("MACHINES", " ".join(MACHINES)).split()
    with tempfile.TemporaryDirectory(dir=sys.argv[2]) as name:
        bench = Bench(sys.argv[1], pathlib.Path(name))
        if "predictions" in parts:
            predictions(bench, words)
        if "memory" in parts:
            memory(bench)
        if "seconds" in parts:
            seconds_of_choice(bench)
        if "search" in parts:
            search(bench, machines)
        if "random" in parts:
            random_machines(bench, int(os.environ.get("RANDOM_MACHINES", "60")), int(os.environ.get("HAND", "30")))
        if "policies" in parts:
            policies(bench, machines)
        if "regret" in parts:
            regret(bench, machines, int(os.environ.get("TRIED", len(TRIED))))


if __name__ == "__main__":
    main()
