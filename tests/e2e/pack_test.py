#!/usr/bin/env python3
"""Text to tokens: what `data pack` writes, with every tokenizer and in every format, is read by a reader of its own."""
import gzip
import json
import struct
from pathlib import Path

from data_harness import CONFIGS, DATA, SEA, TOKENIZERS, USAGE, DataTest, read_megatron, u16
from harness import main

END = 2  # </s> of sea.model
TABLES = Path(__file__).resolve().parent.parent / "parquet" / "files"


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


if __name__ == "__main__":
    main()
