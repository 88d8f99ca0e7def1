#!/usr/bin/env python3
"""Checks who includes whom: check_rooms.py SOURCE_DIRECTORY.

A room includes only itself and rooms of a lower rank; a room of src/platform includes only itself and
base. A third-party library is included only by the rooms that own it. Every header is listed in its
room's CMakeLists.txt, because only listed headers are checked to stand alone. Each offence is one line,
file:line: what is wrong; the exit code is 1 if there is one.
"""
import re
import sys
from pathlib import Path

# The table "Rooms" of the design.
RANK = {
    "base": 0,
    "platform": 1, "plan": 1,
    "device": 2,
    "kernels": 3, "state": 3, "data": 3, "tiers": 3,
    "model": 4, "update": 4, "probe": 4, "huggingface": 4, "launch": 4,
    "checkpoint": 5,
    "convert": 6,
    "generate": 7, "train": 7,
    "cli": 8,
}

# Third-party headers by prefix, and the only rooms that may include them.
OWNERS = {
    "mpi.h": {"platform/mpi"},
    "libaio.h": {"platform/aio"},
    "hdf5": {"platform/h5"},
    "H5": {"platform/h5"},
    "cuda": {"platform/cuda", "platform/topology", "device", "kernels"},
    "nvtx3/": {"platform/trace"},
    "oneapi/": {"kernels"},
    "boost/": {"cli"},
    "xxhash.h": {"tiers", "checkpoint"},
    "nlohmann/": {"platform/trace", "train", "checkpoint", "huggingface"},
    "hwloc": {"platform/topology"},
    "sentencepiece": {"data"},
    "gtest/": set(),
    "gmock/": set(),
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = {".hpp", ".cpp", ".cu", ".cuh", ".h"}


def room_of(path):
    """The room of a path relative to the source directory: ("tiers", "tiers") or
    ("platform", "platform/aio"); None outside the rooms."""
    parts = path.parts
    if parts[0] == "src" and len(parts) > 2:
        parts = parts[1:]
    if parts[0] not in RANK:
        return None
    return parts[0], "/".join(parts[:2]) if parts[0] == "platform" else parts[0]


def offence(room, name, included):
    """Why `room` (named `name`) may not include the room `included`, or None."""
    other_room, other_name = included
    if other_name == name or RANK[other_room] < RANK[room]:
        return None
    if other_room == "platform" and room == "platform":
        return f"{name} includes {other_name}: rooms of platform include only base and themselves"
    return (f"{name} (rank {RANK[room]}) includes {other_name} (rank {RANK[other_room]}): "
            "only lower ranks are allowed")


def resolve(root, file, target):
    for folder in (file.parent, root / "src", root / "kernels"):
        if (folder / target).is_file():
            return (folder / target).resolve().relative_to(root)
    return None


def check_line(root, file, name, bracket, target):
    if bracket == "<":
        for prefix, owners in OWNERS.items():
            if target.startswith(prefix) and name[1] not in owners:
                allowed = ", ".join(sorted(owners)) or "tests"
                return f"{name[1]} includes <{target}>, which belongs to {allowed}"
        return None
    found = resolve(root, file, target)
    if found is None:
        return f'"{target}" is not found from the including file, src or kernels'
    included = room_of(found)
    if included is None:
        return f'"{target}" lies outside the rooms'
    return offence(*name, included)


def listed(file):
    """True if the header stands in the CMakeLists.txt beside it."""
    cmake = file.parent / "CMakeLists.txt"
    return cmake.is_file() and re.search(rf"(^|\s){re.escape(file.name)}(\s|\)|$)", cmake.read_text())


def check(root):
    problems = []
    files = [f for top in ("src", "kernels") for f in sorted((root / top).rglob("*"))
             if f.suffix in SOURCES and f.is_file()]
    for file in files:
        relative = file.relative_to(root)
        name = room_of(relative)
        if name is None:
            problems.append(f"{relative}:1: lies in no room; rooms are {', '.join(RANK)}")
            continue
        if file.suffix == ".hpp" and not listed(file):
            problems.append(f"{relative}:1: is not listed under HEADERS in the CMakeLists.txt beside it")
        for number, line in enumerate(file.read_text().splitlines(), start=1):
            match = INCLUDE.match(line)
            problem = match and check_line(root, file, name, *match.groups())
            if problem:
                problems.append(f"{relative}:{number}: {problem}")
    return len(files), problems


def main():
    root = Path(sys.argv[1]).resolve()
    count, problems = check(root)
    for problem in problems:
        print(problem)
    print(f"{count} files, {len(problems)} offences")
    return 1 if problems or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
