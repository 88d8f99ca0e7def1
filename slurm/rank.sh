#!/usr/bin/env bash
# Becomes one rank: slurm/rank.sh PROGRAM train --config CONFIG [OPTION...]
# Adds --tiers.path with the scratch directory of the rank's own node, whose name another node need not
# share; not if the configuration or the options have one, or OFFSTAGE_SCRATCH is `none`.
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=slurm/run_directory.sh
source "$here/run_directory.sh"

# has_path OPTION...: true if an option or a configuration among them has a tiers.path.
has_path() {
  local word last=
  for word in "$@"; do
    if [[ $word == --tiers.path || $word == --tiers.path=* ]]; then return 0; fi
    if [[ $word == --config=* ]]; then last=--config word=${word#*=}; fi
    if [[ $last == --config && -r $word ]]; then  # of one that cannot be read the program speaks
      read_key tiers.path "" "$word"
      if [[ -n $key_value ]]; then return 0; fi
    fi
    last=$word
  done
  return 1
}

if [[ ${OFFSTAGE_SCRATCH:-} != none ]] && ! has_path "${@:3}"; then
  scratch=$("$here/scratch.sh")
  set -- "$@" "--tiers.path=$scratch"
fi
if ! type -P "$1" > /dev/null; then
  echo "rank: there is no program $1 on ${SLURMD_NODENAME:-$(hostname)}: build Offstage there, or set OFFSTAGE to its program" >&2
  exit 74
fi
exec "$@"
