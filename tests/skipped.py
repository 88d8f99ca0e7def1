#!/usr/bin/env python3
"""Counts the cases that the tests left out, and says why: skipped.py LastTest.log

ctest knows of whole tests alone. The log has what they printed: GoogleTest and Python's unittest name each case.
"""
import re
import sys

TEST = re.compile(r"\d+/\d+ Testing: (\S+)$")
# GoogleTest: "file:line: Skipped", the reason, an empty line, "[  SKIPPED ] Suite.Case (0 ms)".
TOLD = re.compile(r": Skipped$")
GOOGLE = re.compile(r"\[  SKIPPED \] (\S+?),? .*\(\d+ ms\)$")
# unittest: "case (class) ... skipped 'reason'", what the case printed or is for in between.
CASE = re.compile(r"(\w+) \([\w.]+\)")
PYTHON = re.compile(r"\bskipped (['\"])(.*)\1$")


def skipped(lines):
    """(test, case, reason) of each, once: the ranks of a test skip the same."""
    found, test, case, reason, told = {}, "", "", "", False
    for line in map(str.rstrip, lines):
        if match := TEST.match(line):
            test, case, reason = match[1], "", ""
        if match := CASE.match(line):
            case = match[1]
        if TOLD.search(line):  # its ranks may all say so before the first says why
            told = True
        elif told and line:
            reason, told = line, False
        elif match := GOOGLE.search(line):
            found.setdefault((test, match[1]), reason or "it does not say why")
        elif match := PYTHON.search(line):
            found[test, case] = match[2]
    return [(*case, why) for case, why in found.items()]


def main():
    with open(sys.argv[1], encoding="utf-8", errors="replace") as log:
        cases = skipped(log)
    for test, case, reason in cases:
        print(f"skipped: {test}: {case}: {reason}")
    print(f"{len(cases)} test case{'' if len(cases) == 1 else 's'} skipped")


if __name__ == "__main__":
    main()
