"""What a disk may hold after a loss of power, from a recording of what a run did (recording.hpp).

What POSIX promises is there: of a file what was written, and ended, before the last sync of the file; of a directory the
names before its last sync. All else may be there or not, each change for itself: a write wholly, not at all or in parts of
a sector, a name after a later one. Changes of one name come in their order, a rename is one change."""
import copy
import os
import random
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512
# lost: nothing that was not promised; kept: all that was done; names, data: one of the two alone; but-N: all but change N of
# names, and what builds on it. A number: at random.
PLAIN = ("lost", "kept", "names", "data")
BUT = "but-"
ENDING = ("rename", "unlink", "rmdir", "said")  # events behind which something counts, or counts no more
RANDOM = 3  # at each place where something is open, beside those
SAID = re.compile(r"^\S+Z step +(\d+)  saved (\S+) in ", re.MULTILINE)


@dataclass
class Write:
    """Bytes of a file, or its size: at least `at` (allocate) or exactly (truncate)."""
    number: int  # of the event
    kind: str
    at: int
    data: bytes = b""
    ended: float = 0  # the event; infinite until then


@dataclass
class Names:
    """Names of directories that come, go or change at once: [(directory, name, file or None)]."""
    number: int
    entries: list


@dataclass
class File:
    """A file or a directory: what is in it for good, and what has been done to it since, in order."""
    data: bytes = b""
    time: int = None  # of its last change, in ns, if that was before the run
    names: dict = None  # of a directory
    open: list = field(default_factory=list)


@dataclass(frozen=True)
class Event:
    kind: str
    inode: int
    at: int
    request: int
    path: str
    to: str
    data: bytes


def read_events(recording, root):
    """Events of a recording, with paths relative to root."""
    rest = Path(recording).read_bytes()
    events, begin = [], 0
    def relative(path):
        return os.path.relpath(path, root) if path else ""
    while begin < len(rest):
        end = rest.index(b"\n", begin)
        kind, inode, at, request, size, path, to = rest[begin:end].decode().split("\t")
        begin = end + 1 + int(size)
        events.append(Event(kind, int(inode), int(at), int(request), relative(path), relative(to), rest[end + 1:begin]))
    return events


class Disk:
    """Files by a number that no other has, before or after; directories are files with names. The root is 0."""
    def __init__(self, root):
        """As it is below root now, all of it for good."""
        self.files, self.inodes, self.requests = [], {}, {}
        self.now = {}  # (directory, name): file, as a process sees it
        self.said = []
        self.number = 0
        self.take(Path(root))

    def take(self, path):
        index = len(self.files)
        self.files.append(File())
        self.inodes[path.stat().st_ino] = index
        if path.is_dir():
            self.files[index].names = {}
            for entry in sorted(path.iterdir()):
                self.files[index].names[entry.name] = self.now[index, entry.name] = self.take(entry)
        else:
            self.files[index].data = path.read_bytes()
            self.files[index].time = path.stat().st_mtime_ns
        return index

    def place(self, path):
        """(directory, name) of a path; the directory is None if it is not there any more."""
        directory = 0
        *folders, name = path.split("/")
        for folder in folders:
            directory = self.now.get((directory, folder))
        return directory, name

    def do(self, event):
        """The next event."""
        self.number += 1
        kind = event.kind
        if kind == "said":
            self.said += [(int(step), "/level-1-" in path) for step, path in SAID.findall(event.data.decode(errors="replace"))]
        elif kind in ("create", "mkdir"):
            self.inodes[event.inode] = len(self.files)
            self.files.append(File(names={} if kind == "mkdir" else None))
            self.change([(*self.place(event.path), len(self.files) - 1)])
        elif kind in ("write", "truncate", "allocate"):
            change = Write(self.number, kind, event.at, event.data)
            file = self.files[self.inodes[event.inode]]
            file.open.append(change)
            file.time = None
            if event.request:
                self.requests[event.request] = change
                change.ended = float("inf")
        elif kind == "end":
            self.requests[event.request].ended = self.number
        elif kind == "sync":
            self.sync(self.inodes[event.inode])
        elif kind in ("unlink", "rmdir"):
            self.change([(*self.place(event.path), None)])
        else:
            assert kind in ("rename", "link"), event
            source = self.place(event.path)
            target = (*self.place(event.to), self.now[source])
            self.change([(*source, None), target] if kind == "rename" else [target])

    def change(self, entries):
        change = Names(self.number, entries)
        for directory, name, file in entries:
            if directory is None:  # it was removed with all that is in it
                continue
            if file is None:
                self.now.pop((directory, name), None)
            else:
                self.now[directory, name] = file
            if change not in self.files[directory].open:
                self.files[directory].open.append(change)

    def sync(self, index):
        file = self.files[index]
        if file.names is None:
            good = [change for change in file.open if change.ended <= self.number]
            file.data = bytes(written(file.data, [(change, None) for change in good]))
            file.open = [change for change in file.open if change.ended > self.number]
        else:
            for change in list(file.open):
                self.settle(change)

    def settle(self, change):
        """The names are there for good, and all that came before of these."""
        for directory, name, file in change.entries:
            for earlier in list(self.files[directory].open):
                if earlier.number < change.number and any((directory, name) == entry[:2] for entry in earlier.entries):
                    self.settle(earlier)
        for directory, name, file in change.entries:
            self.files[directory].open = [other for other in self.files[directory].open if other is not change]
            put(self.files[directory].names, name, file)

    def image(self, mode):
        """{path: (bytes or None for a directory, time or None)} of one possibility."""
        choice = Choice(mode)
        names = {index: dict(file.names) for index, file in enumerate(self.files) if file.names is not None}
        changes = {id(change): change for file in self.files if file.names is not None for change in file.open}
        blocked = set()
        for change in sorted(changes.values(), key=lambda change: change.number):
            touched = {entry[:2] for entry in change.entries}
            if touched & blocked or not choice.name(change):
                blocked |= touched
                continue
            for directory, name, file in change.entries:
                put(names[directory], name, file)
        found = {}
        self.walk(0, "", names, choice, found)
        return found

    def walk(self, index, path, names, choice, found):
        for name, file in sorted(names[index].items()):
            below = f"{path}{name}"
            if self.files[file].names is None:
                found[below] = self.contents(file, choice), self.files[file].time
            else:
                found[below] = None, None
                self.walk(file, below + "/", names, choice, found)

    def contents(self, index, choice):
        """A file has one contents under all its names."""
        if index not in choice.contents:
            file = self.files[index]
            kept = [(change, part) for change in file.open if (part := choice.data(change)) != ()]
            choice.contents[index] = bytes(written(file.data, kept)) if kept else file.data
        return choice.contents[index]

    def is_open(self):
        return any(file.open for file in self.files)

    def open_names(self):
        """Numbers of the changes of names that may still be lost, but for those of slots, which the next start removes."""
        changes = [change for file in self.files if file.names is not None for change in file.open]
        return sorted({change.number for change in changes if not any(name.startswith("slot-") for _, name, _ in change.entries)})


def put(names, name, file):
    if file is None:
        names.pop(name, None)
    else:
        names[name] = file


def written(data, changes):
    """The bytes with [(change, sectors or None for all)] done."""
    result = bytearray(data)
    for change, sectors in changes:
        if change.kind == "truncate":
            del result[change.at:]
        end = change.at + len(change.data)
        result.extend(bytes(max(0, end - len(result))))
        for begin in range(0, len(change.data), SECTOR) if sectors is not None else ():
            if begin // SECTOR in sectors:
                part = change.data[begin:begin + SECTOR]
                result[change.at + begin:change.at + begin + len(part)] = part
        if sectors is None:
            result[change.at:end] = change.data
    return result


class Choice:
    """Of what was not promised."""
    def __init__(self, mode):
        self.mode, self.contents = mode, {}
        self.numbers = random.Random(mode)
        self.share = self.numbers.choice((0.1, 0.5, 0.9))

    def name(self, change):
        if self.mode in PLAIN:
            return self.mode in ("kept", "names")
        if self.mode.startswith(BUT):
            return change.number != int(self.mode.removeprefix(BUT))
        return self.numbers.random() < self.share

    def data(self, change):
        """None: all of it; (): nothing; or numbers of sectors."""
        if self.mode in PLAIN:
            return None if self.mode in ("kept", "data") else ()
        if self.mode.startswith(BUT):
            return None
        if self.numbers.random() >= self.share:
            return ()
        sectors = -(-len(change.data) // SECTOR)
        if sectors < 2 or self.numbers.random() < 0.5:
            return None
        return frozenset(self.numbers.sample(range(sectors), self.numbers.randrange(1, sectors)))


@dataclass(frozen=True)
class Loss:
    """A loss of power after so many events, named SCENARIO:power:EVENTS:MODE. Another run records other events where
    threads or ranks take turns."""
    scenario: str
    events: int
    mode: str

    def group(self):
        if self.mode in PLAIN:
            return self.mode
        return "but" if self.mode.startswith(BUT) else "random"

    def __str__(self):
        return f"{self.scenario}:power:{self.events}:{self.mode}"


class Recorded:
    """A run's recording, from the disk that it began with."""
    def __init__(self, scenario, disk, events):
        self.scenario, self.before, self.events = scenario, disk, events

    def losses(self):
        """All those whose checkpoints differ, and what the run had said."""
        disk = copy.deepcopy(self.before)
        seen = set()
        for count, event in enumerate(self.events, 1):
            disk.do(event)
            if event.kind == "end" or not disk.is_open():
                continue
            names = disk.open_names() if event.kind in ENDING else []
            for mode in (*PLAIN, *(f"{BUT}{number}" for number in names),
                         *(f"{count}.{number}" for number in range(RANDOM))):
                digest = digest_of(disk.image(mode), tuple(disk.said))
                if digest not in seen:
                    seen.add(digest)
                    yield Loss(self.scenario, count, mode)

    def after(self, loss):
        """([(step that was said to be saved, whether in level 1)], the image)"""
        disk = copy.deepcopy(self.before)
        for event in self.events[:loss.events]:
            disk.do(event)
        return list(disk.said), disk.image(loss.mode)


def images(disk, events):
    """(number of the event, mode, image) of what the disk may hold while the events happen to it, each image once."""
    seen = set()
    for number, event in enumerate(events):
        disk.do(event)
        for mode in (*PLAIN, f"{number}.1"):
            image = copy.deepcopy(disk).image(mode)
            key = hash(tuple(sorted((path, data) for path, (data, _) in image.items())))
            if key not in seen:
                seen.add(key)
                yield number, mode, image


def digest_of(image, said):
    """Equal for equal checkpoints, within this process; a file's bytes that did not change are hashed once."""
    return hash((said, *((path, data) for path, (data, _) in image.items() if path.startswith(("run/checkpoints", "local/")))))


def write_image(image, root):
    """Makes it what is below root."""
    shutil.rmtree(root)
    root.mkdir()
    for path, (data, time) in sorted(image.items()):
        if data is None:
            (root / path).mkdir()
            continue
        (root / path).write_bytes(data)
        if time is not None:
            os.utime(root / path, ns=(time, time))
