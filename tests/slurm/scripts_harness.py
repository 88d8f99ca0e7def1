"""A folder in which the job scripts run where Slurm and the program are stand-ins. No Slurm is needed."""
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# The stand-ins note how they are called. `program` ends with the first of `codes`, after what it is told to
# do; scontrol gives the first of `answers`: an exit code and a text.
STAND_INS = {
    "srun": 'echo "$*" >> sruns\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
    "squeue": 'case "$*" in *%T*) echo ${STATE:-RUNNING} ;; *%l*) echo ${LIMIT:-4:00:00} ;; '
              '*PreemptTime*) echo ${PREEMPTED:-N/A 0} ;; *"=none "*) ;; *%o*) echo "${COMMAND:-}" ;; *) echo ${REASON:-None} ;; esac\n',
    "sbatch": 'env | grep "^OFFSTAGE_[FAR]" | sort >> submitted\nenv | grep -o "^SLURM_[A-Z_]*" | sort > handed-on\necho "$*" >> submitted\n'
              'echo "${SBATCH_SIGNAL:-}" > signal\n'
              'echo "Submitted batch job 99"\n',
    "scontrol": 'if [[ $1 == show ]]; then [[ $3 == none ]] || echo "${SHOWN:-}"; exit; fi\necho "$*" >> requeues\nread -r code text < answers\nsed -i 1d answers\n'
                'echo "$text" >&2\nexit "${code:-0}"\n',
    # The test's folder may be in memory.
    "stat": 'if [[ $1 == --file-system ]]; then echo ext2/ext3; else exec /usr/bin/stat "$@"; fi\n',
    "program": 'echo "$*" >> calls\n[[ $1 == checkpoint ]] && [[ -e listing ]] && cat listing\n'
               '[[ $1 == train ]] && [[ -e during ]] && source ./during\n'
               'read -r code < codes; sed -i 1d codes; exit "${code:-0}"\n',
}
LISTING = "STEP  STATE  SIZE\n5  complete  1.0 MiB\n"


class ScriptsTest(unittest.TestCase):
    SCRIPT = "$(awk '/^PPid/ {print $2}' /proc/$PPID/status)"  # the program's parent is the script's child

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="offstage-scripts-")).resolve()
        self.addCleanup(shutil.rmtree, self.folder)
        for name, text in STAND_INS.items():
            self.write(f"bin/{name}", "#!/usr/bin/env bash\n" + text).chmod(0o755)
        for name in ("codes", "answers", "calls", "requeues", "submitted"):
            self.write(name, "")
        (self.folder / "scratch").mkdir()
        self.configure()

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def configure(self, text="", name="run.cfg", run_dir=None):
        self.config = self.write(name, f"run.dir = {run_dir or self.folder / 'run'}\n{text}")

    def read(self, name):
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def checkpoint(self, step, complete=True, place="run/checkpoints"):
        folder = self.folder / place / f"step-{step:09}"
        folder.mkdir(parents=True)
        (folder / "rank-0.h5").touch()
        if complete:
            (folder / "master.h5").touch()
        return folder

    def run_script(self, script, *options, expect=0, **environment):
        foreign = ("SLURM", "SRUN", "SBATCH", "OFFSTAGE", "TMPDIR")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
        clean |= {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "OFFSTAGE": "program", "OFFSTAGE_HOME": str(ROOT),
            "OFFSTAGE_SCRATCH": str(self.folder / "scratch"), "OFFSTAGE_REQUEUE_PAUSE": "0",
            "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node1", "SLURM_JOB_NAME": "offstage",
            "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_PARTITION": "low", "SLURM_CPUS_PER_TASK": "2"}
        copy = self.write("spool/slurm_script", (ROOT / "jobs" / script).read_text())  # as sbatch makes one
        done = subprocess.run(["bash", copy, self.config, *map(str, options)], env=clean | environment,
                              cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=60, check=False)
        self.assertEqual(expect, done.returncode, done.stdout)
        return done.stdout

    def attempt(self, number, code, *options, script="train.sbatch", during="", **environment):
        """One attempt of job 7, whose program ends with `code`. Returns the program's last call."""
        self.write("codes", f"0\n{code}\n" if script == "restart.sbatch" else f"{code}\n")
        self.write("during", during)
        self.output = self.run_script(script, *options, expect=code, SLURM_RESTART_COUNT=str(number - 1),
                                      **environment)
        return self.read("calls")[-1]

    def refused(self, code, *options, listing="", expect=65):
        """A restart whose `checkpoint ls` ends with `code`; the program must not train."""
        self.write("codes", f"{code}\n")
        self.write("listing", listing)
        output = self.run_script("restart.sbatch", *options, expect=expect)
        self.assertEqual([], [call for call in self.read("calls") if call.startswith("train")])
        return output

    def home(self, name):
        """What an installation has, in folder/name."""
        for part in "slurm", "jobs":
            shutil.copytree(ROOT / part, self.folder / name / part, ignore=shutil.ignore_patterns("site", "test-cluster"))
        return self.folder / name
