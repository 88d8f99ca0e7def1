#!/usr/bin/env python3
"""Checks who includes whom: check_rooms.py SOURCE_DIRECTORY.

A room includes only itself and rooms of a lower rank; a room of src/platform includes only itself and
base. An inner room, a directory inside a room, includes only itself and inner rooms of a lower inner rank. A third-party library is included only by the rooms that own it. Every header is listed in its
room's CMakeLists.txt, because only listed headers are checked to stand alone: by being compiled, or, if there
are sources called NAME.cpp or NAME_*.cpp, by one of these, which has to include it before all else. What the
precompiled header brings, a header includes by name, for there a compiler would miss nothing. Each offence is
one line, file:line: what is wrong; the exit code is 1 if there is one.
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
    "model": 4, "parameters": 4, "huggingface": 4, "launch": 4,
    "report": 4, "tensorboard": 4, "parquet": 4,
    "tokens": 5,
    "activations": 5, "checkpoint": 5, "update": 5, "probe": 5,
    "config": 6, "convert": 6, "pack": 6,
    "generate": 7, "train": 7,
    "cli": 8,
}

# Inner rooms of a room, and their ranks within it; "." is what lies in no inner directory.
INNER_RANK = {
    "train": {"files": 0, "memory": 1, "offload": 2, "settle": 3, "forecast": 4, "step": 5, "saves": 6, "report": 7, "run": 8},
    "update": {"gradients": 0, ".": 1},
}

# Third-party headers by prefix, and the only rooms that may include them.
OWNERS = {
    "mpi.h": {"platform/mpi"},
    "mpi-ext.h": {"platform/mpi"},
    "nccl": {"platform/nccl"},
    "libaio.h": {"platform/aio"},
    "hdf5": {"platform/h5"},
    "H5": {"platform/h5"},
    "cublas": {"platform/cuda"},
    "cuda": {"platform/cuda", "platform/cudnn", "platform/topology", "device", "kernels"},
    "cudnn": {"platform/cudnn"},
    "nvtx3/": {"platform/trace"},
    "oneapi/": {"kernels"},
    "boost/": {"cli"},
    "xxhash.h": {"data", "tiers", "checkpoint"},
    "nlohmann/": {"platform/trace", "train", "checkpoint", "huggingface", "tokens", "pack", "report", "cli"},
    "unicode/": {"tokens"},
    "pcre2.h": {"tokens"},
    "zlib.h": {"data", "parquet"},
    "zstd.h": {"data", "parquet"},
    "hwloc": {"platform/topology"},
    "sentencepiece": {"data"},
    "gtest/": set(),
    "gmock/": set(),
}

# What comes with the precompiled header (src/rooms.cmake), and the names that tell that it is used.
PRECOMPILED = {header: re.compile(names) for header, names in {
    "algorithm": r"std::(ranges::(?!range|sized)|min\b|max\b|clamp\b|copy|fill|sort)",
    "array": r"std::array\b",
    "chrono": r"std::chrono\b",
    "cstddef": r"std::(byte|size_t|ptrdiff_t)\b",
    "cstdint": r"std::u?int(8|16|32|64)_t\b",
    "filesystem": r"std::filesystem\b",
    "fmt/format.h": r"\bfmt::",
    "functional": r"std::(function|less|hash)\b",
    "map": r"std::map\b",
    "memory": r"std::(unique_ptr|shared_ptr|make_unique|make_shared)\b",
    "optional": r"std::(optional|nullopt)\b",
    "span": r"std::(span|as_bytes|as_writable_bytes)\b",
    "string": r"std::(string|to_string)\b",
    "string_view": r"std::string_view\b",
    "vector": r"std::vector\b",
}.items()}

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


def inner_of(path):
    """The inner room of a path relative to the source directory: "gradients", or "." outside of inner directories."""
    parts = path.parts[1:] if path.parts[0] == "src" else path.parts
    return parts[1] if len(parts) > 2 else "."


def inner_offence(room, file, included):
    """Why a file may not include another one of its own room, or None."""
    ranks = INNER_RANK.get(room, {})
    ours, theirs = inner_of(file), inner_of(included)
    if ours == theirs or not ranks:
        return None
    unknown = [inner for inner in (ours, theirs) if inner not in ranks]
    if unknown:
        return f"{room}/{unknown[0]} is no inner room of {room}"
    if ranks[theirs] < ranks[ours]:
        return None
    return (f"{room}/{ours} (inner rank {ranks[ours]}) includes {room}/{theirs} (inner rank {ranks[theirs]}): "
            "only lower inner ranks are allowed")


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
    for folder in (file.parent, root if target.startswith("kernels/") else root / "src"):
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
        return f'"{target}" is not found beside the including file or from src'
    included = room_of(found)
    if included is None:
        return f'"{target}" lies outside the rooms'
    if included[0] == name[0] and name[0] in INNER_RANK:
        return inner_offence(name[0], file.relative_to(root), found)
    return offence(*name, included)


def listed(root, file):
    """True if the file stands in the next CMakeLists.txt, beside it or above."""
    for folder in file.relative_to(root).parents:
        cmake = root / folder / "CMakeLists.txt"
        if cmake.is_file():
            name = re.escape(str(file.relative_to(cmake.parent)))
            return re.search(rf"(^|\s){name}(\s|\)|$)", cmake.read_text())
    return False


def begins_with(root, source, header):
    """True if the source's first include is the header."""
    first = next(filter(None, map(INCLUDE.match, source.read_text().splitlines())), None)
    return first is not None and resolve(root, source, first[2]) == header.relative_to(root)


def check_header(root, header, relative):
    """Whether what src/rooms.cmake does for a header checks that it stands alone."""
    if not listed(root, header):
        yield f"{relative}:1: is not listed under HEADERS in its room's CMakeLists.txt"
    own = header.with_suffix(".cpp")
    if own.is_file():
        if not begins_with(root, own, header):
            yield f"{own.relative_to(root)}:1: does not include {header.name} before all else"
        return
    sources = [file for file in sorted(header.parent.glob(f"{header.stem}_*.cpp")) if listed(root, file)]
    if sources and not any(begins_with(root, source, header) for source in sources):
        names = " or ".join(source.name for source in sources)
        yield f"{relative}:1: is not included before all else by {names}"


def check_names(file, relative):
    """Names of the standard library that a header uses without the include they come with."""
    code = [re.sub(r"//.*", "", line) for line in file.read_text().splitlines()]
    included = {match[2] for match in map(INCLUDE.match, code) if match}
    for header, names in PRECOMPILED.items():
        for number, line in enumerate(code, start=1):
            found = names.search(line)
            if found and header not in included:
                yield f"{relative}:{number}: uses {found[0]} without #include <{header}>"
                break


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
        if file.suffix == ".hpp":
            problems += check_header(root, file, relative)
            problems += check_names(file, relative)
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
