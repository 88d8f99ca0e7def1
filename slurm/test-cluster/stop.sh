#!/usr/bin/env bash
# Ends the test cluster in a directory and removes that: slurm/test-cluster/stop.sh DIRECTORY
# Jobs are cancelled and daemons asked to end; what is left after that, by the directory's name in its
# environment, is killed. Does nothing if the directory is gone.
set -uo pipefail
directory=${1:?usage: stop.sh DIRECTORY}
[[ -d $directory ]] || exit 0
[[ $directory == */offstage-slurm-?????? && -O $directory ]] ||
  { echo "test-cluster: $directory is no test cluster of yours" >&2; exit 64; }
export SLURM_CONF=$directory/slurm.conf
# The environment that /proc shows is that of the start: begin anew without the mark.
if [[ -n ${OFFSTAGE_CLUSTER:-} ]]; then exec env --unset=OFFSTAGE_CLUSTER "$0" "$directory"; fi

processes() { # of the cluster and of its jobs
  grep -lszFx "OFFSTAGE_CLUSTER=$directory" /proc/[0-9]*/environ | cut -d / -f 3
}

# Nodes of their own end with their first processes; from here their controller cannot be asked.
for node in "$directory"/nodes/*/process; do
  if [[ -s $node ]]; then kill -KILL "$(< "$node")" 2> /dev/null; fi
done
if [[ -n $(processes) && ! -d $directory/nodes ]]; then
  timeout 5 scancel --user="$(id -un)" 2> /dev/null
  for ((i = 0; i < 100; ++i)); do
    [[ -n $(timeout 5 squeue --noheader 2> /dev/null) ]] || break
    sleep 0.1
  done
fi
for signal in TERM KILL KILL; do
  for ((i = 0; i < 40; ++i)); do
    mapfile -t left < <(processes)
    ((${#left[@]})) || break 2
    if ((i == 0)); then kill -s "$signal" "${left[@]}" 2> /dev/null; fi
    sleep 0.05
  done
done
rm -rf -- "$directory"
