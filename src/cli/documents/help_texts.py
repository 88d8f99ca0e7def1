"""What the help texts of offstage say: commands, their options, and the keys of a run.

Help texts are the one source of man pages, completion and the page of keys: `offstage train --help` prints the key table
(src/config/key_table.cpp), `offstage help` the commands, and `offstage COMMAND --help` the options.
"""
import re
import subprocess
from dataclasses import dataclass, field


PLACEHOLDERS = {"section.key", "key", "option", "help"}  # of usage lines: not names
# --name, --name=VALUE, --name VALUE or --name one|another.
OPTION = re.compile(r"--([a-z][a-z0-9.-]*)(?:=([^\s\],[]+)| ([A-Z][^\s\],[]*|[^\s|]+\|[^\s\],[]+))?")


@dataclass
class Key:
    name: str  # section.name
    hint: str  # kind of value, or words to choose from
    help: str
    default: str | None  # None: required; empty: none

    @property
    def section(self):
        return self.name.partition(".")[0]


@dataclass
class Option:
    name: str  # without --
    hint: str  # empty: takes no value

    @property
    def words(self):
        """The words to choose from; capitals stand for other values."""
        if "|" not in self.hint:
            return []
        return [word for word in self.hint.split("|") if re.fullmatch(r"[a-z0-9][a-z0-9-]*", word)]


@dataclass
class Command:
    name: str  # "data", or of a part "data pack"
    rows: list  # of `offstage help`: usage, and what it does
    text: str = ""  # as --help prints it
    parts: list = field(default_factory=list)  # commands of its own, such as `data pack`
    takes_keys: bool = False  # all that train takes

    @property
    def options(self):
        """The options of the usage lines and of the lines that explain one each; without the keys that it takes as well."""
        usage = re.search(rf"offstage {self.name}\b(.*?)(?=\n *offstage |\n\n|$)", self.text, re.S)
        given = OPTION.findall(usage[1] if usage else "")
        for line in re.findall(r"^  (--.*)", self.text, re.M):
            given.append(OPTION.match(line).groups(""))
        found = {}
        for name, value, word in given:
            if name not in PLACEHOLDERS and not (name in found and found[name].hint):
                found[name] = Option(name, value or word)
        return [*found.values(), Option("help", "")]

    @property
    def some_keys(self):
        """Names of the keys that it takes of train's where it does not take all."""
        match = re.search(r"^Keys, as train has them: (.*?)\.$", self.text, re.M | re.S)
        return re.split(r",\s+", match[1]) if match else []


def ask(program, *words):
    return subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout


def keys_of(text):
    """The keys that `offstage train --help` lists, in its order."""
    found = []
    for line in text.splitlines():
        if match := re.match(r"  --([a-z]+\.\S+) (.*?)  +(.*)$", line):
            name, hint, rest = match.groups()
            default = ""
            if rest.endswith(" (required)"):
                default, rest = None, rest.removesuffix(" (required)")
            elif end := re.match(r"(.*) \[([^\[\]]*)\]$", rest):
                rest, default = end.groups()
            found.append(Key(name, hint, rest, default))
    return found


def parts_of(name, text):
    """The commands inside a command: the second words of its usage lines."""
    lines = re.findall(rf"^(?:Usage:|      ) offstage {name} ([a-z]+)\b", text, re.M)
    return list(dict.fromkeys(lines))


def commands_of(program):
    """All commands but help and version, with their help texts."""
    found = {}
    for line in ask(program, "help").splitlines():
        match = re.match(r"  ([a-z]+)( .*?)?  +(\S.*)$", line)
        if not match or match[1] == "help":
            continue
        usage = (match[1] + (match[2] or "")).strip()
        if match[1] in found:
            found[match[1]].rows.append((usage, match[3]))
        else:
            found[match[1]] = Command(match[1], [(usage, match[3])])
    for command in found.values():
        command.text = ask(program, command.name, "--help")
        command.takes_keys = command.name == "train" or "Takes the keys of train" in command.text
        for part in parts_of(command.name, command.text):
            text = ask(program, command.name, part, "--help")
            command.parts.append(Command(f"{command.name} {part}", [], text))
    return list(found.values())


def version_of(program):
    return ask(program, "--version").split()[1].rstrip(",")


def exit_codes(program):
    """Code and meaning, from the last line of `offstage help`."""
    line = ask(program, "help").strip().splitlines()[-1].removeprefix("Exit codes: ").rstrip(".")
    return [tuple(part.split(" ", 1)) for part in line.split("; ")]
