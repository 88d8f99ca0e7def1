#!/usr/bin/env python3
"""Made tests/data/sea.model: a SentencePiece model of 420 tokens that gives every text back as it was.

    apt-get install sentencepiece && tests/data/make_sea_model.py
"""
import random
import subprocess
import tempfile
from pathlib import Path

SUBJECTS = ("the ship|a sailor|the harbour|our captain|the tide|an old map|the lighthouse|a letter|the morning|"
            "her compass|the storm|their cargo").split("|")
VERBS = ("carries|follows|remembers|leaves|turns towards|waits for|hides|crosses|measures|writes about|loses|"
         "finds").split("|")
OBJECTS = ("the northern wind|a quiet shore|the long night|some silver coins|the broken mast|a distant island|"
           "the water|nothing at all|every story|the same stars|its own shadow").split("|")


def clause(numbers):
    return f"{numbers.choice(SUBJECTS)} {numbers.choice(VERBS)} {numbers.choice(OBJECTS)}"


def sentence(numbers):
    text = clause(numbers)
    if numbers.random() < 0.3:
        text += f", and {clause(numbers)}"
    if numbers.random() < 0.2:
        text += f" in {numbers.randint(1500, 1999)}"
    return text[0].upper() + text[1:] + ".\n"


def main():
    numbers = random.Random(3)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
        text.writelines(sentence(numbers) for _ in range(2000))
        text.flush()
        model = Path(__file__).resolve().parent / "sea"
        subprocess.run(
            ["spm_train", f"--input={text.name}", f"--model_prefix={model}", "--vocab_size=420",
             "--model_type=bpe", "--byte_fallback=true", "--normalization_rule_name=identity",
             "--add_dummy_prefix=false", "--remove_extra_whitespaces=false", "--character_coverage=1.0"],
            check=True)
        model.with_suffix(".vocab").unlink()


if __name__ == "__main__":
    main()
