#!/usr/bin/env bash
# sbatch with a look at what it is given first, from any directory, of a tree or of an installed Offstage:
#   jobs/submit.sh [SBATCH OPTION...] train.sbatch my.cfg [--train.steps=2000 ...]
#   PREFIX/share/offstage/jobs/submit.sh --nodes=4 --time=1-00:00:00 train.sbatch my.cfg
# The script is one of this directory by its name, or any by its path. Ends with 64, and submits nothing, if there is no such
# script or configuration, if the time limit leaves no time before the signal to stop, or if tasks of an array would get into each other's way.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export OFFSTAGE_HOME=${OFFSTAGE_HOME:-$(dirname "$here")}
# shellcheck source=slurm/time_limit.sh
source "$OFFSTAGE_HOME/slurm/time_limit.sh"

refuse() {
  echo "submit: $1" >&2
  exit 64
}

# takes_word OPTION: its value, if it has one, is the next word. Options of Slurm 22.05; --nice and the like have a
# value only behind '='.
takes_word() {
  local letters=${1#-}
  case $1 in
    -- | --*=* | --contiguous | --exclusive | --get-user-env | --help | --hold | --ignore-pbs | --nice | --no-kill | \
      --no-requeue | --overcommit | --oversubscribe | --parsable | --propagate | --quiet | --reboot | --requeue | --share | \
      --spread-job | --test-only | --usage | --use-min-nodes | --verbose | --version | --wait) return 1 ;;
    --*) return 0 ;;
  esac
  while [[ $letters == [hHkOQsvVW]* ]]; do letters=${letters#?}; done
  ((${#letters} == 1))
}

# What sbatch takes from the command line, else from the environment, else from the script.
time_limit=${SBATCH_TIMELIMIT:-} signal=${SBATCH_SIGNAL:-} array=${SBATCH_ARRAY_INX:-} chdir=
options=()
while (($#)) && [[ $1 == -* ]]; do
  case $1 in
    --time=*) time_limit=${1#*=} ;;
    --signal=*) signal=${1#*=} ;;
    --array=*) array=${1#*=} ;;
    -a?*) array=${1#-a} ;;
    -a | --array) array=${2:-} ;;
    -t?*) time_limit=${1#-t} ;;
    --chdir=*) chdir=${1#*=} ;;
    -D?*) chdir=${1#-D} ;;
    -D | --chdir) chdir=${2:-} ;;
    -t | --time) time_limit=${2:-} ;;
    --signal) signal=${2:-} ;;
  esac
  options+=("$1")
  # Of an option that a later Slurm may have a script's name is no value.
  if takes_word "$1" && (($# > 1)) && [[ $2 != -* && $2 != *.sbatch ]]; then
    options+=("$2")
    shift
  fi
  shift
done
(($# >= 2)) || refuse "usage: jobs/submit.sh [SBATCH OPTION...] train.sbatch|restart.sbatch|array.sbatch CONFIG [--KEY=VALUE...]"
script=$1
[[ $script == */* || -e $script ]] || script=$here/$script
[[ -r $script ]] || refuse "there is no job script $1; in $here are $(cd "$here" && echo *.sbatch)"
config=$2
[[ $config != --* ]] || refuse "$config in place of the configuration: $(basename "$script") CONFIG [--KEY=VALUE...], one file without --config before it"
if [[ -n $chdir && $config != /* ]]; then config=$chdir/$config; fi
[[ -r $config ]] || refuse "cannot read the configuration $config"

# What sbatch is told on the command line the job cannot see, but it compares the signal with its time limit, too. The script's
# own signal it reads itself: in the environment it would win over the lines of other scripts that the job gives to sbatch.
if [[ -n $signal ]]; then export SBATCH_SIGNAL=$signal; fi
: "${time_limit:=$(sbatch_line time "$script")}" "${signal:=$(sbatch_line signal "$script")}"
if too_short "$time_limit" "$signal"; then
  later=
  if ((seconds > 60 + least_work)); then later=", or a signal that comes later, such as --signal=B:USR1@60"; fi
  refuse "--time=$time_limit is $seconds s, and --signal=$signal stops the run $lead s before its end: it would save and be requeued \
over and over; give it at least $(((lead + least_work) / 60 + 1)) minutes$later"
fi
if grep -q '^offstage_require_chain' < "$script" && [[ $array == *[-,]* && $array != *%1 ]]; then
  refuse "--array=$array starts links at the same time, but each goes on from where the last one ended: write --array=${array%%%*}%1"
fi
if grep -q '^offstage_refuse_array' < "$script" && [[ $array == *[-,]* ]]; then
  refuse "--array=$array: all tasks would train in one run.dir; submit a job for each run, with a --run.dir of its own; \
array.sbatch makes one run of several jobs"
fi
# Within another job: sbatch would hand on what Slurm has set there, such as an array's task, wherever the new job has nothing
# to put in its place.
if [[ -n ${SLURM_JOB_ID:-} ]]; then
  for name in "${!SLURM_@}"; do
    case $name in
      SLURM_CONF | SLURM_CLUSTERS | SLURM_PMIX_* | SLURM_WAIT) ;;
      *) unset "$name" ;;
    esac
  done
fi
exec sbatch "${options[@]}" "$script" "${@:2}"
