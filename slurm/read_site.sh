#!/usr/bin/env bash
# Reads the site's settings, slurm/site, if there are any; job.sh and jobs/interactive.sh source it. A file that bash
# cannot read to its end sets nothing: the script ends with 64 and says what is wrong. OFFSTAGE_HOME is the tree.
set -uo pipefail
site=$OFFSTAGE_HOME/slurm/site
if [[ -e $site ]]; then
  # bash -n ends with 0 after some errors, and says other things too, as of locales.
  if ! problem=$(bash -n "$site" 2>&1) || [[ $problem == *"$site: line "* ]]; then
    echo "offstage: ${problem//$'\n'/; }; mend $site, or move it away" >&2
    exit 64
  fi
  set +eu  # modules, and what else a site sources, may fail and read variables that are not set
  # shellcheck disable=SC1090
  source "$site"
fi
unset site problem
if [[ -v OFFSTAGE_SCRATCH ]]; then export OFFSTAGE_SCRATCH; fi  # slurm/rank.sh reads it on each node
