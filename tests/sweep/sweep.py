#!/usr/bin/env python3
"""Lets every file operation of small runs fail and looks at what becomes of them: see --help. $OFFSTAGE and $FAULTY_FILES
are the program and the preloaded library; those of build/release unless told."""
import argparse
import concurrent.futures
import fnmatch
import functools
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

from cases import ABOUT, all_cases, cases_in_turn, killing, matching, parse, places, tracing
from check import Bad, Check, listing, require
from scenarios import ROOT, SCENARIOS, World

SHIM = os.environ.get("FAULTY_FILES", str(ROOT / "build/release/tests/sweep/libfaulty_files.so"))
REGRESSIONS = Path(__file__).parent / "regressions.txt"
LAST_STEP = 6  # that any scenario comes to


class Ground:
    """What a scenario's cases start from and are compared with."""
    def __init__(self, scenario, folder, straight):
        self.scenario, self.straight = scenario, straight
        self.template = World(folder / f"{scenario.name}-before")
        self.template.make()
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
        """What it leaves on storage gets a process that no system has, so that the names of cases stay the same."""
        self.check(self.template).resume()
        result = self.template.call(self.scenario.command(self.template.work),
                                    **killing(self.template, *self.scenario.killed, SHIM))
        require(result.code == 128 + signal.SIGKILL, f"{self.scenario.name}: {result}")
        for path in (self.template.work / "storage").glob("offstage-*"):
            path.rename(path.with_name(re.sub(r"-\d+-0$", "-999999999-0", path.name)))

    def check(self, world, lasting=False):
        return Check(self.scenario, world, self.template, self.straight, self.expected, lasting)

    def undisturbed(self, world):
        """The places of the scenario's run: it is run without a fault, and looked at as after one."""
        world.make(self.template)
        check = self.check(world)
        check.resume()
        result = world.call(self.scenario.command(world.work), **tracing(world, self.scenario.rank, SHIM))
        last = self.scenario.last()
        require(result.code == 0, f"{self.scenario.name}: {result}")
        self.expected[last] = listing(world)
        check.checkpoints_are_good(result)
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

    def problem(self, world, case):
        """(whether the fault was met, what is bad or None)"""
        world.make(self.template)
        check = self.check(world, case.lasting)
        check.resume()
        result = world.call(self.scenario.command(world.work), **case.environment(world, self.scenario.rank, SHIM))
        (world.folder / "said").write_text(str(result))
        log = world.folder / "calls"
        met = log.exists() and " failed\n" in log.read_text()
        try:
            check.ended_well(result)
            check.checkpoints_are_good(result)
            if self.scenario.rollback:
                self.goes_back_again(world)
            check.goes_on({step for step, _ in result.saved})
        except Bad as bad:
            return met, str(bad)
        return met, None


class Sweep:
    """Runs cases, several at a time, and counts."""
    def __init__(self, folder, jobs, keep):
        self.folder, self.jobs, self.keep = folder, jobs, keep
        self.grounds = {}
        self.lock = threading.Lock()  # guards what follows
        self.met = self.missed = self.bad = 0
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
            self.grounds[name] = Ground(SCENARIOS[name], self.folder, straight)
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
                self.say(f"{self.met + self.missed} of {len(cases)} cases after {time.monotonic() - began:.0f} s, "
                         f"{self.bad} bad")

    def run_one(self, world, case):
        met = False
        try:
            met, problem = self.grounds[case.scenario].problem(world, case)
        except Exception:  # pylint: disable=broad-except
            problem = f"the sweep itself failed: {traceback.format_exc()}"
        with self.lock:
            self.met += met
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
        groups.setdefault(case.scenario, {}).setdefault((case.kind, case.error, case.lasting), []).append(case)
    queues = []
    for scenario in sorted(groups):
        kinds = list(groups[scenario].values())
        numbers.shuffle(kinds)
        queues.append([numbers.choice(kind) for kind in kinds])
    chosen = []
    while len(chosen) < count and any(queues):
        for queue in queues:
            if queue and len(chosen) < count:
                chosen.append(queue.pop())
    return chosen


def lines_of(path):
    lines = Path(path).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def select(sweep, arguments, names, patterns):
    """The cases that are asked for, in an order that the seed gives."""
    everything = sweep.cases(all_cases)
    in_turn = sweep.cases(functools.partial(cases_in_turn, seed=arguments.seed))
    numbers = random.Random(arguments.seed)
    chosen = [parse(name) for name in names]
    for pattern in patterns:
        found = matching(everything, pattern)
        require(found, f"no case matches {pattern}")
        chosen += found
    if arguments.sample:
        chosen += spread(in_turn, arguments.sample, numbers)
    elif not chosen:
        chosen = everything if arguments.all else in_turn
    chosen = list(dict.fromkeys(chosen))
    numbers.shuffle(chosen)
    return chosen


def read_arguments():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, epilog=ABOUT,
                                     description="Lets every file operation of small runs fail: the run ends with 0 or 74, "
                                                 "keeps what it saved, and the same command goes on.")
    add = parser.add_argument
    add("--case", action="append", default=[], metavar="NAME", help="this one, as a BAD line names it")
    add("--cases", metavar="FILE", help="those whose names are the lines of a file")
    add("--match", action="append", default=[], metavar="PATTERN", help="all whose names match, as a shell's")
    add("--regressions", action="store_true", help="those that match the lines of regressions.txt")
    add("--sample", type=int, default=0, metavar="N", help="so many, spread over all scenarios and kinds of calls")
    add("--all", action="store_true", help="every errno at every place")
    add("--scenarios", default="*", metavar="PATTERN", help="of these scenarios alone: " + " ".join(SCENARIOS))
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
    patterns = arguments.match + (lines_of(REGRESSIONS) if arguments.regressions else [])
    try:
        began = time.monotonic()
        named_alone = {parse(name).scenario for name in names} if not (patterns or arguments.sample) else set()
        sweep.prepare(sorted(named_alone) or [name for name in SCENARIOS if fnmatch.fnmatchcase(name, arguments.scenarios)])
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
    print(f"{sweep.missed} faults were not met in their run")
    print(f"RESULT sweep_faults {sweep.met}\nRESULT sweep_bad {sweep.bad}")
    return 1 if sweep.bad or not sweep.met else 0


if __name__ == "__main__":
    sys.exit(main())
