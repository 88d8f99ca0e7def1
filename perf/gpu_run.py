"""A section of gpu.py: runs programs against a clock, and keeps every figure at once."""
import contextlib
import ctypes
import dataclasses
import json
import os
import pathlib
import select
import signal
import subprocess
import time

# How long a killed program may take to be gone, and how long its output is read after its end.
GONE_SECONDS, LAST_WORDS_SECONDS = 5, 1
MOST_PRINTED = 4000  # characters of a failed program's output that are shown
LIBC, PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = ctypes.CDLL(None), 1, 36


class Failed(Exception):
    """A program that failed or was late. `printed`: all of its output until then."""

    def __init__(self, message, printed=""):
        super().__init__(message)
        self.printed = printed


class Clock:
    """The time of a section, dealt to its parts: what one leaves is the next ones', what is a later one's none can take."""

    def __init__(self):
        self.end = time.monotonic()

    def allot(self, seconds):
        self.end += seconds

    def left(self):
        return self.end - time.monotonic()


def descendants():
    """The processes that came from this one and have not ended, oldest first."""
    parents, found = {}, [os.getpid()]
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            except (OSError, ValueError):  # it ended just now
                continue
            if state not in "ZX":
                parents.setdefault(int(parent), []).append(int(entry.name))
    for process in found:
        found += parents.get(process, [])
    return found[1:]


def end_all(*processes):
    """Kills the programs and all that they started, also what has a process group of its own, as a job's ranks have:
    nothing else runs then, and what they leave behind becomes a child of this process (adopt_orphans)."""
    own = {process.pid for process in processes}
    deadline = time.monotonic() + GONE_SECONDS
    while True:
        left = descendants()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in processes:
            process.poll()
        for pid in left:
            if pid not in own:
                with contextlib.suppress(ChildProcessError):  # it was never ours
                    os.waitpid(pid, os.WNOHANG)
        if not left or time.monotonic() > deadline:
            return
        time.sleep(0.01)


def adopt_orphans():
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent():
    """In a new process: it ends when this one is killed."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Output:
    """What a program prints, handed on line by line as it comes."""

    def __init__(self, heard):
        self.text, self.heard, self.begun = "", heard, ""

    def add(self, printed):
        self.text += printed
        if self.heard is not None:
            *lines, self.begun = (self.begun + printed).split("\n")
            for line in lines:
                self.heard(line)


def run(command, seconds, heard=None, **options):
    """Everything that it printed. `heard`: called with each line as it comes. Raises Failed, also when it takes longer
    than `seconds`; nothing that it started goes on then."""
    name = pathlib.Path(str(command[0])).name
    output = Output(heard)
    adopt_orphans()
    try:
        process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, preexec_fn=die_with_parent, **options)
    except OSError as problem:
        raise Failed(f"{name}: {problem}") from problem
    try:
        with process.stdout:
            late = read_until(process, output, time.monotonic() + seconds)
    finally:
        end_all(process)
    if late:
        raise Failed(f"{name} took longer than {seconds:.0f} s:\n{output.text[-MOST_PRINTED:]}", output.text)
    if process.returncode != 0:
        raise Failed(f"{name} ended with {process.returncode}:\n{output.text[-MOST_PRINTED:]}", output.text)
    return output.text


@dataclasses.dataclass
class Program:
    """One of several that run side by side. `environment`: beside this process's."""
    kind: str
    name: str
    command: list
    environment: dict


def run_together(programs, folder, seconds, at_once, ended):
    """Runs so many of them side by side, with two OpenMP threads each, until all have ended or `seconds` are over; the
    order is that in which they begin. FOLDER/KIND-NAME.log gets what each prints. Calls ended(program, how) as each ends:
    its exit code as text, or why there is none. Nothing that they started goes on then."""
    deadline = time.monotonic() + seconds
    waiting, running = list(programs), []
    adopt_orphans()
    try:
        while waiting or running:
            while waiting and len(running) < at_once and time.monotonic() < deadline:
                program = waiting.pop(0)
                with open(folder / f"{program.kind}-{program.name}.log", "wb") as log:
                    try:
                        process = subprocess.Popen([str(word) for word in program.command], stdin=subprocess.DEVNULL, stdout=log,
                                                   stderr=subprocess.STDOUT, preexec_fn=die_with_parent,
                                                   env={**os.environ, "OMP_NUM_THREADS": "2", **program.environment})
                    except OSError as problem:
                        ended(program, str(problem))
                        continue
                running.append((program, process))
            for program, process in [pair for pair in running if pair[1].poll() is not None]:
                running.remove((program, process))
                ended(program, str(process.returncode))
            if time.monotonic() >= deadline:
                break
            time.sleep(0.05)
    finally:
        end_all(*(process for _, process in running))
    for program, _ in running:
        ended(program, f"it took longer than the {seconds:.0f} s of all")
    for program in waiting:
        (folder / f"{program.kind}-{program.name}.log").touch()
        ended(program, "no time was left for it")


def ends(process, seconds):
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def read_until(process, output, deadline):
    """Reads what it prints until its end; True if that did not come in time."""
    pipe = process.stdout.fileno()
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return True
        ended = process.poll() is not None
        # What it left behind may hold the pipe open.
        ready, _, _ = select.select([pipe], [], [], min(left, LAST_WORDS_SECONDS if ended else 0.2))
        if ready:
            printed = os.read(pipe, 1 << 16)
            if not printed:
                return not ends(process, left)
            output.add(printed.decode(errors="replace"))
        elif ended:
            return False


class Section:
    """One of gpu.py's sections: FOLDER/NAME.json always has the figures so far, FOLDER/NAME.log what was printed."""

    def __init__(self, name, folder, device, build):
        self.name, self.folder, self.build = name, pathlib.Path(folder), pathlib.Path(build)
        self.on_gpu = device == "cuda"
        self.clock = Clock()
        self.figures = {"section": name, "emulated": not self.on_gpu, "parts": {}, "problems": []}
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = open(self.folder / f"{name}.log", "w", encoding="utf-8", buffering=1)

    def say(self, text):
        print(text, flush=True)
        print(text, file=self.log)

    def keep(self, *path_and_value):
        """keep("passes", "torch", {...}): puts the figure there, and all figures into the file."""
        *path, last, value = path_and_value
        place = self.figures
        for key in path:
            place = place.setdefault(key, {})
        place[last] = value
        self.write()

    def problem(self, text):
        self.figures["problems"].append(text)
        self.say(f"perf/gpu.sh: {text}")
        self.write()

    def write(self):
        """The file is replaced as a whole, so that whoever ends this finds the old figures or the new."""
        path = self.folder / f"{self.name}.json"
        new = path.with_name(path.name + ".new")
        new.write_text(json.dumps(self.figures, indent=1) + "\n")
        new.replace(path)

    def call(self, command, seconds=float("inf"), heard=None, **options):
        """run() with no more than what is left of the part's time."""
        name = pathlib.Path(str(command[0])).name
        if self.clock.left() < 0.5:
            raise Failed(f"{name}: no time is left for it")
        return run(command, min(seconds, self.clock.left()), heard, **options)

    @contextlib.contextmanager
    def guard(self, name, of=1):
        """Around one of the `of` figures that are still to come: gives its share of the time. Whatever happens in it, the
        others count."""
        try:
            yield self.clock.left() / of
        except Exception as problem:
            self.problem(f"{name}: {problem if isinstance(problem, Failed) else f'{type(problem).__name__}: {problem}'}")

    def measure(self, name, seconds, part):
        """Runs a part and keeps how it went."""
        self.clock.allot(seconds)
        began, problems = time.monotonic(), len(self.figures["problems"])
        self.say(f"== {self.name}: {name}, at most {max(0.0, self.clock.left()):.0f} s")
        with self.guard(name):
            part(self)
        complete = problems == len(self.figures["problems"])
        self.keep("parts", name, {"seconds": round(time.monotonic() - began, 2), "complete": complete,
                                  "memory_available": memory()["available"]})
        self.say(f"== {self.name}: {name} {'complete' if complete else 'INCOMPLETE'}")


def memory():
    """Bytes of the host, of which a cgroup may leave less: all, and those that are available."""
    found = {}
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        name, value = line.split(":")
        if name in ("MemTotal", "MemAvailable"):
            found[name[3:].lower()] = int(value.split()[0]) * 1024
    limit, used = pathlib.Path("/sys/fs/cgroup/memory.max"), pathlib.Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        found["total"] = min(found["total"], int(limit.read_text()))
        found["available"] = min(found["available"], int(limit.read_text()) - int(used.read_text()))
    return found


def last_json(printed):
    """The last line of JSON that a program printed. Raises Failed."""
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    if not lines:
        raise Failed(f"no line of JSON in:\n{printed[-MOST_PRINTED:]}")
    return json.loads(lines[-1])
