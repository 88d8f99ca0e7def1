"""Man pages in troff's man macros: offstage(1) and offstage.cfg(5)."""


def quoted(text):
    """Text as troff prints it: backslashes and hyphens are themselves, and no line begins a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line.startswith((".", "'")) else line for line in text.split("\n"))


def head(title, section, version, name, summary):
    return (f'.TH {title} {section} "" "Offstage {version}"\n'
            f".SH NAME\n{quoted(name)} \\- {quoted(summary)}\n")


def as_it_is(text):
    """Text whose lines stay as they are."""
    return f".nf\n{quoted(text.rstrip())}\n.fi\n"


def tagged(tag, text):
    return f".TP\n.B {quoted(tag)}\n{quoted(text)}\n"


def synopsis_and_rest(text):
    """A help text without the word Usage: its usage lines, and what follows them."""
    usage, _, rest = text.partition("\n\n")
    return usage.removeprefix("Usage: ").replace("\n       ", "\n"), rest


def program_page(commands, exit_codes, version):
    page = head("OFFSTAGE", 1, version, "offstage", "trains transformers whose optimizer state does not fit in memory")
    page += ".SH SYNOPSIS\n.B offstage\n.I COMMAND\n\\&...\n"
    page += ".SH DESCRIPTION\n" + quoted(
        "Offstage trains transformer language models on machines whose GPU memory, and often host memory, is too small for the "
        "optimizer state. mpirun or srun starts the ranks of train, probe, evaluate, import and export. A signal or the wall "
        "time stops a run, and the same command goes on from its newest checkpoint.") + "\n"
    page += ".SH COMMANDS\n"
    for command in commands:
        for usage, what in command.rows:
            page += tagged(usage, what)
    page += tagged("help COMMAND", "as COMMAND --help") + tagged("help KEY", "explain keys, given a name or a part of names") + tagged("--version", "version, commit, libraries, GPU architectures")
    for command in commands:
        usage, rest = synopsis_and_rest(command.text)
        page += f'.SH "OFFSTAGE {command.name.upper()}"\n' + as_it_is(usage)
        if command.name == "train":
            page += ".PP\nThe keys are explained in offstage.cfg(5).\n"
            continue
        page += ".PP\n" + as_it_is(rest)
        for part in command.parts:
            if part.text != command.text:
                usage, rest = synopsis_and_rest(part.text)
                page += f'.SS "offstage {part.name}"\n' + as_it_is(usage) + ".PP\n" + as_it_is(rest)
    page += '.SH "EXIT STATUS"\n' + "".join(tagged(code, meaning) for code, meaning in exit_codes)
    page += '.SH "SEE ALSO"\noffstage.cfg(5), mpirun(1), srun(1)\n'
    return page


def keys_page(keys, version):
    page = head("OFFSTAGE.CFG", 5, version, "offstage.cfg", "keys of a run of offstage")
    page += ".SH SYNOPSIS\n" + as_it_is("offstage train --config FILE [--section.key=value]...\n\n[section]\nkey = value    # comment")
    page += ".SH DESCRIPTION\n" + quoted(
        "A run is told by keys, section.name. The command line wins over config files, a later file over an earlier one. An "
        "unknown key is an error that names the nearest known one. In files # begins a comment, and so does ; at the beginning "
        "of a line or behind a blank. Sizes are written 4GiB, rates 5GB/s, times 30min or 1-00:00:00, counts 20k.") + "\n"
    section = ""
    for key in keys:
        if key.section != section:
            section = key.section
            page += f'.SH "[{section}]"\n'
        default = "Required." if key.default is None else f"Default: {key.default}." if key.default else ""
        page += f".TP\n\\fB{quoted(key.name)}\\fR = \\fI{quoted(key.hint)}\\fR\n{quoted(key.help)}.\n"
        page += f"{quoted(default)}\n" if default else ""
    page += '.SH "SEE ALSO"\noffstage(1)\n'
    return page
