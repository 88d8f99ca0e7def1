#!/usr/bin/env python3
"""Lets every file operation of small runs fail and looks at what becomes of them: see --help."""
import argparse
import concurrent.futures
import fnmatch
import functools
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from cases import ABOUT, all_cases, cases_in_turn, matching, parse, places, tracing
from check import Bad, Check, listing, require
from scenarios import ROOT, SCENARIOS, World

SHIM = os.environ.get("FAULTY_FILES", str(ROOT / "build/release/tests/sweep/libfaulty_files.so"))


class Ground:
    """What a scenario's cases start from and are compared with."""
    def __init__(self, scenario, folder, straight):
        self.scenario, self.straight = scenario, straight
        self.template = World(folder / f"{scenario.name}-before")
        self.template.make()
        if scenario.before:
            self.earlier_runs()
        self.expected = {}
        self.places = self.undisturbed(World(folder / f"{scenario.name}-undisturbed"))

    def earlier_runs(self):
        command = self.scenario.command
        none = {"checkpoint__resume": "auto"}
        runs = [command(self.template.work, train__steps=self.scenario.before, **none)]
        if self.scenario.rollback:
            runs.append(command(self.template.work, train__steps=self.scenario.before + 3, checkpoint__keep=9,
                                optimizer__lr=0.02, **none))
        for run in runs:
            result = self.template.call(run)
            require(result.code == 0, f"{self.scenario.name}: {result}")

    def check(self, world):
        return Check(self.scenario, world, self.template, self.straight, self.expected)

    def undisturbed(self, world):
        """The scenario without a fault, by which its file operations are known."""
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


class Sweep:
    def __init__(self, folder, keep):
        self.folder, self.keep = folder, keep
        self.grounds = {}
        self.straight = World(folder / "straight")

    def prepare(self, names, pool):
        self.straight.make()
        result = self.straight.call(SCENARIOS["memory-start"].command(self.straight.work, train__steps=6, checkpoint__keep=9))
        require(result.code == 0, str(result))
        def make(name):
            self.grounds[name] = Ground(SCENARIOS[name], self.folder, self.straight)
        list(pool.map(make, names))

    def cases(self, cases_of):
        return [case for name in sorted(self.grounds) for case in cases_of(name, self.grounds[name].places)]

    def run(self, number, case):
        """(whether the fault was met, what is bad or None)"""
        ground = self.grounds[case.scenario]
        world = World(self.folder / f"case-{number}")
        met = False
        try:
            world.make(ground.template)
            check = ground.check(world)
            check.resume()
            result = world.call(ground.scenario.command(world.work),
                                **case.environment(world, ground.scenario.rank, SHIM))
            if self.keep:
                (world.folder / "said").write_text(str(result))
            log = world.folder / "calls"
            met = log.exists() and " failed\n" in log.read_text()
            return met, self.verdict(check, world, result)
        except Exception:  # pylint: disable=broad-except
            return met, "the sweep itself failed: " + traceback.format_exc()
        finally:
            if not self.keep:
                world.remove()

    def verdict(self, check, world, result):
        """What is bad, or None."""
        try:
            check.ended_well(result)
            check.checkpoints_are_good(result)
            saved = {step for step, _ in result.saved}
            if check.scenario.rollback:
                self.goes_back_again(check, world)
            check.goes_on(saved)
        except Bad as bad:
            return str(bad)
        return None

    @staticmethod
    def goes_back_again(check, world):
        """The user's own way, which names the checkpoint again; in a copy."""
        other = World(world.folder / "again")
        other.make(world)
        again = Check(check.scenario, other, check.template, check.straight, check.expected)
        again.run(check.scenario.last(), set())


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


def named(arguments):
    return arguments.case + (Path(arguments.cases).read_text().split("\n")[:-1] if arguments.cases else [])


def select(sweep, arguments, numbers):
    everything = sweep.cases(all_cases)
    cases = everything if arguments.all else sweep.cases(functools.partial(cases_in_turn, seed=arguments.seed))
    chosen = [parse(name) for name in named(arguments)]
    for pattern in arguments.match:
        found = matching(everything, pattern)
        require(found, f"no case matches {pattern}")
        chosen += found
    if arguments.sample:
        chosen += spread([case for case in cases if case not in chosen], arguments.sample, numbers)
    if not (chosen or arguments.match or arguments.sample):
        chosen = cases
    numbers.shuffle(chosen)
    return chosen


def report(case, bad, keep, folder):
    where = f" (in {folder})" if keep else ""
    print(f"BAD {case}: {bad}{where}; again: tests/sweep/sweep.py --case '{case}'", flush=True)


def sweep_all(sweep, cases, pool, seconds, keep):
    """(faults met, bad ones, faults not met)"""
    began = said = time.monotonic()
    met = bad = missed = 0
    todo = iter(enumerate(cases))
    running = {}
    while True:
        while len(running) < pool._max_workers and not (seconds and time.monotonic() - began > seconds):  # pylint: disable=protected-access
            number, case = next(todo, (None, None))
            if case is None:
                break
            running[pool.submit(sweep.run, number, case)] = number, case
        if not running:
            break
        done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
        for future in done:
            number, case = running.pop(future)
            was_met, problem = future.result()
            met += was_met
            missed += not was_met
            bad += problem is not None
            if problem is not None:
                report(case, problem, keep, sweep.folder / f"case-{number}")
        if time.monotonic() - said > 10:
            said = time.monotonic()
            print(f"{met + missed} of {len(cases)} cases after {said - began:.0f} s, {bad} bad", flush=True)
    return met, bad, missed


def read_arguments():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, epilog=ABOUT,
                                     description="Lets every file operation of small runs fail: the run ends with 0 or 74, "
                                                 "keeps what it saved, and the same command goes on.")
    parser.add_argument("--case", action="append", default=[], metavar="NAME", help="this one alone, as a BAD line names it")
    parser.add_argument("--match", action="append", default=[], metavar="PATTERN", help="all cases whose name matches, as a shell's")
    parser.add_argument("--cases", metavar="FILE", help="those whose names are the lines of a file")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="so many, spread over all scenarios and kinds of calls")
    parser.add_argument("--scenarios", default="*", metavar="PATTERN", help="of these scenarios alone: " + " ".join(SCENARIOS))
    parser.add_argument("--all", action="store_true", help="every errno at every place")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and run none")
    parser.add_argument("--keep", action="store_true", help="leave the folders, and say where they are")
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("SWEEP_JOBS", 0)) or os.cpu_count(),
                        help="cases at a time ($SWEEP_JOBS; as many as cores unless told)")
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("SWEEP_SECONDS", 0)),
                        help="start no case after that ($SWEEP_SECONDS; 0: all cases)")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SWEEP_SEED", 0)) or random.randrange(1, 1 << 30),
                        help="of the order of cases and the choice of a sample ($SWEEP_SEED; any unless told)")
    return parser.parse_args()


def wanted(arguments):
    if named(arguments) and not (arguments.match or arguments.sample):
        return sorted({parse(name).scenario for name in named(arguments)})
    return [name for name in SCENARIOS if fnmatch.fnmatchcase(name, arguments.scenarios)]


def main():
    arguments = read_arguments()
    folder = Path(tempfile.mkdtemp(prefix="offstage-sweep-")).resolve()
    sweep = Sweep(folder, arguments.keep)
    try:
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            began = time.monotonic()
            sweep.prepare(wanted(arguments), pool)
            cases = select(sweep, arguments, random.Random(arguments.seed))
            if arguments.list:
                print("\n".join(map(str, cases)))
                return 0
            print(f"{len(cases)} cases in {len(sweep.grounds)} scenarios, seed {arguments.seed}, "
                  f"prepared in {time.monotonic() - began:.0f} s", flush=True)
            met, bad, missed = sweep_all(sweep, cases, pool, arguments.seconds, arguments.keep)
        print(f"{missed} faults were not met in their run")
        print(f"RESULT sweep_faults {met}\nRESULT sweep_bad {bad}")
        return 1 if bad or not met else 0
    finally:
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
