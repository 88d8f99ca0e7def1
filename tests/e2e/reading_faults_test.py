#!/usr/bin/env python3
"""A command whose file system fails for a moment says so and ends, or says what it says without the failure. What cannot be
looked at is never taken for absent. $FAULTY_FILES is preloaded, see tests/sweep/faulty_files.cpp."""
import collections
import errno
import gzip
import itertools
import os
import re
import shutil
import sys
from pathlib import Path
from unittest import mock

from harness import ALL, MPI, OFFSTAGE, OffstageTest, main

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "sweep"))
# pylint: disable=wrong-import-position
from cases import CHANGING, KINDS  # noqa: E402

IO = 74
LOOKING = [kind for kind in KINDS if kind not in CHANGING and kind not in ("direct", "lock", "mmap", "aio-write-end")]
ROOT = Path(__file__).resolve().parent.parent.parent
TOKENIZER = ROOT / "tests" / "tokens" / "files" / "gpt2.json"
TEMPLATE = 'eos = "<|endoftext|>"\nuser = "<|im_start|>{content}\\n"\nassistant = "{learn}{content}{eos}{/learn}\\n"\n'
CHAT = '{"messages": [{"role": "user", "content": "ship %d"}, {"role": "assistant", "content": "waits for the tide"}]}\n'
OF_HDF5 = "HDF5 could not look at the file"  # it keeps the errno to itself
EVERY = 3  # unless ALL, of the calls of a command one in so many fails; of two ranks', which wait long for each other's start, of four times as many
# Two ranks, whose calls fail on rank 1 alone.
RANK_1 = ["env", "-u", "LD_PRELOAD", f"FAULTY_FILES={os.environ.get('FAULTY_FILES')}", MPI, "2", "bash", "-c",
          'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then export LD_PRELOAD="$LD_PRELOAD:$FAULTY_FILES"; fi; exec "$@"', "rank"]
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\S+Z|\d[\d.,]* ?(s|ms|MB/s|GB/s|tokens/s|GFLOP/s|GB|MB|kB|MiB|GiB|KiB)\b|process \d+")


class ReadingFaults(OffstageTest):
    maxDiff = 2000

    def setUp(self):
        super().setUp()
        self.write("like/tokenizer.json", TOKENIZER.read_text())
        self.write("like/tokenizer_config.json", '{"eos_token": "<|endoftext|>"}')
        template = self.write("template.txt", TEMPLATE)
        for name, count in {"data/a": 60, "data/b": 40, "valid/c": 20}.items():
            text = self.write(f"{name}.jsonl", "".join(CHAT % i for i in range(count)))
            self.offstage("data", "pack", f"--from={text}", f"--to={name}", "--tokenizer=like", f"--template={template}",
                          "--format=megatron", "--progress=0")
            self.write(f"texts/{text.stem}.jsonl.gz", gzip.compress(text.read_bytes()))
            text.unlink()
        keys = {"run.dir": "run", "model.vocab": 1024, "data.train": "data/*", "data.valid": "valid/*",
                "data.cross-documents": "whole", "train.valid-every": 1, "train.steps": 2, "checkpoint.every": 1}
        self.write("run.cfg", "".join(f"{key}={value}\n" for key, value in keys.items()))
        self.run_command = self.command("run", "--config=run.cfg", "run.dir=", "data.train=", "model.vocab=", "train.steps=")
        self.call_of(self.run_command)
        self.offstage("export", "--from=run", "--to=model", "--like=like")
        self.training = [word for word in self.run_command[1:] if not word.startswith(("--model.", "--train.valid-every"))]
        self.training += ["--run.dir=new", "--train.init-from=model", "--train.valid-every=2"]

    def call_of(self, command, codes=(0,)):
        shutil.rmtree(self.folder / "new", ignore_errors=True)
        (self.folder / "new").mkdir()
        result = self.call(*command)
        self.assertIn(result.code, codes, result)
        return result

    def said(self, result):
        """What counts of what a command has said: of a run losses and warnings, of others all but times."""
        if "  loss " in result.out:
            return re.findall(r"  (?:loss|valid) .*?  ", result.out), result.err
        return MOMENT.sub("...", result.out), MOMENT.sub("...", result.err)

    def check(self, *command, launcher=()):
        """One in EVERY of the first calls of each kind on each path fails, with ALL each call, one at a time; but for those in
        `new`, which is empty before each. Then all reads move a part of what was asked for."""
        name, command = command[0], [*launcher, OFFSTAGE, *command]
        straight = self.said(self.call_of(command))
        with self.faulty(self.folder, calls=",".join(LOOKING), times=0):
            self.assertEqual(straight, self.said(self.call_of(command)))
        calls, seen = [line.split(" ", 1) for line in self.log.read_text().splitlines()], collections.Counter()
        self.assertGreater(len(calls), 2)
        numbered = []
        for kind, path in calls:
            seen[kind, path] += 1
            if not path.startswith(str(self.folder / "new")) and (ALL or seen[kind, path] == 1):
                numbered.append((kind, path, seen[kind, path]))
        if not ALL:
            numbered = numbered[::4 * EVERY if launcher else EVERY]
        for index, (kind, path, number) in enumerate(numbered):
            error = errno.ESTALE if index % 2 else errno.EIO
            for how_often in ({}, {"times": 1}) if ALL else ({"times": 1},):
                with self.subTest(f"{name}: {kind} {path} {number} {how_often}"):
                    with self.faulty(self.folder, file=path, calls=kind, after=number - 1, error=error, **how_often):
                        result = self.call_of(command, (0, IO))
                    # What is said beside it, but for a listing, stays the same.
                    says_so = re.search(f"{os.strerror(error)}|{OF_HDF5}", result.out + result.err)
                    if not says_so or (result.code == 0 and name != "checkpoint"):
                        self.assertEqual(0, result.code, result)
                        self.assertEqual(straight[0], self.said(result)[0])
        with self.subTest(f"{name}: reads move a part"), self.faulty(self.folder, calls="read,aio-read-end", error="SHORT"):
            self.assertEqual(straight, self.said(self.call_of(command)))

    def test_data(self):
        self.check("data", "inspect", "data/a.bin")
        self.check("evaluate", "--from=run", "--data=data/*,valid/*", "--sequence=24", "--cross-documents=whole")

    def test_packing(self):
        self.check("data", "pack", "--from=texts/*.gz", "--to=new/out", "--tokenizer=like", "--template=template.txt",
                   "--format=megatron", "--progress=0")

    def test_models(self):
        self.check("generate", "--from=model", "--prompt=ship", "--tokens=4")
        self.check("evaluate", "--from=model", "--data=valid/c", "--sequence=24")
        self.check("evaluate", "--from=run/best", "--data=valid/c", "--sequence=24")
        self.check("export", "--from=run", "--average=2", "--to=new/model")

    def test_checkpoints(self):
        self.check("checkpoint", "ls", "run")
        self.check("checkpoint", "verify", "run")
        self.check("checkpoint", "diff", "run/checkpoints/step-000000001", "run/checkpoints/step-000000001")

    def test_training(self):
        self.check(*self.training)

    def test_no_rank_waits_for_one_that_cannot_read(self):
        self.check(*self.training, launcher=RANK_1)
        self.check("evaluate", "--from=run", "--data=valid/*", "--sequence=24", launcher=RANK_1)

    def test_a_run_whose_checkpoints_are_elsewhere(self):
        self.call_of([*self.run_command, "--run.dir=moved", f"--checkpoint.dir={self.folder}/elsewhere"])
        shutil.copytree(self.folder / "run/checkpoints/step-000000001", self.folder / "moved/checkpoints/step-000000001")
        self.check("checkpoint", "ls", "moved")
        self.check("export", "--from=moved", "--to=new/model")

    def test_what_a_job_goes_on_from(self):
        script = ('set -uo pipefail; . "$0"; read_run /dev/null "$@"; '
                  'if resume_is_over; then echo auto; elif (($? == 1)); then echo begin; else echo unclear; fi')
        command = ["bash", "-c", script, ROOT / "slurm/run_directory.sh", "--run.dir=run",
                   "--checkpoint.resume=run/checkpoints/step-000000001"]
        with mock.patch.dict(os.environ, {"SLURM_JOB_ID": "1", "OFFSTAGE_FIRST_JOB": "1"}):
            newest, aside = self.folder / "run/checkpoints/step-000000002", self.folder / "aside"
            newest.rename(aside)
            with self.faulty(self.folder, file=self.folder / "run/began-1", calls="stat"):
                self.assertEqual("unclear\n", self.call_of(command).out)
            self.assertEqual("begin\n", self.call_of(command).out)
            aside.rename(newest)
            note = (self.folder / "run/began-1").read_text()
            with self.faulty(self.folder, calls=",".join(LOOKING), times=0):
                self.assertEqual("auto\n", self.call_of(command).out)
            calls = list(dict.fromkeys(tuple(line.split(" ", 1)) for line in self.log.read_text().splitlines()))
            self.assertIn(("stat", str(self.folder / "run/began-1")), calls)
            for (kind, path), number in itertools.product(calls, range(3)):  # of each process
                with self.subTest(f"{kind} {path} {number}"):
                    with self.faulty(self.folder, file=path, calls=kind, after=number, times=1):
                        self.assertIn(self.call_of(command).out, ("auto\n", "unclear\n"))
                    self.assertEqual(note, (self.folder / "run/began-1").read_text())

    def test_runs(self):
        self.check("plan", *self.run_command[2:])
        self.check("report", "run", "--output=report.html")


if __name__ == "__main__":
    main()
