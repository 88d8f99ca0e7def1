"""Completion of offstage's command line for bash and zsh.

Both complete commands, options and keys, words to choose from (--run.header=short, --max model), and files elsewhere.
"""
import help_texts

MARK = "# Made from offstage's help texts by src/cli/documents.\n"

BASH = MARK + r"""
# The commands, or the commands inside COMMAND.
_offstage_commands() {
  case $1 in
%(commands)s  esac
}

# The options of a command; those that take a value end in =.
_offstage_options() {
  case $1 in
%(options)s  esac
}

# The words that option $2 of command $1 chooses from.
_offstage_words() {
  case "$1 $2" in
%(words)s  esac
  case $1 in
    %(with_keys)s) ;;
    *) return ;;
  esac
  case $2 in
%(key_words)s  esac
}

_offstage() {
  # Readline parts words at =, so the line is looked at instead.
  local line=${COMP_LINE:0:COMP_POINT} before command current='' option words
  read -ra before <<< "$line"
  if [[ $line != *[[:space:]] ]]; then
    current=${before[-1]}
    unset 'before[-1]'
  fi
  COMPREPLY=()
  command=${before[1]:-}
  if [[ -n $(_offstage_commands "$command") && -n $command ]]; then command+=" ${before[2]:-}"; fi
  if [[ $current == --*=* ]]; then
    option=${current%%%%=*} words=$(_offstage_words "$command" "${current%%%%=*}")
    local shown=''
    if [[ $COMP_WORDBREAKS != *=* ]]; then shown=$option=; fi
    mapfile -t COMPREPLY < <(compgen -P "$shown" -W "$words" -- "${current#*=}")
    return
  fi
  if [[ ${before[-1]} == --* ]]; then
    words=$(_offstage_words "$command" "${before[-1]}")
    if [[ -n $words ]]; then
      mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
      return
    fi
  fi
  if ((${#before[@]} == 1)); then
    words=$(_offstage_commands '')
  elif [[ $command == *' ' ]]; then
    words=$(_offstage_commands "${command%% }")
  elif [[ $current == -* ]]; then
    words=$(_offstage_options "$command")
  else
    return
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
  if [[ ${COMPREPLY[0]:-} == *= ]]; then compopt -o nospace 2> /dev/null; fi
}
complete -o default -F _offstage offstage
"""

ZSH = "#compdef offstage\n" + MARK + r"""
_offstage() {
  local -a found
  local command=$words[2] option=
  if (( CURRENT == 2 )); then
    found=(
%(commands)s    )
    _describe -t commands command found
    return
  fi
  case $command in
    help) compadd %(names)s; return ;;
%(parts)s  esac
  if [[ $PREFIX == --*=* ]]; then
    option=${PREFIX%%%%=*}
    compset -P '*='
  elif [[ $words[CURRENT-1] == --* ]]; then
    option=$words[CURRENT-1]
  fi
  if [[ -n $option ]]; then
    case "$command $option" in
%(words)s      *) case $command in %(with_keys)s) case $option in
%(key_words)s      esac ;; esac ;;
    esac
    if (( $#found )); then compadd -a found; else _files; fi
    return
  fi
  if [[ $PREFIX != -* ]]; then
    _files
    return
  fi
  case $command in
%(options)s  esac
  # What takes a value ends in =, behind which no blank comes.
  local -a valued flags
  valued=(${(M)found:#*=:*})
  flags=(${found:#*=:*})
  (( $#valued )) && _describe -t options option valued -S ''
  (( $#flags )) && _describe -t flags option flags
}
_offstage "$@"
"""


def all_of(commands):
    """Every command that is called as such: those with parts by their parts."""
    for command in commands:
        yield from command.parts or [command]


def shown(option):
    return f"--{option.name}=" if option.hint else f"--{option.name}"


def options_of(command, keys):
    """Options with a line of help each, where there is one: the command's own, and keys of runs."""
    found = {option.name: (option, "") for option in command.options}
    for key in keys:
        if command.takes_keys or key.name in command.some_keys:
            found[key.name] = (help_texts.Option(key.name, key.hint), key.help)
    return list(found.values())


def word_lists(commands, keys):
    """Pairs of what is asked for and its words: of options by command, and of keys."""
    own, of_keys = [], []
    for command in all_of(commands):
        names = {key.name for key in keys} if command.takes_keys else set()
        own += [(f"{command.name} --{option.name}", option.words) for option, _ in options_of(command, keys)
                if option.words and option.name not in names]
    of_keys = [(f"--{key.name}", help_texts.Option(key.name, key.hint).words) for key in keys]
    return own, [(name, words) for name, words in of_keys if words]


def with_keys(commands):
    return "|".join(command.name for command in commands if command.takes_keys)


def bash(commands, keys):
    def row(what, words, indent=4):
        return f"{' ' * indent}{what}) echo '{' '.join(words)}' ;;\n"
    own, of_keys = word_lists(commands, keys)
    lists = [row("''", [command.name for command in commands] + ["help", "version"])]
    lists += [row("help", [command.name for command in commands])]
    lists += [row(command.name, [part.name.split()[1] for part in command.parts]) for command in commands if command.parts]
    return BASH % {
        "commands": "".join(lists),
        "options": "".join(row(f"'{command.name}'", [shown(option) for option, _ in options_of(command, keys)])
                           for command in all_of(commands)),
        "words": "".join(row(f"'{name}'", words) for name, words in own),
        "with_keys": with_keys(commands),
        "key_words": "".join(row(name, words) for name, words in of_keys),
    }


def zsh(commands, keys):
    def entry(name, what):
        name, what = name.replace(":", "\\:"), what.replace("'", "'\\''")
        return f"'{name}:{what}'"
    own, of_keys = word_lists(commands, keys)
    top = [(command.name, "; ".join(what for _, what in command.rows)) for command in commands]
    top += [("help", "as COMMAND --help"), ("version", "version, commit, libraries, GPU architectures")]
    parts = "".join(
        f"    {command.name})\n      if (( CURRENT == 3 )); then compadd {' '.join(part.name.split()[1] for part in command.parts)}; return; fi\n"
        "      command+=\" $words[3]\" ;;\n" for command in commands if command.parts)
    options = ""
    for command in all_of(commands):
        entries = "".join(f"        {entry(shown(option), text)}\n" for option, text in options_of(command, keys))
        options += f"    '{command.name}')\n      found=(\n{entries}      ) ;;\n"
    return ZSH % {
        "commands": "".join(f"      {entry(name, what)}\n" for name, what in top),
        "names": " ".join(command.name for command in commands),
        "parts": parts,
        "words": "".join(f"      '{name}') found=({' '.join(words)}) ;;\n" for name, words in own),
        "with_keys": with_keys(commands),
        "key_words": "".join(f"        {name}) found=({' '.join(words)}) ;;\n" for name, words in of_keys),
        "options": options,
    }
