#!/usr/bin/env python3
"""Lets every file operation of small runs fail, or kills them there, takes the power away, damages their checkpoints, and
looks at what becomes of them: see --help. $OFFSTAGE and $FAULTY_FILES are the program and the preloaded library; those of
build/release unless told."""
import argparse
import collections
import concurrent.futures
import fnmatch
import functools
import itertools
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

from cases import ABOUT, Case, all_cases, cases_in_turn, killing, kills, matching, parse, places, recording, tracing
from check import Bad, Check, listing, require
from damage import Damage, damages
from power_loss import Disk, Loss, Recorded, read_events, write_image
from scenarios import ROOT, SCENARIOS, World

SHIM = os.environ.get("FAULTY_FILES", str(ROOT / "build/release/tests/sweep/libfaulty_files.so"))
REGRESSIONS = Path(__file__).parent / "regressions.txt"
DAMAGES = 2400  # over all scenarios, some of them alike
LAST_STEP = 6  # that any scenario comes to


class Ground:
    """What a scenario's cases start from and are compared with."""
    def __init__(self, scenario, folder, straight):
        self.scenario, self.straight = scenario, straight
        self.template = World(folder / f"{scenario.name}-before")
        self.template.make()
        if "checkpoint.local" in scenario.options:
            self.template.name_local()
        if scenario.before:
            self.earlier_runs()
        self.expected = {}
        if scenario.killed:
            self.killed_run()
        self.places = self.undisturbed(World(folder / f"{scenario.name}-undisturbed"))

    def earlier_runs(self):
        work, before = self.template.work, self.scenario.before
        command = functools.partial(self.scenario.command, work, checkpoint__resume="auto")
        runs = [command(train__steps=before)]
        if self.scenario.rollback:
            runs.append(command(train__steps=before + 3, checkpoint__keep=9, optimizer__lr=0.02))
        for run in runs:
            result = self.template.call(run)
            require(result.code == 0, f"{self.scenario.name}: {result}")

    def killed_run(self):
        """The names of cases stay the same: no process's number is in them."""
        self.check(self.template).resume()
        result = self.template.call(self.scenario.command(self.template.work),
                                    **killing(self.template, *self.scenario.killed, SHIM))
        require(result.code == 128 + signal.SIGKILL, f"{self.scenario.name}: {result}")
        self.forget_process(self.template)

    @staticmethod
    def forget_process(world):
        """What a run left on storage gets a process that no system has, and that none which was killed before has left."""
        for path in (world.work / "storage").rglob("offstage-*"):
            found = re.fullmatch(r"(.+)-(\d+)-(\d+)", path.name)
            if found is None or len(found[2]) == 9:
                continue
            names = (path.with_name(f"{found[1]}-{process}-{found[3]}") for process in range(999999999, 999999989, -1))
            path.rename(next(name for name in names if not name.exists()))

    def check(self, world, **how):
        return Check(self.scenario, world, self.template, self.straight, self.expected, **how)

    def undisturbed(self, world):
        """The places of the scenario's run: it is run without a fault, and looked at as after one."""
        world.make(self.template)
        check = self.check(world)
        check.resume()
        result = world.call(self.scenario.command(world.work), **tracing(world, self.scenario.rank, SHIM))
        last = self.scenario.last()
        require(result.code == 0, str(result))
        self.expected[last] = listing(world)
        try:
            check.checkpoints_are_good(result)
        except Bad as bad:
            raise Bad(f"{bad}; {listing(world)}\n{result}") from bad
        saved = {step for step, _ in result.saved}
        check.run(last + 1, saved, **check.resume())
        self.expected[last + 1] = listing(world)
        check.nothing_left(last + 1)
        found = list(places(world))
        world.remove()
        return found

    def goes_back_again(self, world):
        """The user's own way after a rollback that failed, which names the checkpoint again; in a copy."""
        other = World(world.folder / "again")
        other.make(world)
        self.check(other).run(self.scenario.last(), set())

    @functools.cached_property
    def recorded(self):
        """The scenario's run as a disk sees it. The recording has all that happened: the last image is what is there."""
        world = World(self.template.folder.with_name(f"{self.scenario.name}-recorded"))
        world.make(self.template)
        self.check(world).resume()
        disk = Disk(world.work)
        result = world.call(self.scenario.command(world.work), **recording(world, SHIM))
        require(result.code == 0, f"{self.scenario.name}: {result}")
        events = read_events(world.folder / "recording", world.work)
        found = Recorded(self.scenario.name, disk, events)
        said, image = found.after(Loss(self.scenario.name, len(events), "kept"))
        there = {str(path.relative_to(world.work)): None if path.is_dir() else path.read_bytes()
                 for path in world.work.rglob("*")}
        require({path: data for path, (data, _) in image.items()} == there, f"{self.scenario.name}: the recording is not what happened")
        require(sorted(said) == sorted([*((step, False) for step, _ in result.saved),
                                        *((step, True) for step in result.saved_local)]), f"{self.scenario.name}: {said}")
        world.remove()
        return found

    def damages(self, count, numbers):
        return damages(self.scenario.name, self.template.checkpoints(), self.template.local(), count, numbers)

    def problem(self, world, case):
        """(whether the case came to be, what is bad or None)"""
        world.make(self.template)
        try:
            if isinstance(case, Loss):
                self.after_loss(world, case)
            elif isinstance(case, Damage):
                case.do(world.checkpoints())
                self.check(world).outlives_damage(case)
            else:
                self.after_fault(world, case)
        except Bad as bad:
            return self.came_to_be(world, case), str(bad)
        return self.came_to_be(world, case), None

    @staticmethod
    def came_to_be(world, case):
        log = world.folder / "calls"
        return not isinstance(case, Case) or (log.exists() and " failed\n" in log.read_text())

    def after_fault(self, world, case):
        check = self.check(world, lasting=case.lasting, killed=case.kills())
        check.resume()
        result = world.call(self.scenario.command(world.work), **case.environment(world, self.scenario.rank, SHIM))
        (world.folder / "said").write_text(str(result))
        saved = {step for step, _ in result.saved}
        check.ended_well(result)
        check.saved_local = set(result.saved_local)
        if case.kills():
            self.forget_process(world)
            check.checkpoints_outlived(saved)
        else:
            check.checkpoints_are_good(result)
        if self.scenario.rollback:
            self.goes_back_again(world)
        check.goes_on(saved)

    def after_loss(self, world, loss):
        said, image = self.recorded.after(loss)
        write_image(image, world.work)
        if (world.checkpoints() / "level-1").exists():
            world.name_local()
        (world.folder / "said").write_text(str(said))
        self.forget_process(world)
        check = self.check(world, killed=True)
        check.saved_local = {step for step, is_local in said if is_local}
        steps = {step for step, is_local in said if not is_local}
        check.checkpoints_outlived(steps)
        check.goes_on(steps)


def kind_of(case):
    """What --of calls it."""
    if isinstance(case, Loss):
        return "power"
    if isinstance(case, Damage):
        return "damage"
    return "kills" if case.kills() else "faults"


class Sweep:
    """Runs cases, several at a time, and counts."""
    def __init__(self, folder, jobs, keep):
        self.folder, self.jobs, self.keep = folder, jobs, keep
        self.grounds = {}
        self.lock = threading.Lock()  # guards what follows
        self.met = collections.Counter()  # by kind
        self.missed = self.bad = 0
        self.stopped = False

    def stop(self, *_):
        self.stopped = True

    def prepare(self, names):
        straight = World(self.folder / "straight")
        straight.make()
        memory = SCENARIOS["memory-start"]
        result = straight.call(memory.command(straight.work, train__steps=LAST_STEP, checkpoint__keep=9))
        require(result.code == 0, str(result))
        def make(name):
            try:
                self.grounds[name] = Ground(SCENARIOS[name], self.folder, straight)
            except Bad as bad:
                raise Bad(f"{name}, before anything is done to it: {bad}") from bad
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(make, names))

    def cases(self, cases_of):
        return [case for name in sorted(self.grounds) for case in cases_of(name, self.grounds[name].places)]

    def run(self, cases, seconds):
        deadline = time.monotonic() + seconds if seconds else float("inf")
        todo = iter(enumerate(cases))
        def work(_):
            while not self.stopped and time.monotonic() < deadline:
                with self.lock:
                    number, case = next(todo, (None, None))
                if case is None:
                    return
                self.run_one(World(self.folder / f"case-{number}"), case)
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            workers = [pool.submit(work, worker) for worker in range(self.jobs)]
            began = time.monotonic()
            while concurrent.futures.wait(workers, timeout=10).not_done:
                self.say(f"{self.met.total() + self.missed} of {len(cases)} cases after {time.monotonic() - began:.0f} s, "
                         f"{self.bad} bad")

    def run_one(self, world, case):
        met = False
        try:
            met, problem = self.grounds[case.scenario].problem(world, case)
        except Exception:  # pylint: disable=broad-except
            problem = f"the sweep itself failed: {traceback.format_exc()}"
        with self.lock:
            self.met[kind_of(case)] += met
            self.missed += not met
            self.bad += problem is not None
        if problem is not None:
            told = problem.replace(f"{world.work}/", "").replace("\n", " | ")
            kept = f"; see {world.folder}" if self.keep else ""
            self.say(f"BAD {case}: {told}; again: tests/sweep/sweep.py --keep --case '{case}'{kept}")
        if problem is None or not self.keep:
            world.remove()

    @staticmethod
    def say(line):
        print(line, flush=True)


def spread(cases, count, numbers):
    """So many cases, evenly over scenarios, and within one over kinds of calls, errnos and what lasts."""
    groups = {}
    for case in cases:
        groups.setdefault(case.scenario, {}).setdefault(case.group(), []).append(case)
    queues = []
    for scenario in sorted(groups):
        kinds = list(groups[scenario].values())
        numbers.shuffle(kinds)
        for kind in kinds:
            numbers.shuffle(kind)
        in_turn = [case for row in itertools.zip_longest(*kinds) for case in row if case is not None]
        queues.append(in_turn[::-1])
    chosen = []
    while len(chosen) < count and any(queues):
        for queue in queues:
            if queue and len(chosen) < count:
                chosen.append(queue.pop())
    return chosen


def lines_of(path):
    lines = Path(path).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def candidates(sweep, kind, seed, numbers):
    """All cases of a kind: (those in turn, and those that a pattern may name)."""
    grounds = [sweep.grounds[name] for name in sorted(sweep.grounds)]
    if kind == "faults":
        return sweep.cases(functools.partial(cases_in_turn, seed=seed)), sweep.cases(all_cases)
    if kind == "kills":
        found = sweep.cases(kills)
    elif kind == "power":
        found = [loss for ground in grounds for loss in ground.recorded.losses()]
    else:
        hit = [ground for ground in grounds if ground.scenario.before and not ground.scenario.rollback]
        found = [case for ground in hit for case in ground.damages(DAMAGES // len(hit), numbers)]
    return found, found


def select(sweep, arguments, names, patterns):
    """The cases that are asked for, in an order that the seed gives."""
    numbers = random.Random(arguments.seed)
    in_turn, everything = zip(*(candidates(sweep, kind, arguments.seed, numbers) for kind in arguments.of))
    chosen = [parse(name) for name in names]
    for pattern in patterns:
        found = matching(itertools.chain(*everything), pattern)
        require(found, f"no case matches {pattern}")
        chosen += found
    if arguments.sample:
        for kind, cases in zip(arguments.of, in_turn):
            require(cases, f"these scenarios have no {kind}")
            chosen += spread(cases, arguments.sample, numbers)
    elif not chosen:
        chosen = [*itertools.chain(*(everything if arguments.all else in_turn))]
    chosen = list(dict.fromkeys(chosen))
    numbers.shuffle(chosen)
    return chosen


def read_arguments():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, epilog=ABOUT,
                                     description="Lets every file operation of small runs fail: the run ends with 0 or 74, "
                                                 "keeps what it saved, and the same command goes on. Or see --of.")
    add = parser.add_argument
    add("--of", nargs="+", choices=("faults", "kills", "power", "damage"), default=["faults"],
        help="calls that fail (unless told); a rank killed at each call that changes something; what a disk may hold after "
             "a loss of power; bits, ends and names of a checkpoint's files")
    add("--case", action="append", default=[], metavar="NAME", help="this one, as a BAD line names it")
    add("--cases", metavar="FILE", help="those whose names are the lines of a file")
    add("--match", action="append", default=[], metavar="PATTERN", help="all whose names match, as a shell's")
    add("--regressions", action="store_true", help="those that match the lines of regressions.txt; of faults and kills")
    add("--sample", type=int, default=0, metavar="N", help="so many of each of --of, spread over all scenarios and kinds of calls")
    add("--all", action="store_true", help="every errno at every place")
    add("--scenarios", nargs="+", default=["*"], metavar="PATTERN", help="of these scenarios alone: " + " ".join(SCENARIOS))
    add("--list", action="store_true", help="print the names of the cases and run none")
    add("--keep", action="store_true", help="leave the folders of bad cases")
    add("--jobs", type=int, default=int(os.environ.get("SWEEP_JOBS") or 2 * len(os.sched_getaffinity(0))),
        help="cases at a time ($SWEEP_JOBS; two per core unless told, as they wait half of the time)")
    add("--seconds", type=float, default=float(os.environ.get("SWEEP_SECONDS") or 0),
        help="begin no case after that ($SWEEP_SECONDS; 0: all cases)")
    add("--seed", type=int, default=int(os.environ.get("SWEEP_SEED") or random.randrange(1, 1 << 30)),
        help="of the order of cases and what takes turns ($SWEEP_SEED; any unless told)")
    return parser.parse_args()


def main():
    arguments = read_arguments()
    folder = Path(tempfile.mkdtemp(prefix="offstage-sweep-")).resolve()
    sweep = Sweep(folder, arguments.jobs, arguments.keep)
    signal.signal(signal.SIGTERM, sweep.stop)
    names = arguments.case + (lines_of(arguments.cases) if arguments.cases else [])
    regressions = lines_of(REGRESSIONS) if arguments.regressions else []
    patterns = arguments.match + [line for line in regressions if ("kills" if ":KILL:" in line else "faults") in arguments.of]
    try:
        began = time.monotonic()
        named_alone = {parse(name).scenario for name in names} if not (patterns or arguments.sample) else set()
        sweep.prepare(sorted(named_alone or {name for pattern in arguments.scenarios for name in fnmatch.filter(SCENARIOS, pattern)}))
        cases = select(sweep, arguments, names, patterns)
        if arguments.list:
            print("\n".join(map(str, cases)))
            return 0
        print(f"{len(cases)} cases in {len(sweep.grounds)} scenarios, seed {arguments.seed}, "
              f"prepared in {time.monotonic() - began:.0f} s", flush=True)
        sweep.run(cases, arguments.seconds)
    finally:
        if not (arguments.keep and sweep.bad):
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{sweep.missed} cases did not come to be")
    met = {kind: sweep.met[kind] for kind in map(kind_of, cases)}
    for kind, count in met.items():
        print(f"RESULT sweep_{kind} {count}")
    print(f"RESULT sweep_bad {sweep.bad}")
    return 1 if sweep.bad or not met or not all(met.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
