#!/usr/bin/env bash
# Becomes one rank: slurm/rank.sh PROGRAM train --config CONFIG [OPTION...]
# Adds --tiers.path with the scratch directory of the rank's own node, whose name another node need not
# share; not if the configuration or the options have one, or OFFSTAGE_SCRATCH is `none`.
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=slurm/run_directory.sh
source "$here/run_directory.sh"
if [[ ${OFFSTAGE_SCRATCH:-} != none && " $*" != *" --tiers.path"[=\ ]* && -z $(key_of tiers.path "" "${@:4}") ]]; then
  scratch=$("$here/scratch.sh")
  set -- "$@" "--tiers.path=$scratch"
fi
exec "$@"
