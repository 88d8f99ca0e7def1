"""Runs the job scripts on a Slurm whose nodes have networks and processes of their own, so that one of them can die, and
with a distributed file system on them."""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "slurm"))
# pylint: disable=wrong-import-position
from slurm_harness import KEYS, OFFSTAGE, PATIENCE, ROOT, STEPS, TINY, SlurmTest  # noqa: E402,F401

TOOLS = ROOT / "slurm/test-cluster"
FAULTY = os.environ.get("FAULTY_FILES", str(ROOT / "build/release/tests/sweep/libfaulty_files.so"))


class NodesTest(SlurmTest):
    """Jobs of three nodes of four, two ranks each: when one dies there are three left."""
    NODES = 4
    patience = 300  # the timeouts of Slurm, MPI and the network, one after the other
    KIND = ("--nodes-of-their-own",)
    AT_ONCE = 1
    PFS = ()  # options of pfs.sh; none: no distributed file system
    PFS_SIZE = ""
    LATENCY = "10ms"  # of the nodes' own storage: a run lasts seconds, however fast the machine is
    SIZE = ("--nodes=3", "--ntasks-per-node=2")
    # Nodes go down 10 s after they died, and the job waits 5 s then.

    @classmethod
    def setUpClass(cls):
        check = subprocess.run([TOOLS / "nodes.sh", "check"], stderr=subprocess.PIPE, text=True, check=False)
        if check.returncode:
            raise unittest.SkipTest(check.stderr.strip())
        super().setUpClass()
        cls.reach = (TOOLS / "nodes.sh", "on", cls.cluster, "head")
        if cls.PFS:
            cls.tool("pfs.sh", *cls.PFS, PFS_SIZE=cls.PFS_SIZE)

    @classmethod
    def tool(cls, name, *arguments, **environment):
        """nodes.sh COMMAND ... or pfs.sh ..., with the cluster's directory where they want it."""
        arguments = [str(a) for a in arguments]
        at = 1 if name == "nodes.sh" else 0
        with tempfile.TemporaryFile("w+") as output:  # daemons may keep it open
            done = subprocess.run([TOOLS / name, *arguments[:at], cls.cluster, *arguments[at:]], stdout=output,
                                  stderr=output, env=os.environ | environment, timeout=PATIENCE, check=False)
            output.seek(0)
            text = output.read()
        if done.returncode:
            raise AssertionError(f"{name} {arguments} ended with {done.returncode}\n{text}")
        return text

    def setUp(self):
        super().setUp()
        self.local = self.cluster / "local" / self.folder.name  # another one on each node
        for node in self.nodes():
            (self.cluster / f"scratch.{node}" / self.folder.name).mkdir()
        if self.PFS:
            self.pfs = self.cluster / "pfs" / self.folder.name
            self.seen(self.pfs).mkdir()
            (self.folder / "run").symlink_to(self.seen(self.pfs) / "run")
        self.set_keys({})

    def set_keys(self, keys, places=None):
        """The configuration of the job and that of the run it is compared with, which has the state in host memory and
        no `places`: lines of the first one alone, what is where."""
        run = self.pfs if self.PFS else self.folder
        keys = {**TINY, **KEYS, "data.train": self.text, "run.watchdog": "60s", **keys}
        if places is None:
            places = [f"tiers.path = {self.local},emulate-latency={self.LATENCY}"] + ([f"tiers.path = {self.pfs}"] if self.PFS else [])
        text = "".join(f"{key} = {value}\n" for key, value in keys.items())
        self.config = self.write("run.cfg", text + f"run.dir = {run}/run\n" + "\n".join(places) + "\n")
        self.straight_config = self.write("straight.cfg", text)

    def straight_run(self):
        cls = type(self)
        if cls.straight is None:
            folder = tempfile.TemporaryDirectory(prefix="offstage-straight-")
            cls.addClassCleanup(folder.cleanup)
            self.offstage("train", "--config", self.straight_config, f"--run.dir={folder.name}")
            cls.straight = Path(folder.name)
        return cls.straight / "checkpoints"

    def tearDown(self):
        """All jobs are over, and all nodes are there again for the next test."""
        self.slurm("scancel", "--user=root", expect=None)
        for node in self.nodes():
            if not (self.cluster / "nodes" / node / "process").exists():
                self.tool("nodes.sh", "start", node)
                if self.PFS:
                    self.tool("pfs.sh", "mount", node)
        if self.PFS:
            self.tool("pfs.sh", "whole")
        self.slurm("scontrol", "update", f"nodename={','.join(self.nodes())}", "state=resume", expect=None)
        self.wait_for_slurm(lambda: self.idle_nodes() == self.NODES, what="idle nodes")
        super().tearDown()

    # Nodes

    def nodes(self):
        return [f"node{i + 1}" for i in range(self.NODES)]

    def idle_nodes(self):
        return int(self.slurm("sinfo", "-h", "-p", "low", "-t", "idle", "-o", "%D") or 0)

    def first_process(self, node):
        return int((self.cluster / "nodes" / node / "process").read_text())

    def seen(self, path):
        """A path on the distributed file system, which this machine has only through a node."""
        return Path(f"/proc/{self.first_process('head')}/root{path}")

    def on(self, node, *command):
        return self.tool("nodes.sh", "on", node, *command)

    def ranks_on(self, node):
        """Process ids of the ranks on a node, as this machine sees them."""
        place = os.readlink(f"/proc/{self.first_process(node)}/ns/pid")
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(entry / "ns/pid") == place and os.path.samefile(entry / "exe", OFFSTAGE):
                    found.append(int(entry.name))
            except OSError:
                pass
        return found

    def nodes_of(self, job):
        """Of a running job, in the order of ranks."""
        nodes = self.slurm("scontrol", "show", "hostnames", self.show(job)["NodeList"]).split()
        self.assertEqual(3, len(nodes), self.output(job))
        return nodes

    def submit(self, script, *options, **environment):
        environment.setdefault("size", self.SIZE)
        return super().submit(script, *options, **environment)

    # Faults

    def program_that_stops(self, rank, at, below, attempt=1):
        """Once, from that attempt of the job on, a rank stays in a file operation for ever: at = (KIND, PATH, how many
        of those before). fault.log tells when."""
        kind, path, after = at
        log = self.folder / "fault.log"
        fault = {"FAULT_PATH": below, "FAULT_FILE": path, "FAULT_CALLS": kind, "FAULT_AFTER": after, "FAULT_TIMES": 1,
                 "FAULT_ERROR": "DELAY", "FAULT_SECONDS": 100000, "FAULT_RANK": rank, "FAULT_LOG": log}
        words = " ".join(f"'{key}={value}'" for key, value in fault.items() if value != "")
        script = self.write("stops.sh", f"""#!/bin/sh
if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {attempt - 1} ] || grep -qs ' failed$' {log}; then exec {OFFSTAGE} "$@"; fi
exec env LD_PRELOAD={FAULTY} {words} {OFFSTAGE} "$@"
""")
        script.chmod(0o755)
        return str(script)

    def wait_for_stop(self, job):
        path = self.folder / "fault.log"
        try:
            self.wait_until(lambda: path.exists() and " failed\n" in path.read_text(), what="the call")
        except AssertionError as late:
            self.fail_with_job(f"{late}: {path.read_text() if path.exists() else 'no calls'}", job)

    def attempts(self, job):
        """So far. A busy machine may have seen more than one: Open MPI 4.1 can crash where a rank sends to one that is
        still in MPI_Init."""
        return int(self.show(job)["Restarts"]) + 1

    def wait_for_next_attempt(self, job, after, without):
        """Another one than that, and on other nodes."""
        self.wait_for_text(job, f"attempt {after + 1}")
        self.assertNotIn(without, self.nodes_of(job))

    def kill(self, node):
        self.tool("nodes.sh", "kill", node)

    def assert_same_state(self, a, b):
        """Where both can be seen under their own names."""
        self.slurm(OFFSTAGE, "checkpoint", "diff", a, self.pfs / "run/checkpoints" if self.PFS else b)

    def assert_completed(self, job, attempts=None):
        super().assert_completed(job, attempts)
        for line in self.output(job).splitlines():
            if "passed over" in line:
                self.assertIn("its save did not finish", line)
