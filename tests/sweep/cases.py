"""The faults of the sweep: which call fails, with which errno, once or from there on for ever; or where a rank is killed."""
import errno
import fnmatch
import os
from dataclasses import dataclass

from damage import Damage
from power_loss import Loss

# As tests/sweep/faulty_files.cpp names them.
GROWING = ("create", "write", "sync", "truncate", "allocate", "rename", "link", "mkdir", "close", "aio-write",
           "aio-write-end")
OPENING = ("open", "create", "opendir")
KINDS = tuple(sorted({*GROWING, *OPENING, "readdir", "stat", "statfs", "read", "unlink", "rmdir", "mmap", "lock", "chmod", "direct",
                      "aio-read", "aio-read-end"}))
# The calls that an errno makes sense for: a full file system does not fail a read, nor a full table of descriptors a
# write. All of them fail once it lasts.
FAILING = {"EIO": KINDS, "ESTALE": KINDS, "EINTR": KINDS, "ENOSPC": GROWING, "EDQUOT": GROWING, "EMFILE": OPENING}
CHANGING = tuple(kind for kind in (*GROWING, "unlink", "rmdir", "chmod") if kind != "aio-write-end")
READING = ("stat", "statfs", "read", "readdir", "aio-read", "aio-read-end")
ABOUT = """\
Each file operation of an undisturbed run is a place: the N-th call of a kind on a path. At each place one errno that the
call can meet is met once, and another one (EINTR apart, as a call that is interrupted may be repeated without end) is
met from there on by all calls that can meet it: EIO and ESTALE by all, EMFILE by those that make a descriptor, ENOSPC and
EDQUOT by those that make something grow. Which two takes turns from place to place, for each kind of call; of the reads
of one file beyond the third every fourth is a place. The seed says where both begin, so that several sweeps meet what one
leaves out. --all leaves out nothing: five times as many."""


@dataclass(frozen=True)
class Case:
    """A fault, named SCENARIO:KIND:PATH:N:ERRNO:once|ever, with the path below the run's folder. KILL in the place of an
    errno: the rank is killed there, before the call does anything."""
    scenario: str
    kind: str
    path: str
    number: int  # from 1
    error: str
    lasting: bool

    def __str__(self):
        return ":".join((self.scenario, self.kind, self.path, str(self.number), self.error,
                         "ever" if self.lasting else "once"))

    def group(self):
        return self.kind, self.error, self.lasting

    def kills(self):
        return self.error == "KILL"

    def environment(self, world, rank, shim):
        return {"LD_PRELOAD": shim, "FAULT_PATH": world.work, "FAULT_FILE": world.work / self.path,
                "FAULT_CALLS": self.kind, "FAULT_AFTER": self.number - 1, "FAULT_TIMES": 1,
                "FAULT_THEN": ",".join(FAILING[self.error]) if self.lasting else "",
                "FAULT_ERROR": self.error if self.kills() else getattr(errno, self.error), "FAULT_RANK": rank, "FAULT_LOG": world.folder / "calls"}


def killing(world, kind, path, shim):
    """The environment of a run that is killed at its first call of a kind on a path."""
    return {"LD_PRELOAD": shim, "FAULT_PATH": world.work, "FAULT_FILE": world.work / path, "FAULT_CALLS": kind,
            "FAULT_ERROR": "KILL"}


def tracing(world, rank, shim):
    """The environment of a run that notes its calls, none of which fails."""
    return {"LD_PRELOAD": shim, "FAULT_PATH": world.work, "FAULT_TIMES": 0, "FAULT_RANK": rank,
            "FAULT_LOG": world.folder / "calls"}


def recording(world, shim):
    """The environment of a run of which all changes are recorded."""
    return {"LD_PRELOAD": shim, "FAULT_PATH": world.work, "FAULT_TIMES": 0, "FAULT_RECORD": world.folder / "recording"}


def parse(name):
    parts = name.split(":")
    if len(parts) == 4:
        scenario, kind, place, detail = parts
        return Loss(scenario, int(place), detail) if kind == "power" else Damage(*parts)
    scenario, kind, path, number, error, lasting = parts
    return Case(scenario, kind, path, int(number), error, lasting == "ever")


def places(world):
    """(kind, path, number) of each call of a traced run, in order."""
    seen = {}
    for line in (world.folder / "calls").read_text().splitlines():
        kind, path = line.split(" ", 1)
        path = os.path.relpath(path, world.work)
        seen[kind, path] = number = seen.get((kind, path), 0) + 1
        yield kind, path, number


def all_cases(scenario, found):
    return [Case(scenario, *place, error, lasting) for place in found for error, kinds in FAILING.items()
            for lasting in (False, True) if place[0] in kinds and not (lasting and error == "EINTR")]


def cases_in_turn(scenario, found, seed):
    """Two of a place; see ABOUT."""
    cases, turns = [], {}
    for kind, path, number in found:
        if kind in READING and number > 3 and (number + seed) % 4:
            continue
        turns[kind] = turn = turns.get(kind, seed) + 1
        errors = [error for error, kinds in FAILING.items() if kind in kinds]
        cases.append(Case(scenario, kind, path, number, errors[turn % len(errors)], False))
        errors.remove("EINTR")
        cases.append(Case(scenario, kind, path, number, errors[(turn + 1) % len(errors)], True))
    return cases


def kills(scenario, found):
    """At each call that changes something."""
    return [Case(scenario, kind, path, number, "KILL", False) for kind, path, number in found if kind in CHANGING]


def matching(cases, pattern):
    return [case for case in cases if fnmatch.fnmatchcase(str(case), pattern)]
