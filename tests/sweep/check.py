"""What has to be true after a fault, and after the same command has gone on without one."""
import re
import signal
import time

from scenarios import KEEP, LOCAL, NAMED, OPEN_MPI, ROOT, step_directory, step_name

OURS = ("lock", "began-1")
PASSED_OVER = re.compile(r"checkpoint \S+ passed over: (?!its save did not finish)(.*)")


class Bad(Exception):
    """What is wrong."""


def require(condition, message):
    if not condition:
        raise Bad(message)


def names_in(directory):
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def listing(world):
    """What a run has left, but for what is inside of a checkpoint."""
    found = []
    for folder in ("", "run", "run/checkpoints", "storage", "storage/a", "storage/b", "local", LOCAL):
        found += [f"{folder}/{name}".lstrip("/") for name in names_in(world.work / folder)]
    return found


def records(world):
    """Step, loss and norm of each step that a run has in its metrics, in order."""
    text = (world.work / "run/metrics.jsonl").read_text()
    return re.findall(r'^{"step":(\d+),"loss":([^,]*),"grad_norm":([^,]*),', text, re.MULTILINE)


def states(world, *paths):
    """What `verify` says of each checkpoint: {name: "good" or the problem}; of one of level 1 the name is local/NAME."""
    found = {}
    for path in paths or [world.checkpoints()]:
        result = world.offstage("checkpoint", "verify", path)
        for path, said in re.findall(r"^(\S*/[^/\s]+): (good|damaged: .*|unfinished save)$", result.out, re.MULTILINE):
            *_, parent, name = path.split("/")
            found.setdefault(f"local/{name}" if parent.startswith("level-1-") else name, said)
        require(result.code in (0, 65, 74), f"verify ended with {result.code}: {result.err.strip()}")
    return found


class Check:
    """One case, in its world. `straight` is a world that has every step of a run that nothing disturbed, `expected` the
    listings of an undisturbed run of the scenario, by its last step. lasting: the fault stays until the run has ended;
    killed: a rank is killed."""
    def __init__(self, scenario, world, template, straight, expected, lasting=False, killed=False):
        self.scenario, self.world, self.template = scenario, world, template
        self.straight, self.expected, self.lasting, self.killed = straight, expected, lasting, killed
        self.saved_local = set()  # steps that the run has said to be in level 1

    def nothing_runs(self):
        deadline = time.monotonic() + 5
        while found := self.world.processes():
            require(time.monotonic() < deadline, f"processes {found} are left")
            time.sleep(0.05)

    def ended_well(self, result):
        """Of the run that met the fault."""
        require(result.code is not None, "it hangs")
        codes = (0, 128 + signal.SIGKILL) if self.killed else (0, 74)
        require(result.code in codes, f"it ended with {result.code}: {' '.join(result.errors[:1])}")
        require(result.code != 74 or result.errors, "it ended with 74 and does not say why")
        if "checkpoint.local" not in self.scenario.options:  # level 1 may be passed over while nobody can read it
            self.passed_nothing_over(result)
        self.begins_at(result, NAMED if self.scenario.rollback else self.scenario.before)
        self.nothing_runs()

    @staticmethod
    def begins_at(result, step):
        """Where the run begins, should it come so far: at this step, or a later one of its own."""
        begun = re.search(r"^\S+Z (?:continuing after|starting at) step (\d+)", result.out, re.MULTILINE)
        require(not begun or int(begun.group(1)) >= step, f"it begins at step {begun and begun.group(1)}, not at {step}")

    def passed_nothing_over(self, result):
        found = PASSED_OVER.search(result.out + result.err)
        require(not found, f"a good checkpoint was passed over: {found and found.group(1)}")

    def before(self):
        """Steps that had a good checkpoint before the fault, under whatever name."""
        return sorted(int(path.parent.name[-9:]) for path in self.template.checkpoints().glob("*step-*/master.h5"))

    def newest_local(self):
        """The newest step that level 1 had before the fault, or was said to have; 0: none."""
        before = [int(path.parent.name[-9:]) for path in self.template.local().glob("step-*/master.h5")]
        return max([0, *before, *self.saved_local])

    def needed(self, saved):
        """Steps of the checkpoints that must be there and good, under their own names."""
        before = self.before()
        if self.scenario.rollback:
            # A fault that lasts keeps it from giving an old checkpoint its name back; the next start does. So does it
            # where one was killed that had put it away.
            put_away = saved or self.lasting or self.scenario.killed
            return {NAMED, *sorted(saved)[-KEEP:]} | (set() if put_away else set(before))
        every = int(self.scenario.options.get("checkpoint.keep-every", 0))
        steps = sorted({*before, *saved})
        ordinary = [step for step in steps if not every or step % every]
        return {*ordinary[-KEEP:], *(step for step in steps if every and step % every == 0)}

    def checkpoints_are_good(self, result):
        saved = {step for step, _ in result.saved}
        require(result.code != 0 or self.scenario.last() in saved, "it ended with 0 and has not saved the last step")
        found = states(self.world)
        for step in sorted(saved | set(self.before())):
            said = found.get(step_name(step), "gone")
            kind = "it said that it saved" if step in saved else "there before was"
            # What is not needed may have begun to go.
            require(said in ("good", "gone", "unfinished save"), f"step {step}, which {kind}, is {said}")
        for step in sorted(self.needed(saved)):
            require(found.get(step_name(step)) == "good", f"step {step} is {found.get(step_name(step), 'gone')}")
        if self.scenario.rollback:
            self.others_are_somewhere(saved, found)

    def checkpoints_outlived(self, saved):
        """After a crash: nothing is damaged, what was saved or is newer is there, and as many as are kept."""
        before, found = self.before(), states(self.world)
        good = {int(name[-9:]) for name, said in found.items() if said == "good"}
        damaged = [f"{name} is {said}" for name, said in found.items() if said.startswith("damaged")]
        require(not damaged, "; ".join(damaged))
        local = {int(name[-9:]) for name, said in found.items() if said == "good" and name.startswith("local/")}
        newest = self.newest_local()
        require(max(good, default=0) >= newest, f"step {newest} of level 1 is not there, but {sorted(good)}")
        good = {int(name[-9:]) for name, said in found.items() if said == "good" and not name.startswith("local/")}
        require(len(local) <= 2, f"level 1 has steps {sorted(local)}")
        if self.scenario.rollback:
            require({NAMED, *sorted(saved)[-1:]} <= good, f"steps {NAMED} and {saved} are to be there, not {good}")
            self.others_are_somewhere(set(saved), found)
            return
        steps = {*before, *saved}
        require(max(good, default=0) >= max(steps, default=0), f"of steps {sorted(steps)} there are {sorted(good)}")
        every = int(self.scenario.options.get("checkpoint.keep-every", 0))
        for_good = {step for step in steps if every and step % every == 0}
        require(for_good <= good and len(good - for_good) >= min(KEEP, len(steps - for_good)),
                f"of steps {sorted(steps)} there are {sorted(good)}")

    def others_are_somewhere(self, saved, found):
        """Later steps of the abandoned run may have been set aside; those whose place was taken may be gone."""
        for step in set(self.before()) - saved:
            aside = [name for name in names_in(self.world.checkpoints()) if step_name(step) in name]
            unlisted = [self.world.checkpoints() / name for name in aside if name not in found]
            there = {**found, **(states(self.world, *unlisted) if unlisted else {})}
            require(step < NAMED or any(there.get(name) == "good" for name in aside), f"step {step} of before is gone")

    def resume(self):
        """What the job scripts would go on from after a failure; also notes where they begin."""
        if not self.scenario.rollback:
            return {}
        script = ('set -uo pipefail; . "$0"; read_run /dev/null "$@"; '
                  'if resume_is_over; then echo auto; elif (($? != 1)); then echo unclear >&2; fi')
        result = self.world.call(["bash", "-c", script, ROOT / "slurm/run_directory.sh",
                                  *self.scenario.arguments(self.world.work)], SLURM_JOB_ID="1", OFFSTAGE_FIRST_JOB="1")
        require(result.code == 0 and not result.err, f"slurm/run_directory.sh: {result}")
        return {"checkpoint__resume": "auto"} if result.out == "auto\n" else {}

    def outlives_damage(self, damage):
        """What is damaged is found or does no harm, and the newest good checkpoint is taken: never none of them."""
        said = states(self.world)
        good = {name for name in said if said[name] == "good"}
        last = self.scenario.last()
        result = self.world.call(self.scenario.command(self.world.work, train__steps=last))
        self.nothing_runs()
        if result.code == 65:
            require(not good, f"it ended with 65, and {sorted(good)} are good: {' '.join(result.errors[:1])}")
            return
        require(result.code == 0, f"it ended with {result.code}: {' '.join(result.errors[:1])}")
        self.begins_at(result, max((int(name[-9:]) for name in good), default=1))
        require(len(damage.hits()) == 2 or good, f"{said}")
        self.same_bits(last)

    def goes_on(self, saved):
        """The same command, or what the job scripts make of it, ends with the same bits and leaves nothing."""
        last = self.scenario.last()
        result = self.run(last, saved, **self.resume())
        if not result.saved:
            last += 1
            self.run(last, saved, **self.resume())
        self.nothing_left(last)

    def run(self, last, saved, **options):
        result = self.world.call(self.scenario.command(self.world.work, train__steps=last, **options))
        require(result.code == 0, f"going on, it ended with {result.code}: {' '.join(result.errors[:1])}")
        self.passed_nothing_over(result)
        self.nothing_runs()
        if self.scenario.rollback:
            self.begins_at(result, max([NAMED, *saved]) if options.get("checkpoint__resume") else NAMED)
        else:
            self.begins_at(result, max([0, *saved, *self.before(), self.newest_local()]))
        self.same_bits(last)
        require(records(self.world) == records(self.straight)[:last], f"metrics have {records(self.world)}")
        return result

    def same_bits(self, last):
        result = self.world.offstage("checkpoint", "diff", step_directory(self.straight.work, last),
                                     step_directory(self.world.work, last))
        said = " ".join(result.out.splitlines()[:1] + result.errors)
        require(result.code == 0, f"the bits of step {last} are others: {said}")

    def nothing_left(self, last):
        found, expected = set(listing(self.world)), set(self.expected[last])
        if self.scenario.rollback:  # what is set aside, and what not, depends on how it came there
            optional = {name for name in expected | found if "passed-over-" in name}
            optional.add(f"run/checkpoints/{step_name(NAMED)}")
            found, expected = found | optional, expected | optional
        # Which steps find the save before done is a matter of time; with two levels, where the run goes on.
        if {"checkpoint.rate", "checkpoint.local"} & set(self.scenario.options):
            optional = {name for name in expected | found if name.startswith("run/checkpoints/step-")}
            found, expected = found | optional, expected | optional
        require(found - set(map("run/{}".format, OURS)) <= expected, f"left behind: {' '.join(sorted(found - expected))}")
        require(expected <= found, f"missing: {' '.join(sorted(expected - found))}")
        unfinished = [path for pattern in ("*.tmp", "*.new", "*.link") for path in self.world.work.rglob(pattern)]
        require(not unfinished, f"left behind: {unfinished}")
        # Open MPI 5 leaves its own things of a process without launcher.
        names = [name for name in names_in(self.world.tmp) if OPEN_MPI < 5 or not name.startswith(("ompi.", "sm_segment."))]
        require(not names, f"left behind in TMPDIR: {names}")
