#!/usr/bin/env bash
# Time limits of jobs against the signal that comes before them; for slurm/job.sh and jobs/submit.sh.
set -uo pipefail

least_work=60  # seconds that a job must have before the signal

# uptime_of_node: its whole seconds. $SECONDS and $EPOCHSECONDS jump where the calendar's clock is set.
uptime_of_node() {
  local up
  read -r up _ < /proc/uptime
  echo "${up%%.*}"
}

# seconds_of TIME: sets `seconds` to those of a time as sbatch takes it and squeue shows it: MINUTES, M:S, H:M:S, D-H, D-H:M
# and D-H:M:S. False for all else, as for UNLIMITED.
seconds_of() {
  local text=$1 days=0 fields
  seconds=0
  [[ $text =~ ^([0-9]+-)?[0-9]+(:[0-9]+){0,2}$ ]] || return 1
  if [[ $text == *-* ]]; then
    days=${text%%-*}
    IFS=: read -ra fields <<< "${text#*-}:0:0"
  else
    IFS=: read -ra fields <<< "$text"
    case ${#fields[@]} in
      1) fields=(0 "${fields[0]}" 0) ;;
      2) fields=(0 "${fields[@]}") ;;
    esac
  fi
  seconds=$((10#$days * 86400 + 10#${fields[0]} * 3600 + 10#${fields[1]} * 60 + 10#${fields[2]}))
}

# sbatch_line NAME FILE: the value of the last #SBATCH --NAME=VALUE of a job script.
sbatch_line() {
  sed -n "s/^#SBATCH --$1=\([^ ]*\).*/\1/p" < "$2" | tail -n 1
}

# lead_of SIGNAL: sets `lead` to the seconds before the limit at which sbatch's --signal=SIGNAL comes; without them 60.
lead_of() {
  lead=60
  if [[ $1 =~ @([0-9]+)$ ]]; then lead=$((10#${BASH_REMATCH[1]})); fi
}

# too_short TIME SIGNAL: 0 is no limit; true if a job of this limit is told to stop before it has worked for `least_work` seconds. Sets
# `seconds` and `lead`.
too_short() {
  [[ -n $1 && -n $2 ]] && seconds_of "$1" && lead_of "$2" && ((seconds > 0 && seconds <= lead + least_work))
}
