#!/usr/bin/env python3
"""Random numbers, placements and ends of runs:
   tests/placements.py [SECONDS [SEED [DEVICE]]]      rounds for so long (600 unless told); SECONDS 0: the round of SEED
       alone; DEVICE: host (unless told) or cuda, which ranks share
A round draws what decides the bits of a run. It starts the run again and again, each time on other ranks and pretended
nodes with another placement of everything, until it is done. Most starts are ended by a signal, or meet one fault of
their files; nodes lose their storage in between. Passes if all end with the right codes, `offstage plan` refuses what
they refuse, and the last has the losses and the bits of a run on one rank in host memory.
$OFFSTAGE and $FAULTY_FILES are the program and the library of tests/sweep. A failure tells its seed."""
import contextlib
import errno
import os
import random
import shutil
import signal
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "e2e"))
# pylint: disable=wrong-import-position
from harness import OFFSTAGE  # noqa: E402
from partner_test import OnNodes, may_pretend  # noqa: E402

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 600
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30)
DEVICE = sys.argv[3] if len(sys.argv) > 3 else "host"
STEPS = 8 if DEVICE == "host" else 4
os.environ.setdefault("CUDA_ON_CPU_MEMORY", "64GiB")  # room for all ranks
DISTURBED = 9  # starts of a round; later ones have nothing in their way
STARTS = 25
NAMES = ["n1", "n2", "n3", "n4"]

# What decides the bits.
FAMILIES = [  # as in models that there are
    {"model.family": "llama"}, {"model.family": "llama", "model.rope-scaling": "llama3"},
    {"model.family": "llama", "model.rope-scaling": "yarn"},
    {"model.family": "llama", "model.qkv-bias": "true", "model.tied-head": "true"},
    {"model.family": "llama", "model.qk-norm": "head", "model.head-dim": 16},
    {"model.family": "llama", "model.qk-norm": "all", "model.norms-after": "true"},
    {"model.family": "llama", "model.window": 7}, {"model.family": "gpt2", "model.kv-heads": ""},
    {"model.family": "gpt2", "model.kv-heads": "", "model.exact-gelu": "true"},
]
NUMBERS = {
    "model.layers": [1, 2, 4], "model.kv-heads": [1, 2, 4], "model.hidden": [32, 64], "model.ffn-hidden": [64, 96],
    "numerics.dtype": ["bf16", "fp16", "fp32"], "numerics.accumulate": ["fp32", "16bit"], "numerics.sum-block": [1, 2],
    "optimizer.kind": ["adamw", "adamw", "adam", "adagrad", "rmsprop", "sgd", "lion"],
    "optimizer.moments": ["fp32", "fp32", "bf16", "8bit"], "optimizer.clip": [0, 0.001, 1.5, 4],
    "optimizer.schedule": ["cosine", "constant", "wsd"], "train.micro-batch": [1, 2], "train.global-batch": [4, 8],
    "train.sequence": [16, 24], "data.cross-documents": ["true", "false", "whole"], "data.attention": ["window", "document"], "train.seed": [7, 8],
}
# What does not.
PLACEMENT = {
    "parameters.home": ["device", "device", "host", "storage", "node", "auto"],
    "parameters.sharding": ["zero3", "zero2", "zero1", "auto"],
    "train.activations": ["auto", "keep", "recompute", "host", "0.4", "keep:0.5", "storage", "storage:0.5"],
    "train.schedule": ["horizontal", "horizontal", "vertical", "auto"], "train.valid-every": [0, 3],
    "tiers.exclusive": ["auto", "true", "false"], "tiers.split": ["auto", "paper", "first"],
    "tiers.split-parameters": ["auto", "on", "off"], "tiers.verify": ["always", "sample", "off"],
    "tiers.cache": ["0", "100KiB", "auto"], "tiers.evict": ["farthest", "oldest"],
    "tiers.host-memory": ["auto", "auto", "1MiB", "2MiB", "4MiB"], "device.memory": ["0", "0", "2MiB", "4MiB"],
    "update.subgroup-size": [4096, 12288, "100M"], "update.order": ["alternate", "ascending"],
    "update.gradients": ["delayed", "delayed", "flush-fp32"], "update.overlap": ["auto", "on", "off"],
    "update.device-share": ["auto", "0", "0.4", "1"], "update.device-resident": ["0", "0.3", "1", "auto"],
    "update.device-chunk": [4096, "20k", "4M"], "update.device-gradients": ["auto", "0", "40KB"],
    "update.transfers": ["overlap", "blocking"], "plan.choose": ["off", "off", "on"],
    "checkpoint.every": [1, 2, 3], "checkpoint.overlap": ["on", "off"], "checkpoint.files": ["auto", "rank", "node"],
    "checkpoint.rate": [0, 0, "20MB/s", "50%"], "checkpoint.keep-every": [0, 2], "checkpoint.keep-best": ["off", "on"],
    "run.trace": ["off", "off", "on"], "run.tensorboard": ["off", "on"],
}
DEVICES = ["", "", "compute=100T", "h2d=2GB/s,d2h=1GB/s", "h2d=2GB/s,d2h=1GB/s,compute=1T,host-sum=1GB/s"]
PATHS = ["", ",persistent", ",read=1GB/s,write=500MB/s", ",duplex=full,threads=3", ",queue-depth=2,request-size=8KiB",
         ",emulate-read=400MB/s,emulate-write=200MB/s,emulate-latency=0.1ms", ",processes=1"]
ERRORS = ["SHORT", "KILL", errno.EIO, errno.EIO, errno.ENOSPC, errno.ENOMEM]
MOVES = ["read", "write", "aio-read-end", "aio-write-end"]
CALLS = [*MOVES, "open", "create", "sync", "rename", "link", "unlink", "mkdir", "mmap", "close", "lock", "aio-read",
         "aio-write", "stat", "truncate", "allocate"]


def drawn(numbers, factors):
    return {key: numbers.choice(values) for key, values in factors.items()}


def options_of(keys):
    return [f"{key}={value}" for key, value in keys.items()]


def draw_numbers(numbers):
    keys = drawn(numbers, NUMBERS) | numbers.choice(FAMILIES) | {"train.steps": STEPS, "device.kind": DEVICE}
    if DEVICE == "cuda":
        keys["device.share-gpu"] = "true"
    if keys["optimizer.kind"] in ("rmsprop", "sgd"):
        may_lack = keys["optimizer.kind"] == "rmsprop" or keys["optimizer.moments"] == "fp32"  # or it would have no moments
        keys["optimizer.momentum"] = numbers.choice([0, 0.9]) if may_lack else 0.9
    if keys["data.cross-documents"] == "false":
        del keys["data.attention"]
    if keys["data.cross-documents"] != "true" or keys["data.attention"] == "document":
        keys["data.separator"] = 32
    if numbers.random() < 0.3:
        keys["data.valid"] = "10%"
    if numbers.random() < 0.3:
        keys["data.skip"] = "1:3,3:8"
    return keys


def draw_fault(numbers, ranks, first):
    """Of the calls of one rank, one that is to fail, none before so many."""
    error = numbers.choice(ERRORS)
    fault = {"error": error, "after": first + int(10 ** numbers.uniform(0, 3.6)), "rank": numbers.randrange(ranks), "times": 1}
    if error == "SHORT" or numbers.random() < 0.6:
        fault["calls"] = numbers.choice(MOVES if error == "SHORT" else CALLS)
        fault["after"] = first + int(10 ** numbers.uniform(0, 2.5))
    return fault


class Placements(OnNodes):
    def setUp(self):
        super().setUp()
        self.work = self.folder / "work"  # all files of a run but what it says, and what lies on nodes
        self.local = self.work / "local"
        self.has_nodes = may_pretend()
        self.rounds = self.starts_made = self.refused = 0

    def start_run(self, *options, ranks, hosts):
        """`hosts`: the number of ranks of each; empty: this machine alone."""
        if not hosts:
            return self.begin("run", self.command("work/run", *options, ranks=ranks))
        named = ",".join(f"{host}:{number}" for host, number in hosts.items())
        return self.begin("run", self.on(named, "work/run", *options))

    def draw_hosts(self, numbers):
        """Mostly none; and some nodes have lost their storage."""
        if not self.has_nodes or numbers.random() < 0.6:
            return {}
        for host in NAMES:
            if numbers.random() < 0.1:
                shutil.rmtree(self.nodes / host, ignore_errors=True)
        hosts = {host: numbers.choice([1, 2]) for host in numbers.sample(NAMES, numbers.choice([1, 2, 3]))}
        for host in hosts:
            (self.nodes / host).mkdir(parents=True, exist_ok=True)  # a fault is not for what starts the ranks
        return hosts

    def draw_placement(self, numbers, dtype, hosts, holds_out):
        """Options that mostly go together."""
        keys = drawn(numbers, PLACEMENT)
        paths = numbers.choice([0, 1, 1, 2, 3])
        if keys["train.schedule"] == "vertical" and keys["train.activations"] in ("keep", "0.4", "keep:0.5", "storage:0.5"):
            keys["train.activations"] = "recompute"
        if paths == 0:
            keys["train.activations"] = keys["train.activations"].replace("storage:0.5", "storage").replace("storage", "host")
            keys["parameters.home"] = keys["parameters.home"].replace("storage", "host")
        if keys["parameters.home"] != "device" and keys["parameters.sharding"] in ("zero1", "zero2"):
            keys["parameters.sharding"] = "auto"
        if "auto" in (keys["parameters.home"], keys["update.device-resident"]):
            keys["plan.choose"] = "on"
        if dtype != "bf16" or keys["parameters.home"] not in ("host", "node"):
            keys["tiers.split-parameters"] = numbers.choice(["auto", "off"])
        if not holds_out and (keys["train.valid-every"] or keys["checkpoint.keep-best"] == "on"):
            keys["data.valid"] = self.valid
        if numbers.random() < 0.3:
            keys |= {"checkpoint.local": self.local, "checkpoint.local-every": numbers.choice([1, 2])}
            if len(hosts) > 1:
                keys["checkpoint.partner"] = numbers.choice(["copy", "off"])
        emulated = numbers.choice(DEVICES) if DEVICE == "host" else ""
        options = options_of(keys) + ([f"device.emulate={emulated}"] if emulated else [])
        for path in range(paths):
            directory = self.local if path == 1 else self.work / f"path{path}"
            directory.mkdir(exist_ok=True)
            attributes = numbers.choice(PATHS)
            if hosts and path == 1 and attributes == ",persistent":
                attributes = ""  # a node's own storage is no place for what checkpoints take over
            options.append(f"--tiers.path={directory}{attributes}")
        return options

    def end(self, numbers, process):
        """After a moment, by a signal that asks or one that does not, to one rank or all. Returns its name; empty if the
        run ended before."""
        deadline = time.monotonic() + numbers.uniform(0.05, 2.5)
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if process.poll() is not None:
            return ""
        how = numbers.choice([signal.SIGTERM, signal.SIGKILL, signal.SIGKILL])
        ranks = self.ranks_of("work/run")
        for pid in ranks if how == signal.SIGTERM or numbers.random() < 0.5 else ranks[:1]:
            with contextlib.suppress(ProcessLookupError):  # it has ended just now
                os.kill(pid, how)
        return how.name

    def start_once(self, numbers, same, dtype, disturbed):
        """Returns what was done to it, the codes with which it may end, its result, and what `offstage plan` says of it."""
        hosts = self.draw_hosts(numbers)
        ranks = sum(hosts.values()) or numbers.choice([1, 1, 2, 3, 4])
        options = self.draw_placement(numbers, dtype, hosts, "data.valid=10%" in same)
        each = max(hosts.values(), default=ranks)
        plan = self.call(OFFSTAGE, "plan", "--ranks", ranks, "--ranks-per-node", each, *self.command("work/run", *same, *options)[2:])
        # SIGPIPE: mpirun's own, where a rank is killed while it gets its input.
        killed = (0, 128 + signal.SIGKILL, -signal.SIGKILL, -signal.SIGPIPE)
        # Programs that start ranks on nodes are taken for rank 0 and make few calls.
        fault = draw_fault(numbers, ranks, 20 if hosts else 0) if disturbed and numbers.random() < 0.4 else None
        with self.faulty(self.work, **fault) if fault else contextlib.nullcontext():
            process = self.start_run(*same, *options, ranks=ranks, hosts=hosts)
        told = f"{hosts or ranks} ranks {' '.join(options)}"
        if fault:
            codes = {"SHORT": (0,), "KILL": killed}.get(fault["error"], (0, 74))
            return f"{told}: {fault}", codes, self.finish("run", process), plan
        how = self.end(numbers, process) if disturbed else ""
        # A signal to end may come before the run hears it.
        codes = {"": (0,), "SIGKILL": killed, "SIGTERM": (0, 75, 128 + signal.SIGTERM, -signal.SIGTERM)}[how]
        return f"{told}: {how}", codes, self.finish("run", process), plan

    def play_round(self, seed):
        numbers = random.Random(seed)
        keys = draw_numbers(numbers)
        same = options_of(keys)
        story = [f"seed {seed}", " ".join(same)]
        self.train("plain", *same, "checkpoint.every=0")
        for start in range(STARTS):
            told, codes, result, plan = self.start_once(numbers, same, keys["numerics.dtype"], start < DISTURBED)
            story.append(f"{told}, {result.code}")
            said = "\n".join([*story, str(result)])
            self.starts_made += 1
            # A plan does not know how much memory a GPU has, in which a run may choose to keep state, or lets inputs stay.
            knows_less = DEVICE == "cuda" and "device.memory=0 " in told and ("plan.choose=on" in told or "schedule=horizontal" not in told)
            if result.code == 64:  # what does not go together, or does not suffice, changes nothing
                self.assertEqual(1, len(result.errors), said)
                if not knows_less:
                    self.assertEqual(result.errors, plan.errors, said)
                self.refused += 1
                continue
            if "\nmodel: " in result.out and not knows_less:  # the header comes after all checks
                self.assertEqual(0, plan.code, f"{said}\n{plan}")
            self.assertIn(result.code, codes, said)
            self.assertTrue(result.code != 74 or result.errors, said)
            self.assert_no_process_left()
            if result.code == 0:
                break
        self.assertEqual(0, result.code, said)
        of_steps = [[(r["step"], r["loss"], r["grad_norm"]) for r in self.steps(name)] for name in ("plain", "work/run")]
        self.assertEqual(*of_steps, said)
        difference = self.call(OFFSTAGE, "checkpoint", "diff", self.folder / "plain/checkpoints", self.work / "run/checkpoints")
        self.assertEqual(0, difference.code, f"{said}\n{difference}")

    def test_rounds(self):
        begin = time.monotonic()
        while self.rounds == 0 or time.monotonic() < begin + SECONDS:
            for folder in (self.folder / "plain", self.work, self.nodes):
                shutil.rmtree(folder, ignore_errors=True)
            self.local.mkdir(parents=True)
            self.play_round(SEED + self.rounds)
            self.rounds += 1
        print(f"{self.rounds} rounds from seed {SEED} on {DEVICE}, {self.starts_made} starts, {self.refused} of them refused")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
