#!/usr/bin/env python3
"""offstage generate continues a text with what a run has learnt."""
import json
import os
import subprocess

from harness import OFFSTAGE, OffstageTest, main

# Tiny products do not pay for a team, whose threads would spin on cores that other tests need.
os.environ.setdefault("OMP_NUM_THREADS", "1")

LINE = "the quick brown fox jumps over the lazy dog and naps; "


class Generate(OffstageTest):
    def setUp(self):
        super().setUp()
        self.text = self.write("train.txt", LINE * 60)

    def learn(self, name="run", *options):
        """A run that knows LINE by heart."""
        self.train(name, "train.steps=150", "train.sequence=64", "train.micro-batch=4",
                   "train.global-batch=4", "train.log-every=50", *options)
        return self.folder / name / "checkpoints"

    def generate(self, *options, expect=0):
        result = self.call(OFFSTAGE, "generate", *options)
        self.assertEqual(expect, result.code, result)
        return result

    def refused(self, code, *options):
        result = self.generate(*options, expect=code)
        self.assertEqual("", result.out, result)
        self.assertEqual(1, len(result.errors), result)
        return result.errors[0]

    def test_greedy_gives_back_what_was_learnt_by_heart(self):
        checkpoints = self.learn()
        expected = "the quick" + (LINE * 2)[9:49]
        for options in ([], ["--dtype", "bf16"], ["--tokenizer=bytes"], ["--temperature=0.01"]):
            result = self.generate("--from", checkpoints, "--prompt", "the quick", "--tokens=40", *options)
            self.assertEqual(expected + "\n", result.out, options)
            self.assertEqual("", result.err)
        numbers = ",".join(str(b) for b in b"the quick")
        tokens = self.generate("--from", self.checkpoints("run")[-1], "--prompt-tokens", numbers,
                               "--tokens=40", "--tokenizer=none")
        self.assertEqual(" ".join(str(b) for b in expected.encode()) + "\n", tokens.out)
        same = self.generate("--from", checkpoints, f"--prompt-tokens={numbers}", "--tokens=40")
        self.assertEqual(expected + "\n", same.out)
        # Longer than the 64 tokens that the model can look at.
        long = self.generate("--from", checkpoints, "--prompt", "the quick", "--tokens=200")
        self.assertEqual("the quick" + (LINE * 4)[9:209] + "\n", long.out)
        self.assertEqual(1, len(long.warnings), long)
        self.assertIn("64 tokens", long.warnings[0])

    def test_prompts_come_from_files_and_texts_end_where_told(self):
        checkpoints = self.learn()
        start = ["--from", checkpoints, "--tokens=40"]
        expected = "the quick" + (LINE * 2)[9:49]
        prompt = self.write("prompt.txt", "the quick\n")
        self.assertEqual(expected + "\n", self.generate(*start, "--prompt-file", prompt).out)
        self.assertEqual(expected + "\n", self.generate(*start, "--prompt=the quick", "--top-p=0.2", "--temperature=0.5").out)
        lines = self.write("prompts.txt", "the quick\n\nthe quick brown\n")
        longer = "the quick brown" + (LINE * 2)[15:55]
        self.assertEqual(f"{expected}\n---\n{longer}\n", self.generate(*start, "--prompt-lines", lines).out)
        said = [json.loads(line) for line in self.generate(*start, "--prompt-lines", lines, "--json", "--stop= over the").out.splitlines()]
        self.assertEqual([{"prompt": "the quick", "prompt_tokens": 9, "text": " brown fox jumps", "tokens": 25, "end": "stop"},
                          {"prompt": "the quick brown", "prompt_tokens": 15, "text": " fox jumps", "tokens": 19, "end": "stop"}], said)
        said = json.loads(self.generate("--from", checkpoints, "--prompt=the quick", "--tokens=3", "--json").out)
        self.assertEqual((" br", 3, "tokens"), (said["text"], said["tokens"], said["end"]))
        stopped = self.generate(*start, "--prompt=the quick", "--stop=zebra", "--stop", " over the")
        self.assertEqual("the quick brown fox jumps\n", stopped.out)
        given = subprocess.run([OFFSTAGE, "generate", *map(str, start), "--prompt-file", "-"], input="the quick\n",
                               capture_output=True, text=True, check=True)
        self.assertEqual(expected + "\n", given.stdout)

    def test_a_terminal_obeys_no_text(self):
        self.train("run", "train.steps=2")
        text = b"\x1b]0;a title\a\tof\x9b \xd9\x85\xe2\x80\x8c"
        command = [OFFSTAGE, "generate", "--from", self.folder / "run", "--prompt", text, "--tokens=1"]
        piped = subprocess.run(command, stdout=subprocess.PIPE, timeout=self.patience, check=True).stdout
        self.assertTrue(piped.startswith(text), piped)
        shown = self.shown(command)
        self.assertTrue(shown.startswith(b"\\x1b]0;a title\\x07\tof\\x9b \xd9\x85\xe2\x80\x8c"), shown)

    def test_sampling_depends_on_the_seed_alone(self):
        self.train("run", "train.steps=2", ranks=2)
        def text(*options):
            return self.generate("--from", self.folder / "run/checkpoints", "--prompt-tokens=65", "--tokens=50",
                                 "--tokenizer=none", *options).out
        warm = ["--temperature=1.5", "--top-k=50"]
        self.assertEqual(text(*warm, "--seed=3"), text(*warm, "--seed=3"))
        self.assertNotEqual(text(*warm, "--seed=3"), text(*warm, "--seed=4"))
        self.assertEqual(text(), text("--top-k=1", "--temperature=2"))
        self.assertEqual(51, len(text(*warm).split()))
        cold = self.generate("--from", self.folder / "run/checkpoints", "--prompt-tokens=65", "--tokens=1", "--tokenizer=none",
                             "--top-p=0.9", "--seed=1").warnings
        self.assertEqual(["top-p", "seed"], [line.split("--")[1].split()[0] for line in cold])

    def test_without_a_prompt_it_starts_after_a_line(self):
        self.train("run", "train.steps=2")
        checkpoints = self.folder / "run/checkpoints"
        bare = self.generate("--from", checkpoints, "--tokens=5", "--tokenizer=none", "--prompt-tokens=10")
        ids = bare.out.split()[1:]
        empty = self.call(OFFSTAGE, "generate", f"--from={checkpoints}", "--tokens=5", "--prompt", "")
        self.assertEqual(0, empty.code, empty)
        self.assertEqual(bytes(map(int, ids)).decode(errors="replace").rstrip("\n"), empty.out.rstrip("\n"))

    def test_a_system_message_stands_where_the_template_has_it(self):
        self.train("run", "train.steps=2")
        options = [f"--from={self.folder / 'run/checkpoints'}", "--tokens=5"]
        answer = 'assistant = "<{learn}{content}>"\n'
        inside = self.write("inside.txt", 'system = "({content})"\nuser = "[{system}{content}]"\n' + answer)
        beside = self.write("beside.txt", 'system = "({content})"\nuser = "[{content}]"\n' + answer)
        for form, text in (inside, "[(be brief)hi]<"), (beside, "(be brief)[hi]<"):
            said = self.offstage("generate", *options, "--template", form, "--prompt=hi", "--system=be brief").out
            self.assertEqual(self.offstage("generate", *options, f"--prompt={text}").out, said)
        none = self.write("none.txt", 'user = "[{content}]"\n' + answer)
        error = self.refused(64, *options, "--template", none, "--prompt=hi", "--system=x")
        self.assertIn(f"--system: --template={none} has no place for it; its roles are user, assistant", error)
        self.assertIn("--system needs a template", self.refused(64, *options, "--prompt=hi", "--system=x"))

    def test_conversations_are_answered_in_place_of_their_last_answers(self):
        self.train("run", "train.steps=2")
        options = [f"--from={self.folder / 'run/checkpoints'}", "--tokens=5"]
        form = self.write("form.txt", 'system = "({content})"\nuser = "[{content}]"\nassistant = "<{learn}{content}>{/learn}"\n')
        chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"},
                {"role": "user", "content": "why?"}]
        rows = [{"messages": chat}, {"conversations": [*chat, {"role": "assistant", "content": "so"}]}, {"user": "hi", "assistant": "yes"}]
        chats = self.write("chats.jsonl", "\n\n".join(json.dumps(row) for row in rows) + "\n")
        asked = ["(be brief)[hi]<yes?>[why?]<", "[hi]<"]
        said = [json.loads(self.offstage("generate", *options, "--json", f"--prompt={text}").out) for text in asked]
        wanted = [{**said[0], "prompt": "why?"}, {**said[0], "prompt": "why?", "answer": "so"}, {**said[1], "prompt": "hi", "answer": "yes"}]
        result = self.generate(*options, "--messages", chats, "--template", form, "--json")
        self.assertEqual(wanted, [json.loads(line) for line in result.out.splitlines()])
        texts = self.generate(*options, "--messages", chats, "--template", form).out.split("---\n")
        for text, begin in zip(texts, (asked[0], asked[0], asked[1]), strict=True):
            self.assertTrue(text.startswith(begin), texts)
        self.assertIn("--messages needs a template", self.refused(64, *options, "--messages", chats))
        self.assertIn("one of them", self.refused(64, *options, "--messages", chats, "--prompt=a"))
        bad = self.write("bad.jsonl", '{"messages": [{"role": "assistant", "content": "so"}]}\n')
        self.assertIn(f"--messages={bad}: line 1: has no message that a model could answer",
                      self.refused(65, *options, "--messages", bad, "--template", form))
        self.assertIn("has no line with a conversation", self.refused(65, *options, "--messages", self.write("none.jsonl", "\n"), "--template", form))

    def test_bad_input_is_refused_in_one_line(self):
        self.train("run", "train.steps=2", "model.vocab=300", "data.format=text")
        checkpoints = f"--from={self.folder / 'run/checkpoints'}"
        self.assertIn("the nearest is --prompt", self.refused(64, checkpoints, "--promt", "a"))
        self.assertIn("--from is missing", self.refused(64, "--prompt", "a"))
        self.assertIn("--tokenizer is missing", self.refused(64, checkpoints, "--prompt", "a"))
        self.assertIn("300 is no token", self.refused(64, checkpoints, "--prompt-tokens=1,300", "--tokenizer=none"))
        self.assertIn("256 is no token", self.refused(64, checkpoints, "--prompt-tokens=256", "--tokenizer=bytes"))
        self.assertIn("--prompt-tokens: '' is no whole number", self.refused(64, checkpoints, "--prompt-tokens=1,,2"))
        self.assertIn("needs a tokenizer", self.refused(64, checkpoints, "--prompt=a", "--tokenizer=none"))
        self.assertIn("one of them", self.refused(64, checkpoints, "--prompt=a", "--prompt-tokens=1"))
        self.assertIn("--temperature: '-1'", self.refused(64, checkpoints, "--temperature=-1"))
        self.assertIn("--temperature: 'nan'", self.refused(64, checkpoints, "--temperature=nan"))
        self.assertIn("one of them", self.refused(64, checkpoints, "--prompt=a", "--prompt-file=-"))
        self.assertIn("--top-p: '0'", self.refused(64, checkpoints, "--top-p=0"))
        self.assertIn("--stop is empty", self.refused(64, checkpoints, "--stop", ""))
        self.assertIn("--stop needs a tokenizer", self.refused(64, checkpoints, "--stop=a", "--tokenizer=none"))
        self.assertIn("--prompt-file=", self.refused(65, checkpoints, f"--prompt-file={self.folder / 'nothing'}", "--tokenizer=bytes"))
        self.assertIn("--top-k: 'x'", self.refused(64, checkpoints, "--top-k=x"))
        self.assertIn("--tokens: '0'", self.refused(64, checkpoints, "--tokens=0"))
        self.assertIn("--seed: '-1'", self.refused(64, checkpoints, "--seed=-1"))
        self.assertIn("--dtype=fp8", self.refused(64, checkpoints, "--dtype=fp8"))
        self.assertIn("--from=", self.refused(65, f"--from={self.folder / 'nothing'}", "--prompt=a"))
        self.assertIn("--tokenizer", self.refused(65, checkpoints, f"--tokenizer={self.text}"))


if __name__ == "__main__":
    main()
