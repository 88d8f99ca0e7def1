#!/usr/bin/env python3
"""Real text that every machine with a compiler has: header_text.py FOLDER

Writes FOLDER/train.txt (8 MB) and FOLDER/valid.txt (0.4 MB) from the C and C++ headers under /usr/include. No file is
in both, nor a copy of it."""
import hashlib
import os
import random
import sys

LIMITS = {"train": 8_000_000, "valid": 400_000}


def main():
    place, = sys.argv[1:]
    found = sorted(os.path.join(folder, name) for folder, _, names in os.walk("/usr/include")
                   for name in names if name.endswith((".h", ".hpp", ".tcc")))
    random.Random(1).shuffle(found)
    seen, sizes = set(), {"train": 0, "valid": 0}
    with open(f"{place}/train.txt", "wb") as train, open(f"{place}/valid.txt", "wb") as valid:
        for number, path in enumerate(found):
            name, file = ("valid", valid) if number % 16 == 0 else ("train", train)
            if sizes[name] >= LIMITS[name] or os.path.islink(path):
                continue
            with open(path, "rb") as source:
                text = source.read(64 << 10)  # a few huge files shall not outweigh the others
            digest = hashlib.sha256(text).digest()
            if digest not in seen:            # a copy of a trained file would be no validation
                seen.add(digest)
                sizes[name] += file.write(text)
    print(f"{place}/train.txt: {sizes['train']} bytes; valid.txt, of other files: {sizes['valid']} bytes")


if __name__ == "__main__":
    main()
