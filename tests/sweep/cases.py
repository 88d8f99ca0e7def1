"""The faults of the sweep: which call fails, with which errno, once or from there on for ever."""
import errno
import fnmatch
import os
from dataclasses import dataclass

# As tests/sweep/faulty_files.cpp names them.
GROWING = ("create", "write", "sync", "truncate", "allocate", "rename", "link", "mkdir", "close", "aio-write",
           "aio-write-end")
OPENING = ("open", "create", "opendir")
KINDS = tuple(sorted({*GROWING, *OPENING, "readdir", "stat", "statfs", "read", "unlink", "rmdir", "mmap", "lock", "chmod",
                      "aio-read", "aio-read-end"}))
# The calls that an errno makes sense for: a full file system does not fail a read, nor a full table of descriptors a
# write. All of them fail once it lasts.
FAILING = {"EIO": KINDS, "ESTALE": KINDS, "EINTR": KINDS, "ENOSPC": GROWING, "EDQUOT": GROWING, "EMFILE": OPENING}
ABOUT = """\
Each file operation of an undisturbed run is a place: the N-th call of a kind on a path. At each place fail
  once          EIO, ESTALE and EINTR; EMFILE where a descriptor is made; ENOSPC or EDQUOT where something grows
  for ever      EIO or ESTALE; EMFILE; EDQUOT or ENOSPC; then, too, all other calls for which that errno makes sense
Of two errnos that a file system gives for the same reason every second place gets the one and every other place the
other, once and for ever crosswise: both meet each kind of call, at half the runs. EINTR never lasts: a call that is
interrupted may be repeated without end."""


@dataclass(frozen=True)
class Case:
    """A fault, named SCENARIO:KIND:PATH:N:ERRNO:once|ever, with the path below the run's folder."""
    scenario: str
    kind: str
    path: str
    number: int  # from 1
    error: str
    lasting: bool

    def __str__(self):
        return ":".join((self.scenario, self.kind, self.path, str(self.number), self.error,
                         "ever" if self.lasting else "once"))

    def environment(self, world, rank, shim):
        return {"LD_PRELOAD": shim, "FAULT_PATH": world.work, "FAULT_FILE": world.work / self.path,
                "FAULT_CALLS": self.kind, "FAULT_AFTER": self.number - 1, "FAULT_TIMES": 1,
                "FAULT_THEN": ",".join(FAILING[self.error]) if self.lasting else "",
                "FAULT_ERROR": getattr(errno, self.error), "FAULT_RANK": rank, "FAULT_LOG": world.folder / "calls"}


def tracing(world, rank, shim):
    """The environment of a run that notes its calls, none of which fails."""
    return {"LD_PRELOAD": shim, "FAULT_PATH": world.work, "FAULT_TIMES": 0, "FAULT_RANK": rank,
            "FAULT_LOG": world.folder / "calls"}


def parse(name):
    scenario, kind, path, number, error, lasting = name.split(":")
    return Case(scenario, kind, path, int(number), error, lasting == "ever")


def places(world):
    """(kind, path, number) of each call of a traced run, in order."""
    seen = {}
    for line in (world.folder / "calls").read_text().splitlines():
        kind, path = line.split(" ", 1)
        path = os.path.relpath(path, world.work)
        seen[kind, path] = number = seen.get((kind, path), 0) + 1
        yield kind, path, number


def cases_of(scenario, world):
    """All cases of a scenario, from its traced run."""
    cases = []
    for index, place in enumerate(places(world)):
        broken, full, other = ("EIO", "ENOSPC", "EDQUOT") if index % 2 == 0 else ("ESTALE", "EDQUOT", "ENOSPC")
        wanted = [("EIO", False), ("ESTALE", False), ("EINTR", False), ("EMFILE", False), (full, False),
                  (broken, True), ("EMFILE", True), (other, True)]
        cases += [Case(scenario, *place, error, lasting) for error, lasting in wanted if place[0] in FAILING[error]]
    return cases


def matching(cases, pattern):
    return [case for case in cases if fnmatch.fnmatchcase(str(case), pattern)]
