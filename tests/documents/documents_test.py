#!/usr/bin/env python3
"""Man pages, completion and the page of keys, as they are made from the program's help texts, and what is installed.

$OFFSTAGE is the program, $SOURCES the source directory, $BUILD the build directory, $DOCUMENTS where it has them.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

OFFSTAGE = os.environ["OFFSTAGE"]
SOURCES = Path(os.environ["SOURCES"])
DOCUMENTS = Path(os.environ["DOCUMENTS"])
if not (DOCUMENTS / "offstage.1").exists():
    sys.exit(f"{DOCUMENTS} is not built; build its target: documents")

sys.path.insert(0, str(SOURCES / "src/cli/documents"))
import documents  # noqa: E402  pylint: disable=wrong-import-position
import help_texts  # noqa: E402  pylint: disable=wrong-import-position

# Names of keys as the table's source has them.
KEYS = re.findall(r'Key\{\s*"([a-z]+\.[a-z0-9-]+)"', (SOURCES / "src/config/key_table.cpp").read_text())

BASH = """
source "$1"
COMP_WORDBREAKS=$2 COMP_LINE=$3 COMP_POINT=${#3}
read -ra COMP_WORDS <<< "$3"
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_offstage
printf '%s\\n' "${COMPREPLY[@]}"
"""

# A terminal in which a line $3 is typed and Tab is pressed, until it shows $4. The prompt says that keys are read.
ZSH = r"""
zmodload zsh/zpty
zpty shell 'PS1=@@ TERM=dumb zsh -f -i'
zpty -w shell 'fpath=('$1' $fpath); autoload -Uz compinit; compinit -u -d '$2'/dump; LISTMAX=1000; COLUMNS=200; print re""ady'
zpty -r -m shell seen '*ready*@@*'
zpty -n -w shell "$3"$'\t'
zpty -r -m shell seen "*$4*"
zpty -d shell
"""


def bash(line, breaks=" \t\n\"'><=;|&(:"):
    done = subprocess.run(["bash", "-c", BASH, "bash", DOCUMENTS / "offstage.bash", breaks, line],
                          capture_output=True, text=True, check=False)
    if done.returncode or done.stderr:
        raise AssertionError(done)
    return done.stdout.split()


class Bash(unittest.TestCase):
    def test_completes_commands(self):
        self.assertEqual(["checkpoint"], bash("offstage ch"))
        self.assertLessEqual({"train", "plan", "data", "help", "version"}, set(bash("offstage ")))
        self.assertEqual(["verify"], bash("offstage checkpoint v"))
        self.assertEqual(["train"], bash("offstage help tr"))

    def test_completes_keys_of_the_table(self):
        self.assertEqual(["--train.steps="], bash("offstage train --config my.cfg --train.st"))
        offered = set(bash("offstage train --"))
        self.assertLessEqual({f"--{key}=" for key in KEYS}, offered)
        self.assertLessEqual({"--config=", "--help"}, offered)
        self.assertLessEqual(offered, set(bash("offstage plan --")))
        self.assertEqual(["--device.kind="], bash("offstage probe --device.k"))

    def test_completes_options_of_a_command(self):
        self.assertEqual(["--top-k=", "--top-p="], bash("offstage generate --top"))
        self.assertEqual(["--quick"], bash("offstage probe --q"))
        self.assertEqual(["--add-special-tokens="], bash("offstage data pack --add"))

    def test_options_that_it_offers_are_known(self):
        for command in ("generate",), ("data", "inspect"), ("data", "pack"), ("plan",):
            offered = [option for option in bash(f"offstage {' '.join(command)} --") if option.removeprefix("--").rstrip("=") not in KEYS]
            self.assertGreater(len(offered), 3)
            for option in offered:
                done = subprocess.run([OFFSTAGE, *command, option.rstrip("=")], capture_output=True, text=True, check=False)
                self.assertNotIn("unknown option", done.stderr, (command, option))
                self.assertNotIn("unknown key", done.stderr, (command, option))

    def test_completes_words_to_choose_from(self):
        self.assertEqual(["short"], bash("offstage train --run.header=s"))
        self.assertEqual(["short", "full"], bash("offstage train --run.header "))
        self.assertEqual(["auto", "keep", "recompute", "host", "storage"], bash("offstage plan --train.activations="))
        self.assertEqual(["model"], bash("offstage plan --max m"))
        self.assertEqual(["fp16"], bash("offstage export --dtype=fp16"))
        # Where readline does not part words at =, the whole word is what it replaces.
        self.assertEqual(["--run.header=full"], bash("offstage train --run.header=f", breaks=" \n"))

    def test_leaves_files_to_readline(self):
        for line in "offstage train --config my", "offstage train --run.dir=/tm", "offstage checkpoint ls ru":
            self.assertEqual([], bash(line), line)


@unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
class Zsh(unittest.TestCase):
    def assert_completes(self, line, shown):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["zsh", "-f", "-c", ZSH, "zsh", DOCUMENTS, folder, line, shown], check=True, timeout=60)

    def test_completes_commands_keys_and_words(self):
        self.assert_completes("offstage ", "checkpoint*-- list the checkpoints")
        self.assert_completes("offstage checkpoint v", "erify")
        self.assert_completes("offstage train --train.st", "eps=")
        self.assert_completes("offstage train --run.", "--run.header=*-- lines that a run writes first")
        self.assert_completes("offstage train --run.header=f", "ull")
        self.assert_completes("offstage plan --max b", "atch")


class Manual(unittest.TestCase):
    def shown(self, page):
        done = subprocess.run(["man", "--warnings", "-l", DOCUMENTS / page], capture_output=True, text=True, check=True,
                              env={**os.environ, "MANWIDTH": "200", "LC_ALL": "C.UTF-8"})
        self.assertEqual("", done.stderr)
        return done.stdout

    def test_explains_every_command(self):
        text = self.shown("offstage.1")
        for command in help_texts.commands_of(OFFSTAGE):
            for line in command.text.splitlines() if command.name != "train" else ():
                self.assertIn(line.removeprefix("Usage: ").strip(), text)
        self.assertRegex(text, r"75 +saved, more to do")

    def test_explains_every_key(self):
        text = self.shown("offstage.cfg.5")
        for key in KEYS:
            self.assertRegex(text, rf"\n +{re.escape(key)} = ")
        self.assertRegex(text, r"run.watchdog = TIME\n .*\.  Default: 10min\.")


class Installed(unittest.TestCase):
    OF_DEVELOPERS = ("../src/README.md", "../perf/", "../tests/", "../CONTRIBUTING.md")

    def test_everything_a_site_needs_is_installed(self):
        with tempfile.TemporaryDirectory() as folder:
            prefix = Path(folder) / "offstage"
            subprocess.run(["cmake", "--install", os.environ["BUILD"], "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
            share = prefix / "share"
            for name in ("offstage/jobs/train.sbatch", "offstage/jobs/README.md", "offstage/slurm/job.sh", "offstage/slurm/site.example",
                         "offstage/configs/policies/mlp.cfg", "offstage/configs/README.md", "man/man1/offstage.1",
                         "man/man5/offstage.cfg.5", "bash-completion/completions/offstage", "zsh/site-functions/_offstage"):
                self.assertTrue((share / name).is_file(), name)
            self.assertFalse((share / "offstage/slurm/site").exists())  # this tree's site is nobody else's
            for script in (SOURCES / "jobs").glob("*.sbatch"):
                self.assertTrue((share / "offstage/jobs" / script.name).is_file(), script)
            self.assertFalse((share / "offstage/jobs/build.sh").exists())  # it wants a source tree
            self.assertEqual(help_texts.version_of(OFFSTAGE), help_texts.version_of(prefix / "bin/offstage"))
            for script in (*share.glob("offstage/jobs/*.sh"), share / "offstage/slurm/rank.sh"):
                self.assertTrue(os.access(script, os.X_OK), script)
            # What a user opens leads to no page that is missing. Those of developers stay with the sources.
            for page in share.glob("offstage/*/README.md"):
                for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
                    self.assertTrue(link.startswith(self.OF_DEVELOPERS) or (page.parent / link).exists(), f"{page}: {link}")

    def test_the_walk_of_fine_tuning_takes_the_installed_program(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["cmake", "--install", os.environ["BUILD"], "--prefix", folder], check=True, stdout=subprocess.DEVNULL)
            environment = {name: value for name, value in os.environ.items() if name != "OFFSTAGE"}
            done = subprocess.run([Path(folder) / "share/offstage/jobs/finetune.sh", folder], env=environment, capture_output=True, text=True)
            self.assertEqual((74, f"finetune: {folder} is there already; name another directory\n"), (done.returncode, done.stderr), done)


class Keys(unittest.TestCase):
    def test_the_help_lists_the_table(self):
        keys = help_texts.keys_of(help_texts.ask(OFFSTAGE, "train", "--help"))
        self.assertEqual(KEYS, [key.name for key in keys])
        found = {key.name: key for key in keys}
        self.assertIsNone(found["train.steps"].default)
        self.assertEqual("", found["data.valid"].default)
        self.assertEqual(("off|on", "off"), (found["run.trace"].hint, found["run.trace"].default))

    def test_the_page_lists_todays_keys(self):
        page = SOURCES / "configs/README.md"
        keys = help_texts.keys_of(help_texts.ask(OFFSTAGE, "train", "--help"))
        self.assertEqual(documents.with_keys(page.read_text(), keys), page.read_text(),
                         "ninja -C BUILD keys_page writes the list")


class OtherTools(unittest.TestCase):
    # In the first column, too: values, files and programs.
    NO_KEYS = {"ds_config.json", "adam_w_mode", "cpu", "nvme", "queue_depth", "intra_op_parallelism", "zero_to_fp32.py", "hostfile", "linear",
               "cosine", "constant", "inverse_sqrt", "warmup_stable_decay", "datasets", "preprocess_data.py"}

    def test_their_words_are_answered(self):
        words = []
        for line in (SOURCES / "configs/COMING_FROM.md").read_text().splitlines():
            for quoted in re.findall(r"`([^`]+)`", line.split("|")[1]) if line.startswith("|") else ():
                name = quoted.split("=")[0]
                words += [word for word in re.findall(r"--([a-z0-9-]+)", name) or [name] if re.fullmatch(r"[a-z0-9_.-]+", word)]
        self.assertGreater(len(words), 100)
        for word in set(words) - self.NO_KEYS:
            done = subprocess.run([OFFSTAGE, "plan", f"--{word}=1"], capture_output=True, text=True, check=False)
            self.assertRegex(done.stderr, "unknown key|needs a|must be|is no", word)
            self.assertNotIn("lists all keys", done.stderr, word)


if __name__ == "__main__":
    unittest.main()
