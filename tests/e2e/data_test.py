#!/usr/bin/env python3
"""Text to tokens: what `data pack` writes is read by a reader of its own here and by `data inspect`;
a training takes files with weights."""
import gzip
import json
import math
import re
import shutil
import struct
import unittest
from pathlib import Path

from harness import OFFSTAGE, OffstageTest, main

USAGE, DATA = 64, 65
SEA = Path(__file__).resolve().parent.parent / "data" / "sea.model"
TOKENIZERS = Path(__file__).resolve().parent.parent / "tokens" / "files"
END = 2  # </s> of sea.model
TABLES = Path(__file__).resolve().parent.parent / "parquet" / "files"
CONFIGS = Path(__file__).resolve().parent.parent.parent / "configs"
TYPES = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 8: "H"}


def read_megatron(prefix):
    """Documents of PREFIX.bin by PREFIX.idx, as Megatron-LM reads them."""
    index = Path(f"{prefix}.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0"
    version, code, sequences, boundaries = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    pointers = struct.unpack_from(f"<{sequences}q", index, 34 + 4 * sequences)
    documents = struct.unpack_from(f"<{boundaries}q", index, 34 + 12 * sequences)
    assert len(index) == 34 + 12 * sequences + 8 * boundaries
    data = Path(f"{prefix}.bin").read_bytes()
    read = [list(struct.unpack_from(f"<{n}{TYPES[code]}", data, p)) for n, p in zip(lengths, pointers)]
    assert sum(lengths) * struct.calcsize(TYPES[code]) == len(data)
    return [sum(read[a:b], []) for a, b in zip(documents, documents[1:])]


def u16(data):
    return list(struct.unpack(f"<{len(data) // 2}H", data))


class DataTest(OffstageTest):
    def data(self, *arguments, expect=0):
        result = self.call(OFFSTAGE, "data", *arguments)
        self.assertEqual(expect, result.code, result)
        return result

    def pack(self, *arguments, expect=0, tokenizer="bytes", form="megatron", prefix="out"):
        return self.data("pack", f"--tokenizer={tokenizer}", f"--format={form}", "--to",
                         self.folder / prefix, *arguments, expect=expect)

    def inspect(self, path, *arguments):
        """What inspect prints of one file, by name."""
        lines = self.data("inspect", path, *arguments).out.splitlines()
        return {line[2:17].strip(): line[19:] for line in lines[1:]}

    def refuse(self, result, words):
        self.assertEqual(1, len(result.errors), result)
        self.assertEqual(result.errors, result.err.splitlines(), result)
        for word in words:
            self.assertIn(str(word), result.errors[0])

    def left(self):
        return sorted(p.name for p in self.folder.iterdir())


class Pack(DataTest):
    def test_bytes_become_documents_of_megatron(self):
        a = self.write("a.txt", b"one\ntwo\n\n\xff\xe9")
        b = self.write("b.txt", b"three")
        self.pack("--from", a, b)
        self.assertEqual([list(a.read_bytes()), list(b"three")], read_megatron(self.folder / "out"))
        self.pack("--from", a, "--documents=line", prefix="lines")
        self.assertEqual([list(x) for x in (b"one\n", b"two\n", b"\n", b"\xff\xe9")],
                         read_megatron(self.folder / "lines"))

    def test_pieces_end_documents_with_their_end_token(self):
        text = self.write("a.txt", "The ship waits.\r\nA sailor\n\n\n\nThe tide leaves\n")
        whole = {}
        for kind in "file", "line", "blank":
            self.pack("--from", text, f"--documents={kind}", tokenizer=SEA, prefix=kind)
            whole[kind] = read_megatron(self.folder / kind)
            for document in whole[kind]:
                self.assertEqual(END, document[-1])
                self.assertNotIn(END, document[:-1])
        self.assertEqual([1, 3, 2], [len(whole[kind]) for kind in ("file", "line", "blank")])
        # The same as spm_encode says, see tests/data/tokenizer_test.cpp.
        self.pack("--from", self.write("b.txt", "The ship waits for nothing.\n"), "--documents=line",
                  tokenizer=SEA, prefix="b")
        self.assertEqual([[269, 278, 388, 399, 360, 357, 375, 393, END]], read_megatron(self.folder / "b"))

    def test_llmc_and_nanogpt_hold_the_same_tokens(self):
        self.pack("--from", self.text, form="nanogpt", prefix="nano")
        self.pack("--from", self.text, form="llmc", prefix="llmc")
        tokens = list(self.text.read_bytes())
        self.assertEqual(tokens, u16((self.folder / "nano.bin").read_bytes()))
        data = (self.folder / "llmc.bin").read_bytes()
        self.assertEqual((20240520, 1, len(tokens)), struct.unpack_from("<3i", data))
        self.assertEqual(tokens, u16(data[1024:]))

    def test_nothing_is_overwritten_and_nothing_half_is_left(self):
        before = self.left()
        good = self.write("good.txt", "good")
        empty = self.write("empty.txt", "")
        self.refuse(self.pack("--from", good, empty, expect=DATA), [f"--from={empty}", "empty"])
        self.refuse(self.pack("--from", good, self.folder / "nowhere", expect=DATA), ["nowhere", "No such file"])
        self.refuse(self.pack("--from", good, tokenizer=good, expect=DATA),
                    [f"--tokenizer={good}", "no SentencePiece model"])
        self.refuse(self.pack("--from", f"{self.folder}/emp*", expect=DATA), ["--from: all files that its patterns match are empty"])
        self.assertEqual(sorted([*before, "good.txt", "empty.txt"]), self.left())
        result = self.pack("--from", f"{self.folder}/[eg]*.txt")
        self.assertIn(f"1 of the files that patterns of --from match is empty and left out: {empty}", "".join(result.warnings))
        self.refuse(self.pack("--from", good, expect=USAGE), [f"{self.folder}/out.bin is there already"])
        self.assertEqual([list(b"good")], read_megatron(self.folder / "out"))

    def test_json_is_packed_as_it_stands_only_where_documents_are_said(self):
        lines = self.write("a.json", '{"text": "a"}\n' * 3)
        result = self.pack("--from", lines, expect=DATA)
        self.refuse(result, [f"--from={lines}: looks like JSON", "--documents=jsonl"])
        result = self.pack("--from", lines, "--documents=file")
        self.assertEqual(1, len(result.warnings), result)
        self.assertIn(f"--from={lines}: looks like JSON, which becomes tokens as it stands; ", result.warnings[0])
        self.assertIn("--documents=jsonl", result.warnings[0])
        self.assertNotIn("data pack", result.warnings[0])

    def test_what_is_no_text_is_refused_with_what_to_do(self):
        files = {"a.txt": (b"PAR1....", ["a Parquet table", "name it .parquet"]),
                 "c.xlsx": (b"PK\3\4..", ["a zip archive", "unpack it"]), "d": (b"%PDF-1.7", ["a PDF", "pdftotext"]),
                 "e.json": (b'[\n {"text": "a"}]', ["a JSON array", "jq -c '.[]'"]),
                 "f.jsonl": (b'[{"text": "a"}]', ["a JSON array", "jq -c '.[]'"]),
                 "g.txt": ("text".encode("utf-16"), ["UTF-16", "iconv -f UTF-16"]),
                 "h.txt": ("text".encode("utf-32"), ["UTF-32", "iconv -f UTF-32"]),
                 "k.tar": (b"name".ljust(257, b"\0") + b"ustar\0" + b"\0" * 300, ["a tar archive", "unpack it"]),
                 "l.txt": ("text".encode("utf-16-le"), ["binary data (byte 1 is 0)", "iconv -f UTF-16LE"]),
                 "m.txt.lz4": (b"\x04\x22\x4d\x18....", ["lz4", "unpack it"]),
                 "i.gz": (gzip.compress("text".encode("utf-16")), ["UTF-16"]), "j.zst": (zstd_of(b"PAR1"), ["Parquet"])}
        for name, (contents, words) in files.items():
            path = self.write(name, contents)
            result = self.pack("--from", self.text, path, expect=DATA)
            self.refuse(result, [f"--from={path}: looks like", *words])
            self.assertNotIn("data pack", result.errors[0])
        result = self.pack("--from", self.folder / "e.json", "--documents=file")
        self.assertIn("a JSON array, which becomes tokens as it stands", result.warnings[0])

    def test_bytes_that_are_no_utf8_are_counted(self):
        plain = self.write("plain.txt", "The ship\n\nwaits\n")
        marked = self.write("marked.txt", b"\xef\xbb\xbf" + plain.read_bytes())
        bad = self.write("bad.txt", b"The \xe9 ship\n\nw\xe2\x82 \xff waits\n")
        for number, (kind, place) in enumerate({"file": "byte 5", "line": "line 1, byte 5", "blank": "document 1, byte 5"}.items()):
            result = self.pack("--from", marked, bad, f"--documents={kind}", tokenizer=SEA, prefix=kind)
            self.assertEqual(1, len(result.warnings), result)
            self.assertIn(f"U+FFFD: 4; the first: {bad}, {place}; ", result.warnings[0])
            self.assertFalse(self.pack("--from", plain, tokenizer=SEA, prefix=f"plain{number}").warnings)
        self.assertFalse(self.pack("--from", bad).warnings)  # bytes are tokens
        self.assertEqual(read_megatron(self.folder / "plain0"), read_megatron(self.folder / "file")[:1])

    def test_documents_without_an_end_are_refused_where_the_format_stores_none(self):
        tokenizer, lines = TOKENIZERS / "gpt2.json", self.write("a.jsonl", '{"text": "a"}\n{"text": "b"}\n')
        for form in "nanogpt", "llmc":
            for source, name in ((lines, tokenizer), (lines, "bytes"), (self.valid, tokenizer)):
                more = ["--documents=line"] if source == self.valid else []
                self.refuse(self.pack("--from", source, *more, tokenizer=name, form=form, expect=USAGE),
                            [f"--tokenizer={name} names no token", form, "--end-token=TOKEN", "--end-token=none"])
        self.refuse(self.pack("--from", self.text, self.valid, tokenizer=tokenizer, form="llmc", expect=USAGE), ["--end-token=TOKEN"])
        self.assertFalse([name for name in self.left() if name.startswith("out")])
        self.assertIn("never sees the end of one", self.pack("--from", lines, tokenizer=tokenizer).warnings[0])
        for i, more in enumerate((["--end-token=none"], ["--end-token=<|endoftext|>"])):
            for form in "nanogpt", "megatron":
                self.assertFalse(self.pack("--from", lines, *more, tokenizer=tokenizer, form=form, prefix=f"{form}{i}").warnings)
        self.assertFalse(self.pack("--from", self.text, tokenizer=tokenizer, form="llmc", prefix="one").warnings)

    def test_mistakes_on_the_command_line(self):
        self.refuse(self.pack("--from", self.text, form="hdf5", expect=USAGE), ["--format=hdf5", "megatron"])
        self.refuse(self.pack("--from", self.text, "--document=line", expect=USAGE), ["--document", "--documents"])
        self.refuse(self.pack("--from", self.text, "--documents=word", expect=USAGE), ["word", "blank"])
        self.refuse(self.pack("--from", self.text, prefix="out.bin", expect=USAGE), ["out.bin", "prefix"])
        self.refuse(self.pack(expect=USAGE), ["--from"])
        self.refuse(self.data("pakc", expect=USAGE), ["pakc", "pack"])
        self.assertIn("offstage data inspect", self.data("--help").out)


def zstd_of(data):
    """A frame of zstd that holds `data` as it is; 255 bytes at most."""
    return b"\x28\xb5\x2f\xfd\x20" + bytes([len(data)]) + struct.pack("<I", len(data) << 3 | 1)[:3] + data


class PackTokenizers(DataTest):
    """With the tokenizers of tests/tokens, whose tokens the `tokenizers` package told."""

    EXPECTED = json.loads((TOKENIZERS / "expected.json").read_text())

    def told(self, name, texts):
        """What the package makes of texts that are among those of the file."""
        known = [bytes(text) for text in self.EXPECTED["texts"]]
        return [self.EXPECTED["tokenizers"][name]["ids"][known.index(text.encode())] for text in texts]

    def test_a_tokenizer_json_gives_the_tokens_of_the_package(self):
        texts = ["The ship waits for nothing.", "Die Flut verlässt den Hafen, la marée quitte le port", "a"]
        lines = self.write("a.txt", "\n".join(texts) + "\n")
        for name in "gpt2", "llama3", "qwen", "llama2", "unigram":
            self.pack("--from", lines, "--documents=line", "--end-token=<|endoftext|>" if name in ("gpt2", "llama3", "qwen")
                      else "--end-token=</s>", tokenizer=TOKENIZERS / f"{name}.json", prefix=name)
            end = 0 if name in ("gpt2", "llama3", "qwen") else 2
            self.assertEqual([ids + [end] for ids in self.told(name, texts)], read_megatron(self.folder / name))

    def test_json_lines_packed_files_and_patterns_give_the_same_documents(self):
        texts = ["The ship waits for nothing.", "a", "def f(x):\n    return x[0] + 12345678 # done\n"]
        rows = [json.dumps({"id": i, "meta": {"text": "no"}, "text": text}) for i, text in enumerate(texts)]
        raw = "\n".join(rows[:2]) + "\n\n" + rows[2]
        self.write("plain.jsonl", raw)
        (self.folder / "packed.jsonl.gz").write_bytes(gzip.compress(raw[:50].encode()) + gzip.compress(raw[50:].encode()))
        (self.folder / "packed.jsonl.zst").write_bytes(zstd_of(raw[:80].encode()) + zstd_of(raw[80:].encode()))
        expected = self.told("gpt2", texts)
        options = {"tokenizer": TOKENIZERS / "gpt2.json"}
        self.write("lines.ndjson", raw)
        for i, name in enumerate(("plain.jsonl", "packed.jsonl.gz", "packed.jsonl.zst", "lines.ndjson")):
            self.pack("--from", self.folder / name, prefix=f"out{i}", **options)
            self.assertEqual(expected, read_megatron(self.folder / f"out{i}"), name)
        self.pack("--from", self.folder / "p*.jsonl*", prefix="all", **options)
        self.assertEqual(3 * expected, read_megatron(self.folder / "all"))
        result = self.pack("--from", self.folder / "plain.jsonl", "--end-token=none", prefix="bytes")
        self.assertIn(f"from {len(''.join(texts))} bytes of text, 1.00 bytes a token", result.out, "JSON around a text is none")
        self.write("other.txt", json.dumps({"body": texts[0]}))
        self.pack("--from", self.folder / "other.txt", "--documents=jsonl", "--field=body", prefix="other", **options)
        self.assertEqual(expected[:1], read_megatron(self.folder / "other"))

    def test_parquet_tables_give_the_tokens_of_their_rows_as_json_lines(self):
        rows = [json.loads(line) for line in (TABLES / "flat.jsonl").read_text().splitlines()]
        lines = self.folder / "flat.jsonl"
        lines.write_text("".join(json.dumps({"text": row["text"]}) + "\n" for row in rows))
        nulls = sum(row["text"] is None for row in rows)
        self.pack("--from", lines, f"--skip-bad={nulls}", "--end-token=none", prefix="lines")
        table = TABLES / "flat-snappy.parquet"
        self.pack("--from", table, f"--skip-bad={nulls}", "--end-token=none", prefix="table")
        for ending in "bin", "idx":
            self.assertEqual(*((self.folder / f"{name}.{ending}").read_bytes() for name in ("lines", "table")))
        self.refuse(self.pack("--from", table, "--end-token=none", prefix="no", expect=DATA), [table, "has null as field 'text'"])
        self.refuse(self.pack("--from", table, "--field=txt", "--end-token=none", prefix="no", expect=DATA),
                    [table, "no column 'txt'", "text, language, id"])
        self.refuse(self.pack("--from", self.text, table, "--documents=line", prefix="no", expect=DATA),
                    [table, "is a Parquet table, whose rows are documents; give --documents=jsonl"])

    def test_threads_do_not_change_the_files(self):
        self.write("many.txt", "".join(f"line {i * i} of the ship\n" for i in range(60_000)))
        for threads in 1, 4:
            self.pack("--from", self.folder / "many.txt", self.text, "--documents=line", f"--threads={threads}", "--progress=0",
                      tokenizer=TOKENIZERS / "llama2.json", prefix=f"by{threads}")
        for ending in ".bin", ".idx":
            one, four = ((self.folder / f"by{threads}{ending}").read_bytes() for threads in (1, 4))
            self.assertEqual(one, four)

    def test_special_tokens_stand_around_documents_where_asked_for(self):
        text = self.write("a.txt", "a\n")
        ids = self.told("llama2", ["a"])[0]
        for options, wanted in ((["--end-token=</s>"], ids + [2]), (["--end-token=</s>", "--add-special-tokens=yes"], [1, *ids, 2])):
            result = self.pack("--from", text, "--documents=line", *options, tokenizer=TOKENIZERS / "llama2.json")
            self.assertEqual("--add-special-tokens=yes" not in options, "texts begin without '<s>'" in result.out, result)
            self.assertEqual([wanted], read_megatron(self.folder / "out"))
            for ending in ".bin", ".idx":
                (self.folder / f"out{ending}").unlink()
        begun = self.write("begun.jsonl", json.dumps({"text": "<s>a"}) + "\n")
        options = ["--from", begun, "--end-token=</s>"]
        self.assertNotIn("texts begin without", self.pack(*options, tokenizer=TOKENIZERS / "llama2.json").out)
        twice = self.pack(*options, "--add-special-tokens=yes", tokenizer=TOKENIZERS / "llama2.json", prefix="twice")
        self.assertIn("has texts that begin with '<s>', and the pack puts another one before each", twice.warnings[0])
        self.assertEqual([1, 1], read_megatron(self.folder / "twice")[0][:2])
        chat = self.write("chat.jsonl", json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}) + "\n")
        for name, begins in ("llama2", True), ("zephyr", False):
            result = self.pack("--from", chat, "--template", CONFIGS / f"templates/{name}.txt", tokenizer=TOKENIZERS / "llama2.json", prefix=name)
            self.assertEqual(begins, read_megatron(self.folder / name)[0][0] == 1)
            self.assertNotEqual(begins, "texts begin without '<s>'" in result.out, result)
        quoted = self.write("quoted.jsonl", json.dumps({"text": 'a "<s>" b'}) + "\n")  # none begins with it
        self.assertIn("texts begin without '<s>'",
                      self.pack("--from", quoted, *options[2:], tokenizer=TOKENIZERS / "llama2.json", prefix="quoted").out)

    def test_bad_input_is_named_and_leaves_nothing(self):
        tokenizer = TOKENIZERS / "gpt2.json"
        bad = {"no json": ["line 2", "no JSON"], '{"text": 1}': ["line 2", "a number", "'text'"], "[1]": ["line 2", "an array"],
               '{"body": "x"}': ["line 2", "no field 'text'", "--template"], '{"text": "a", "text": "b"}': ["line 2", "twice"]}
        for line, words in bad.items():
            path = self.write("bad.jsonl", '{"text": "good"}\n' + line + "\n")
            self.refuse(self.pack("--from", path, "--end-token=none", tokenizer=tokenizer, expect=DATA), [f"--from={path}", *words])
            self.assertIn("--skip-bad=N", self.pack("--from", path, "--end-token=none", tokenizer=tokenizer, expect=DATA).errors[0])
        cut = self.folder / "cut.gz"
        cut.write_bytes(gzip.compress(b"text" * 1000)[:-9])
        self.refuse(self.pack("--from", cut, tokenizer=tokenizer, expect=DATA), [cut, "ends in the middle"])
        self.refuse(self.pack("--from", self.folder / "*.none", tokenizer=tokenizer, expect=DATA), ["*.none", "no file matches"])
        self.refuse(self.pack("--from", self.text, "--end-token=</s>", tokenizer=tokenizer, expect=USAGE), ["--end-token=</s>", "auto"])
        content = json.loads(tokenizer.read_text())
        content["model"]["type"] = "WordPiece"
        other = self.write("tokenizer.json", json.dumps(content))
        self.refuse(self.pack("--from", self.text, tokenizer=other, expect=DATA), [other, "model.type", "'WordPiece'"])
        self.assertFalse([name for name in self.left() if name.startswith("out")])


    def test_bad_lines_are_left_out_as_far_as_told_and_a_pack_goes_on_with_more(self):
        tokenizer = TOKENIZERS / "gpt2.json"
        texts = [f"document {i}" for i in range(40_000)]
        lines = [json.dumps({"text": text}) for text in texts]
        lines[7], lines[30_000], lines[39_999] = '{"text": null}', '{"text": "cut \\ud83d"}', "no json"
        path = self.write("bad.jsonl", "\n".join(lines) + "\n")
        options = ["--from", path, "--end-token=none", "--save=0"]
        result = self.pack(*options, "--skip-bad=1", tokenizer=tokenizer, expect=DATA)
        self.refuse(result, ["more than 1 lines are bad (--skip-bad); the first: ", f"--from={path}: line 8: has null"])
        result = self.pack(*options, "--skip-bad=3", tokenizer=tokenizer)
        self.assertIn("this one goes on there", result.out)
        self.assertEqual(1, len(result.warnings), result)
        self.assertIn("bad lines left out (--skip-bad): 3; the first: ", result.warnings[0])
        self.assertIn("line 8", result.warnings[0])
        good = self.write("good.jsonl", "\n".join(line for i, line in enumerate(lines) if i not in (7, 30_000, 39_999)) + "\n")
        self.pack("--from", good, "--end-token=none", tokenizer=tokenizer, prefix="good")
        self.assertEqual(read_megatron(self.folder / "good"), read_megatron(self.folder / "out"))


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


class Inspect(DataTest):
    def test_says_what_pack_wrote(self):
        text = self.write("a.txt", "The ship waits.\nThe tide leaves the harbour\nA map\n")
        self.pack("--from", text, "--documents=line", tokenizer=SEA)
        documents = read_megatron(self.folder / "out")
        tokens = sum(documents, [])
        lengths = sorted(map(len, documents))
        said = self.inspect(self.folder / "out", "--sequence=4")
        self.assertEqual("megatron", said["format"])
        self.assertEqual("u16", said["token type"])
        self.assertEqual(str(len(tokens)), said["tokens"])
        self.assertEqual("3; tokens: shortest {}, median {}, longest {}".format(*lengths), said["documents"])
        self.assertEqual([str(min(tokens)), str(max(tokens))], [said["smallest token"], said["largest token"]])
        within = sum(-(-(n - 1) // 4) for n in lengths)
        self.assertEqual(f"{(len(tokens) - 1) // 4}; {within} where none crosses documents", said["windows of 4"])

    def test_knows_every_format_without_being_told(self):
        self.pack("--from", self.text, form="llmc", prefix="llmc")
        self.pack("--from", self.text, form="nanogpt", prefix="nano")
        entropies = set()
        for path, form, kind in (self.text, "text", "u8"), ("llmc.bin", "llmc", "u16"), ("nano.bin", "nanogpt", "u16"):
            said = self.inspect(path, "--vocab=256", "--separator=32")
            self.assertEqual((form, kind), (said["format"], said["token type"]))
            self.assertTrue(said["documents"].startswith("1500; "), said)
            entropies.add(said["unigram entropy"])
        self.assertEqual(1, len(entropies), entropies)

    def test_says_the_same_in_json(self):
        chats = [("Where is the map?", "On deck."), ("And the tide?", "It leaves.")]
        text = self.write("chats.jsonl", "".join(json.dumps({"prompt": a, "completion": b}) + "\n" for a, b in chats))
        self.pack("--from", text, "--template", CONFIGS / "templates/completion.txt", prefix="chats", tokenizer=SEA)
        self.pack("--from", self.text, form="nanogpt", prefix="nano")
        paths = self.folder / "chats", self.folder / "nano.bin"
        packed, plain = map(json.loads, self.data("inspect", "{}:1,{}:3".format(*paths), "--sequence=9", "--json").out.splitlines())
        said = self.inspect(paths[0], "--sequence=9")
        self.assertEqual("{tokenizer}, {vocab} tokens".format(**packed), said["tokenizer"])
        for name, words in {"format": "format", "type": "token type", "tokens": "tokens",
                            "smallest_token": "smallest token", "largest_token": "largest token"}.items():
            self.assertEqual(said[words], str(packed[name]), name)
        self.assertEqual("{count}; tokens: shortest {shortest}, median {median}, longest {longest}".format(**packed["documents"]), said["documents"])
        self.assertEqual("{windows}; {windows_within_documents} where none crosses documents".format(**packed), said["windows of 9"])
        mask = packed["mask"]
        self.assertEqual("{packed_windows} windows; {documents_longer_than_a_window} documents are longer than one".format(**mask), said["whole documents"])
        self.assertEqual(f"{mask['path']}: {100 * mask['counted']:.1f} % of the tokens count", said["mask"])
        self.assertEqual([None] * 3, [plain[name] for name in ("documents", "windows_within_documents", "mask")])
        self.assertEqual([0.25, 0.75], [packed["share"], plain["share"]])

    def test_shows_text_without_conversations_too(self):
        text = self.write("b.txt", "The ship waits.\nThe tide.\n")
        self.pack("--from", text, "--documents=line", prefix="lines")
        said = self.data("inspect", self.folder / "lines", "--show=2").out
        self.assertTrue(said.endswith("\ndocument 1: 16 tokens\nThe ship waits.\n\n\ndocument 2: 10 tokens\nThe tide.\n\n"), said)
        self.refuse(self.data("inspect", text, "--show=1", expect=USAGE), ["no note beside", "--tokenizer=NAME"])
        said = self.data("inspect", text, "--show=2", "--tokenizer=bytes", "--sequence=8").out
        self.assertTrue(said.endswith("\nwindow 1: 8 tokens\nThe ship\n\nwindow 2: 8 tokens\n waits.\n\n"), said)
        self.refuse(self.data("inspect", text, "--show=1", "--json", expect=USAGE), ["--show", "--json"])
        self.refuse(self.data("inspect", text, "--tokenizer=bytes", expect=USAGE), ["--tokenizer", "--show=N"])
        long = self.write("long.txt", "x" * 5000)
        self.assertIn("... 904 more tokens", self.data("inspect", long, "--show=1", "--tokenizer=bytes", "--sequence=5000").out)

    def shares(self, path):
        return re.findall(r"share +(\S+) %", self.data("inspect", path, "--sequence=9").out)

    def test_takes_files_with_weights_as_data_train_does(self):
        self.assertEqual(["75", "25"], self.shares(f"{self.text}:3,{self.valid}:1"))
        self.refuse(self.data("inspect", f"{self.text}:3,{self.valid}", expect=USAGE), [self.valid, "has none"])

    def test_shares_without_weights_follow_the_sizes(self):
        small, large = (self.write(f"s_{i}.txt", b"x" * size) for i, size in enumerate((91, 271)))
        self.assertEqual(["25", "75"], self.shares(f"{small},{large}"))
        self.assertEqual(["25", "75"], self.shares(self.folder / "s_*.txt"))
        self.assertEqual(["12.5", "37.5", "50"], self.shares(f"{self.folder / 's_*.txt'}:1,{self.text}:1"))
        self.refuse(self.data("inspect", self.folder / "t_*", expect=DATA), [f"{self.folder}/t_*: no file matches"])

    def test_u32_is_refused_and_as_nanogpt_data_doubted(self):
        wide = self.write("wide.bin", struct.pack("<100I", *range(100)))
        self.assertIn(f"{wide}: looks like int32", self.data("inspect", wide, expect=DATA).errors[0])
        result = self.data("inspect", wide, "--format=nanogpt")
        self.assertIn("every second of its u16 are 0", result.warnings[0])

    def test_bad_data_is_named(self):
        self.pack("--from", self.text, tokenizer=SEA)
        index = self.folder / "out.idx"
        data = self.folder / "out.bin"
        whole = index.read_bytes()
        for change, words in ((whole[:-1], ["do not hold"]), (b"X" + whole[1:], ["MMIDIDX"]),
                              (whole[:9] + b"\2" + whole[10:], ["version 2"]),
                              (whole[:17] + b"\6" + whole[18:], ["f64"])):
            index.write_bytes(change)
            self.refuse(self.data("inspect", data, expect=DATA), [index, *words])
        index.write_bytes(whole)
        self.refuse(self.data("inspect", data, "--vocab=256", expect=DATA), [data, "--vocab=256", "position"])
        self.refuse(self.data("inspect", "nowhere", expect=DATA), ["nowhere", "No such file"])
        self.refuse(self.data("inspect", f"{data}:x", expect=USAGE), ["'x'", "weight"])
        self.refuse(self.data("inspect", data, "--vocab=0", expect=USAGE), ["--vocab: '0' is no whole number from 1"])
        self.refuse(self.data("inspect", data, "--separator=256", "--vocab=256", expect=USAGE), ["--separator: '256' is no whole number from 0 to 255"])
        self.refuse(self.data("inspect", expect=USAGE), ["inspect PATH"])
        self.refuse(self.data("inspect", "a", "b", expect=USAGE), ["a,b"])
        self.refuse(self.data("inspect", "-v", "a", expect=USAGE), ["unknown option -v", "the nearest is --vocab"])
        self.refuse(self.data("pack", "--tokeniser=a/long/path/to/tokenizer.json", expect=USAGE),
                    ["unknown option --tokeniser; the nearest is --tokenizer"])


class Train(DataTest):
    def test_packed_text_trains_to_the_bits_of_the_text_itself(self):
        self.train("text")
        for form in "megatron", "llmc", "nanogpt":
            self.pack("--from", self.text, form=form, prefix=form)
        for name, source in {"prefix": "megatron", "index": "megatron.idx", "llmc": "llmc.bin",
                             "nanogpt": "nanogpt.bin"}.items():
            self.train(name, f"data.train={self.folder / source}", ranks=2 if name == "prefix" else 1)
            self.assert_same_state("text", name)

    def test_documents_are_the_same_from_an_index_and_from_a_separator(self):
        words = self.text.read_bytes().split(b" ")
        lines = self.write("lines.txt", b"".join(b" ".join(words[i:i + i % 12 + 1]) + b"\n" for i in range(300)))
        self.pack("--from", lines, "--documents=line", prefix="packed")
        packed, apart = f"data.train={self.folder / 'packed'}", "data.cross-documents=false"
        self.train("crossed", packed)
        self.train("apart", packed, apart)
        self.train("apart-on-two", packed, apart, ranks=2)
        self.train("separator", f"data.train={lines}", "data.separator=10", apart)
        self.assert_same_state("apart", "apart-on-two")
        self.assert_same_state("apart", "separator")
        self.assertNotEqual(self.steps("apart")[-1]["loss"], self.steps("crossed")[-1]["loss"])

    def test_a_packed_token_beyond_the_vocabulary_ends_the_run_with_file_and_position(self):
        self.pack("--from", self.text)
        data = bytearray((self.folder / "out.bin").read_bytes())
        data[1::2] = b"\1" * (len(data) // 2)
        (self.folder / "out.bin").write_bytes(data)
        for ranks in 1, 2:
            result = self.train("bad", f"data.train={self.folder / 'out'}", ranks=ranks, expect=DATA)
            # Ranks that find one at the same time each say so.
            self.assertRegex(result.errors[0], r"data\.train=.*/out\.bin: token \d+ at position \d+ is no token of "
                                               r"model\.vocab=256")

    def test_shards_train_like_the_files_that_their_pattern_names(self):
        shards = [self.write(f"shard_{i}.txt", part) for i, part in
                  enumerate((self.text.read_bytes()[:700], self.text.read_bytes()[700:]))]
        for i, shard in enumerate(shards):
            self.pack("--from", shard, prefix=f"packed_{i}")
        self.train("named", f"data.train={shards[0]},{shards[1]}")
        self.train("pattern", f"data.train={self.folder / 'shard_*'}")
        self.train("two", f"data.train={self.folder / 'packed_*'}", ranks=2)  # with files .idx
        self.assert_same_state("named", "pattern")
        self.assert_same_state("named", "two")
        result = self.train("none", f"data.train={self.folder / 'shards_*'}", ranks=2, expect=DATA)
        self.assertIn(f"data.train={self.folder / 'shards_*'}: no file matches", result.errors[0])

    def test_an_end_that_is_held_out_trains_and_validates_as_files_cut_by_hand(self):
        text = self.text.read_bytes()
        cut = math.floor(0.9 * len(text) + 0.5)
        head, tail = self.write("head.txt", text[:cut]), self.write("tail.txt", text[cut:])
        keys = ["train.valid-every=2"]
        self.train("files", *keys, f"data.train={head}", f"data.valid={tail}")
        held = self.train("held", *keys, "data.valid=10%", ranks=2)
        self.assert_same_state("files", "held")
        losses = [[r["valid_loss"] for r in self.records(name) if "valid_loss" in r] for name in ("files", "held")]
        self.assertEqual(3, len(losses[0]))
        self.assertEqual(*losses)
        self.assertIn(f"data.train {self.text}, all but the last 10 %: text, u8, {cut} tokens, ", held.out)
        self.assertIn(f"data.valid {self.text}, the last 10 %: text, u8, {len(text) - cut} tokens, ", held.out)
        evaluate = [OFFSTAGE, "evaluate", "--from", self.folder / "held", "--sequence=24", "--data"]
        both = [self.call(*evaluate, *data) for data in ([tail], [self.text, "--held-out=10%"])]
        self.assertEqual(0, both[0].code, both[0])
        self.assertEqual(*[re.search(r"loss \S+ .*", result.out)[0].split(" in ")[0] for result in both])

    def test_sequences_are_left_out_behind_a_step(self):
        # Updates too small for a float: a loss depends on its data alone.
        keys = ["optimizer.kind=sgd", "optimizer.lr=1e-30", "optimizer.weight-decay=0", "optimizer.schedule=constant",
                "optimizer.warmup-steps=0", "checkpoint.every=2", "checkpoint.keep=9"]
        self.train("all", *keys, "train.steps=9")
        losses = [record["loss"] for record in self.steps("all")]
        self.assertEqual(9, len(set(losses)))
        skip = ["data.skip=2:8,4:16", "train.steps=6"]
        some = self.train("some", *keys, *skip, ranks=2)
        self.assertIn("data.skip: 8 sequences left out behind step 2\ndata.skip: 16 sequences left out behind step 4\n", some.out)
        expected = [*losses[:2], *losses[3:5], *losses[7:9]]
        self.assertEqual(expected, [record["loss"] for record in self.steps("some")])
        back = self.folder / "all/checkpoints/step-000000002"
        self.train("all", *keys, *skip, f"checkpoint.resume={back}", "train.steps=4")
        self.train("all", *keys, *skip)
        self.assertEqual(expected, [record["loss"] for record in self.steps("all")])
        without = self.train("all", *keys, "train.steps=7")
        self.assertIn("data.skip leaves out 0 sequences before step 6, and the checkpoint's run left out 24", "".join(without.warnings))
        for bad in "5", "5:0", "x:1", "7:1,7:1":
            self.refuse(self.train("bad", f"data.skip={bad}", expect=USAGE), [f"data.skip={bad}"])

    def test_an_end_that_cannot_be_held_out_is_an_error(self):
        for part in "0%", "100%":
            self.refuse(self.train("run", f"data.valid={part}", expect=USAGE),
                        [f"data.valid={part}", "more than 0% and less than 100%"])
        self.refuse(self.train("run", "data.valid=0.01%", expect=DATA), ["data.valid: the last 0.01 % of no file", "train.sequence=24"])
        evaluate = self.call(OFFSTAGE, "evaluate", "--from=x", f"--data={self.text}", "--held-out=0%")
        self.assertEqual(USAGE, evaluate.code, evaluate)
        self.assertIn("--held-out: '0%' leaves nothing", evaluate.errors[0])

    def test_files_with_weights_give_the_same_bits_on_any_number_of_ranks(self):
        sources = f"data.train={self.text}:0.7,{self.valid}:0.3"
        self.train("one", sources)
        self.train("two", sources, ranks=2)
        self.assert_same_state("one", "two")
        self.train("other", f"data.train={self.text}:0.3,{self.valid}:0.7")
        self.assertNotEqual(self.steps("one")[-1]["loss"], self.steps("other")[-1]["loss"])


if __name__ == "__main__":
    main()
