#!/usr/bin/env python3
"""What jobs/finetune.sh needs of texts: finetune_data.py DIRECTORY

Writes a tokenizer of bytes and three tokens of its own (base/tokenizer.json, tokenizer_config.json with a chat template),
text.jsonl with sentences to pre-train on, chats.jsonl and valid.jsonl with questions about them and answers. The same
bytes every time; Python's standard library alone.
"""
import json
import random
import sys
from pathlib import Path

COLOURS = {"sky": "blue", "grass": "green", "snow": "white", "coal": "black", "blood": "red", "lemon": "yellow",
           "sea": "blue", "rose": "red", "milk": "white", "sun": "yellow", "leaf": "green", "raven": "black"}
SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>"]
TEMPLATE = ("{% for m in messages %}{% if m['role'] == 'user' %}<|user|>{{ m['content'] }}\n{% else %}<|assistant|>"
            "{{ m['content'] }}<|end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")


def byte_letters():
    """The letters that stand for bytes in byte-level BPE, by GPT-2's table."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}


def tokenizer():
    letters = byte_letters()
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": 256 + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, text in enumerate(SPECIAL)],
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {letters[b]: b for b in range(256)}, "merges": []}}


def main():
    place = Path(sys.argv[1])
    base = place / "base"
    base.mkdir(parents=True, exist_ok=True)
    (base / "tokenizer.json").write_text(json.dumps(tokenizer(), ensure_ascii=False) + "\n")
    (base / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "clean_up_tokenization_spaces": False,
         "chat_template": TEMPLATE}, indent=2) + "\n")
    numbers = random.Random(1)
    things = list(COLOURS)
    with open(place / "text.jsonl", "w") as file:
        for _ in range(600):
            some = numbers.sample(things, 4)
            print(json.dumps({"text": " ".join(f"The {thing} is {COLOURS[thing]}." for thing in some)}), file=file)
    for name, count in ("chats", 400), ("valid", 40):
        with open(place / f"{name}.jsonl", "w") as file:
            for _ in range(count):
                messages = []
                for thing in numbers.sample(things, numbers.randint(1, 3)):
                    messages += [{"role": "user", "content": f"What colour is the {thing}?"},
                                 {"role": "assistant", "content": f"The {thing} is {COLOURS[thing]}."}]
                print(json.dumps({"messages": messages}), file=file)


if __name__ == "__main__":
    main()
