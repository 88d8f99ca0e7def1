#!/usr/bin/env python3
"""`offstage data pack` against the `tokenizers` package: tokenizers of 21 kinds trained on this machine's texts, and
some MB of text in many languages, code, characters of all of Unicode and random bytes, by lines and whole.

Needs the package: in this Python, or in the one that $TOKENIZERS_PYTHON names. TEXT_MB (0.5) sets how much of each.
"""
import gettext
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata
import unittest
from pathlib import Path

OFFSTAGE = os.environ["OFFSTAGE"]
ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = "de fr es ru ja zh_CN ko ar hi el tr vi th he pl uk bn ta fa".split()
MEGABYTES = float(os.environ.get("TEXT_MB", "0.5"))
PYTHON = os.environ.pop("TOKENIZERS_PYTHON", None)


def code(most):
    text = ""
    for pattern in "src/**/*.cpp", "src/**/*.hpp", "tests/**/*.py", "**/*.md":
        for path in sorted(ROOT.glob(pattern)):
            if "build" not in path.relative_to(ROOT).parts:
                text += path.read_text(errors="replace")
                if len(text) > most:
                    return text[:most]
    return text


def translations(most):
    """What programs say in other languages: of their catalogues, where they are installed."""
    text = ""
    for language in LANGUAGES:
        part = ""
        for path in sorted(Path("/usr/share/locale").glob(f"{language}/LC_MESSAGES/*.mo")):
            try:
                with path.open("rb") as file:
                    part += "\n".join(map(str, gettext.GNUTranslations(file)._catalog.values()))
            except (OSError, UnicodeDecodeError, struct.error):
                continue
            if len(part) > most // len(LANGUAGES):
                break
        text += part[:most // len(LANGUAGES)] + "\n"
    return text


def made_up(most, chance):
    """Words of many scripts, then odd spaces, marks and names of tokens, then characters of all of Unicode that Python
    knows: what an ICU of its age does not know has no properties there."""
    ranges = [(0x61, 0x7B), (0xC0, 0x250), (0x300, 0x340), (0x370, 0x460), (0x5D0, 0x5EB), (0x620, 0x660), (0x900, 0x970),
              (0xE01, 0xE50), (0x3041, 0x3100), (0x4E00, 0x5200), (0xAC00, 0xB000), (0xFB00, 0xFB50), (0xFF01, 0xFFDD),
              (0x1F300, 0x1F650)]
    text = ""
    while len(text) < most // 3:
        low, high = chance.choice(ranges)
        text += "".join(chr(chance.randrange(low, high)) for _ in range(chance.randint(1, 9))) + chance.choice("   \n")
    odd = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u2003", "\u3000", "\u0085", "\u2028", "\u180e", "\u200b",
           "\ufeff", "▁", "a", "b's", "I'LL", "don't", "42", "3.14", "1234567", "²", "½", "x_y", "?!", "...", "é", "e\u0301", "ß",
           "'ſ", "K", "İ", "Ⅷ", "<s>", "</s>", "<0x41>", "<unk>", "[MASK]", "  [MASK]  ", "amask", "<|endoftext|>"]
    while len(text) < 2 * most // 3:
        text += chance.choice(odd)
    while len(text) < most:
        character = chr(chance.randrange(0x110000))
        if unicodedata.category(character) not in ("Cs", "Cn") or chance.random() < 0.1:
            text += "" if 0xD800 <= ord(character) < 0xE000 or unicodedata.category(character) == "Cn" else character
    return text


def read_ids(prefix):
    index = Path(f"{prefix}.idx").read_bytes()
    kind, count = index[17], struct.unpack_from("<Q", index, 18)[0]
    data = Path(f"{prefix}.bin").read_bytes()
    letter, size = {8: ("H", 2), 4: ("i", 4)}[kind]
    tokens = struct.unpack(f"<{len(data) // size}{letter}", data)
    at, documents = 0, []
    for length in struct.unpack_from(f"<{count}i", index, 34):
        documents.append(list(tokens[at:at + length]))
        at += length
    return documents


class Conformance(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = Path(self.folder.name)

    def packed(self, text, tokenizer, documents):
        prefix = self.path / "out"
        subprocess.run([OFFSTAGE, "data", "pack", f"--from={text}", f"--to={prefix}", f"--tokenizer={tokenizer}",
                        "--format=megatron", f"--documents={documents}"], check=True, capture_output=True)
        found = read_ids(prefix)
        for ending in ".bin", ".idx":
            Path(f"{prefix}{ending}").unlink()
        return found

    def compare(self, name, tokenizer, data):
        path, text = self.path / f"{name}.json", self.path / "text"
        tokenizer.save(str(path))
        text.write_bytes(data)
        lines = [line + b"\n" for line in data.split(b"\n")[:-1]]
        for documents, parts in ("line", lines), ("file", [data]):
            texts = [part.decode("utf-8", "replace") for part in parts]
            wanted = [one.ids for one in tokenizer.encode_batch(texts, add_special_tokens=False)]
            found = self.packed(text, path, documents)
            wanted = [ids for ids in wanted if ids]
            if wanted != found:
                at = next((i for i, (a, b) in enumerate(zip(wanted, found)) if a != b), -1)
                self.fail(f"{name}, {documents} {at}: {wanted[at][:50]} are {found[at][:50]}")
        print(f"{name}: {sum(map(len, wanted))} tokens the same", flush=True)

    def test_the_same_tokens(self):
        try:
            import tokenizers_of_each_kind as kinds
        except ImportError:
            self.skipTest(f"{sys.executable} has no tokenizers: pip install tokenizers, or set TOKENIZERS_PYTHON")
        chance = random.Random(3)
        most = int(MEGABYTES * 1e6)
        known = code(most) + translations(most)
        data = (known + made_up(most // 2, chance)).encode() + b"\n" + chance.randbytes(most // 4) + b"\n"
        lines = (known[:most] + known[-most:]).splitlines(keepends=True)
        for make in kinds.make, kinds.make_more:
            for name, tokenizer in make(lines, 4000):
                with self.subTest(name):
                    self.compare(name, tokenizer, data)


if __name__ == "__main__":
    if PYTHON:
        os.execv(PYTHON, [PYTHON, *sys.argv])
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
