#!/usr/bin/env bash
# Becomes one rank: slurm/rank.sh PROGRAM ARGUMENT...
# Adds --tiers.path with the scratch directory of the rank's own node, whose name another node need not
# share; not if the arguments have one or OFFSTAGE_SCRATCH is `none`.
set -euo pipefail
if [[ ${OFFSTAGE_SCRATCH:-} != none && " $*" != *" --tiers.path"[=\ ]* ]]; then
  scratch=$("$(dirname "$0")/scratch.sh")
  set -- "$@" "--tiers.path=$scratch"
fi
exec "$@"
