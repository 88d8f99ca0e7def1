#!/usr/bin/env python3
"""`offstage probe` measures this machine and writes a config; `offstage plan` predicts by it what a run takes."""
import configparser
import contextlib
import json
import os
import re
import subprocess
import unittest
from pathlib import Path

from harness import OFFSTAGE, OffstageTest, main

POLICIES = Path(__file__).resolve().parents[2] / "configs/policies"
USAGE, IO = 64, 74
MODEL = ["--model.family=llama", "--model.layers=2", "--model.hidden=32", "--model.heads=4", "--model.vocab=256"]
RATE = re.compile(r"^[0-9.]+(k|M|G|T)(B/s)?$")


class PlatformTest(OffstageTest):
    def probe(self, *arguments, ranks=1, expect=0):
        return self.offstage("probe", "--quick", "--run.threads=1", *arguments, ranks=ranks, expect=expect)

    def config(self, name):
        parser = configparser.ConfigParser(strict=False)
        parser.read(self.folder / name)
        return parser

    def refuse(self, result, *words):
        self.assertEqual(1, len(result.errors), result)
        for word in words:
            self.assertIn(str(word), result.errors[0])


class Activations(PlatformTest):
    def plan(self, model, memory, batch, expect=0):
        """On Fuyou's machine, with its policy and the whole of its host memory."""
        configs = Path(__file__).resolve().parents[2] / "configs"
        return self.offstage("plan", f"--config={configs}/models/fuyou-{model}.cfg", f"--config={configs}/policies/fuyou.cfg",
                             f"--train.micro-batch={batch}", "--train.sequence=1024", "--numerics.dtype=bf16",
                             f"--device.memory={memory}GiB", "--tiers.host-memory=768GB", "--tiers.path=/nvme", expect=expect)

    def test_the_models_and_batches_of_fuyou_fit_where_its_paper_trains_them(self):
        # Figure 4 at batch 1, Figures 5 and 6 at the largest batches; beside each what is too much.
        for model, memory, batch in (("276b", 24, 1), ("13b", 24, 64), ("175b", 24, 16), ("805b", 79, 1), ("412b", 79, 64)):
            with self.subTest(model, memory=memory, batch=batch):
                result = self.plan(model, memory, batch)
                unit = re.search(r"^ *together +([0-9.]+) GiB", result.out, re.MULTILINE)
                self.assertLessEqual(float(unit.group(1)), memory)
                self.assertRegex(result.out, r"(?m)^activations +(recompute|keep:[0-9.]+|storage:0)$")
        for model, memory, batch in (("805b", 24, 1), ("13b", 24, 112), ("175b", 24, 28), ("412b", 79, 96)):
            with self.subTest(model, memory=memory, batch=batch):
                self.refuse(self.plan(model, memory, batch, expect=USAGE), f"device.memory={memory}.0 GiB is too small", "train.sequence")

    def test_without_rates_it_says_that_nothing_is_compared(self):
        result = self.offstage("plan", *MODEL, "--device.kind=host", "--plan.choose=on")
        self.assertRegex(result.out, r"(?m)^plan.choose=on: what moves least of all that fits; without platform.cpu-update,.* no configuration")

    def test_what_is_chosen_says_by_which_rates(self):
        options = [*MODEL[:1], "--model.layers=8", *MODEL[2:], "--train.sequence=64", "--train.micro-batch=8", "--update.device-share=0",
                   "--update.device-gradients=0", "--device.memory=3MiB"]
        result = self.offstage("plan", *options, "--device.emulate=h2d=1GB/s,d2h=1GB/s,compute=1G")
        self.assertRegex(result.out, r"keep would take .* of 3.00 MiB; .*products 1.00 GFLOP/s \(given\), link 1.00 GB/s to the device")
        result = self.offstage("plan", *options, "--device.kind=host")
        self.assertNotIn("keep would take", result.out, "nothing is measured")


class Probe(PlatformTest):
    def test_a_reader_of_the_table_that_is_gone_keeps_no_file_from_being_written(self):
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "wb") as out:
            command = [OFFSTAGE, "probe", "--quick", "--run.threads=1", "--output", self.folder / "node.cfg"]
            self.assertEqual(0, subprocess.run(command, stdout=out, timeout=self.patience, check=False).returncode)
        self.assertEqual(["node.cfg"], [path.name for path in self.folder.glob("node.cfg*")])
        self.assertIn("platform", self.config("node.cfg"))

    def test_what_is_written_is_what_plan_and_train_read(self):
        (self.folder / "disk").mkdir()
        result = self.probe("--output", "node.cfg", "--dir", "disk,queue-depth=2", "--device.kind=host",
                            "--device.emulate=h2d=2GB/s,d2h=2GB/s")
        self.assertIn("wrote node.cfg", result.out)
        for row in ("host to device, pinned", "device to host, both ways at once", "AdamW on the device",
                    "host memory", "matrix product", "forward of a block", "backward of a block", "gradients added", "disk"):
            self.assertIn(row, result.out)
        platform = self.config("node.cfg")["platform"]
        self.assertRegex(platform["measured"], r"^\d{4}-\d\d-\d\d on \S+$")
        keys = {"cpu-update", "device-update", "host-to-device", "device-to-host", "host-to-device-both",
                "device-to-host-both", "host-memory", "products", "block-forward", "block-backward", "host-sum"}
        self.assertEqual(keys, set(platform) - {"measured"})
        for key in keys:
            self.assertRegex(platform[key], RATE)
        text = (self.folder / "node.cfg").read_text()
        self.assertTrue(text.startswith("# Measured by offstage probe "), text)
        self.assertRegex(text, rf"path = {self.folder}/disk,queue-depth=2,read=[0-9.]+.B/s,write=[0-9.]+.B/s\n")
        self.assertEqual([self.folder / "disk", self.folder / "node.cfg"],
                         sorted(set(self.folder.iterdir()) - {self.text, self.valid}), "nothing else is left")
        self.assertEqual([], list((self.folder / "disk").iterdir()))
        plan = self.offstage("plan", "--config", "node.cfg", *MODEL, "--ranks", "4", "--ranks-per-node=2",
                             "--train.global-batch=4")
        self.assertEqual([], plan.warnings, plan)
        self.assertIn("4 on 2 nodes", plan.out)
        self.assertIn(f"rates measured {platform['measured']}", plan.out)
        for row in ("zero3", "twinflow", "dos", "mlp", "fuyou", "device share", "equation 1 of DOS"):
            self.assertIn(row, plan.out)
        self.train("run", "--config=node.cfg", "train.steps=1", "optimizer.warmup-steps=0")

    def test_without_a_file_the_config_is_printed(self):
        result = self.probe("--device.kind=host")
        self.assertIn("\n[platform]\nmeasured = ", result.out)
        self.assertIn("\n[device]\nkind = host\n", result.out)
        self.assertIn("host to device, pinned", result.err)
        self.write("node.cfg", result.out)
        plan = self.offstage("plan", "--config", "node.cfg", *MODEL)
        self.assertIn("rates measured ", plan.out)

    def test_mistakes_end_before_anything_is_measured(self):
        self.refuse(self.probe("--dri", "x", expect=USAGE), "unknown option --dri", "the nearest is --dir")
        self.refuse(self.probe("--dir", "gone", expect=IO), "gone", "No such file")
        self.refuse(self.probe("--dir", "a,red=1GB/s", expect=USAGE), "the nearest is read")
        self.refuse(self.probe("--output", "gone/node.cfg", expect=IO), "gone/node.cfg")
        (self.folder / "made").mkdir()
        self.refuse(self.probe("--output", "made", expect=USAGE), "--output=made: it is a directory")
        (self.folder / "made").rmdir()
        self.refuse(self.probe("--dir", "a\nb", expect=USAGE), "--dir=a\\x0ab", "control characters")
        target = self.write("target", "another's")
        (self.folder / "node.cfg").symlink_to(target)
        self.refuse(self.probe("--output", "node.cfg", expect=IO), "node.cfg: it is a symbolic link")
        self.assertEqual("another's", target.read_text())
        (self.folder / "node.cfg").unlink()
        target.unlink()
        self.refuse(self.probe("--device.kind=gpu", expect=USAGE), "--device.kind=gpu", "auto, cuda, host")
        self.refuse(self.probe("--device.kind=cuda", "--device.emulate=update=1G", expect=USAGE), "device.emulate")
        self.refuse(self.probe("--dir", "gone", ranks=2, expect=IO), "gone")
        self.assertEqual({self.text, self.valid}, set(self.folder.iterdir()))


@contextlib.contextmanager
def hidden_gpus():
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        yield
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


class Plan(PlatformTest):
    def plan(self, *arguments, expect=0):
        return self.offstage("plan", *MODEL, *arguments, expect=expect)

    def test_rates_that_are_not_known_are_named(self):
        result = self.plan("--platform.cpu-update=1G", "--tiers.path=/nvme")
        self.assertEqual(1, len(result.warnings), result)
        for word in ("platform.device-update", "platform.host-to-device", "tiers.path=/nvme", "offstage probe"):
            self.assertIn(word, result.warnings[0])
        self.assertNotIn("platform.cpu-update", result.warnings[0])
        self.assertIn("rates are missing", result.out)

    def test_ranks_without_a_micro_batch_are_told(self):
        idle = "a step has 1 micro-batch for 4 ranks: 3 of them run no forward or backward; raise train.global-batch to 4"
        result = self.plan("--ranks=4")
        self.assertEqual(1, len([line for line in result.warnings if idle in line]), result)
        self.assertRegex(result.out, r"(?m)^a step +1 sequence, 1024 tokens, 1 micro-batch, 0 to 1 on a rank$")
        result = self.plan("--ranks=4", "--train.global-batch=4")
        self.assertNotIn("no forward or backward", result.err)
        self.assertRegex(result.out, r"(?m)^a step +4 sequences, 4096 tokens, 4 micro-batches, 1 on each rank$")

    def test_every_platform_of_the_papers_is_taken(self):
        platforms = sorted((POLICIES.parent / "platforms").iterdir())
        self.assertEqual(["fuyou-4090", "fuyou-a100", "jlse-h100", "polaris", "v100"], [path.stem for path in platforms])
        for path in platforms:
            with self.subTest(path.stem):
                ranks = "1" if path.stem.startswith("fuyou") else "4"
                result = self.plan(f"--config={path}", "--ranks", ranks)
                self.assertIn("rates measured by ", result.out)
                missing = " ".join(result.warnings)
                text = path.read_text()
                for key in "cpu-update", "device-update":
                    self.assertEqual(f"\n{key} = " not in text, f"platform.{key}" in missing, (key, missing))
                self.assertEqual(path.stem.startswith("fuyou"), "tiers.path=/ssds" in missing, missing)

    def test_products_whose_rate_is_not_known_are_left_out_and_said(self):
        rates = ["--platform.cpu-update=2M", "--platform.device-update=25M", "--platform.host-to-device=55MB/s",
                 "--platform.device-to-host=55MB/s"]
        result = self.plan(*rates)
        self.assertIn("platform.products", result.warnings[0])
        self.assertRegex(result.out, r"this configuration +\d\.\d+ +0\.000 +\? +\? +\d\.\d+ +\? +\? +\?")
        self.assertNotIn("a step takes", result.out)
        result = self.plan(*rates, "--platform.products=10M")
        self.assertEqual([], result.warnings)
        self.assertRegex(result.out, r"a step takes +[\d.]+ s, \d+ tokens/s; busy: the device \d+ %")

    def test_what_passes_between_ranks_at_no_known_rate_is_said_to_take_no_time(self):
        machine = ["--platform.cpu-update=2M", "--platform.device-update=25M", "--platform.host-to-device=55MB/s", "--ranks=4",
                   "--platform.device-to-host=55MB/s", "--platform.products=1G", "--train.global-batch=4", "--tiers.host-memory=1GiB"]
        words = r"(?m)^ +as if they took no time: (.*); give (.*)$"
        said = re.search(words, self.plan(*machine).out)
        self.assertEqual("the link between ranks", said[1].split(", ")[-1])
        self.assertEqual("platform.rank-link", said[2].split(", ")[-1])
        self.assertIn("platform.rank-link", json.loads(self.plan("--json", *machine).out)["step"]["not_timed"])
        machine += ["--platform.rank-link=1MB/s", "--platform.host-sum=1GB/s"]
        self.assertNotRegex(self.plan(*machine).out, words)
        self.assertEqual([], json.loads(self.plan("--json", *machine).out)["step"]["not_timed"])

    def test_clipped_steps_pay_for_updates_under_backward(self):
        machine = ["--platform.cpu-update=200k", "--platform.host-to-device=55MB/s", "--platform.device-to-host=55MB/s",
                   "--platform.products=500M", "--update.device-share=0", "--update.overlap=on"]
        seconds = [float(re.search(r"a step takes +([\d.]+) s", self.plan(*machine, f"--plan.clip-rate={rate}").out).group(1))
                   for rate in (0, 0.5, 1)]
        self.assertLess(seconds[0], seconds[1])
        self.assertLess(seconds[1], seconds[2])
        self.assertAlmostEqual(sum(seconds[::2]) / 2, seconds[1], delta=0.01 * seconds[1])
        self.refuse(self.plan("--plan.clip-rate=2", expect=USAGE), "plan.clip-rate=2")

    def test_a_gpu_can_be_planned_for_where_there_is_none(self):
        self.assertRegex(self.plan("--device.kind=cuda").out, r"16-bit parameters +[\d.]+ KiB")
        with hidden_gpus():
            self.refuse(self.train("run", "device.kind=cuda", expect=USAGE), "device.kind=cuda")

    # The sizes that their authors ran: MLP-Offload's 280 B on nodes with four GPUs of 40 GB and 512 GB, as ours within 480.
    def test_the_largest_model_of_mlp_offload_fits_its_gpus(self):
        model = Path(__file__).resolve().parents[2] / "configs/models/mlp-280b.cfg"
        for ranks, home in (4, "storage"), (32, "storage"), (32, "host"):
            with self.subTest(ranks=ranks, home=home):
                result = self.offstage("plan", "--config", model, f"--ranks={ranks}", "--ranks-per-node=4", f"--train.global-batch={ranks}",
                                       "--train.micro-batch=1", "--device.kind=cuda", "--device.memory=40GB", "--tiers.path=/nvme",
                                       "--tiers.host-memory=480GiB", f"--parameters.home={home}")
                has_nccl = "NCCL (loaded" in self.offstage("--version").out
                self.assertRegex(result.out, r"layers between ranks +" + ("NCCL, from GPU to GPU" if has_nccl else "MPI, .*built without NCCL"))

    # Two slots of parameters and two gradients, each of a block's MLP: 3 * 16384 * 57344 weights, and a norm.
    def test_what_waits_for_a_layer_is_as_large_as_a_blocks_mlp_not_the_block(self):
        model = Path(__file__).resolve().parents[2] / "configs/models/mlp-280b.cfg"
        least = self.offstage("plan", "--config", model, "--device.kind=cuda", "--device.memory=1GiB", "--tiers.path=/nvme",
                              "--tiers.host-memory=900GiB", "--parameters.home=storage", "--train.activations=recompute", expect=USAGE)
        mlp = 2 * (3 * 16384 * 57344 + 16384) / 2**30
        self.assertRegex(least.out, rf"16-bit parameters +{2 * mlp:.1f} GiB")
        self.assertRegex(least.err, r"more; raise it, lower train.sequence, set train.activations=auto\n$")  # nothing that is so already
        needed = float(re.search(r"is too small: ([\d.]+) GiB are needed", least.err).group(1))
        self.assertLess(needed, 4 * (mlp + 2 * 4 * 16384**2 / 2**30), "two slots and two gradients of whole blocks")

    def test_the_largest_vocabulary_fits_a_small_device(self):
        model = Path(__file__).resolve().parents[2] / "configs/models/llama3.2-1b.cfg"
        self.offstage("plan", "--config", model, "--train.micro-batch=8", "--train.global-batch=8", "--train.sequence=1024",
                      "--device.kind=host", "--device.memory=3GiB", "--tiers.path=/nvme", "--tiers.host-memory=3GiB",
                      "--parameters.home=storage", "--train.activations=storage")

    def test_parameters_on_storage_are_not_called_state(self):
        for home, waits in ("device", "state"), ("storage", "state and parameters"):
            out = self.plan("--tiers.path=/nvme,read=1GB/s,write=1GB/s", "--tiers.cache=0", f"--parameters.home={home}").out
            self.assertRegex(out, rf"/nvme +100.0 % of what waits there, [\d.]+ \w+ of {waits};")

    def test_one_path_has_all_and_several_without_rates_have_unknown_parts(self):
        state = 12 * 17 * 4096
        options = ["--tiers.cache=0", "--tiers.split-parameters=off", "--tiers.path=/a"]
        self.assertRegex(self.plan(*options).out, r"(?m)^  /a +100.0 % of what waits there, 816 KiB of state; read \?, write \?$")
        paths = json.loads(self.plan("--json", *options).out)["paths_per_node"]
        self.assertEqual([state], [path["bytes"] for path in paths])
        options.append("--tiers.path=/b")
        self.assertRegex(self.plan(*options).out, r"(?m)^  /b +its part of state depends on rates that are missing; read \?, write \?$")
        paths = json.loads(self.plan("--json", *options).out)["paths_per_node"]
        self.assertEqual([None, None], [path["bytes"] for path in paths])
        paths = json.loads(self.plan("--json", *options, "--tiers.split=3:1").out)["paths_per_node"]
        self.assertEqual([state * 3 // 4, state // 4], [path["bytes"] for path in paths])

    def test_weights_of_paths_do_nothing_without_paths(self):
        def planned(*options):
            return re.sub(r"  chosen in .* s\n", "", self.plan("--tiers.host-memory=1GiB", *options).out)
        for options in [], ["--plan.choose=on"], ["--parameters.home=host"]:
            self.assertEqual(planned(*options), planned("--tiers.split=2:1", *options))
        # With a path that is not there they are not that path's.
        self.assertIn("a tiers.path: it fits", self.plan("--tiers.host-memory=1000KiB", "--tiers.split=2:1", expect=USAGE).out)

    def test_what_does_not_fit_is_an_error(self):
        self.refuse(self.plan("--tiers.host-memory=64KiB", expect=USAGE), "tiers.host-memory=64.0 KiB is too small")
        self.refuse(self.plan("--device.memory=1MiB", expect=USAGE), "device.memory=1.00 MiB is too small")

    def test_what_plan_refuses_train_refuses_in_the_same_words(self):
        link = "device.emulate=h2d=1GB/s,d2h=1GB/s"
        for ranks, options, remedy in ((1, ["device.memory=64KiB"], "set parameters.home=host"),
                                       (1, ["device.memory=64KiB", link, "train.activations=keep"], "set train.activations=auto"),
                                       (2, ["device.memory=64KiB", "parameters.sharding=zero2"], "set parameters.sharding=zero3"),
                                       (1, ["device.memory=64KiB", link, "plan.choose=on"], "use more ranks"),  # train measures first
                                       (1, ["tiers.host-memory=64KiB", f"--tiers.path={self.folder}"], "raise it")):
            with self.subTest(options=options):
                keys = self.command("run", *options)[2:]
                plan = self.offstage("plan", f"--ranks={ranks}", *keys, expect=USAGE)
                self.refuse(plan, remedy)
                self.assertEqual(plan.errors, self.train("run", *options, ranks=ranks, expect=USAGE).errors)
                self.assertNotIn("parameters.home=host" if "zero2" in options[-1] else "zero3", plan.errors[0])

    def test_a_policy_says_the_same_as_its_own_row(self):
        machine = ["--platform.cpu-update=2M", "--platform.device-update=25M", "--platform.host-to-device=55MB/s",
                   "--platform.device-to-host=55MB/s", "--tiers.path=/a,read=6MB/s,write=5MB/s",
                   "--tiers.path=/b,read=3MB/s,write=3MB/s", "--platform.products=1G", "--tiers.cache=0", "--tiers.host-memory=1GiB"]
        found = set()
        for name in ("dos", "fuyou", "mlp", "offstage", "twinflow", "zero3"):
            out = self.plan(*machine, f"--config={POLICIES}/{name}.cfg").out
            rows = dict(re.findall(r"^  (\S+(?: \S+)*?)  +(\d.*)$", out, re.MULTILINE))
            self.assertEqual(rows["this configuration"].split(), rows[name].split(), out)
            found.add(rows[name])
        self.assertEqual(6, len(found), "each its own")

    def test_a_policys_file_wins_over_files_and_the_command_line(self):
        rates = ["--platform.cpu-update=2G", "--platform.device-update=25G", "--platform.host-to-device=55GB/s",
                 "--platform.device-to-host=55GB/s"]
        config = self.write("mine.cfg", "[update]\ndevice-resident = 0.5\n")
        out = self.plan(*rates, f"--config={config}", "--update.device-share=0.7").out
        self.assertRegex(out, r"this configuration +0.700 +0.500")
        self.assertRegex(out, r"zero3 +0.000 +0.000")
        self.assertRegex(out, r"twinflow +0.000 +0.200")
        self.assertRegex(out, r"fuyou +parameters.home=storage.*no tiers.path.*\(parameters.home in fuyou.cfg:\d+\)")

    MACHINE = ["--platform.cpu-update=2M", "--platform.device-update=25M", "--platform.host-to-device=55MB/s",
               "--platform.device-to-host=55MB/s", "--platform.products=1G", "--tiers.host-memory=1GiB"]

    def step(self, out):
        return float(re.search(r"a step takes +([\d.]+) s", out).group(1))

    def test_the_three_questions_are_answered_in_plain_words(self):
        out = self.plan(*self.MACHINE, "--device.memory=1GiB", "--update.device-share=0", "--update.overlap=off").out
        self.assertRegex(out, r"does it fit +yes: .* of 1.00 GiB of each device, .* of 1.00 GiB of each node's host memory")
        gains = dict(re.findall(r"(?m)^(?:what would help)? +(\S.*): [\d.]+ s, ([\d.]+) times as fast", out))
        # What helps is what is busy, and halving it gains what a plan of that machine says.
        self.assertIn("twice the cores", gains)
        faster = ["--platform.cpu-update=4M" if key.startswith("--platform.cpu") else key for key in self.MACHINE]
        again = self.plan(*faster, "--device.memory=1GiB", "--update.device-share=0", "--update.overlap=off").out
        self.assertAlmostEqual(float(gains["twice the cores"]), self.step(out) / self.step(again), delta=0.02)
        self.assertNotIn("twice the host memory", gains)

    def test_the_answers_are_json_for_programs(self):
        machine = [*MODEL, "--ranks=2", "--device.emulate=h2d=1GB/s,d2h=1GB/s,update=1G,compute=10G", "--platform.cpu-update=100M",
                   "--tiers.host-memory=1GiB", "--device.memory=64MiB", f"--tiers.path={self.folder},read=1GB/s,write=1GB/s"]
        said = self.offstage("plan", *machine).out
        found = json.loads(self.offstage("plan", *machine, "--json").out)
        self.assertEqual((True, None, 2, 1, []), tuple(found[key] for key in ("fits", "problem", "ranks", "nodes", "not_known")))
        step = found["step"]
        self.assertIn(f"a step takes            {step['seconds']:.3g} s, ", said)
        self.assertIn(f"{step['busy'][0]['resource']} {100 * step['busy'][0]['part']:.0f} %", said)
        self.assertAlmostEqual(found["tokens_per_step"] / step["seconds"], step["tokens_per_second"])
        device = found["device_memory_per_rank"]
        self.assertEqual(device["planned"], sum(row["device"] for row in found["memory_per_rank"]))
        self.assertEqual(64 * 2**20, device["limit"])
        self.assertEqual([str(self.folder)], [path["path"] for path in found["paths_per_node"]])
        self.assertEqual(re.findall(r"(?m)^  (dos|fuyou|mlp|offstage|twinflow|zero3)(?:, other bits)? ", said), [row["policy"] for row in found["policies"]])
        for row in found["policies"]:
            self.assertTrue(row["same_bits"])  # one micro-batch, to which nothing is added
            if row["step_seconds"]:
                name = row["policy"] + ("" if row["same_bits"] else ", other bits")
                self.assertRegex(said, rf"(?m)^  {name} .* {row['step_seconds']:.3f} ")
        self.assertNotIn("run_seconds", found)
        found = json.loads(self.offstage("plan", *machine, "--json", "--train.steps=50").out)
        self.assertAlmostEqual(50 * found["step"]["seconds"], found["run_seconds"])
        small = self.offstage("plan", *machine, "--device.memory=64KiB", "--json", expect=USAGE)
        self.refuse(small, "device.memory=64.0 KiB is too small")
        found = json.loads(small.out)
        self.assertFalse(found["fits"])
        self.assertIn("too much", found["problem"])
        self.refuse(self.offstage("plan", *machine, "--json", "--max=model", expect=USAGE), "--max has no answer in JSON")

    def test_what_does_not_fit_is_told_what_would(self):
        result = self.plan(*self.MACHINE, "--tiers.host-memory=20MiB", "--model.hidden=512", expect=USAGE)
        self.assertRegex(result.out, r"does it fit +no: tiers.host-memory=20.0 MiB is too small")
        result = self.plan(*self.MACHINE, "--device.memory=3MiB", expect=USAGE)
        self.assertRegex(result.out, r"does it fit +no: [\d.]+ MiB of device.memory=3.00 MiB")
        self.assertRegex(result.out, r"what would help +twice the device memory: it fits")

    def test_a_rank_has_its_part_of_its_nodes_limit(self):
        out = self.plan(*self.MACHINE, "--ranks=4", "--ranks-per-node=2", "--train.global-batch=4").out
        self.assertRegex(out, r"(?m)^ *limit +none +512 MiB +by path$")

    def test_the_largest_that_fits_fits_and_one_more_does_not(self):
        # Where all three are odd: the last halving of the search decides.
        limits = [*self.MACHINE, "--device.memory=6MiB", "--train.micro-batch=1", "--train.sequence=32"]
        for what, key in (("model", "model.layers"), ("batch", "train.micro-batch"), ("sequence", "train.sequence")):
            with self.subTest(what):
                out = self.plan(*limits, f"--max={what}").out
                found = int(re.search(rf"the largest that fits +{key}=(\d+)", out).group(1))
                self.plan(*limits, f"--{key}={found}")
                self.plan(*limits, f"--{key}={found + 1}", expect=USAGE)
        out = self.plan(*limits, "--max=sequence", "--model.max-sequence=32").out
        self.assertRegex(out, r"the largest that fits +train.sequence=(\d+), with model.max-sequence=\1, which is 32")
        self.refuse(self.plan(*limits, "--max=speed", expect=USAGE), "--max=speed", "model")
        self.refuse(self.plan("--device.memory=1KiB", "--max=batch", expect=USAGE), "not even train.micro-batch=1 fits")

    def test_a_size_that_nothing_limits_is_no_largest_one(self):
        large = ["--model.layers=32", "--model.hidden=4096", "--model.heads=32", "--model.vocab=32000", "--tiers.host-memory=1TiB"]
        for what, key in (("batch", "train.micro-batch"), ("sequence", "train.sequence")):
            with self.subTest(what):
                result = self.plan(*large, f"--max={what}", expect=USAGE)
                self.refuse(result, f"--max: {key}=", "fits still, so nothing limits it; give device.memory")
        self.refuse(self.plan("--train.global-batch=1T", "--train.sequence=100M", expect=USAGE), "more tokens than can be counted")

    def test_keys_that_are_given_stay_in_offstages_row_and_none_beats_it(self):
        out = self.plan(*self.MACHINE, "--device.memory=64MiB", "--tiers.path=/a,read=20MB/s,write=20MB/s").out
        steps = dict(re.findall(r"(?m)^  (dos|fuyou|mlp|offstage|twinflow|zero3) .* (\d+) +\S[^\n]* %$", out))
        for name, tokens in steps.items():
            self.assertGreaterEqual(int(steps["offstage"]) * 1.02, int(tokens), name)
        out = self.plan(*self.MACHINE, "--update.device-share=0.375", f"--config={POLICIES}/offstage.cfg").out
        self.assertRegex(out, r"offstage +0.375")
        self.assertNotRegex(out, r"plan.choose=on: .*device-share")
        for key, value in ("parameters.home", "auto"), ("update.device-resident", "auto"):
            self.refuse(self.plan(f"--{key}={value}", expect=USAGE), f"{key}=auto", "plan.choose=on")

    def test_columns_of_long_steps_stay_apart(self):
        machine = [word for word in self.MACHINE if "products" not in word]
        out = self.plan(*machine, "--platform.products=1k").out
        self.assertRegex(out, r"(?m)^  this configuration +[01]\.\d{3} +[01]\.\d{3} +\d{5,} +\d{5,} +[\d.]+ +\d{5,} +\d+ +the device")

    def test_bits_of_what_would_help_are_those_of_its_row_where_nothing_fits_yet(self):
        large = ["--model.layers=8", "--model.hidden=4096", "--model.heads=32", "--model.vocab=32000", "--tiers.host-memory=200GiB"]
        rates = ["--platform.cpu-update=2G", "--platform.device-update=25G", "--platform.host-to-device=55GB/s",
                 "--platform.device-to-host=55GB/s", "--platform.products=400T"]
        out = self.plan(*large, *rates, "--device.memory=3GiB", expect=USAGE).out
        row = re.search(r"(?m)^  offstage(, other bits)? ", out)
        said = re.search(r"before all other keys, (same|other) bits", out)
        self.assertEqual("other" if row[1] else "same", said[1], out)

    def test_the_room_for_checkpoints_needs_no_rates_and_counts_all_that_stay(self):
        def room(*options):
            return re.search(r"(?m)^a checkpoint has +588 KiB; (.*)$", self.plan(*options).out)[1]
        mib = 588 / 1024
        self.assertEqual(f"checkpoint.keep=2 needs room for {3 * mib:.2f} MiB on checkpoint.dir", room())
        self.assertEqual(f"checkpoint.keep=2, checkpoint.keep-best=on needs room for {4 * mib:.2f} MiB on checkpoint.dir",
                         room("--checkpoint.keep-best=on", f"--data.valid={self.valid}"))
        every = "--checkpoint.keep-every=10"
        self.assertEqual(f"checkpoint.keep=2, checkpoint.keep-every=10 needs room for {13 * mib:.2f} MiB on checkpoint.dir",
                         room(every, "--train.steps=100"))
        self.assertEqual(f"checkpoint.keep=2 needs room for {3 * mib:.2f} MiB on checkpoint.dir, "
                         "and 588 KiB more for each 10 steps (checkpoint.keep-every)", room(every))

    def test_options_are_checked(self):
        self.refuse(self.plan("--rank=4", expect=USAGE), "unknown key rank", "ranks")
        self.refuse(self.plan("--ranks=0", expect=USAGE), "--ranks")
        self.refuse(self.plan("--ranks=x", expect=USAGE), "--ranks", "'x'")
        self.refuse(self.offstage("plan", expect=USAGE), "model.family")
        self.assertIn("Usage: offstage plan", self.offstage("plan", "--help").out)


if __name__ == "__main__":
    main()
