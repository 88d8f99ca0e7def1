#!/usr/bin/env python3
"""Makes files/: small tokenizers of the kinds that models use, and what the `tokenizers` package makes of texts with them.

Made with tokenizers 0.23.3 (pip install tokenizers); the tests read the files and need no package.
"""
import json
from pathlib import Path

import tokenizers_of_each_kind

FILES = Path(__file__).resolve().parent / "files"
TRAINING = """The ship waits for nothing. The tide leaves the harbour, and a sailor's map shows what the sea hid.
Das Schiff wartet auf nichts; die Flut verlässt den Hafen. Le bateau n'attend rien, la marée quitte le port.
Корабль ничего не ждёт. 船は何も待たない。 船什么也不等。 السفينة لا تنتظر شيئا
def wait(ship, hours=24):
    return [ship.name for _ in range(hours) if ship.waits and not ship.leaves]
1 22 333 4444 55555 3.14159 2026-11-23 I'll don't we've they'RE
""".splitlines(keepends=True) * 4
TEXTS = [
    "", " ", "a", "The ship waits for nothing.", "  two  spaces\t tab\n\n\nlines\r\n end ", "the tide leaves the harbour " * 4,
    "Die Flut verlässt den Hafen, la marée quitte le port", "Корабль ждёт", "船は何も待たない。何", "السفينة لا تنتظر", "नमस्ते สวัสดี 안녕",
    "def f(x):\n    return x[0] + 12345678 # done\n", "e\u0301 \u00e9 \ufb01 \u2460 \uff21 \u0130 \u00df", "\U0001f6a2\u200d\U0001f3fd \ufffd",
    "I'll DON'T we'VE don't 'S", "\u00a0nbsp\u3000wide\u2028line\u0085next\u200bzero", "<s>mask a mask amask [MASK] x<s>ab</s><unk><0x41>",
    "<|endoftext|>text<|im_start|>user", "▁mark ▁▁ marks", "\x00\x01\x7f", "a" * 100, "x" + " " * 40 + "y", "0123456789" * 3,
    "中文字符没有空格的长句子" * 3,
]
# Bytes that are no UTF-8 are told as numbers.
BYTES = [b"\xff\xfe", b"abc\xe2\x82", b"\xf0\x9f\x9a caf\xe9 ok", b"\xed\xa0\x80\xc0\xaf\xf4\x90\x80\x80"]


def main():
    FILES.mkdir(exist_ok=True)
    bytes_of = [list(text.encode()) for text in TEXTS] + [list(text) for text in BYTES]
    texts = [bytes(text).decode("utf-8", "replace") for text in bytes_of]
    expected = {"texts": bytes_of, "tokenizers": {}}
    for name, tokenizer in tokenizers_of_each_kind.make(TRAINING, 420):
        (FILES / f"{name}.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False,
                                                       separators=(",", ":")) + "\n")
        plain = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        framed = tokenizer.encode("a").ids
        at = framed.index(tokenizer.encode("a", add_special_tokens=False).ids[0])
        expected["tokenizers"][name] = {
            "vocab": tokenizer.get_vocab_size(), "ids": plain, "before": framed[:at],
            "decoded": [tokenizer.decode(ids, skip_special_tokens=True) for ids in plain]}
    (FILES / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
