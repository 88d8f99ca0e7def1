#!/usr/bin/env bash
# What slurm/job.sh asks of a run's directory. `read_run` comes first.
set -uo pipefail

# default_program: where it is in a tree, or else in an installed prefix.
default_program() {
  local built=$OFFSTAGE_HOME/build/release/offstage installed=$OFFSTAGE_HOME/../../bin/offstage
  if [[ ! -x $built && -x $installed ]]; then echo "$installed"; else echo "$built"; fi
}

# with_home PATH[,PATH...]: sets `key_value` to the same with `~/` as shells expand it.
with_home() {
  local rest=$1 part blank
  key_value=
  while
    part=${rest%%,*}
    blank=${part%%[!$' \t\r']*}
    key_value+=$blank
    part=${part#"$blank"}
    if [[ $part == \~ || $part == \~/* ]]; then part=$HOME${part:1}; fi
    key_value+=$part
    [[ $rest == *,* ]]
  do
    rest=${rest#*,}
    key_value+=,
  done
}

# read_key KEY DEFAULT CONFIG [OPTION...]: sets `key_value` as the program reads the key, options before the
# file. Ends the script with 74 if the file cannot be read.
read_key() {
  local key=$1 config=$3 found option
  # From standard input: awk takes a file name with '=' in it for an assignment.
  if ! found=$(LC_ALL=C awk -v wanted="$key" '
    function trimmed(text) { gsub(/^[ \t\r]+|[ \t\r]+$/, "", text); return text }
    # As the program: quotes around a value, and a comment behind a blank and a semicolon, are no part of it.
    function plain(text,  quote, end) {
      quote = substr(trimmed(text), 1, 1)
      if (quote == "\"" || quote == "\047") {
        text = substr(trimmed(text), 2)
        end = index(text, quote)
        return substr(text, 1, end - 1)
      }
      if (match(text, /[ \t\r];/)) text = substr(text, 1, RSTART - 1)
      return trimmed(text)
    }
    NR == 1 { sub(/^\357\273\277/, "") }  # a byte order mark
    { sub(/#.*/, ""); $0 = trimmed($0) }
    /^;/ { next }
    /^\[/ && match($0, /[ \t\r];/) { $0 = trimmed(substr($0, 1, RSTART - 1)) }
    /^\[.*\]$/ { section = substr($0, 2, length - 2) "."; next }
    (at = index($0, "=")) && section trimmed(substr($0, 1, at - 1)) == wanted { value = plain(substr($0, at + 1)) }
    END { print value }' < "$config"); then
    echo "offstage-job: cannot read the configuration $config" >&2
    exit 74
  fi
  key_value=${found:-$2}
  for option in "${@:4}"; do
    if [[ $option == "--$key="* ]]; then key_value=${option#*=}; fi
  done
  with_home "$key_value"
}

# path_of PATH: sets `path` to the same one, but such that no program takes it for an option or an assignment.
path_of() {
  path=$1
  [[ $path == /* ]] || path=./$path
}

# read_run CONFIG [OPTION...]: sets what the other functions use. The first job is the one that a chain
# or a line of resubmitted jobs began with.
read_run() {
  # A task of an array by its double name: the number of one of them stands for all.
  job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
  job=${job:-$SLURM_JOB_ID}
  if [[ ! -r $1 ]]; then
    echo "offstage-job: cannot read the configuration $1" >&2
    exit 64
  fi
  local path
  read_key run.dir . "$@"
  path_of "$key_value"
  run_dir=$path
  read_key checkpoint.dir "$run_dir/checkpoints" "$@"
  path_of "$key_value"
  checkpoints=$path
  read_key checkpoint.resume auto "$@"
  resume=$key_value
  first_job=${OFFSTAGE_FIRST_JOB:-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}
  attempt=$((${SLURM_RESTART_COUNT:-0} + 1))
  attempts_file=$run_dir/attempts
}

# refuse_link FILE: false, and it says so, if FILE is a symbolic link, which another user of a group's directory may have
# put there to have one of this user's files overwritten.
refuse_link() {
  [[ -L $1 ]] || return 0
  echo "offstage-job: $1 is a symbolic link, which is never followed here; remove it" >&2
  return 1
}

is_no_directory() { # false too for a directory on a file system that fails
  case $(LC_ALL=C stat --dereference --format=%F -- "$1" 2>&1) in
    *"No such file or directory" | *"Not a directory" | *file) return 0 ;;
  esac
  return 1
}

# checkpoint_list [DIRECTORY]: names and times of the complete checkpoints, oldest first; false if they cannot be read.
# Any user may have put something else there: only step-N passes, whatever the other names look like.
checkpoint_list() {
  local in=${1:-$checkpoints}
  is_no_directory "$in" && return
  find -H "$in" -ignore_readdir_race -mindepth 1 -maxdepth 2 -type d ! -name 'step-*' -prune -o \
    -name master.h5 -printf '%P %T@\0' |
    LC_ALL=C sed -zn 's|^\(step-[0-9]*\)/master\.h5 |\1 |p' | tr '\0' '\n' | LC_ALL=C sort
}

# `checkpoint.resume=none` or a path is meant for the beginning: a requeued job would begin there again.
# True once this run has saved: a checkpoint is there, by name and time, that was not before the first attempt.
# This function notes those. One of them that is gone tells nothing: a save that failed may have removed it.
# 2 if that cannot be told.
resume_is_over() {
  local note=$run_dir/began-$first_job list kind
  if [[ $resume == auto ]]; then return 1; fi
  list=$(checkpoint_list) || return 2
  refuse_link "$note" || return 2
  if ! kind=$(LC_ALL=C stat --format=%F -- "$note" 2>&1); then
    [[ $kind == *"No such file or directory" ]] || return 2
    # Whole or not at all, on a full file system too. noclobber: a new file, not what a link leads to.
    mkdir -p "$run_dir" && rm -f -- "$note.new" && (set -o noclobber && printf '%s' "${list:+$list$'\n'}" > "$note.new") &&
      mv -T -- "$note.new" "$note" || return 2
    return 1
  fi
  [[ -n $list ]] && grep --quiet --fixed-strings --line-regexp --invert-match --file="$note" <<< "$list"
}

# A line of `attempts`: time, first job of this submission, job, attempt, nodes, exit code, seconds, newest checkpoint at the
# attempt's begin and at its end.
# A second call takes the place of the first: after the time limit an attempt is noted before its launcher ends.
note_attempt() {
  (($1 == 64 || $1 == 65)) || mkdir -p "$run_dir"
  if [[ -d $run_dir ]]; then
    local LC_ALL=C line now took=0
    if [[ -n ${began:-} ]]; then took=$(($(uptime_of_node) - began)); fi
    refuse_link "$attempts_file" || { unnoted=1 && return; }
    now=$(newest)
    printf -v line '%(%FT%T)T submission %s job %s attempt %d on %s exit %d after %d s from %s newest %s' -1 "$first_job" "$job" \
      "$attempt" "$SLURM_JOB_NODELIST" "$1" "$took" "${newest_before:-$now}" "$now"
    if [[ -n ${noted:-} && $(tail -n 1 -- "$attempts_file") == "$noted" ]]; then
      truncate --size=-$((${#noted} + 1)) -- "$attempts_file"
    fi
    if printf '%s\n' "$line" >> "$attempts_file"; then noted=$line; else unnoted=1; fi  # a full file system
  fi
}

# Where this node has level 1 (checkpoint.local) of the run; false if it has none.
level_1() {
  local name parent
  { read -r name && read -r parent; } 2> /dev/null < "$checkpoints/level-1" || return
  [[ $name =~ ^level-1-[0-9a-f]{16}$ && -d $parent/$name ]] && printf '%s' "$parent/$name"
}

newest() { # of both levels
  local name local_level
  name=$({
    checkpoint_list
    if local_level=$(level_1); then checkpoint_list "$local_level"; fi
  } 2> /dev/null | LC_ALL=C sort | tail -n 1)
  name=${name%% *}
  echo "${name:-none}"
}

# Attempts of this submission that ended badly one after another without a checkpoint of their own: what another job saves
# between them counts for nothing. All its attempts where they cannot be noted.
crashes() {
  if [[ -n ${unnoted:-} || ! -w $attempts_file ]]; then
    echo "$((${OFFSTAGE_ATTEMPTS:-0} + attempt))"
    return
  fi
  awk -v first="$first_job" '
    $2 != "submission" || $3 != first { next }
    { code = 0; before = newest
      for (i = 1; i < NF; ++i) { if ($i == "exit") code = $(i + 1); if ($i == "from") before = $(i + 1) }
      if (code == 0 || code == 75) n = 0; else if ($NF == before) ++n; else n = 1
      newest = $NF }
    END { print n + 0 }' < "$attempts_file"
}

# Attempts of this submission that saved in good order, one after another up to now, where the newest checkpoint stayed the
# same or the attempt took less than SECONDS; 0 where they cannot be noted.
idle_ends() { # idle_ends SECONDS
  if [[ ! -f $attempts_file || ! -r $attempts_file ]]; then
    echo 0
    return
  fi
  awk -v first="$first_job" -v least="$1" '
    $2 != "submission" || $3 != first { next }
    { code = 0; took = least
      for (i = 1; i < NF; ++i) { if ($i == "exit") code = $(i + 1); if ($i == "after") took = $(i + 1) }
      if (code == 75 && ($NF == newest || took < least)) ++n; else n = 0
      newest = $NF }
    END { print n + 0 }' < "$attempts_file"
}
