#!/usr/bin/env python3
"""What the job scripts take, refuse and hand on, where Slurm and the program are stand-ins: variables, names, ranks,
homes and time limits. The decisions of attempts are in attempts_test.py; runs_test.py and its like run the same scripts on
a real Slurm."""
import os
import shutil
import subprocess
import unittest

from scripts_harness import LISTING, ROOT, ScriptsTest


class Scripts(ScriptsTest):
    # Variables of the job in which this one was submitted

    def test_another_job_s_array_and_restarts_are_not_this_job_s(self):
        other = {"SLURM_ARRAY_JOB_ID": "6", "SLURM_ARRAY_TASK_ID": "1"}
        self.attempt(3, 75, SHOWN="JobId=7 JobName=a Requeue=1 Restarts=0 BatchFlag=1", **other)
        self.assertEqual(["requeue 7"], self.read("requeues"))
        self.assertIn("job 7, attempt 1,", self.output)
        self.attempt(3, 75, SHOWN="JobId=7 ArrayJobId=6 ArrayTaskId=1 Restarts=5", **other)
        self.assertEqual("requeue 6_1", self.read("requeues")[-1])
        self.assertIn("job 6_1, attempt 3,", self.output)

    def test_another_job_s_memory_and_binding_do_not_reach_srun(self):
        keep = "env | grep -o '^SLURM_[CM][PE][UM]_[A-Z_]*' | sort > there\n"
        self.attempt(1, 0, during=keep, SLURM_MEM_PER_CPU="100", SLURM_MEM_PER_NODE="4000", SLURM_CPU_BIND="quiet,mask_cpu:0x1",
                     SLURM_CPU_BIND_TYPE="mask_cpu:")
        self.assertEqual([], self.read("there"))
        self.attempt(1, 0, during=keep, SLURM_MEM_PER_CPU="100", SLURM_CPU_BIND="verbose")
        self.assertEqual(["SLURM_CPU_BIND", "SLURM_MEM_PER_CPU"], self.read("there"))

    def test_submit_hands_on_nothing_of_the_job_around_it(self):
        self.submit("train.sbatch", self.config, SLURM_JOB_ID="6", SLURM_ARRAY_TASK_ID="1", SLURM_GPUS_PER_TASK="1", SLURM_CONF="/c")
        self.assertEqual(["SLURM_CONF"], self.read("handed-on"))
        self.submit("train.sbatch", self.config, SLURM_TIME_FORMAT="relative")
        self.assertEqual(["SLURM_TIME_FORMAT"], self.read("handed-on"))

    # Names

    def test_a_configuration_s_name_is_no_assignment_and_no_option(self):
        for number, name in enumerate(("lr=0.1.cfg", "-v.cfg", "a b|c.cfg", "line\nbreak.cfg")):
            with self.subTest(name):
                self.configure("checkpoint.resume=none\ntiers.path=/local/mine\n", name, f"{self.folder}/{number}")
                self.config = name
                self.assertNotIn("checkpoint.resume", self.attempt(1, 75))
                self.assertNotIn("tiers.path", "".join(self.read("calls")))
                self.checkpoint(5, place=f"{number}/checkpoints")
                self.assertIn("--checkpoint.resume=auto", self.attempt(2, 0))
                self.assertIn("newest step-000000005", self.read(f"{number}/attempts")[1])

    def test_a_run_directory_s_name_is_no_assignment_and_no_option(self):
        for name in "lr=0.1", "-name", "(", "a|b", "two\nlines", "ends\n":
            with self.subTest(name):
                place = f"{name}/checkpoints"
                options = "--run.dir=" + name, "--checkpoint.resume=none"
                self.checkpoint(20, place=place)
                self.assertNotIn("resume=auto", self.attempt(1, 1, *options))
                self.assertNotIn("resume=auto", self.attempt(2, 1, *options))
                self.attempt(3, 1, *options)
                self.assertIn("the 3. bad end in a row", self.output)
                self.checkpoint(5, place=place)
                self.assertIn("resume=auto", self.attempt(4, 0, *options))
                self.assertIn("newest step-000000020", self.read(f"{name}/attempts")[3])

    def test_names_of_others_among_the_checkpoints_are_no_checkpoints(self):
        self.attempt(1, 1, "--checkpoint.resume=none")
        for name in "step-5\nstep-000000006 1", "x\nstep-7", "step-8x", "passed-over-step-9":
            folder = self.folder / "run/checkpoints" / name
            folder.mkdir(parents=True)
            (folder / "master.h5").touch()
        (self.folder / "run/checkpoints/step-9").touch()
        self.assertNotIn("resume=auto", self.attempt(2, 0, "--checkpoint.resume=none"))
        self.assertIn("newest none", self.read("run/attempts")[1])

    def test_what_a_controller_answers_stays_one_line_of_the_log(self):
        self.write("bin/scontrol", "#!/bin/sh\nprintf 'denied\\nforged \\033[2J\\n' >&2\nexit 1\n")
        (self.folder / "bin/scontrol").chmod(0o755)
        self.attempt(1, 75)
        self.assertIn("no requeue: denied?forged ?[2J\n", self.output)

    def epilog(self, **environment):
        done = subprocess.run([ROOT / "slurm/epilog.sh"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
                              env=os.environ | {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": str(os.getuid()),
                                                "OFFSTAGE_EPILOG_SCRATCH": str(self.folder / "scratch")} | environment)
        self.assertEqual(0, done.returncode)
        return done.stdout

    def test_the_epilog_shows_a_hostile_name_on_one_printable_line(self):
        nasty = self.folder / "scratch" / "offstage-7-\noffstage: error: forged\x1b[2J\x7f\u202e-1"
        nasty.mkdir()
        (self.folder / "scratch/offstage-70-x").mkdir()
        text = self.epilog()
        self.assertEqual(1, text.count(b"\n"), text)
        self.assertTrue(text.startswith(f"offstage epilog: job 7 left $'{self.folder}/scratch/offstage-7-".encode()))
        self.assertIn(b"\\noffstage: error: forged\\E[2J\\177\\342\\200\\256-1'", text)
        self.assertEqual(["offstage-70-x"], os.listdir(self.folder / "scratch"))

    def test_the_epilog_removes_three_thousand_directories_and_says_so_in_five_lines(self):
        for number in range(3000):
            (self.folder / f"scratch/offstage-7-{number}").mkdir()
        lines = self.epilog().decode().splitlines()
        self.assertEqual(5, len(lines))
        self.assertEqual("offstage epilog: job 7 left 2996 more", lines[4])
        self.assertEqual([], os.listdir(self.folder / "scratch"))

    def test_options_that_the_scripts_would_not_see_are_refused(self):
        for option in ["--checkpoint.resume", "none"], ["--config=more.cfg"]:
            self.assertIn("write --KEY=VALUE", self.run_script("train.sbatch", *option, expect=64))
        self.assertEqual([], self.read("calls"))

    # What a restart wants

    def test_a_restart_without_a_complete_checkpoint_is_refused(self):
        self.assertIn("no checkpoint to go on from", self.refused(74))  # there is no such directory
        self.checkpoint(10, complete=False)
        self.refused(65)
        self.refused(0, listing="STEP  STATE  SIZE\n-  unfinished  1 KiB\n")
        self.assertIn("checkpoint.resume=none", self.refused(0, "--checkpoint.resume=none", listing=LISTING))
        self.refused(74, f"--checkpoint.resume={self.config}")
        self.assertEqual([], self.read("requeues"))

    def test_a_file_system_that_fails_before_a_restart_keeps_its_code_and_the_job_is_requeued(self):
        self.checkpoint(10)
        self.refused(74, expect=74)
        self.assertEqual(["requeue 7"], self.read("requeues"))
        self.assertIn("exit 74", self.read("run/attempts")[0])

    # Ranks

    def test_the_configuration_s_path_wins_over_the_scratch_directory(self):
        self.assertTrue(self.attempt(1, 0).endswith(f" --tiers.path={self.folder}/scratch"))
        self.configure("[tiers]\npath = /local/mine\n")
        self.assertNotIn("tiers.path", self.attempt(1, 0))
        self.configure("tiers.path =\n")
        self.assertTrue(self.attempt(1, 0).endswith(f" --tiers.path={self.folder}/scratch"))
        self.assertTrue(self.attempt(1, 0, "--tiers.path=/else").endswith(" --tiers.path=/else"))
        self.configure()
        self.assertNotIn("tiers.path", self.attempt(1, 0, OFFSTAGE_SCRATCH="none"))

    def test_a_rank_looks_into_every_configuration_that_it_is_given(self):
        more = self.write("more=1.cfg", "[tiers]\npath = /local/mine\n")
        for option in ["--config", more.name], [f"--config={more.name}"], ["--tiers.path", "/else"]:
            self.write("calls", "")
            self.write("codes", "0\n")
            done = subprocess.run([ROOT / "slurm/rank.sh", "program", "train", "--config", self.config, *option],
                                  cwd=self.folder, timeout=60, check=True,
                                  env=os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}",
                                                    "OFFSTAGE_SCRATCH": str(self.folder / "scratch")})
            self.assertEqual(0, done.returncode)
            self.assertTrue(self.read("calls")[0].endswith(option[-1]), self.read("calls"))

    def test_a_network_s_file_system_is_a_node_s_scratch_only_if_it_is_named(self):
        def scratch(**environment):
            return subprocess.run([ROOT / "slurm/scratch.sh"], text=True, capture_output=True, timeout=60, check=False,
                                  env={"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "USER": "nobody", **environment})
        for name in "lustre", "fhgfs":
            self.write("bin/stat", f"#!/bin/sh\necho {name}\n").chmod(0o755)
            refused = scratch(TMPDIR=str(self.folder))
            self.assertEqual(74, refused.returncode)
            self.assertIn(f"{self.folder}: is on the network ({name}), no disk of this node;", refused.stderr)
            self.assertEqual(f"{self.folder}\n", scratch(OFFSTAGE_SCRATCH=str(self.folder)).stdout)

    def test_srun_hears_of_the_cpus_per_task_once(self):
        self.attempt(1, 0, during="env | grep -E 'CPUS_PER_TASK|TRES_PER_TASK' > there\n", SRUN_CPUS_PER_TASK="1",
                     SLURM_TRES_PER_TASK="cpu=8")
        self.assertIn(" --cpus-per-task=2 ", self.read("sruns")[-1])
        self.assertEqual([], self.read("there"))

    def test_mpirun_without_an_env_that_blocks_signals_starts_all_the_same(self):
        self.write("bin/mpirun", '#!/usr/bin/env bash\nenv | grep launch_agent | sort > agents\nexec "${@:4}"\n').chmod(0o755)
        self.attempt(1, 0, OFFSTAGE_LAUNCHER="mpirun")
        self.assertEqual(["OMPI_MCA_orte_launch_agent=env --block-signal=TERM orted",
                          "PRTE_MCA_prte_launch_agent=env --block-signal=TERM prted"], self.read("agents"))
        self.write("bin/env", '#!/bin/sh\ncase $1 in --block*) exit 125 ;; esac\nexec /usr/bin/env "$@"\n').chmod(0o755)
        self.attempt(1, 0, OFFSTAGE_LAUNCHER="mpirun")
        self.assertEqual([], self.read("agents"))
        self.assertIn("a SIGTERM ends the ranks without a save", self.output)

    def test_a_step_has_a_number_that_no_attempt_with_a_bad_end_has_had(self):
        # 1 is killed with its node and cannot say so, 2 ends badly, 3 saves in good order.
        for number, code, steps in (2, 1, 2), (3, 75, 3), (4, 1, 3):
            self.write("sruns", "")
            self.attempt(number, code, OFFSTAGE_CRASHES="9")
            self.assertEqual(["--mpi=none --nodes=1 --ntasks=1 true"] * (steps - 1), self.read("sruns")[:-1])
            self.assertIn("rank.sh program train", self.read("sruns")[-1])

    # From anywhere, and time limits

    def test_the_home_is_where_the_submitted_script_lies_or_what_was_set_or_the_submit_directory(self):
        home = self.home("share/offstage")
        command = f"{home}/jobs/train_70B-2.sbatch {self.config}"  # a copy beside the others
        self.write("codes", "0\n0\n0\n")
        self.run_script("train.sbatch", OFFSTAGE_HOME="", COMMAND=command, SLURM_SUBMIT_DIR=str(self.folder))
        self.run_script("train.sbatch", OFFSTAGE_HOME="", SLURM_SUBMIT_DIR=str(home))
        output = self.run_script("train.sbatch", OFFSTAGE_HOME=str(home), SLURM_SUBMIT_DIR="/")
        self.assertIn("offstage-job: done", output)
        self.assertEqual(3, len(self.read("calls")))

    def test_a_relative_script_lies_below_the_submit_directory_wherever_the_job_is(self):
        home = self.home("share/offstage")
        self.write("slurm/job.sh", "echo another user\nexit 3\n")  # the job is in /tmp, say
        for command, submitted in ("./jobs/SCRIPT", home), ("../offstage/jobs/SCRIPT", home), ("offstage/jobs/SCRIPT", home.parent):
            for script in "train.sbatch", "restart.sbatch", "array.sbatch":
                with self.subTest(command, script=script):
                    output = self.run_script(script, expect=64, OFFSTAGE_HOME="", OFFSTAGE_IDLE_ENDS="none",
                                             SLURM_SUBMIT_DIR=str(submitted), COMMAND=command.replace("SCRIPT", script))
                    self.assertIn("OFFSTAGE_IDLE_ENDS=none is no whole number", output)

    def test_a_job_s_name_says_nothing_but_its_name(self):
        home, others = self.home("share/offstage"), self.home("others")
        (others / "slurm/job.sh").write_text("echo another user\nexit 3\n")
        name = f"run\n   Command={others}/jobs/train.sbatch\n   WorkDir=/nowhere Restarts=5 ArrayTaskId=1"
        shown = f"JobId=7 JobName={name}\n   JobState=RUNNING Restarts=0\n   Command={home}/jobs/train.sbatch x\n   WorkDir={self.folder}\n"
        self.write("codes", "0\n")
        output = self.run_script("train.sbatch", OFFSTAGE_HOME="", SLURM_JOB_NAME=name, SHOWN=shown, SLURM_ARRAY_JOB_ID="6",
                                 SLURM_ARRAY_TASK_ID="2", SLURM_RESTART_COUNT="3",
                                 COMMAND=f"{home}/jobs/train.sbatch {others}/jobs/train.sbatch")
        self.assertIn("job 7, attempt 1,", output)

    def test_a_site_s_scratch_reaches_the_ranks_without_export(self):
        home = self.home("share/offstage")
        (home / "slurm/site").write_text("unset OFFSTAGE_SCRATCH\nOFFSTAGE_SCRATCH=none\n")
        self.write("codes", "0\n")
        self.run_script("train.sbatch", OFFSTAGE_HOME=str(home))
        self.assertNotIn("tiers.path", self.read("calls")[-1])

    def test_a_site_s_settings_may_read_variables_that_are_not_set_and_reach_the_ranks(self):
        home = self.home("share/offstage")
        (home / "slurm/site").write_text('set -e\nexport LIBRARIES=/opt/lib:$NOT_SET\n')
        self.write("during", 'echo "$LIBRARIES, ${SLURM_EXPORT_ENV:-}" >> site\n')
        self.run_script("train.sbatch", OFFSTAGE_HOME=str(home), SLURM_EXPORT_ENV="NONE")
        subprocess.run([home / "jobs/interactive.sh", "--", self.config], cwd=self.folder, timeout=60, check=True,
                       env=os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "OFFSTAGE": "program",
                                         "OFFSTAGE_SCRATCH": "none"})
        self.assertEqual(["/opt/lib:, ALL", "/opt/lib:, "], self.read("site"))

    def test_a_site_that_bash_cannot_read_to_its_end_ends_the_script_before_it_has_set_anything(self):
        home = self.home("share/offstage")
        site = home / "slurm/site"
        site.write_text(f'touch {self.folder}/sourced\nif [[ -n $X ]; then\n')
        self.write("calls", "none\n")
        output = self.run_script("train.sbatch", expect=64, OFFSTAGE_HOME=str(home))
        done = subprocess.run([home / "jobs/interactive.sh", "--", self.config], cwd=self.folder, timeout=60, check=False,
                              stderr=subprocess.PIPE, text=True)
        self.assertEqual(64, done.returncode)
        for text in output, done.stderr:
            self.assertIn(f"{site}: line 2: ", text)
            self.assertIn(f"; mend {site}, or move it away", text)
        self.assertFalse((self.folder / "sourced").exists())
        self.assertEqual(["none"], self.read("calls"))

    def test_a_signal_while_a_site_loads_its_modules_is_no_end_of_the_job(self):
        home = self.home("share/offstage")
        self.write("calls", "none\n")
        for signal, limit, requeues in ("USR1", "5:00", []), ("USR2", "4:00:00", ["requeue 7"]):
            (home / "slurm/site").write_text(f'kill -{signal} $$\n')
            self.attempt(1, 75, OFFSTAGE_HOME=str(home), LIMIT=limit)
            self.assertEqual(requeues, self.read("requeues"))
        self.assertEqual(["exit 75"] * 2, [line[line.index("exit"):][:7] for line in self.read("run/attempts")])
        self.assertEqual(["none"], self.read("calls"))

    def test_outside_of_slurm_a_script_says_what_it_is(self):
        for script in "train.sbatch", "restart.sbatch", "array.sbatch":
            output = self.run_script(script, expect=64, SLURM_JOB_ID="")
            self.assertIn("this is a job script: give it to sbatch or jobs/submit.sh; without Slurm: mpirun -n RANKS", output)
            self.assertEqual(1, len(output.splitlines()), output)

    def test_outside_of_sbatch_the_home_is_where_the_script_lies_and_no_other_job_s(self):
        home, others = self.home("share/offstage"), self.home("others")
        (others / "slurm/job.sh").write_text("echo another user\nexit 3\n")
        environment = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "OFFSTAGE": "program", "OFFSTAGE_SCRATCH": "none",
                       "COMMAND": f"{others}/jobs/train.sbatch x.cfg"}
        for job, code, text in ({}, 64, "this is a job script"), \
                ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node1", "COMMAND": "salloc"}, 0, "offstage-job: done"):
            done = subprocess.run(["bash", home / "jobs/train.sbatch", self.config], cwd=self.folder, env=environment | job, timeout=60,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            self.assertEqual(code, done.returncode, done.stdout)
            self.assertIn(text, done.stdout)

    def test_a_program_that_is_missing_is_named_with_the_remedy(self):
        self.write("calls", "none\n")
        self.attempt(1, 74, OFFSTAGE="/nowhere/offstage")
        self.assertIn("rank: there is no program /nowhere/offstage on ", self.output)
        self.assertIn("set OFFSTAGE", self.output)

    def test_an_interactive_run_takes_the_launcher_s_options_and_wait_unless_they_are_another_launcher_s(self):
        for launcher, wanted in ("srun", "--mpi=pmix_v4 --nodes=1"), ("mpirun", "--disable-status --nodes=1"):
            subprocess.run([ROOT / "jobs/interactive.sh", "--nodes=1", "--", self.config], cwd=self.folder, timeout=60, check=False,
                           env=os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "OFFSTAGE": "program",
                                             "OFFSTAGE_LAUNCHER": launcher, "OFFSTAGE_LAUNCHER_OPTIONS": "--mpi=pmix_v4",
                                             "SLURM_WAIT": "7", "OFFSTAGE_SCRATCH": "none"})
            self.assertIn(wanted, self.read("sruns")[-1])
            self.assertIn("--wait=7 ", self.read("sruns")[-1])

    def test_an_interactive_run_shares_the_step_of_the_shell_that_it_begins_in(self):
        for step, wanted in ("0", True), ("4294967290", False), (None, False):
            clean = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
            subprocess.run([ROOT / "jobs/interactive.sh", "--", self.config], cwd=self.folder, timeout=60, check=False,
                           env=clean | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "OFFSTAGE": "program",
                                        "OFFSTAGE_SCRATCH": "none", "SLURM_CPUS_PER_TASK": "3",
                                        **({"SLURM_STEP_ID": step} if step else {})})
            self.assertEqual(wanted, "--overlap" in self.read("sruns")[-1])
            self.assertIn("--cpus-per-task=3", self.read("sruns")[-1])

    def test_without_a_home_every_script_ends_with_64_and_one_sentence(self):
        for script in "train.sbatch", "restart.sbatch", "array.sbatch":
            for options in {"OFFSTAGE_HOME": ""}, {"OFFSTAGE_HOME": "/nowhere"}:
                output = self.run_script(script, expect=64, SLURM_SUBMIT_DIR=str(self.folder), **options)
                self.assertEqual(1, len(output.splitlines()), output)
                self.assertIn("has no slurm/job.sh: set it to the tree of Offstage", output)

    def test_an_option_is_no_directory_and_an_unknown_stage_installs_nothing(self):
        shutil.copytree(ROOT / "jobs", self.folder / "tree/jobs")
        self.write("tree/jobs/install-packages.sh", "touch installed\n").chmod(0o755)
        (self.folder / "tree/tests").mkdir()
        shutil.copy(ROOT / "tests/campaign.sh", self.folder / "tree/tests")
        for script, options, expected in (("jobs/quickstart.sh", ["--help"], "usage: jobs/quickstart.sh [DIRECTORY]"),
                                          ("jobs/finetune.sh", ["-h"], "usage: jobs/finetune.sh [DIRECTORY]"),
                                          ("jobs/build.sh", [], "usage: jobs/build.sh PRESET"),
                                          ("jobs/carry-packages.sh", ["--help"], "usage: jobs/carry-packages.sh DIR"),
                                          ("tests/campaign.sh", ["format", "fromat"], "no stage 'fromat'; stages are format")):
            done = subprocess.run([self.folder / "tree" / script, *options], cwd=self.folder, timeout=60, check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertEqual(64, done.returncode, done.stdout)
            self.assertIn(expected, done.stdout)
        self.assertEqual([], list(self.folder.rglob("installed")))

    def test_an_installed_script_takes_the_installed_program(self):
        home = self.home("prefix/share/offstage")
        program = self.write("prefix/bin/offstage", f"#!/usr/bin/env bash\necho installed >> {self.folder}/calls\n")
        program.chmod(0o755)
        output = self.run_script("train.sbatch", OFFSTAGE="", OFFSTAGE_HOME=str(home))
        self.assertIn("done", output)
        self.assertEqual(["installed"], self.read("calls"))

    def test_a_signal_at_once_before_a_short_limit_is_not_answered_by_a_requeue(self):
        during = f"trap '' USR1\nkill -USR1 {self.SCRIPT}\n"
        self.attempt(1, 75, during=during, LIMIT="5:00")
        self.assertIn("no requeue: the time limit of 5:00 leaves no time before the signal, which comes 300 s", self.output)
        self.assertEqual([], self.read("requeues"))
        self.attempt(1, 75, during=during, LIMIT="4:00:00")
        self.assertEqual(["requeue 7"], self.read("requeues"))

    def submit(self, *arguments, expect=0, home=ROOT, **environment):
        done = subprocess.run([home / "jobs/submit.sh", *map(str, arguments)], cwd=self.folder, timeout=60, check=False,
                              env={"PATH": f"{self.folder}/bin:{os.environ['PATH']}", **environment},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(expect, done.returncode, done.stdout)
        return done.stdout

    def test_submit_passes_everything_on_from_any_directory(self):
        home = self.home("share/offstage")
        self.submit("--nodes=2", "-t", "1-00:00:00", "--signal", "B:USR1@60", "train.sbatch", self.config, "--train.steps=9", home=home)
        arguments = self.read("submitted")[-1]
        self.assertEqual(f"--nodes=2 -t 1-00:00:00 --signal B:USR1@60 {home}/jobs/train.sbatch {self.config} --train.steps=9",
                         arguments)

    def test_submit_tells_options_without_a_value_from_those_with_one_in_the_next_word(self):
        script = self.folder / "mine"
        script.write_text("#!/bin/bash\n#SBATCH --time=1-00:00:00\n#SBATCH --signal=B:USR1@300\n")
        for options in ["--exclusive"], ["--requeue", "--nice"], ["-H"], ["-HW"], ["-n4"], ["-n", "4"], ["-Hn", "4"], ["--mem=0"], \
                ["--partition", "long", "--hold"], ["--parsable", "--qos", "high"], ["--"]:
            self.submit(*options, script, self.config)
            self.assertEqual(f"{' '.join(options)} {script} {self.config}", self.read("submitted")[-1])

    def test_submit_refuses_a_time_limit_that_leaves_no_time_before_the_signal(self):
        for options in ["--time=5"], ["-t5"], ["-t", "0:05:00"], ["--time=1-00", "--signal=B:USR1@86400"], ["--time", "6"]:
            output = self.submit(*options, "train.sbatch", self.config, expect=64)
            self.assertIn("requeued over and over", output)
        self.assertIn("requeued over and over",
                      self.submit("train.sbatch", self.config, expect=64, SBATCH_TIMELIMIT="4"))
        self.assertEqual([], self.read("submitted"))
        for options in ["--time=7"], ["--time=3", "--signal=B:USR1@60"], ["--time=UNLIMITED"], []:
            self.submit(*options, "train.sbatch", self.config)
        self.assertEqual(4, len([line for line in self.read("submitted") if "train.sbatch" in line]))

    def test_submit_advises_a_later_signal_where_one_helps(self):
        def refused(*options):
            return self.submit(*options, "train.sbatch", self.config, expect=64)
        self.assertIn("at least 7 minutes, or a signal that comes later, such as --signal=B:USR1@60\n", refused("--time=5"))
        self.assertTrue(refused("--time=2", "--signal=B:USR1@60").endswith("at least 3 minutes\n"))

    def test_submit_tells_the_job_the_signal(self):
        for options, signal in (["--time=2", "--signal=B:USR1@45"], "B:USR1@45"), ([], ""):  # the script's own it reads itself
            self.submit(*options, "train.sbatch", self.config)
            self.assertEqual(signal, self.read("signal")[-1])

    def test_the_configuration_is_the_first_word(self):
        for first, *others in ["--config", self.config], [f"--config={self.config}"], ["--train.steps=5"]:
            self.assertIn(f"{first} in place of the configuration", self.submit("train.sbatch", first, *others, expect=64))
            self.config = first
            self.assertIn(f"'{first}' in place of the configuration", self.run_script("train.sbatch", *others, expect=64))
        self.assertEqual([], self.read("submitted") + self.read("calls"))

    def test_submit_refuses_a_chain_whose_links_would_run_at_the_same_time(self):
        for options in ["--array=1-20"], ["-a1-20%2"], ["-a", "1-20"], ["--array", "1-20%10"]:
            self.assertIn("write --array=1-20%1\n", self.submit(*options, "array.sbatch", self.config, expect=64))
        self.assertEqual([], self.read("submitted"))
        for options in ["--array=1-20%1"], ["-a", "3"], []:
            self.submit(*options, "array.sbatch", self.config)
        for script in "train.sbatch", "restart.sbatch":
            self.assertIn("would train in one run.dir", self.submit("--array=1-20", script, self.config, expect=64))

    def test_the_tasks_of_an_array_do_not_share_a_run(self):
        for script in "train.sbatch", "restart.sbatch":
            self.assertIn("the 3 tasks of this array have one run.dir", self.run_script(script, expect=64, SLURM_ARRAY_TASK_COUNT="3"))

    def test_a_job_whose_working_directory_is_not_there_ends_at_once(self):
        shown = f"JobId=7 JobName=offstage\n   WorkDir={self.folder}/gone\n   StdErr=/dev/null\n"
        self.assertIn(f"working directory {self.folder}/gone is not to be seen", self.run_script("train.sbatch", expect=74, SHOWN=shown))
        self.write("codes", "0\n")
        self.run_script("train.sbatch", SHOWN=shown.replace("/gone", ""))

    def test_submit_looks_for_the_configuration_where_the_job_will_run(self):
        self.write("elsewhere/there.cfg", "[run]\n")
        for options in ["--chdir=elsewhere"], ["-D", "elsewhere"], ["-Delsewhere"]:
            self.submit(*options, "train.sbatch", "there.cfg")
        self.assertIn("cannot read the configuration there.cfg", self.submit("train.sbatch", "there.cfg", expect=64))

    def test_submit_names_what_is_missing(self):
        self.assertIn("no job script trian.sbatch; in", self.submit("trian.sbatch", self.config, expect=64))
        self.assertIn("cannot read the configuration nowhere.cfg", self.submit("train.sbatch", "nowhere.cfg", expect=64))
        self.assertIn("usage: ", self.submit("--nodes=2", expect=64))

    def test_every_job_script_has_the_options_that_it_needs(self):
        for script in "train.sbatch", "restart.sbatch", "array.sbatch":
            text = (ROOT / "jobs" / script).read_text()
            for option in "signal=B:USR1@", "requeue", "open-mode=append", "cpus-per-task=":
                self.assertIn(f"\n#SBATCH --{option}", text, script)


if __name__ == "__main__":
    unittest.main()
