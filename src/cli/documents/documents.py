#!/usr/bin/env python3
"""Writes what is made from offstage's help texts.

documents.py PROGRAM --to DIR                man pages (offstage.1, offstage.cfg.5) and completion (offstage.bash, _offstage)
documents.py PROGRAM --page FILE [--check]   the list of keys below the heading "All keys" of FILE; --check compares, and
                                             ends with 1 where FILE is not what it should be
"""
import argparse
import sys
from pathlib import Path

import completion
import help_texts
import man_pages

HEADING = "## All keys\n"


def table(keys):
    """Every key in a table per section."""
    lines = [HEADING, "\n",
             "This list is made from the key table (`src/config/key_table.cpp`) by `ninja -C build/release keys_page`. A key without a default is required.\n"]
    section = ""
    for key in keys:
        if key.section != section:
            section = key.section
            lines += [f"\n### {section}\n\n", "| key | value | default | meaning |\n", "|---|---|---|---|\n"]
        default = "" if key.default is None else f"`{key.default}`" if key.default else "empty"
        cells = (f"`{key.name}`", f"`{key.hint}`", default, key.help)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(lines)


def with_keys(text, keys):
    """The page with the list of today's keys at its end."""
    before, _, _ = text.partition(HEADING)
    return before.rstrip("\n") + "\n\n" + table(keys)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--to", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    keys = help_texts.keys_of(help_texts.ask(given.program, "train", "--help"))
    if given.page:
        found = given.page.read_text()
        wanted = with_keys(found, keys)
        if given.check and found != wanted:
            print(f"{given.page} does not list today's keys; ninja -C BUILD keys_page writes them")
            return 1
        if found != wanted:
            given.page.write_text(wanted)
    if given.to:
        commands = help_texts.commands_of(given.program)
        given.to.mkdir(parents=True, exist_ok=True)
        exit_codes = help_texts.exit_codes(given.program)
        version = help_texts.version_of(given.program)
        (given.to / "offstage.1").write_text(man_pages.program_page(commands, exit_codes, version))
        (given.to / "offstage.cfg.5").write_text(man_pages.keys_page(keys, version))
        (given.to / "offstage.bash").write_text(completion.bash(commands, keys))
        (given.to / "_offstage").write_text(completion.zsh(commands, keys))
    return 0


if __name__ == "__main__":
    sys.exit(main())
