#!/usr/bin/env python3
"""What the job scripts decide, attempt by attempt, where Slurm and the program are stand-ins: bad ends, requeues, chains
and where an attempt begins."""
import os
import shutil
import unittest

from scripts_harness import LISTING, ScriptsTest


class Attempts(ScriptsTest):
    # Bad ends

    def test_after_three_bad_ends_without_a_new_checkpoint_there_is_no_requeue(self):
        for number in 1, 2, 3:
            self.attempt(number, 1)
        self.assertIn("the 3. bad end in a row", self.output)
        self.assertEqual(["requeue 7"] * 2, self.read("requeues"))
        self.assertRegex(self.read("run/attempts")[2],
                         "^[-0-9T:]+ submission 7 job 7 attempt 3 on node1 exit 1 after [0-9]+ s from none newest none$")

    def test_checkpoints_of_another_job_between_bad_ends_count_for_nothing(self):
        for number in 1, 2, 3:
            self.attempt(number, 1)
            self.checkpoint(10 * number)
        self.assertIn("the 3. bad end in a row", self.output)

    def note_ends(self, *ends):
        """Earlier attempts that ended with 75, each of them (seconds, newest step)."""
        self.write("run/attempts", "".join(
            f"2026-11-21T19:43:13 submission 7 job 7 attempt {number} on node1 exit 75 after {took} s newest step-{step:09}\n"
            for number, (took, step) in enumerate(ends, 1)))
        return len(ends) + 1

    def test_an_attempt_that_saves_nothing_new_is_not_repeated_for_ever(self):
        self.checkpoint(10)
        number = self.note_ends(*[(600, 10)] * 4)
        self.attempt(number, 75)
        self.assertEqual(["requeue 7"], self.read("requeues"))
        self.attempt(number + 1, 75)
        self.assertIn("the 5. end in a row within 60 s or at the checkpoint of the one before, now step-000000010: no requeue", self.output)
        self.assertEqual(["requeue 7"], self.read("requeues"))
        self.attempt(self.note_ends(*[(600, 5)] * 4, (60, 10)), 75)  # a new checkpoint in between
        self.assertEqual(["requeue 7"] * 2, self.read("requeues"))

    def test_attempts_that_save_at_once_are_not_repeated_for_ever(self):
        for number in range(1, 6):
            self.assertEqual(["requeue 7"] * (number - 1), self.read("requeues"))
            self.checkpoint(number)
            self.attempt(number, 75)
        self.assertIn("the 5. end in a row within 60 s", self.output)
        self.assertEqual(["requeue 7"] * 4, self.read("requeues"))
        self.attempt(self.note_ends((1, 1), (1, 2), (1, 3), (60, 4)), 75)
        self.assertEqual(["requeue 7"] * 5, self.read("requeues"))
        self.attempt(self.note_ends((1, 1), (600, 1), (1, 2), (600, 2)), 75)  # both kinds in one row
        self.assertIn("the 5. end in a row", self.output)

    def test_lines_without_a_duration_are_of_long_attempts(self):
        self.checkpoint(10)
        for newest, requeues in ("{0}", 1), ("10", 1):
            self.write("run/attempts", "".join(
                f"2026-11-21T19:43:13 submission 7 job 7 attempt {n} on node1 exit 75 newest step-{int(newest.format(n)):09}\n"
                for n in range(1, 6)))
            self.attempt(6, 75)
            self.assertEqual(["requeue 7"] * requeues, self.read("requeues"))

    def test_bad_ends_of_another_submission_do_not_count(self):
        for number in 1, 2, 3:
            self.attempt(number, 1, SLURM_JOB_ID="3")
        self.attempt(1, 1)
        self.assertEqual("requeue 7", self.read("requeues")[-1])

    def test_bad_ends_count_on_in_the_job_that_was_submitted_instead(self):
        self.attempt(1, 1, OFFSTAGE_CRASHES="2")
        self.attempt(1, 1, OFFSTAGE_CRASHES="2", OFFSTAGE_FIRST_JOB="7", SLURM_JOB_ID="8")
        self.assertIn("the 2. bad end in a row", self.output)

    def test_numbers_of_a_site_are_looked_at_before_anything_begins(self):
        for name, value in (("OFFSTAGE_CRASHES", "3x"), ("OFFSTAGE_IDLE_ENDS", "five"), ("OFFSTAGE_REQUEUE_PATIENCE", "4min"),
                            ("OFFSTAGE_REQUEUE_PAUSE", "-1"), ("OFFSTAGE_RESUBMIT", "yes")):
            with self.subTest(name):
                self.assertIn(f"{name}={value} is n", self.run_script("train.sbatch", expect=64, **{name: value}))
        self.assertEqual([], self.read("calls"))
        self.attempt(1, 0, OFFSTAGE_CRASHES="08", OFFSTAGE_IDLE_ENDS="")

    def test_a_byte_order_mark_hides_no_section(self):
        self.config = self.write("marked.cfg", f"\ufeff[run]\ndir = {self.folder}/marked\n")
        self.attempt(1, 75)
        self.assertEqual(1, len(self.read("marked/attempts")))

    @staticmethod
    def saving(step, place):
        """What a program does that saves, in the attempt itself."""
        return f"mkdir -p {place}/step-{step:09}; touch {place}/step-{step:09}/master.h5\n"

    def test_a_new_checkpoint_ends_the_row_and_an_unfinished_one_does_not(self):
        self.attempt(1, 1, OFFSTAGE_CRASHES="2")
        self.attempt(2, 1, OFFSTAGE_CRASHES="2", during=self.saving(10, "run/checkpoints"))
        self.assertNotIn("bad end", self.output)
        self.attempt(3, 1, OFFSTAGE_CRASHES="2", during="mkdir run/checkpoints/step-000000020\n")
        self.assertIn("the 2. bad end in a row", self.output)
        self.assertIn("newest step-000000010", self.read("run/attempts")[2])

    def test_a_new_checkpoint_of_level_1_ends_it_too(self):
        self.attempt(1, 1, OFFSTAGE_CRASHES="2")
        name = "level-1-0123456789abcdef"
        self.write("run/checkpoints/level-1", 2 * f"{name}\n{self.folder}/local\n{self.folder}/run/checkpoints\n")
        self.attempt(2, 1, OFFSTAGE_CRASHES="2", during=self.saving(10, f"local/{name}"))
        self.assertNotIn("bad end", self.output)
        self.assertIn("newest step-000000010", self.read("run/attempts")[1])

    def test_an_attempt_at_the_time_limit_is_noted_once_by_its_last_code(self):
        # The script notes the attempt before the program ends.
        during = (f"kill -TERM {self.SCRIPT}\n"
                  "until [[ $(tail -n 1 run/attempts 2> /dev/null) == *\"attempt $((SLURM_RESTART_COUNT + 1)) \"*\" exit 143 \"* ]]; "
                  "do sleep 0.1; done\n")
        at_the_limit = {"during": during, "STATE": "COMPLETING", "REASON": "TimeLimit"}
        for number in 1, 2:
            self.attempt(number, 1, **at_the_limit)
            self.assertNotIn("bad end", self.output)
        self.assertEqual(["requeue 7"] * 2, self.read("requeues"))
        lines = self.read("run/attempts")
        self.assertEqual(["attempt 1 on node1 exit 1", "attempt 2 on node1 exit 1"],
                         [line[line.index("attempt"):line.index(" after")] for line in lines])
        self.attempt(3, 75, **at_the_limit)
        self.assertIn("the 3. bad end in a row", self.output)
        self.assertIn("attempt 3 on node1 exit 75", self.read("run/attempts")[2])
        self.attempt(4, 1)
        self.assertNotIn("bad end", self.output)

    def test_attempts_that_cannot_be_noted_do_not_end_the_job(self):
        (self.folder / "run/attempts").mkdir(parents=True)
        self.attempt(1, 75)
        self.attempt(2, 74)
        self.assertEqual(["requeue 7"] * 2, self.read("requeues"))
        self.assertIn("Is a directory", self.output)
        self.assertIn("asking for a requeue", self.output)
        self.attempt(3, 74)
        self.assertIn("the 3. bad end", self.output)
        self.attempt(1, 74, OFFSTAGE_ATTEMPTS="2", SLURM_JOB_ID="8")
        self.assertIn("the 3. bad end", self.output)

    def test_a_stop_that_cannot_be_removed_is_not_met_again_and_again(self):
        self.write("run/STOP", "")
        self.attempt(1, 74)
        self.assertEqual([], self.read("requeues"))
        (self.folder / "run/STOP").unlink()
        self.attempt(2, 74)
        self.assertEqual(["requeue 7"], self.read("requeues"))

    def test_links_in_the_run_directory_are_not_written_through(self):
        kept = self.write("kept", "mine\n")
        (self.folder / "run").mkdir()
        (self.folder / "run/attempts").symlink_to(kept)
        (self.folder / "run/began-7.new").symlink_to(kept)
        self.attempt(1, 75, "--checkpoint.resume=none")
        self.assertIn("run/attempts is a symbolic link, which is never followed here; remove it", self.output)
        self.assertTrue((self.folder / "run/began-7").is_file() and not (self.folder / "run/began-7").is_symlink())
        (self.folder / "run/began-7").unlink()
        (self.folder / "run/began-7").symlink_to(kept)
        self.attempt(2, 74, "--checkpoint.resume=none")
        self.assertIn("run/began-7 is a symbolic link", self.output)
        self.assertEqual("mine\n", kept.read_text())

    # Requeue

    def test_a_controller_that_does_not_answer_is_asked_again(self):
        self.write("answers", "1 Unable to contact slurm controller (connect failure)\n"
                   "1 Socket timed out on send/recv operation\n0\n")
        self.attempt(1, 75)
        self.assertEqual(["requeue 7"] * 3, self.read("requeues"))
        self.assertEqual(2, self.output.count("no requeue yet: "), self.output)
        self.assertEqual([], self.read("submitted"))

    def test_a_clock_that_is_set_meanwhile_changes_no_duration_and_no_patience(self):
        home = self.home("share/offstage")
        # SECONDS follow the calendar's clock: it is set back while the attempt lasts, and forward while the requeue waits.
        (home / "slurm/site").write_text("sleep() { SECONDS=$((SECONDS + 900000)); }\n"
                                         'read() { SECONDS=$((SECONDS - 900)); builtin read "$@"; }\n')
        self.write("answers", "1 Unable to contact slurm controller (connect failure)\n" * 3 + "0\n")
        self.attempt(1, 75, OFFSTAGE_HOME=str(home))
        self.assertRegex(self.read("run/attempts")[0], " exit 75 after [0-9]+ s ")
        self.assertEqual(["requeue 7"] * 4, self.read("requeues"))

    def test_a_controller_that_does_not_answer_is_not_asked_for_ever(self):
        self.write("answers", "1 Unable to contact slurm controller (connect failure)\n" * 9)
        self.attempt(1, 75, OFFSTAGE_REQUEUE_PATIENCE="0")
        self.assertEqual(["requeue 7"], self.read("requeues"))
        self.assertIn("submit the same command again", self.output)

    def test_a_requeue_that_is_refused_for_good_is_not_asked_for_again(self):
        self.write("answers", "1 Requested operation is presently disabled for job 7\n")
        self.attempt(1, 75)
        self.assertEqual(["requeue 7"], self.read("requeues"))
        self.assertIn("submit the same command again", self.output)

    def test_instead_of_a_requeue_a_new_job_goes_on(self):
        self.checkpoint(10)
        self.write("answers", "1 Requested operation is presently disabled for job 7\n")
        self.attempt(2, 75, "--train.steps=9", OFFSTAGE_RESUBMIT="1", SLURM_MEM_PER_CPU="2000", SLURM_GPUS_ON_NODE="4",
                     SLURM_NTASKS="3", SLURM_NTASKS_PER_NODE="4")
        *environment, arguments = self.read("submitted")
        self.assertEqual(["OFFSTAGE_ATTEMPTS=2", "OFFSTAGE_FIRST_JOB=7"], environment[:2])
        self.assertIn("OFFSTAGE_RESUBMIT=1", environment)
        self.assertIn("--dependency=afterany:7 ", arguments)
        self.assertIn("--gpus-per-node=4 --mem-per-cpu=2000 ", arguments)
        self.assertIn("--ntasks=3 --ntasks-per-node=4 ", arguments)  # 3 on 2 nodes are not 4 on each
        self.assertIn(f"jobs/restart.sbatch {self.config} --train.steps=9", arguments)
        self.assertIn("Submitted batch job 99 goes on", self.output)
        self.write("answers", "1 Requested operation is presently disabled for job 7\n")
        self.attempt(3, 75, OFFSTAGE_RESUBMIT="1", SHOWN="MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0")
        self.assertIn(" --mem=0 ", self.read("submitted")[-1])

    def test_a_new_job_before_the_first_save_of_a_fresh_start_starts_afresh_too(self):
        self.checkpoint(10)
        self.write("answers", "1 Requested operation is presently disabled for job 7\n")
        self.attempt(1, 1, "--checkpoint.resume=none", OFFSTAGE_RESUBMIT="1")
        self.assertIn("jobs/train.sbatch", self.read("submitted")[-1])

    def test_a_job_that_preemption_cancels_is_requeued_and_one_that_slurm_requeues_is_left_to_it(self):
        during = f"kill -TERM {self.SCRIPT}\n"
        self.attempt(2, 75, during=during, STATE="COMPLETING", PREEMPTED="2026-11-26T12:00:00  1")
        self.assertIn("another job takes the nodes; asking for a requeue", self.output)
        self.assertEqual(["requeue 7"], self.read("requeues"))
        for preempted in "2026-11-26T12:00:00  2", "N/A  1":  # the job's next attempt has its number already; scancel
            self.attempt(2, 75, during=during, STATE="COMPLETING", PREEMPTED=preempted)
            self.assertIn("Slurm ends the job and has told the ranks", self.output)
        self.assertEqual(["requeue 7"], self.read("requeues"))

    # Chains

    def link(self, code, shown="ArrayTaskId=2 ArrayTaskThrottle=1 JobName=offstage", **environment):
        task = {"SLURM_ARRAY_JOB_ID": "6", "SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_MAX": "2"}
        self.attempt(1, code, script="array.sbatch", SHOWN=shown, **(task | environment))
        return self.output

    def test_links_that_would_run_at_the_same_time_are_refused(self):
        self.write("calls", "none\n")
        self.assertIn("submit it with %1, such as --array=1-2%1", self.link(64, "ArrayTaskId=2 JobName=offstage"))
        self.assertIn("with %1", self.link(64, "ArrayTaskId=2 ArrayTaskThrottle=10 JobName=offstage"))
        self.assertIn("no task of an array", self.run_script("array.sbatch", expect=64))
        self.assertEqual(["none"], self.read("calls"))
        self.assertIn("the chain is at its end", self.link(75, ""))  # a controller that does not answer
        self.assertIn("the chain is at its end", self.link(75, "ArrayTaskId=1 J", SLURM_ARRAY_TASK_MIN="2"))

    def test_the_last_link_that_slurm_requeues_is_not_the_end_of_the_chain(self):
        self.assertIn("ended with 75; the job is left to Slurm",
                      self.link(75, during=f"kill -TERM {self.SCRIPT}\n", STATE="COMPLETING"))

    def test_ends_that_bring_nothing_end_a_chain_too(self):
        self.write("bin/scancel", '#!/bin/sh\necho "$*" >> cancelled\n').chmod(0o755)
        for _ in range(4):
            self.assertIn("the next link goes on", self.link(75, SLURM_ARRAY_TASK_MAX="9"))
        self.assertIn("the 5. end in a row", self.link(75, SLURM_ARRAY_TASK_MAX="9"))
        self.assertEqual(["--state=PENDING 6"], self.read("cancelled"))

    def test_bad_ends_in_a_row_end_a_chain_too(self):
        self.write("bin/scancel", '#!/bin/sh\necho "$*" >> cancelled\n').chmod(0o755)
        last = {"SLURM_ARRAY_TASK_MAX": "9"}
        for _ in range(2):
            self.assertIn("the next link goes on", self.link(1, **last))
        self.assertIn("the 3. bad end in a row", self.link(1, **last))
        self.assertEqual(["--state=PENDING 6"], self.read("cancelled"))

    # Where an attempt begins

    def test_resume_none_in_the_configuration_holds_until_the_first_save(self):
        self.checkpoint(10)
        for section in "checkpoint.resume = none  # afresh\n", "[checkpoint]\nresume=none\n":
            with self.subTest(section):
                shutil.rmtree(self.folder / "run/checkpoints")
                self.checkpoint(10)
                (self.folder / "run/began-7").unlink(missing_ok=True)
                self.configure(section)
                self.assertNotIn("checkpoint.resume", self.attempt(1, 1, OFFSTAGE_CRASHES="9"))
                self.assertNotIn("checkpoint.resume", self.attempt(2, 1, OFFSTAGE_CRASHES="9"))
                self.checkpoint(20, complete=False)
                self.assertNotIn("checkpoint.resume", self.attempt(3, 1, OFFSTAGE_CRASHES="9"))
                self.checkpoint(5)
                self.assertIn("--checkpoint.resume=auto", self.attempt(4, 0))

    def test_a_fresh_start_that_saves_for_the_first_time(self):
        self.configure("checkpoint.resume = none\n")
        self.assertNotIn("checkpoint.resume", self.attempt(1, 1))
        self.assertEqual("", (self.folder / "run/began-7").read_text())
        self.checkpoint(5)
        self.assertIn("--checkpoint.resume=auto", self.attempt(2, 0))
        self.assertNotIn("checkpoint.resume", self.attempt(1, 0, SLURM_JOB_ID="8"))

    def test_a_named_checkpoint_holds_for_the_first_attempt_of_a_restart(self):
        named = self.checkpoint(10)
        self.checkpoint(20)
        self.write("listing", LISTING)
        option = f"--checkpoint.resume={named}"
        self.assertTrue(self.attempt(1, 75, option, script="restart.sbatch").endswith(
            f"{option} --tiers.path={self.folder}/scratch"))
        self.assertIn(f"checkpoint ls {named}", self.read("calls"))
        self.checkpoint(15)
        self.write("calls", "")
        self.assertIn(f"{option} --checkpoint.resume=auto", self.attempt(2, 0, option, script="restart.sbatch"))
        self.assertIn(f"checkpoint ls {self.folder}/run/checkpoints", self.read("calls"))

    def test_a_checkpoint_that_is_gone_is_no_save_of_this_run(self):
        # A save removes or renames an old checkpoint of its own number, and then it is killed.
        named, old = self.checkpoint(10), self.checkpoint(20)
        option = f"--checkpoint.resume={named}"
        self.attempt(1, 74, option, during=f"mv {old} {old.parent}/replaced-{old.name}\n")
        self.assertNotIn("resume=auto", self.attempt(2, 74, option, during=f"rm -r {old.parent}/replaced-*\n"))
        self.assertNotIn("resume=auto", self.attempt(3, 75, option, OFFSTAGE_CRASHES="9"))
        self.checkpoint(20)
        self.assertIn(f"{option} --checkpoint.resume=auto", self.attempt(4, 0, option))

    def test_an_old_checkpoint_that_comes_back_under_its_name_is_no_save_of_this_run(self):
        old = self.checkpoint(20)
        aside = old.parent / f"replaced-{old.name}"
        self.attempt(1, 74, "--checkpoint.resume=none", during=f"mv {old} {aside} && mv {aside} {old}\n")
        self.assertNotIn("resume=auto", self.attempt(2, 74, "--checkpoint.resume=none"))
        os.utime(old / "master.h5", (1, 1))  # a new one, by its time
        self.assertIn("resume=auto", self.attempt(3, 0, "--checkpoint.resume=none"))

    def test_where_the_checkpoints_cannot_be_listed_nothing_is_decided(self):
        self.checkpoint(10)
        self.attempt(1, 75, "--checkpoint.resume=none")
        self.checkpoint(20)
        self.write("calls", "none\n")
        find = self.write("bin/find", "#!/bin/sh\necho find: Stale file handle >&2\nexit 1\n")
        find.chmod(0o755)
        self.attempt(2, 74, "--checkpoint.resume=none")
        self.assertIn("cannot read the checkpoints", self.output)
        self.refused(74, f"--checkpoint.resume={self.folder}/run/checkpoints/step-000000010", expect=74)
        self.assertEqual(["none"], self.read("calls"))
        self.assertEqual(["requeue 7"] * 3, self.read("requeues"))
        find.unlink()
        self.assertIn("resume=auto", self.attempt(3, 0, "--checkpoint.resume=none"))

    def test_without_the_list_of_the_first_checkpoints_no_attempt_begins(self):
        self.checkpoint(10)
        mv = self.write("bin/mv", "#!/usr/bin/env bash\necho 'mv: No space left on device' >&2\nexit 1\n")
        mv.chmod(0o755)
        self.write("calls", "none\n")
        self.assertEqual("none", self.attempt(1, 74, "--checkpoint.resume=none"))
        self.assertIn("No space left", self.output)
        mv.unlink()
        self.assertNotIn("resume=auto", self.attempt(2, 0, "--checkpoint.resume=none"))

    def test_checkpoints_behind_a_link_are_seen(self):
        (self.folder / "run").mkdir()
        (self.folder / "elsewhere").mkdir()
        (self.folder / "run/checkpoints").symlink_to(self.folder / "elsewhere")
        self.attempt(1, 75, "--checkpoint.resume=none")
        self.checkpoint(5, place="elsewhere")
        self.assertIn("resume=auto", self.attempt(2, 0, "--checkpoint.resume=none"))


if __name__ == "__main__":
    unittest.main()
