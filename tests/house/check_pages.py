#!/usr/bin/env python3
"""Checks the pages of the tree: check_pages.py SOURCE_DIRECTORY.

README.md has at most 200 lines. A link of a page (README.md anywhere, and the pages at the top) leads to a file of the
tree, and its anchor to a heading of that page. A key of a configuration, such as `run.dir`, is one of the key table, but in
CHANGELOG.md. A path in backticks that begins with a directory of the top level, such as
`perf/plan.sh`, exists; names with capitals alone (`src/checkpoint/DIR`) and patterns stand for others and are left out. The
table of rooms in src/README.md has the ranks of check_rooms.py, and that of src/train/README.md the files of each inner room. Each offence is one line, file:line: what is wrong; the exit code is 1 if there is one.
"""
import re
import sys
from pathlib import Path

import check_rooms

MOST_LINES = 200
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(r"`((?:src|kernels|jobs|slurm|configs|tests|perf)/[A-Za-z0-9_./-]+)[^`]*`")
KEY = re.compile(r"(?<![\w/.])(?<!\w-)([a-z]+)\.([a-z][a-z0-9-]*[a-z0-9])(?![\w/*-])")
# Endings of files, whose names may begin as keys do.
NO_KEYS = {"cpp", "hpp", "cu", "cfg", "sh", "sbatch", "safetensors", "txt"}
# Made by a site or by a run, not part of the tree.
NOT_IN_TREE = {"slurm/site"}


def pages(root):
    """Every page, without those of build directories."""
    found = sorted(root.glob("*.md"))
    for top in ("src", "kernels", "jobs", "slurm", "configs", "tests", "perf"):
        found += sorted((root / top).rglob("*.md"))
    return found


def anchors(text):
    """The anchors that GitHub gives the headings of a page."""
    found = set()
    fenced = False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and (match := re.match(r"#+ (.*)", line)):
            words = re.sub(r"[^\w\- ]", "", match.group(1).strip().lower())
            found.add(words.replace(" ", "-"))
    return found


def check_link(root, page, target):
    if re.match(r"[a-z]+:", target):
        return None  # another site's
    name, _, anchor = target.partition("#")
    file = (page.parent / name).resolve() if name else page
    if not file.exists():
        return f"{target} leads to no file"
    if anchor and anchor not in anchors(file.read_text()):
        return f"{target}: {file.relative_to(root)} has no such heading"
    return None


def check_path(root, page, path):
    if re.search(r"/(?!README)[A-Z]+([/.]|$)", path) or path in NOT_IN_TREE or path.endswith(("-", "_")):
        return None
    if (root / path).exists() or (page.parent / path).exists() or list(root.glob(path + ".*")):
        return None
    return f"{path} is not in the tree"


def known_keys(root):
    """The keys of each section; none in a tree without a table."""
    table = root / "src/config/key_table.cpp"
    keys = {}
    for section, name in re.findall(r'Key\{\s*"([a-z]+)\.([a-z0-9-]+)"', table.read_text() if table.exists() else ""):
        keys.setdefault(section, set()).add(name)
    return keys


def check_map(root):
    """The rooms of the map, where there is one."""
    page = root / "src/README.md"
    if not page.exists():
        return []
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", page.read_text(), re.M)
    named = {room: int(rank) for rank, room in rows}
    wrong = sorted(room for room in named.keys() | check_rooms.RANK.keys() if named.get(room) != check_rooms.RANK.get(room))
    return [f"src/README.md:1: room {room} has rank {named.get(room)}, in check_rooms.py {check_rooms.RANK.get(room)}"
            for room in wrong]


def check_train(root):
    """The files of train's inner rooms, by their names without endings."""
    page = root / "src/train/README.md"
    if not page.exists():
        return []
    rows = [(number, *match.groups()) for number, line in enumerate(page.read_text().splitlines(), 1)
            if (match := re.match(r"\| `(\w+)` \| (.*?) \|", line))]
    offences = []
    for number, room, names in rows:
        files = {file.stem for file in (page.parent / room).glob("*.?pp")}
        offences += [f"src/train/README.md:{number}: {room}'s row and {room}'s directory differ in {name}"
                     for name in sorted(files ^ set(re.findall(r"`(\w+)`", names)))]
    return offences


def check(root):
    """The offences of the tree, one line each."""
    offences = check_map(root) + check_train(root)
    lines = len((root / "README.md").read_text().splitlines())
    if lines > MOST_LINES:
        offences.append(f"README.md:{lines}: has more than {MOST_LINES} lines; move reference to the pages that it names")
    keys = known_keys(root)
    for page in pages(root):
        has_keys = page.name != "CHANGELOG.md"
        fenced = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if line.startswith("```"):
                fenced = not fenced
            offences += [f"{page.relative_to(root)}:{number}: {section}.{name} is no key" for section, name in KEY.findall(line)
                         if has_keys and section in keys and name not in keys[section] | NO_KEYS]
            if fenced:
                continue
            wrong = [check_link(root, page, target) for target in LINK.findall(line)]
            wrong += [check_path(root, page, path) for path in PATH.findall(line)]
            offences += [f"{page.relative_to(root)}:{number}: {text}" for text in wrong if text]
    return offences


def main():
    root = Path(sys.argv[1]).resolve()
    offences = check(root)
    if not known_keys(root):
        offences.append("src/config/key_table.cpp: has no line of a key, such as Key{\"run.dir\"")
    print(*offences, sep="\n")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
