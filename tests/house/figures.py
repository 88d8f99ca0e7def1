#!/usr/bin/env python3
"""Prints figures of the house, to compare before and after a change: figures.py SOURCE_DIRECTORY.

They are proxies. A function begins with a line that ends in ") {" or the like and ends where its braces do. A closure is
what a source of src includes of the project, directly and through other headers. A new optimizer touches what names
AdaGrad today; a new fate of activations touches what names recomputation."""
import re
import statistics
import sys
from pathlib import Path

import check_rooms

NO_SUBJECT = re.compile(r"^\s*///<? ?(What|Of|That|Those|Likewise)\b")
BODY = re.compile(r"^( *)(?!.*\b(namespace|class|struct|union|enum|if|for|while|switch|else|do|try|catch)\b)\S.*\)[^;=]*\{$")
LONGEST = 60


def sources(root, *suffixes):
    return [file for top in ("src", "kernels") for file in sorted((root / top).rglob("*")) if file.suffix in suffixes]


def long_functions(file):
    lines = [re.sub(r'"(\\.|[^"\\])*"|\'.\'|//.*', "", line) for line in file.read_text().splitlines()]
    for number, line in enumerate(lines):
        if BODY.match(line):
            depth, end = 1, number
            while depth > 0 and end + 1 < len(lines):
                end += 1
                depth += lines[end].count("{") - lines[end].count("}")
            if end - number - 1 > LONGEST:
                yield f"{file.name}:{number + 1} ({end - number - 1})"


def closure(root, file, known):
    """Headers of the project that `file` brings."""
    if file in known:
        return known[file]
    known[file] = set()  # includes go in one direction; a cycle ends here
    found = set()
    for line in (root / file).read_text().splitlines():
        match = check_rooms.INCLUDE.match(line)
        target = match and match[1] == '"' and check_rooms.resolve(root, root / file, match[2])
        if target:
            found |= {target} | closure(root, target, known)
    known[file] = found
    return found


def naming(root, pattern):
    return sum(bool(re.search(pattern, file.read_text())) for file in sources(root, ".hpp", ".cpp", ".cu", ".cuh"))


def main():
    root = Path(sys.argv[1]).resolve()
    headers, code = sources(root, ".hpp", ".cuh"), sources(root, ".hpp", ".cuh", ".cpp", ".cu")
    known = {}
    largest = max((file.relative_to(root) for file in sources(root, ".cpp")), key=lambda file: len(closure(root, file, known)))
    long = [name for file in code for name in long_functions(file)]
    comments = [line for file in headers for line in file.read_text().splitlines() if line.lstrip().startswith("///")]
    lines = [len(file.read_text().splitlines()) for file in code]
    print(f"rooms                                {len(check_rooms.RANK)}")
    print(f"files, median lines, longest         {len(code)}, {statistics.median(lines):.0f}, {max(lines)}")
    print(f"includes upward, other offences      {len(check_rooms.check(root)[1])}")
    print(f"largest include closure              {len(known[largest])} headers ({largest})")
    print(f"functions over {LONGEST} lines              {len(long)} {' '.join(long)}")
    print(f"header comment lines without subject {sum(bool(NO_SUBJECT.match(line)) for line in comments)} of {len(comments)}")
    print(f"files that name one optimizer        {naming(root, '(?i)adagrad')}")
    print(f"files that name one fate             {naming(root, r'::recompute|recomputed?_blocks')}")
    print(f"lines of README                      {len((root / 'README.md').read_text().splitlines())}")


if __name__ == "__main__":
    main()
