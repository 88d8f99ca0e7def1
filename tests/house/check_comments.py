#!/usr/bin/env python3
"""Counts header comments that leave out their noun, and names comment lines that are too wide: check_comments.py
SOURCE_DIRECTORY [--list [ROOM]].

A comment of a header, a block of `///` lines or one behind a member, begins with its noun, never with "What", "Of", "That", "Those" or
"Likewise". Prints the count of each room; --list prints each such comment, of one room or all. A comment line of any
source has at most 100 columns. Ends with 1 if there is one of either.
"""
import re
import sys
from collections import Counter
from pathlib import Path

from check_rooms import room_of

SUBJECTLESS = re.compile(r"(what|of|that|those|likewise)\b", re.I)
WIDEST = 100


def comments(lines):
    """Line number and first line of every comment for readers of a header."""
    in_block = False
    for number, line in enumerate(lines, 1):
        whole = re.match(r"\s*///(?!<)\s?(.*)", line)
        if whole and not in_block:
            yield number, whole[1]
        in_block = bool(whole)
        if (behind := re.search(r"///<\s*(.*)", line)):
            yield number, behind[1]


def wide(lines):
    """Numbers of comment lines, and of lines with a comment behind code, that have too many columns."""
    return [number for number, line in enumerate(lines, 1) if len(line) > WIDEST and re.search(r"^\s*//|;.*  //", line)]


def sources(root, tops, suffixes):
    for top in tops:
        for suffix in suffixes:
            yield from sorted((root / top).rglob(f"*.{suffix}"))


def main():
    root = Path(sys.argv[1]).resolve()
    listed = "--list" in sys.argv[2:]
    only = sys.argv[3:4]
    all_of, subjectless = Counter(), Counter()
    for path in sources(root, ("src", "kernels"), ("hpp", "cuh", "h")):
        room = room_of(path.relative_to(root))[0]
        for number, text in comments(path.read_text().splitlines()):
            all_of[room] += 1
            if SUBJECTLESS.match(text):
                subjectless[room] += 1
                if listed and (not only or room == only[0]):
                    print(f"{path.relative_to(root)}:{number}: {text}")
    if not listed:
        for room in sorted(all_of):
            print(f"{room:<12} {subjectless[room]:>4} of {all_of[room]:>4}")
        print(f"{'all':<12} {subjectless.total():>4} of {all_of.total():>4}")
    broken = sorted(subjectless)
    for room in broken:
        print(f"{room}: header comments begin with their noun there; check_comments.py SOURCE --list {room} names those that do not")
    too_wide = [f"{path.relative_to(root)}:{number}" for path in sources(root, ("src", "kernels", "tests", "perf"),
                                                                         ("hpp", "cuh", "h", "cpp", "cu"))
                for number in wide(path.read_text().splitlines())]
    for place in too_wide:
        print(f"{place}: its comment has more than {WIDEST} columns")
    return 1 if broken or too_wide else 0


if __name__ == "__main__":
    sys.exit(main())
