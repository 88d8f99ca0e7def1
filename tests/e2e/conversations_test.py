#!/usr/bin/env python3
"""Conversations to tokens and a mask: `data pack` with a template."""
import json
import shutil
import struct
from pathlib import Path

from data_harness import DATA, TOKENIZERS, USAGE, DataTest, read_megatron
from harness import OFFSTAGE, main


class Conversations(DataTest):
    """Conversations of a template, told token by token: the tokenizer's own tokens of the text, as `data pack` gives them
    for plain texts, and the mask."""

    TOKENIZER = TOKENIZERS / "gpt2.json"
    TEMPLATE = """
# a comment
eos       = "<|endoftext|>"
user      = "<|im_start|>{content}\\n"
assistant = "{learn}{content}{eos}{/learn}\\n"
"""
    CHATS = [[("user", "What waits?"), ("assistant", "The ship waits.")], [("user", "Alone")],
             [("user", "a"), ("assistant", "The tide"), ("user", "And?"), ("assistant", "It leaves the harbour")]]

    def tokens(self, text):
        self.count = getattr(self, "count", 0) + 1
        path = self.write(f"text{self.count}.txt", text)
        self.pack("--from", path, tokenizer=self.TOKENIZER, prefix=f"text{self.count}", form="megatron")
        return read_megatron(self.folder / f"text{self.count}")[0]

    def chats(self, name="chats.jsonl", chats=None):
        rows = [json.dumps({"id": 1, "messages": [{"role": role, "content": content} for role, content in chat]})
                for chat in chats or self.CHATS]
        return self.write(name, "\n".join(rows) + "\n")

    def pack_chats(self, *options, template=TEMPLATE, prefix="out", expect=0, **more):
        return self.pack("--from", self.chats(), "--template", self.write("template.txt", template), *options,
                         tokenizer=self.TOKENIZER, prefix=prefix, expect=expect, **more)

    def mask_of(self, prefix):
        data = Path(f"{prefix}.mask").read_bytes()
        self.assertEqual(b"OFFMASK1", data[:8])
        count, counted = struct.unpack_from("<QQ", data, 8)
        self.assertEqual(count, len(data) - 40)
        self.assertEqual(counted, sum(data[40:]))
        return list(data[40:])

    def test_answers_and_their_ends_count(self):
        result = self.pack_chats()
        wanted, mask = [], []
        for chat in (self.CHATS[0], self.CHATS[2]):
            document = []
            for turn, (role, content) in enumerate(chat):
                line = "\n" if turn > 1 and role == "user" else ""
                before = self.tokens(f"{line}<|im_start|>{content}\n") if role == "user" else self.tokens(content)
                document += before
                mask += [int(role == "assistant")] * len(before)
                if role == "assistant":
                    document.append(0)
                    mask.append(1)
            wanted.append(document + self.tokens("\n"))
            mask += [0]
        self.assertEqual(wanted, read_megatron(self.folder / "out"))
        self.assertEqual(mask, self.mask_of(self.folder / "out"))
        self.assertIn("nothing of them counts in the loss: 1; the first", result.warnings[0])
        self.assertIn("line 2", result.warnings[0])
        said = self.inspect(self.folder / "out", "--vocab=512", f"--sequence={len(mask) - 1}")
        self.assertEqual("1 windows; 0 documents are longer than one", said["whole documents"])
        self.assertTrue(said["mask"].endswith(f"out.mask: {100 * sum(mask) / len(mask):.1f} % of the tokens count"), said)

    def test_special_tokens_in_texts_are_counted(self):
        text = self.write("a.txt", "The ship\n\nwaits<|endoftext|>A sailor<|endoftext|>\n\n<|endoftext|>")
        result = self.pack("--from", text, "--documents=blank", "--end-token=none", tokenizer=self.TOKENIZER)
        self.assertEqual(1, len(result.warnings), result)
        self.assertIn(f"special tokens that the texts themselves hold: 3; the first: <|endoftext|> in {text}, document 2; ", result.warnings[0])
        self.assertEqual(3, sum(document.count(0) for document in read_megatron(self.folder / "out")))
        chats = self.chats("spoofed.jsonl", [[("user", "<|endoftext|>"), ("assistant", "The ship<|endoftext|>")], self.CHATS[0]])
        result = self.pack("--from", chats, "--template", self.write("template.txt", self.TEMPLATE), tokenizer=self.TOKENIZER, prefix="chats")
        self.assertIn(f"hold: 2; the first: <|endoftext|> in --from={chats}: line 1; ", result.warnings[-1])

    def test_packed_conversations_can_be_read(self):
        self.pack_chats(prefix="chats")
        said = self.data("inspect", self.folder / "chats", "--show=9").out
        shown = said[said.index("\ndocument 1: "):]
        wanted = ""
        for number, chat in enumerate((self.CHATS[0], self.CHATS[2])):
            wanted += f"\ndocument {number + 1}: {len(read_megatron(self.folder / 'chats')[number])} tokens\n"
            for turn, (role, content) in enumerate(chat):
                line = "\n" if turn > 1 and role == "user" else ""
                wanted += f"{line}<|im_start|>{content}\n" if role == "user" else f"{{learn}}{content}<|endoftext|>{{/learn}}"
            wanted += "\n\n"
        self.assertEqual(wanted, shown)
        one = self.data("inspect", self.folder / "chats", "--show=1").out
        self.assertIn("document 1: ", one)
        self.assertNotIn("document 2: ", one)
        for note in self.folder.glob("chats.tokenizer"):
            note.write_text(note.read_text().replace(str(self.TOKENIZER), "gone.json"))
        self.refuse(self.data("inspect", self.folder / "chats", "--show=1", expect=DATA), ["gone.json", "give --tokenizer=NAME from here"])
        other = self.data("inspect", self.folder / "chats", "--show=1", "--tokenizer=bytes", expect=DATA)
        self.assertIn("the tokens of", other.warnings[0])
        again = self.data("inspect", self.folder / "chats", "--show=9", "--tokenizer", self.TOKENIZER).out
        self.assertTrue(again.endswith(shown), again)

    def test_a_mask_that_was_left_behind_is_missed(self):
        self.pack_chats()
        mask = self.folder / "out.mask"
        mask.unlink()
        train = ["train", f"--run.dir={self.folder / 'run'}", f"--data.train={self.folder / 'out'}", "--model.family=llama", "--model.layers=1",
                 "--model.hidden=16", "--model.heads=2", "--model.ffn-hidden=32", "--model.vocab=512", "--train.sequence=8", "--train.steps=1", "--optimizer.lr=1e-3"]
        for said in [self.call(OFFSTAGE, *train)]:
            self.assertEqual(DATA, said.code, said)
            self.refuse(said, [f"{mask} is missing", f"{self.folder}/out.tokenizer", "data.mask=off"])
        self.assertEqual(0, self.call(OFFSTAGE, *train, "--data.mask=off").code)
        said = self.data("inspect", self.folder / "out")
        self.assertIn(f"{mask} is missing", said.warnings[0])

    def test_threads_and_formats_do_not_change_the_mask(self):
        self.CHATS = self.CHATS * 9000
        template = self.TEMPLATE.replace("{eos}{/learn}", "{/learn}") + 'end = "{eos}"\n'
        self.pack_chats("--threads=1", prefix="one", template=template)
        self.pack_chats("--threads=4", prefix="four", form="llmc", template=template)
        one, four = ((self.folder / f"{name}.mask").read_bytes() for name in ("one", "four"))
        self.assertEqual(one, four)
        self.inspect(self.folder / "four.bin", "--vocab=512")

    def test_formats_that_store_no_ends_want_a_token_that_ends_conversations_alone(self):
        for form in "llmc", "nanogpt":
            self.refuse(self.pack_chats(form=form, expect=USAGE), [f"--format={form} does not store where conversations end"])
        rows = self.write("rows.jsonl", json.dumps({"user": "What waits?", "assistant": "The ship."}) + "\n")
        ends = self.write("ends.txt", 'eos = "<|endoftext|>"\nuser = "{content}\\n"\nassistant = "{learn}{content}{eos}"\n')
        self.pack("--from", rows, "--template", ends, tokenizer=self.TOKENIZER, form="llmc")

    def test_what_a_template_seems_to_lack_is_said(self):
        template = self.TEMPLATE.replace("{eos}{/learn}", "{/learn}{eos}").replace("im_start", "im_strat")
        result = self.pack_chats(template=template)
        self.assertIn("'<|im_strat|>' of 'user' is no token of the tokenizer", result.warnings[0])
        self.assertIn("what is learned of 'assistant' does not end with '<|endoftext|>'", result.warnings[1])

    def test_a_chat_template_beside_the_tokenizer_is_said_not_to_be_used(self):
        directory = self.folder / "tokenizer"
        directory.mkdir()
        shutil.copy(self.TOKENIZER, directory / "tokenizer.json")
        self.TOKENIZER = directory
        self.assertNotIn("chat template", self.pack_chats().out)
        (directory / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
        self.assertIn(f"--tokenizer={directory}: has a chat template of its own, which is not used here",
                      self.pack_chats(prefix="other").out)

    def test_longer_ones_are_left_out_and_counted(self):
        result = self.pack_chats("--longest=16")
        self.assertEqual(1, len(read_megatron(self.folder / "out")))
        self.assertIn("more than 16 tokens (--longest): 1", "".join(result.warnings))

    def test_weights_and_fields_without_effect(self):
        chat = [{"role": "user", "content": "a", "name": "me"}, {"role": "assistant", "content": "The tide", "weight": 0},
                {"role": "user", "content": "b"}, {"role": "assistant", "content": "leaves"}]
        lines = [json.dumps({"messages": chat, "system": "x"}), json.dumps({"messages": chat[2:], "history": [["x", "y"]]})] * 9000
        path = self.write("chats2.jsonl", "\n".join(lines))
        template = self.write("template.txt", self.TEMPLATE)
        result = self.pack("--from", path, "--template", template, tokenizer=self.TOKENIZER)
        self.assertEqual(["fields that the template does not use: history 9000, name 9000, system 9000"],
                         [line.split("warning: ")[1] for line in result.warnings])
        learned = len(self.tokens("leaves")) + 1
        self.assertEqual(18000 * learned, sum(self.mask_of(self.folder / "out")))

    def test_bad_input_is_named_and_leaves_nothing(self):
        self.refuse(self.pack_chats(template='user = "{content}"', expect=DATA), ["template.txt", "{learn}"])
        self.refuse(self.pack_chats(template='user = "{learn}{content}"', expect=DATA), ["line 1", "'assistant'", "user"])
        self.refuse(self.pack_chats("--end-token=none", expect=USAGE), ["--end-token", "--template"])
        self.refuse(self.pack("--from", self.text, "--template", self.write("t", self.TEMPLATE), tokenizer=self.TOKENIZER,
                              expect=USAGE), ["--template takes JSON lines"])
        self.refuse(self.pack("--from", self.text, "--longest=5", expect=USAGE), ["--longest", "--template"])
        self.CHATS = self.CHATS[1:2]
        self.assertIn("the text gave no token", self.pack_chats(expect=DATA).errors[0])
        self.assertFalse([name for name in self.left() if name.startswith("out")])
        self.write("out.mask", "x")
        self.refuse(self.pack("--from", self.text, expect=USAGE), ["out.mask is there already", "other tokens"])


if __name__ == "__main__":
    main()
