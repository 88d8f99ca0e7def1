#!/usr/bin/env bash
# Trains while you watch, in an allocation of its own or, within salloc, in that one:
#   jobs/interactive.sh [SRUN OPTION...] -- my.cfg [--train.steps=20 ...]
#   jobs/interactive.sh --nodes=1 --ntasks-per-node=4 --cpus-per-task=4 --gpus-per-node=4 --time=30 -- my.cfg
# Ctrl-C saves and ends with 75; the same command goes on. A second Ctrl-C within a second kills.
set -euo pipefail
OFFSTAGE_HOME=${OFFSTAGE_HOME:-$(cd "$(dirname "$0")/.." && pwd)}
# shellcheck source=slurm/read_site.sh
source "$OFFSTAGE_HOME/slurm/read_site.sh"
set -eu
# shellcheck source=slurm/run_directory.sh
source "$OFFSTAGE_HOME/slurm/run_directory.sh"
# shellcheck source=slurm/leftovers.sh
source "$OFFSTAGE_HOME/slurm/leftovers.sh"

options=()
while (($#)) && [[ $1 != -- ]]; do
  options+=("$1")
  shift
done
if (($# < 2)); then
  echo "usage: jobs/interactive.sh [SRUN OPTION...] -- CONFIG [--KEY=VALUE...]" >&2
  exit 64
fi
take_cpus_per_task
forget_binding
# A shell of `srun --pty` is a step that holds all its job has.
overlap=
if [[ ${SLURM_STEP_ID:-} =~ ^[0-9]{1,9}$ ]]; then overlap=--overlap; fi  # the step that salloc starts has ten digits
export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}  # slurm/README.md
if [[ ${OFFSTAGE_LAUNCHER:-srun} != srun ]]; then OFFSTAGE_LAUNCHER_OPTIONS=; fi  # another launcher's
# shellcheck disable=SC2086
exec srun --mpi=pmix --kill-on-bad-exit=0 --wait="${SLURM_WAIT:-60}" --disable-status \
  ${cpus:+--cpus-per-task="$cpus"} $overlap ${OFFSTAGE_LAUNCHER_OPTIONS:-} "${options[@]}" "$OFFSTAGE_HOME/slurm/rank.sh" "${OFFSTAGE:-$(default_program)}" \
  train --config "$2" "${@:3}"
