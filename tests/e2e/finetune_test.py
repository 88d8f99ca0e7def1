#!/usr/bin/env python3
"""From conversations to a model that stops by itself: `jobs/finetune.sh` rehearsed, `export --like` against transformers where a
Python has it ($TRANSFORMERS_PYTHON or this one), `offstage evaluate`, and what a run does by its validations."""
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from harness import OFFSTAGE, OffstageTest, main

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "tests" / "reference" / "files"
SEA = ROOT / "tests" / "data" / "sea.model"
USAGE, DATA = 64, 65
TRANSFORMERS = """
import json, sys
try:
    import torch, transformers
except ImportError as error:
    print(error)
    sys.exit(77)
directory, prompt, count = json.load(sys.stdin)
model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
tokens = torch.tensor([prompt])
out = model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=count, pad_token_id=0)
print(json.dumps({"tokens": out[0].tolist(), "eos": tokenizer.eos_token_id, "vocab": len(tokenizer)}))
"""


def words_tokenizer(count):
    """A tokenizer.json whose tokens are t0, t1, ..."""
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": i, "content": f"<t{i}>", "single_word": False, "lstrip": False, "rstrip": False,
                              "normalized": False, "special": False} for i in range(count)],
            "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {f"<t{i}>": i for i in range(count)}, "merges": []}}


class Walk(OffstageTest):
    def test_from_text_to_a_tuned_export(self):
        place = self.folder / "walk"
        done = subprocess.run([ROOT / "jobs" / "finetune.sh", place], capture_output=True, text=True, timeout=300, check=False,
                              env={**os.environ, "OFFSTAGE": OFFSTAGE, "STEPS": "4", "RANKS": "1"})
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        config = json.loads((place / "tuned-model" / "config.json").read_text())
        self.assertEqual((256, 259), (config["eos_token_id"], config["vocab_size"]))
        for name in "tokenizer.json", "tokenizer_config.json":
            self.assertEqual((place / "base" / name).read_bytes(), (place / "tuned-model" / name).read_bytes())
        losses = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("loss ")]
        self.assertEqual(2, len(losses), done.stdout)
        self.assertLess(losses[1], losses[0])
        valid = [json.loads(line) for line in (place / "tuned" / "metrics.jsonl").read_text().splitlines()]
        valid = [r["valid_loss"] for r in valid if "valid_loss" in r]  # before the first step and at the end, in bf16
        self.assertEqual(2, len(valid))
        for a, b in zip(valid, losses):
            self.assertLess(abs(a - b) / b, 0.01)
        self.assertIn("What colour is the sky?\n", done.stdout)


class Like(OffstageTest):
    """The reference's llama, which says what it says; any of its tokens can end a text."""

    PROMPT = [5, 60, 7, 7, 12, 33]
    COUNT = 20

    def setUp(self):
        super().setUp()
        self.base = self.folder / "base"
        self.base.mkdir()
        shutil.copy(REFERENCE / "llama" / "config.json", self.base)
        shutil.copy(REFERENCE / "llama" / "generation_config.json", self.base)
        (self.base / "tokenizer.json").write_text(json.dumps(words_tokenizer(64)))
        (self.base / "tokenizer_config.json").write_text(json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<t1>"}))
        (self.base / "chat_template.jinja").write_text("{{ messages }}")

    def generated(self, directory, *options):
        out = self.offstage("generate", "--from", directory, f"--tokens={self.COUNT}",
                            f"--prompt-tokens={','.join(map(str, self.PROMPT))}", *options).out
        return out.split()

    def test_a_model_stops_where_its_tokens_say(self):
        free = list(map(int, self.generated(REFERENCE / "llama", "--tokenizer=none")))
        end = free[len(self.PROMPT) + 4]
        stopped = free[:free.index(end, len(self.PROMPT)) + 1]
        self.assertLess(len(stopped), len(free))
        out = self.folder / "out"
        self.offstage("export", "--from", REFERENCE / "llama", "--to", out, "--like", self.base, f"--eos=<t{end}>")
        for name in "config.json", "generation_config.json":
            self.assertEqual(end, json.loads((out / name).read_text())["eos_token_id"])
        self.assertEqual((self.base / "chat_template.jinja").read_bytes(), (out / "chat_template.jinja").read_bytes())
        self.assertEqual((self.base / "tokenizer.json").read_bytes(), (out / "tokenizer.json").read_bytes())
        self.assertEqual("".join(f"<t{t}>" for t in stopped[:-1]), "".join(self.generated(out)))
        listed = self.folder / "listed"  # where generation_config.json alone says it, as one of several
        shutil.copytree(out, listed)
        (listed / "tokenizer_config.json").write_text('{"model_max_length": 1024}')
        other = next(token for token in range(64) if token not in free)
        (listed / "generation_config.json").write_text(json.dumps({"eos_token_id": [other, end]}))
        self.assertEqual("".join(f"<t{t}>" for t in stopped[:-1]), "".join(self.generated(listed)))
        # Where a template alone says it.
        words = self.write("words.json", json.dumps(words_tokenizer(64)))
        form = self.write("form.txt", f'eos = "<t{end}>"\nuser = "{{content}}"\nassistant = "{{learn}}{{content}}{{eos}}{{/learn}}"\n')
        prompt = "".join(f"<t{t}>" for t in self.PROMPT)
        said = self.offstage("generate", "--from", REFERENCE / "llama", "--tokenizer", words, "--template", form, "--prompt", prompt,
                             f"--tokens={self.COUNT}").out
        self.assertEqual("".join(f"<t{t}>" for t in stopped[:-1]), "".join(said.split()))
        python = os.environ.get("TRANSFORMERS_PYTHON", sys.executable)
        done = subprocess.run([python, "-c", TRANSFORMERS], input=json.dumps([str(out), self.PROMPT, self.COUNT]),
                              capture_output=True, text=True, timeout=300, check=False)
        if done.returncode == 77:
            self.skipTest(f"{python}: {done.stdout.strip()}; generate has stopped at the same token")
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertEqual({"tokens": stopped, "eos": end, "vocab": 64}, json.loads(done.stdout.splitlines()[-1]))

    def test_ids_are_those_of_the_model(self):
        config = json.loads((self.base / "config.json").read_text())
        config.update(bos_token_id=3, eos_token_id=[4, 5], pad_token_id=6)
        (self.base / "config.json").write_text(json.dumps(config))
        self.offstage("export", "--from", REFERENCE / "llama", "--to", self.folder / "out", "--like", self.base)
        made = json.loads((self.folder / "out" / "config.json").read_text())
        self.assertEqual((3, [4, 5], 6), (made["bos_token_id"], made["eos_token_id"], made["pad_token_id"]))
        for number in -1, 64:  # published files have these for no padding
            (self.base / "config.json").write_text(json.dumps({**config, "pad_token_id": number}))
            self.offstage("export", "--from", REFERENCE / "llama", "--to", self.folder / f"pad{number}", "--like", self.base)
            self.assertIsNone(json.loads((self.folder / f"pad{number}" / "config.json").read_text())["pad_token_id"])
        (self.base / "config.json").write_text(json.dumps({**config, "bos_token_id": 50256, "tokenizer_class": "LlamaTokenizer"}))
        (self.base / "generation_config.json").write_text(json.dumps({"bos_token_id": 50256, "eos_token_id": 50256}))
        self.base.joinpath("additional_chat_templates").mkdir()
        larger = self.offstage("export", "--from", REFERENCE / "llama", "--to", self.folder / "larger", "--like", self.base)
        self.assertRegex(larger.warnings[0], r"bos_token_id=50256 is no token of the model, which has tokens 0 to 63; it is \w+ now")
        self.assertIn("additional_chat_templates is not taken over", larger.warnings[1])
        made = json.loads((self.folder / "larger" / "generation_config.json").read_text())
        self.assertEqual([4, 5], made["eos_token_id"])
        made = json.loads((self.folder / "larger" / "config.json").read_text())
        self.assertEqual(("LlamaTokenizer", [4, 5]), (made["tokenizer_class"], made["eos_token_id"]))
        (self.base / "config.json").unlink()  # a tokenizer alone
        self.offstage("export", "--from", REFERENCE / "llama", "--to", self.folder / "alone", "--like", self.base)
        self.assertEqual(1, json.loads((self.folder / "alone" / "config.json").read_text())["eos_token_id"])

    def test_a_tokenizer_has_no_more_tokens_than_the_model(self):
        words = "has 65 tokens, but the model only 64; take the tokenizer that the model was trained with"
        more = words_tokenizer(64)
        more["added_tokens"].append({**more["added_tokens"][0], "id": 64, "content": "<more>"})
        for tokenizer in words_tokenizer(65), more, {**more, "model": {"type": "Unigram", "vocab": [["a", 0.0]] * 65}}:
            (self.base / "tokenizer.json").write_text(json.dumps(tokenizer))
            self.refused(["tokenizer.json", words], "--like", self.base)
        (self.base / "tokenizer.json").write_text(json.dumps(more))  # a pad token stands in no text
        (self.base / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<more>", "eos_token": "<t1>"}))
        self.offstage("export", "--from", REFERENCE / "llama", "--to", self.folder / "padded", "--like", self.base)
        self.assertIsNone(json.loads((self.folder / "padded" / "config.json").read_text())["pad_token_id"])
        asked = ["generate", "--from", self.folder / "padded", "--tokens=2"]
        self.offstage(*asked, "--prompt=<t3>")
        self.assertIn("its token 64 is the pad token", self.offstage(*asked, "--prompt=<t3><more>", expect=USAGE).errors[0])
        (self.base / "tokenizer.json").unlink()
        shutil.copy(SEA, self.base / "tokenizer.model")
        self.refused(["tokenizer.model has", "tokens, but the model only 64"], "--like", self.base)
        (self.base / "tokenizer.model").write_text("aGk= 0\n")  # of another kind
        self.offstage("export", "--from", REFERENCE / "llama", "--to", self.folder / "other", "--like", self.base)
        (self.base / "tokenizer.json").write_text(json.dumps(words_tokenizer(50)))  # the usual way: the model's is padded
        self.offstage("export", "--from", REFERENCE / "llama", "--to", self.folder / "out", "--like", self.base)

    def test_ids_are_those_of_a_sentencepiece_model_alone(self):
        for name in "config.json", "generation_config.json", "tokenizer.json":
            (self.base / name).unlink()
        shutil.copy(SEA, self.base / "tokenizer.model")
        (self.base / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
        self.train("run", "model.vocab=512", "data.format=text", "train.steps=2")
        for name, options, end in ("own", [], 2), ("other", ["--eos=<unk>"], 0):
            self.offstage("export", "--from", self.folder / "run", "--to", self.folder / name, "--like", self.base, *options)
            made = json.loads((self.folder / name / "config.json").read_text())
            self.assertEqual((1, end), (made["bos_token_id"], made["eos_token_id"]))
        self.assertTrue(self.offstage("generate", "--from", self.folder / "own", "--prompt=the sea", "--tokens=2").out.startswith("the sea"))
        error = self.offstage("export", "--from", self.folder / "run", "--to", self.folder / "out", "--like", self.base,
                              "--eos=<none>", expect=DATA).errors[0]
        self.assertIn("tokenizer.model has no token '<none>'", error)

    def refused(self, words, *options, expect=DATA):
        result = self.offstage("export", "--from", REFERENCE / "llama", "--to", self.folder / "out", *options, expect=expect)
        for word in words:
            self.assertIn(str(word), result.errors[0])
        self.assertFalse((self.folder / "out" / "config.json").exists())

    def test_what_does_not_fit_is_refused_and_leaves_nothing(self):
        self.refused(["--like", "--eos"], "--eos=x", expect=USAGE)
        self.refused([f"--like={self.folder / 'nowhere'}"], "--like", self.folder / "nowhere")
        self.refused(["tokenizer.json", "has no token '</s>'"], "--like", self.base, "--eos=</s>")
        config = json.loads((self.base / "config.json").read_text())
        (self.base / "config.json").write_text(json.dumps({**config, "eos_token_id": -2}))
        self.refused(["config.json names the token -2", "0 to 63"], "--like", self.base)
        (self.base / "config.json").write_text(json.dumps({**config, "vocab_size": 128}))
        self.refused(["vocab_size 128", "64 tokens"], "--like", self.base)
        (self.base / "config.json").write_text(json.dumps({**config, "vocab_size": 60}))
        said = self.offstage("export", "--from", REFERENCE / "llama", "--to", self.folder / "grown", "--like", self.base).err
        self.assertIn(f"--like={self.base}: config.json has vocab_size 60, and the model 64 tokens: that is right if tokens were added", said)
        (self.base / "config.json").write_text("[")
        self.refused(["config.json holds no JSON"], "--like", self.base)
        (self.base / "config.json").write_text('{"eos_token_id": ' + "[" * 200_000 + "]" * 200_000 + "}")
        self.refused(["config.json is nested more than 32 levels deep"], "--like", self.base)
        self.write("out/tokenizer.json", "mine")
        (self.base / "config.json").write_text(json.dumps(config))
        self.refused(["holds a model already (tokenizer.json)"], "--like", self.base, expect=USAGE)
        self.assertEqual("mine", (self.folder / "out" / "tokenizer.json").read_text())


class Evaluate(OffstageTest):
    def loss(self, *options, ranks=1):
        out = self.offstage("evaluate", *options, "--device=host", "--threads=1", ranks=ranks).out
        words = [line for line in out.splitlines() if line.startswith("loss ")][0].split()
        self.assertAlmostEqual(math.log(float(words[6].rstrip(","))), float(words[1]), places=5)
        return float(words[1])

    def test_the_loss_is_that_of_transformers_on_any_number_of_ranks(self):
        reference = json.loads((REFERENCE / "masked.json").read_text())
        documents = reference["documents"]
        rows = [{"prompt": "".join(f"<t{t}>" for t, m in zip(d["tokens"], d["mask"]) if not m),
                 "completion": "".join(f"<t{t}>" for t, m in zip(d["tokens"], d["mask"]) if m)} for d in documents]
        lines = self.write("chats.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        tokenizer = self.write("tokenizer.json", json.dumps(words_tokenizer(64)))
        template = self.write("template.txt", 'prompt = "{content}"\ncompletion = "{learn}{content}"\n')
        self.offstage("data", "pack", "--from", lines, "--to", self.folder / "chats", f"--tokenizer={tokenizer}",
                      "--format=megatron", f"--template={template}")
        data = f"--data={self.folder / 'chats'}"
        for ranks, micro_batch in (1, 1), (1, 4), (2, 1), (3, 2):
            for model, wanted, options in (("llama", reference, ["--attention=window"]),
                                           *((model, alone, []) for model, alone in reference["alone"].items())):
                found = self.loss("--from", REFERENCE / model, data, "--sequence=16", "--cross-documents=whole",
                                  f"--micro-batch={micro_batch}", *options, ranks=ranks)
                self.assertLess(abs(found - wanted["loss"][0]) / wanted["loss"][0], 1e-5)
        # One is longer than a window of 16, which whole cuts.
        for model in reference["alone"]:
            together, apart = (self.loss("--from", REFERENCE / model, data, "--sequence=20", f"--cross-documents={rule}")
                               for rule in ("whole", "false"))
            self.assertLess(abs(together - apart) / apart, 1e-6)

    def test_a_rank_takes_windows_of_4096_tokens_at_once_unless_told(self):
        text = self.write("text", "\1\0" * 20_000)
        for windows, options, expected in ((300, [], 256), (5, [], 5), (300, ["--micro-batch=3"], 3), (2, ["--micro-batch=3"], 2)):
            said = self.offstage("evaluate", "--from", REFERENCE / "llama", "--data", text, "--format=nanogpt", "--sequence=16",
                                 f"--windows={windows}", *options, "--device=host").out
            self.assertIn(f"in {windows} windows of 16, {expected} at a time, ", said)

    def test_each_source_has_a_loss_of_its_own(self):
        texts = [self.write(name, bytes(32 + (i * i * step) % 90 for i in range(length)))
                 for name, step, length in (("wiki", 3, 700), ("code1", 5, 333), ("code2", 7, 1010))]
        sources = f"{texts[0]},{self.folder}/code*"
        self.train("run", f"data.valid={sources}", "numerics.dtype=bf16", ranks=2)
        options = ["--sequence=24", "--micro-batch=2", "--dtype=bf16", "--from", self.folder / "run"]
        wiki, code = (self.loss(f"--data={data}", *options) for data in (texts[0], f"{texts[1]},{texts[2]}"))
        record = [r for r in self.records("run") if "valid_loss" in r][-1]
        self.assertEqual([str(texts[0]), f"{self.folder}/code*"], [each["path"] for each in record["valid_losses"]])
        for wanted, each in zip((wiki, code), record["valid_losses"]):
            self.assertAlmostEqual(wanted, each["loss"], places=6)
        both = sum(each["loss"] * each["targets"] for each in record["valid_losses"])
        self.assertAlmostEqual(record["valid_loss"], both / sum(each["targets"] for each in record["valid_losses"]), places=12)
        for ranks in 1, 3:
            out = self.offstage("evaluate", f"--data={sources}", *options, "--device=host", ranks=ranks).out
            self.assertIn(f"{self.folder}/code*: loss {record['valid_losses'][1]['loss']:.7f} over ", out)
            self.assertIn(f"\nloss {record['valid_loss']:.7f} nats per token", out)
        self.train("run", f"data.valid={texts[0]}", "numerics.dtype=bf16", "train.steps=7")
        self.assertNotIn("valid_losses", self.records("run")[-1])

    def test_a_checkpoint_has_the_loss_of_its_validation(self):
        self.train("run", f"data.valid={self.valid}", "numerics.dtype=bf16", ranks=2)
        valid = [r["valid_loss"] for r in self.records("run") if "valid_loss" in r][-1]
        options = [f"--data={self.valid}", "--sequence=24", "--micro-batch=2", "--dtype=bf16"]
        for ranks in 1, 3:
            self.assertAlmostEqual(valid, self.loss("--from", self.folder / "run", *options, ranks=ranks), places=6)
        self.export("run", "out")
        self.assertAlmostEqual(valid, self.loss("--from", self.folder / "out", *options), places=6)

    def test_bad_input_is_named(self):
        model = REFERENCE / "llama"
        text = self.write("t.bin", b"\1\0" * 100)

        def error(*options, expect):
            return self.offstage("evaluate", *options, "--device=host", expect=expect).errors[0]
        self.assertIn("--sequence=4096", error("--from", model, "--data", text, "--sequence=4096", expect=USAGE))
        self.assertIn("--micro-batch: '0'", error("--from", model, "--data", text, "--micro-batch=0", expect=USAGE))
        self.assertIn("--attention=document has no effect with --cross-documents=false",
                      error("--from", model, "--data", text, "--cross-documents=false", "--attention=document", expect=USAGE))
        self.assertIn("the weight 0.5 of", error("--from", model, "--data", f"{text}:0.5", expect=USAGE))
        self.assertIn("no such directory", error("--from=nowhere", "--data", text, expect=DATA))
        self.assertIn("--data=nowhere", error("--from", model, "--data=nowhere", expect=DATA))
        self.assertIn("--dtype=fp8", error("--from", model, "--data", text, "--dtype=fp8", expect=USAGE))
        broken = shutil.copytree(model, self.folder / "broken")
        weights = broken / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-4] + struct.pack("<f", math.nan))
        self.assertIn(f"--from={broken}: the loss is nan", error("--from", broken, "--data", text, "--sequence=16", expect=DATA))
        self.assertIn("data", error("--from", model, expect=USAGE))
        self.assertIn("Usage: offstage evaluate", self.offstage("evaluate", "--help").out)


def letters_tokenizer(first):
    """A tokenizer.json whose tokens are letters, numbered from `first` on."""
    letters = "abcdefghijklmnopqrstuvwxyz "
    tokenizer = words_tokenizer(0)
    tokenizer["model"]["vocab"] = {letter: (first + i) % len(letters) for i, letter in enumerate(letters)}
    return tokenizer


class Tokenizers(OffstageTest):
    def setUp(self):
        super().setUp()
        lines = self.write("lines.txt", "the sea is blue\nthe sun is yellow\n" * 40)
        self.models = {}
        for name, first in ("one", 0), ("other", 5):
            self.models[name] = self.folder / name
            shutil.copytree(REFERENCE / "llama", self.models[name])
            (self.models[name] / "tokenizer.json").write_text(json.dumps(letters_tokenizer(first)))
            self.offstage("data", "pack", "--from", lines, "--to", self.folder / f"by-{name}", f"--tokenizer={self.models[name]}",
                          "--documents=line", "--end-token=none")

    def warnings(self, model, *options):
        unset = [f"model.{key}=" for key in ("family", "layers", "hidden", "heads", "kv-heads", "ffn-hidden", "vocab")]
        start = ["checkpoint.resume=none", *unset, f"train.init-from={model}"]
        err = self.train("run", *start, "train.steps=3", "train.sequence=16", "train.micro-batch=1", "train.global-batch=1",
                         *options, ranks=2).err
        return [line for line in err.splitlines() if "tokenizer" in line]

    def test_a_run_says_that_its_tokens_are_of_another_tokenizer_than_the_models(self):
        one, other = self.folder / "by-one", self.folder / "by-other"
        self.assertEqual([], self.warnings(self.models["one"], f"data.train={one}"))
        said = self.warnings(self.models["one"], f"data.train={one}", f"data.valid={other}")
        self.assertEqual(1, len(said), said)
        self.assertIn(f"data.valid={other}: its tokens are those of the tokenizer {self.models['other']}, and "
                      f"train.init-from={self.models['one']} has one that makes others", said[0])
        self.assertEqual(1, len(self.warnings(self.models["one"], f"data.train={self.folder}/by-o*:1")))

    def test_files_of_two_tokenizers_are_said_where_the_model_has_none(self):
        said = self.warnings(REFERENCE / "llama", f"data.train={self.folder}/by-one,{self.folder}/by-other")
        self.assertEqual(1, len(said), said)
        self.assertIn(f"by-other: its tokens are those of the tokenizer {self.models['other']}, and data.train=", said[0])

    def test_a_note_says_it_and_is_no_file_of_tokens(self):
        name = (self.folder / "by-one.tokenizer").read_text().splitlines()[1]
        self.assertEqual(f"name={self.models['one']}", name)
        self.assertIn(f"tokenizer        {self.models['one']}, ", self.offstage("data", "inspect", self.folder / "by-one").out)
        (self.folder / "by-one.tokenizer").write_text("something else\n")
        self.assertEqual([], self.warnings(self.models["other"], f"data.train={self.folder / 'by-one'}"))

    def test_a_pack_takes_the_place_of_an_older_note_but_of_nothing_else(self):
        again = ["--from", self.folder / "lines.txt", "--to", self.folder / "by-one", "--tokenizer=bytes"]
        for ending in ".bin", ".idx":
            (self.folder / f"by-one{ending}").unlink()
        self.offstage("data", "pack", *again)
        note = self.folder / "by-one.tokenizer"
        self.assertIn("name=bytes\n", note.read_text())
        for ending in ".bin", ".idx":
            (self.folder / f"by-one{ending}").unlink()
        note.write_text("a tokenizer of that name\n")
        self.assertIn("by-one.tokenizer is there already; it is no note of a tokenizer",
                      self.offstage("data", "pack", *again, expect=USAGE).err)
        self.assertEqual("a tokenizer of that name\n", note.read_text())

    def test_an_evaluation_says_it_too(self):
        options = [f"--data={self.folder / 'by-one'}", "--sequence=16", "--device=host"]
        self.assertNotIn("warning", self.offstage("evaluate", "--from", self.models["one"], *options).err)
        self.assertIn(f"--data={self.folder / 'by-one'}: its tokens are those of the tokenizer",
                      self.offstage("evaluate", "--from", self.models["other"], *options).err)


class Validations(OffstageTest):
    """A rate so high that validations become worse after the first step."""

    OPTIONS = ["train.steps=7", "train.valid-every=1", "train.valid-first=on", "checkpoint.keep-best=on", "checkpoint.every=3",
               "optimizer.lr=0.3", "optimizer.warmup-steps=0", "optimizer.schedule=constant"]

    def validations(self, name):
        return {r["step"]: r["valid_loss"] for r in self.records(name) if "valid_loss" in r}

    def test_the_best_one_stays_and_patience_ends_the_run(self):
        self.train("whole", f"data.valid={self.valid}", *self.OPTIONS)
        losses = self.validations("whole")
        self.assertEqual(list(range(8)), list(losses))
        best = min(losses, key=losses.get)
        self.assertIn(best, range(1, 5), losses)  # else this rate tests nothing
        self.assertEqual([best, 6, 7], [self.step_of(path) for path in self.checkpoints("whole")])
        self.assertRegex(self.offstage("checkpoint", "ls", self.folder / "whole").out, rf"(?m)^{best} +complete, best ")
        self.assertRegex(self.offstage("checkpoint", "verify", self.folder / "whole/best").out, rf"step-{best:09d}: good")
        run, options = self.folder / "whole", ["--data", self.valid, "--sequence=24", "--format=text"]

        def loss_of(name):
            result = self.offstage("evaluate", "--from", name, *options)
            return result, re.search(r"loss (\S+)", result.out)[1]

        first, newest = self.checkpoints("whole")[0], self.checkpoints("whole")[-1]
        self.assertNotEqual(loss_of(first)[1], loss_of(newest)[1])
        self.assertEqual(loss_of(first)[1], loss_of(f"{run}/best/")[1])
        shutil.copytree(run, self.folder / "staged")
        self.train("staged", "train.steps=9", "optimizer.schedule=constant", "train.sequence=12", "checkpoint.every=1")
        self.assertEqual([best, 8, 9], [self.step_of(path) for path in self.checkpoints("staged")])
        self.assertEqual(loss_of(first)[1], loss_of(f"{self.folder}/staged/best")[1])
        begun = self.train("from-best", *self.OPTIONS, f"train.steps={best + 1}", f"data.valid={self.valid}",
                           f"checkpoint.resume={run}/best", ranks=2)
        self.assertIn(f"continuing after step {best}", begun.out)
        newest, loss = loss_of(run)[0], loss_of(newest)[1]
        self.assertEqual(loss, loss_of(run)[1])
        self.assertIn(f"--from={run}: takes the newest checkpoint, of step 7; the best validation was that of step {best}: "
                      f"--from={run}/best takes", newest.warnings[0])
        (first / "rank-0000.h5").unlink()
        for command in "ls", "verify":
            damaged = self.offstage("checkpoint", command, f"{run}/best", expect=DATA)
            self.assertIn(f"best validation was that of step {best}, whose checkpoint is not complete: {first}/rank-0000.h5 is missing",
                          damaged.errors[0])
        self.assertIn(f"not complete: {first}/rank-0000.h5", loss_of(run)[0].warnings[0])
        shutil.rmtree(first)
        gone = self.call(OFFSTAGE, "export", "--from", run / "best", "--to", self.folder / "out")
        self.assertEqual(DATA, gone.code)
        lost = self.train("lost", *self.OPTIONS, f"data.valid={self.valid}", f"checkpoint.resume={run}/best", ranks=2, expect=DATA)
        self.assertIn(f"checkpoint.resume={run}/best: the best validation was that of step {best}, whose", lost.errors[0])
        self.assertIn(f"best: the best validation was that of step {best}, whose checkpoint is not kept", gone.errors[0])
        end = best + 3
        for ranks in 1, 2:
            name = f"patient-{ranks}"
            result = self.train(name, f"data.valid={self.valid}", *self.OPTIONS, "train.patience=3", "run.trace=true", ranks=ranks)
            self.assertEqual(end, self.steps(name)[-1]["step"])
            self.assertEqual(end, self.step_of(self.checkpoints(name)[-1]))
            self.assertIn(f"done after step {end} of 7: 3 validations were no better", result.out)
            left = {path: path.read_bytes() for path in (self.folder / name).glob("*.*")}
            self.assertIn("trace-0.json", [path.name for path in left])
            again = self.train(name, f"data.valid={self.valid}", *self.OPTIONS, "train.patience=3", "run.trace=true", ranks=ranks)
            self.assertIn("nothing to do: 3 validations were no better", again.out)
            self.assertEqual(left, {path: path.read_bytes() for path in (self.folder / name).glob("*.*")})

    def test_stops_change_neither_the_validations_nor_the_best_one(self):
        options = [f"data.valid={self.valid}", *self.OPTIONS, "train.patience=3"]
        whole = self.train("whole", *options).out
        self.assertIn("validations were no better", whole)
        result = None
        for ranks in 1, 2:
            name = f"stopped-{ranks}"
            for _ in range(3):  # each makes one step, whose validation is left to the next
                self.train(name, *options, "train.max-time=0.001s", ranks=ranks, expect=75)
            self.assertEqual([0, 1, 2], list(self.validations(name)))
            result = self.train(name, *options, ranks=ranks)
            self.assertEqual(self.validations("whole"), self.validations(name))
            self.assertEqual([self.step_of(path) for path in self.checkpoints("whole")],
                             [self.step_of(path) for path in self.checkpoints(name)])
            self.assert_same_state("whole", name)
            best = r"best validation: .*\n"
            self.assertEqual(re.search(best, whole).group(), re.search(best, result.out).group())

    def test_a_model_that_is_better_than_all_checkpoints_is_named(self):
        self.train("run", f"data.valid={self.valid}", *self.OPTIONS, "optimizer.lr=10", "train.steps=2")
        self.assertEqual(0, min(self.validations("run"), key=self.validations("run").get))
        refused = self.offstage("evaluate", "--from", self.folder / "run/best", "--data", self.valid, expect=DATA)
        self.assertIn("the best validation was that of step 0, before the first one: the model that the run began with", refused.errors[0])

    def test_a_validation_that_never_ends_stops_no_run_for_good(self):
        options = [f"data.valid={self.valid}", *self.OPTIONS]
        (self.folder / "run").mkdir()
        for _ in range(4):
            (self.folder / "run/STOP").touch()
            self.train("run", *options, expect=75)
        self.assertEqual([1, 2], [r["step"] for r in self.steps("run")])

    def test_a_validation_after_a_bad_step_is_not_the_best(self):
        bad = [f"data.valid={self.valid}", *self.OPTIONS, "train.valid-first=off", "train.valid-every=2", "train.max-bad-steps=4",
               "train.steps=50", "optimizer.clip=0"]
        result = self.train("run", *bad, "optimizer.lr=1e30", expect=65)
        skipped = [r["step"] for r in self.steps("run") if r.get("skipped")]
        self.assertEqual(4, len(skipped), result)
        self.assertEqual([], self.checkpoints("run"))
        end = self.records("run")[-1]
        self.assertEqual(("diverged", 65), (end["reason"], end["exit"]))
        # Also not one that another start makes up, or reads in the records.
        self.train("bad", *bad, "optimizer.lr=1e30", "train.max-time=0.001s", expect=75)
        for _ in range(2):
            self.train("bad", *bad, "optimizer.lr=1e30", "train.max-time=0.001s", expect=75)
        self.assertEqual([False], [r["counts"] for r in self.records("bad") if "valid_loss" in r])
        self.assertNotIn("best_step", self.records("bad")[-1])
        self.assertNotIn("best", self.offstage("checkpoint", "ls", self.folder / "bad").out)
        # The advice of the error works.
        self.train("run", *bad, "optimizer.lr=1e-3", "train.steps=7")
        ends = [r for r in self.records("run") if "end" in r]
        self.assertEqual([("diverged", 65), ("done", 0)], [(r["reason"], r["exit"]) for r in ends])
        self.assertEqual(min(self.validations("run").values()), ends[-1]["best_loss"])

    def test_the_best_one_is_known_after_a_restart(self):
        options = [f"data.valid={self.valid}", *self.OPTIONS]
        self.train("whole", *options)
        for name in "run", "run-without-metrics":
            self.train(name, *options, "train.steps=4")
            if name != "run":
                (self.folder / name / "metrics.jsonl").unlink()  # moved away
            result = self.train(name, *options)
            for step, loss in self.validations(name).items():
                self.assertEqual(self.validations("whole")[step], loss)
            self.assertEqual([p.name for p in self.checkpoints("whole")], [p.name for p in self.checkpoints(name)])
            best = min(self.validations("whole"), key=self.validations("whole").get)
            self.assertIn(f"at step {best}, whose checkpoint is kept", result.out)

    def test_other_validation_data_begin_the_search_anew(self):
        self.train("run", f"data.valid={self.valid}", *self.OPTIONS, "train.steps=4")
        self.train("stopped", f"data.valid={self.valid}", *self.OPTIONS, "train.steps=4")
        other = self.write("other.txt", bytes([1, 250]) * 300)
        result = self.train("run", f"data.valid={other}", *self.OPTIONS)
        self.assertIn("validation data have changed: the search for the best validation begins again", result.out)
        self.assertEqual([False, True], ["validations_begin_anew" in record for record in self.starts("run")])
        worst = {step: loss for step, loss in self.validations("run").items() if step > 4}
        best = min(worst, key=worst.get)
        self.assertGreater(worst[best], min(self.validations("run").values()))
        self.assertIn(f"best validation: loss {worst[best]:.4f} at step {best}", result.out)
        self.offstage("report", self.folder / "run")
        self.assertIn(f"<td>{worst[best]:.4f}</td>", (self.folder / "run/report.html").read_text())
        # A checkpoint before the first validation of the new data knows of the change as well.
        process = self.start("stopped", f"data.valid={other}", *self.OPTIONS, "train.valid-every=100000000",
                             "train.steps=1000000000")
        self.wait_for_step("stopped", 6, process)
        (self.folder / "stopped/STOP").touch()
        self.assertIn("begins again", self.finish("stopped", process).out)
        steps = self.step_of(self.checkpoints("stopped")[-1]) + 2
        result = self.train("stopped", f"data.valid={other}", *self.OPTIONS, f"train.steps={steps}")
        self.assertNotIn("begins again", result.out)
        worst = {step: loss for step, loss in self.validations("stopped").items() if step > 4}
        self.assertIn(f"best validation: loss {min(worst.values()):.4f} at step {min(worst, key=worst.get)}", result.out)

    def test_a_first_validation_that_is_made_again_costs_no_patience(self):
        options = [f"data.valid={self.valid}", *self.OPTIONS, "train.patience=1", "optimizer.lr=1e-3"]
        self.train("run", *options)
        for path in self.checkpoints("run"):
            shutil.rmtree(path)
        again = self.train("run", *options)  # as one that was killed before its first checkpoint
        self.assertNotIn("nothing to do", again.out)
        self.assertGreater(self.steps("run")[-1]["step"], 1)

    def test_keys_that_go_by_validations_need_them(self):
        for key in "train.valid-first=on", "train.patience=1", "checkpoint.keep-best=on":
            self.assertIn("give data.valid", self.train("x", key, expect=USAGE).errors[0])
        self.assertIn("give train.valid-every", self.train("x", f"data.valid={self.valid}", "train.patience=1", expect=USAGE).errors[0])


if __name__ == "__main__":
    main()
