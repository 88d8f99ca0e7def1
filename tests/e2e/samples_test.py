#!/usr/bin/env python3
"""Samples of output in the pages are what the program prints: they are compared with runs here, numbers and names aside.

A sample is a fenced block without a language. Each is named below: with a run whose output has its lines in order, or, where it takes a
cluster or a quarter of an hour, as one whose words must stand in the sources.
"""
import re
from pathlib import Path

from harness import TINY, OffstageTest, main

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "configs/README.md", "jobs/README.md", "slurm/README.md", "src/checkpoint/README.md")

# Where a sample's run is too much for a test; tests of labels slurm and nodes look at such output itself.
FROM_ELSEWHERE = {
    "step    290/300": "jobs/quickstart.sh",
    "2026-11-23T07:43:04Z step     10/12": "a terminal",
    "advice: the step is bound by /nvme": "a slow path; tests/e2e/report_test.py has one",
    "plan.choose=on: parameters.home=host": "a machine with a device behind a link",
    "offstage: error: rank 0 on vm: no progress": "a run that hangs; tests/e2e/watchdog_test.py has one",
    "offstage: warning: node2 is slow": "three nodes",
    "2026-11-29T05:08:00 submission 1": "Slurm",
    "2026-11-29 05:07:59 offstage-job": "Slurm",
    "Slurm job 1 (my-train)": "Slurm",
    "2026-11-23 04:35:10 offstage-job": "Slurm, nodes of their own",
    "step      3  saved /local/me": "three nodes",
    '{"start":0': "Slurm",
}
NOT_OUTPUT = ("[tiers]", "jq -s add")


def samples():
    """Page and lines of every block of output."""
    for page in PAGES:
        block = None
        for line in (ROOT / page).read_text().splitlines():
            if block is None and line.startswith("```"):
                block, output = [], line == "```"
            elif block is not None and line == "```":
                if output and not block[0].startswith(NOT_OUTPUT):
                    yield page, block
                block = None
            elif block is not None:
                block.append(line)


def has_line(lines, begins):
    return any(line.startswith(begins) for line in lines)


def masked(line):
    """A line without what varies: its time, numbers with their units but for what is a rate, how far apart columns stand, `least` of one rank."""
    line = re.sub(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", "", line)
    line = re.sub(r", least [\d.]+ \S+", "", line)
    line = re.sub(r" x (\d+)$", r" +\1 %", line)  # a prediction that a busy machine misses by far
    line = re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?( (GiB|MiB|KiB|B|[GMk]?(B?/s)|ms|s|min|G|M|T|k)\b| %)?",
                  lambda match: "#" + (match[4] or ""), line)
    return re.sub(r"\s+", " ", line).strip()


def words_of_sources():
    """All text in quotes of the program's sources, pieces of one literal joined, and the scripts; in words."""
    text = ""
    for path in [*(ROOT / "src").rglob("*.cpp"), *(ROOT / "src").rglob("*.hpp")]:
        source = re.sub(r'"\s*\n\s*"', "", path.read_text())
        text += "\n".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', source)) + "\n"
    for folder in "jobs", "slurm":
        text += "".join(path.read_text() for path in (ROOT / folder).iterdir() if path.suffix in {".sh", ".sbatch"})
    return set(re.findall(r"[A-Za-z][a-z]+", text))


class Samples(OffstageTest):
    def find(self, begins):
        """The sample of which a line begins so."""
        found = [lines for _, lines in samples() if has_line(lines, begins)]
        self.assertEqual(1, len(found), f"samples with a line '{begins}'")
        return found[0]

    def assert_has_lines(self, sample, output):
        """Each line of the sample comes in the output, in order; `...` stands for any, and a line that ends so goes on."""
        rest = [masked(line) for line in output.splitlines()]
        for line in sample:
            if line.strip() == "...":
                continue
            wanted = masked(line.removesuffix("..."))
            matches = [i for i, there in enumerate(rest) if there == wanted or (line.endswith("...") and there.startswith(wanted))]
            self.assertTrue(matches, f"no line like\n{line}\nmasked: {wanted}\nin\n" + "\n".join(rest))
            rest = rest[matches[0] + 1:]

    def test_every_sample_is_compared_with_something(self):
        here = Path(__file__).read_text()
        for page, lines in samples():
            named = [begins for begins in FROM_ELSEWHERE if lines[0].startswith(begins)]
            compared = [begins for begins in re.findall(r'self\.find\("([^"]+)"\)', here) if has_line(lines, begins)]
            self.assertEqual(1, len(named + compared), f"{page}: {lines[0]}")

    def test_words_of_samples_from_elsewhere_stand_in_the_sources(self):
        known = words_of_sources()
        for _, lines in samples():
            if not lines[0].startswith(tuple(FROM_ELSEWHERE)):
                continue
            for line in lines:
                if line.startswith(("srun:", "slurmstepd")):  # Slurm's own
                    continue
                text = re.sub(r"\S*/\S*|\S+=\S+", " ", line)  # paths, keys with values
                unknown = [word for word in re.findall(r"(?<![\w-])[A-Za-z][a-z]+(?![\w(-])", text) if word not in known]
                self.assertEqual([], [word for word in unknown if word not in {"vm", "node", "train"}], line)

    def test_plan_of_deep_optimizer_states(self):
        sample = self.find("model                   20.1 B")
        result = self.offstage("plan", "--config", ROOT / "configs/models/dos-20b.cfg", "--ranks", 4, "--train.global-batch=4",
                               "--tiers.host-memory=466GiB", "--platform.products=400T", "--platform.cpu-update=2G", "--platform.device-update=25G",
                               "--platform.host-to-device=55GB/s", "--platform.device-to-host=55GB/s")
        libraries = self.offstage("--version").out
        if "NCCL" in libraries and "CUDNN" in libraries:  # both take device memory, and so part in the plan
            self.assertEqual(sample, result.out.splitlines(), "the page shows what offstage plan prints, figures included")
        else:
            self.assert_has_lines([line for line in sample if not line.startswith(("attention", "layers", "  NCCL"))], result.out)

    def test_probe_of_two_ranks(self):
        sample = [line.replace("/local/scratch/me", str(self.folder)) for line in self.find("per rank, median")]
        result = self.offstage("probe", "--quick", "--device.kind=host", "--run.threads=1", "--dir", self.folder,
                               "--output", self.folder / "node.cfg", ranks=2)
        written = [line.replace("wrote node.cfg", f"wrote {self.folder}/node.cfg") for line in sample if "warning" not in line]
        self.assert_has_lines(written, result.out)
        # What one rank has no figure for: tests/e2e/plan_test.py has the others.
        self.assertRegex(result.out, r"layers from the other ranks +- +[0-9.]+ .B/s")
        config = (self.folder / "node.cfg").read_text()
        self.assertRegex(config, r"(?m)^rank-link = [0-9.]+[kMG]?B/s$")
        self.assertIn(": 2 ranks on 1 node", config)

    def test_data(self):
        (self.folder / "web").mkdir()
        for i in range(3):
            self.write(f"web/{i}.jsonl", '{"text": "hello, sea"}\n' * 20)
        sample = self.find("$ offstage data pack")
        result = self.offstage("data", "pack", "--from", f"{self.folder}/web/*.jsonl*", "--to", self.folder / "web",
                               f"--tokenizer={ROOT}/tests/data/sea.model", "--format=megatron")
        self.assert_has_lines([line.replace("web.bin", f"{self.folder}/web.bin") for line in sample[1:]], result.out)
        sample = self.find("books.bin")
        result = self.offstage("data", "inspect", self.folder / "web", "--sequence=256")
        packed_by = {"books.bin": f"{self.folder}/web.bin", "tokenizer        bytes, 256 tokens": f"tokenizer        {ROOT}/tests/data/sea.model, 420 tokens"}
        for said, here in packed_by.items():
            sample = [line.replace(said, here) for line in sample]
        self.assert_has_lines(sample, result.out)

    def test_header_and_what_changed(self):
        common = [f"data.valid={self.valid}", "train.steps=6", "optimizer.schedule=cosine", "optimizer.lr=1e-2"]
        first = self.train("run", *common, ranks=2)
        host = re.search(r"rank 0 +(\S+) +GPU", first.out).group(1)
        sample = self.find("layers between ranks: MPI")
        self.assert_has_lines([re.sub(r"\bvm\b", host, line) for line in sample], first.out)
        sample = self.find("data.train train.txt")
        self.assert_has_lines([line.replace("train.txt", str(self.text)).replace("valid.txt", str(self.valid)) for line in sample], first.out)
        second = self.train("run", *common, "train.steps=12", "optimizer.lr=1e-3", ranks=2)
        sample = [line.replace("run/checkpoints", f"{self.folder}/run/checkpoints") for line in self.find("checkpoint run/checkpoints")]
        self.assert_has_lines([line for line in sample if "warning" not in line], second.out)
        self.assert_has_lines([line for line in sample if "warning" in line], second.err)

    def test_storage(self):
        sample = self.find("storage of the steps")
        for name in "nvme", "pfs":
            (self.folder / name).mkdir()
        result = self.train("run", f"--config={ROOT}/configs/models/bytes-3m.cfg", *[f"{key}=" for key in TINY if key.startswith("model.")],
                            "--tiers.path=nvme", "--tiers.path=pfs,read=800MB/s,write=800MB/s", "tiers.cache=12MiB", "tiers.exclusive=true",
                            "tiers.host-memory=1GiB", "run.header=full", "train.global-batch=4", "train.steps=3", "update.subgroup-size=250k",
                            "update.overlap=on", ranks=2)
        self.assert_has_lines(sample, result.out)

    def test_saves_under_steps(self):
        sample = self.find("step      2  saved run/checkpoints")
        # Steps long enough to hide a part of the saves, or there is no line on it.
        result = self.train("run", "checkpoint.every=2", "train.global-batch=128")
        self.assert_has_lines([line.replace("run/checkpoints", f"{self.folder}/run/checkpoints") for line in sample
                               if "..." not in line], result.out)

    def test_predicted_and_achieved(self):
        sample = self.find("predicted, achieved")
        (self.folder / "nvme").mkdir()
        result = self.train("run", "device.emulate=h2d=40MB/s,d2h=40MB/s,compute=1G,update=20M,host-update=10M,host-sum=1GB/s",
                            f"tiers.path={self.folder}/nvme,emulate-read=40MB/s,emulate-write=20MB/s", "update.overlap=on")
        self.assert_has_lines([line.replace("/nvme", f"{self.folder}/nvme") for line in sample], result.out)


if __name__ == "__main__":
    main()
