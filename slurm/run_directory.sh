#!/usr/bin/env bash
# What slurm/job.sh asks of a run's directory. `read_run` comes first.
set -uo pipefail

# key_of KEY DEFAULT CONFIG [OPTION...]: as the program reads it, options before the file.
key_of() {
  local key=$1 value=$2 config=$3 found option
  found=$(awk -v wanted="$key" '
    { sub(/#.*/, ""); gsub(/^[ \t]+|[ \t\r]+$/, "") }
    /^\[.*\]$/ { section = substr($0, 2, length - 2) "."; next }
    (at = index($0, "=")) {
      name = substr($0, 1, at - 1); sub(/[ \t]+$/, "", name)
      text = substr($0, at + 1); sub(/^[ \t]+/, "", text)
      if (section name == wanted) print text
    }' "$config" | tail -n 1)
  value=${found:-$value}
  for option in "${@:4}"; do
    if [[ $option == "--$key="* ]]; then value=${option#*=}; fi
  done
  echo "$value"
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
  run_dir=$(key_of run.dir . "$@")
  checkpoints=$(key_of checkpoint.dir "$run_dir/checkpoints" "$@")
  resume=$(key_of checkpoint.resume auto "$@")
  first_job=${OFFSTAGE_FIRST_JOB:-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}
  attempt=$((${SLURM_RESTART_COUNT:-0} + 1))
  attempts_file=$run_dir/attempts
}

checkpoint_list() { # names and times of the complete checkpoints, oldest first
  { find "$checkpoints" -mindepth 2 -maxdepth 2 -name master.h5 -printf '%h %T@\n' 2> /dev/null || true; } |
    sed -n 's|^.*/\(step-[^/]*\)$|\1|p' | sort
}

# `checkpoint.resume=none` or a path is meant for the beginning: a requeued job would begin there again.
# True once the checkpoints are others than before the first attempt, which this function notes.
resume_is_over() {
  local note=$run_dir/began-$first_job
  if [[ $resume == auto ]]; then return 1; fi
  if [[ ! -e $note ]]; then
    # Whole or not at all, on a full file system too.
    mkdir -p "$run_dir" && checkpoint_list > "$note.new" && mv "$note.new" "$note"
    return 1
  fi
  [[ $(checkpoint_list) != "$(< "$note")" ]]
}

# A line of `attempts`: time, first job of this submission, job, attempt, nodes, exit code, newest checkpoint.
note_attempt() {
  (($1 == 64 || $1 == 65)) || mkdir -p "$run_dir"
  if [[ -d $run_dir ]]; then
    printf '%(%FT%T)T submission %s job %s attempt %d on %s exit %d newest %s\n' -1 "$first_job" "$job" \
      "$attempt" "$SLURM_JOB_NODELIST" "$1" "$(newest)" >> "$attempts_file" || unnoted=1  # a full file system
  fi
}

newest() {
  local name
  name=$(checkpoint_list | tail -n 1)
  echo "${name:-none}" | cut -d ' ' -f 1
}

# Attempts of this submission that ended badly one after another while the newest checkpoint stayed the
# same; all its attempts where they cannot be noted.
crashes() {
  if [[ -n ${unnoted:-} || ! -w $attempts_file ]]; then
    echo "$((${OFFSTAGE_ATTEMPTS:-0} + attempt))"
    return
  fi
  awk -v first="$first_job" '
    $2 != "submission" || $3 != first { next }
    { code = 0; for (i = 1; i < NF; ++i) { if ($i == "exit") code = $(i + 1) }
      if (code == 0 || code == 75) n = 0; else if ($NF == newest) ++n; else n = 1
      newest = $NF }
    END { print n + 0 }' "$attempts_file"
}
