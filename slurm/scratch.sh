#!/usr/bin/env bash
# Prints the node's own scratch directory, for tiers.path. OFFSTAGE_SCRATCH names it; without that the
# first that serves of $SLURM_TMPDIR, $TMPDIR, /mnt/bb/$USER and /local/scratch.
# Ends with 74 and says why of each if none serves.
set -euo pipefail

why_not() { # why_not DIRECTORY: what is wrong with it; nothing if it serves
  if [[ ! -d $1 ]]; then
    echo "does not exist"
  elif [[ ! -w $1 || ! -x $1 ]]; then
    echo "not writable"
  else
    local type
    type=$(stat --file-system --format=%T -- "$1")
    case $type in
      tmpfs | ramfs) echo "is in memory, which the state is to be kept out of" ;;
      nfs | lustre | gpfs | fhgfs | ceph | panfs | afs | cifs | smb*)  # fhgfs is BeeGFS; whoever names it may mean it
        [[ -n ${OFFSTAGE_SCRATCH:-} ]] || echo "is on the network ($type), no disk of this node"
        ;;
    esac
  fi
}

node=${SLURMD_NODENAME:-$(hostname)}
if [[ -n ${OFFSTAGE_SCRATCH:-} ]]; then
  candidates=("$OFFSTAGE_SCRATCH")
else
  candidates=(${SLURM_TMPDIR:+"$SLURM_TMPDIR"} ${TMPDIR:+"$TMPDIR"} "/mnt/bb/${USER:-$(id -un)}" /local/scratch)
fi
refused=
for candidate in "${candidates[@]}"; do
  problem=$(why_not "$candidate")
  if [[ -z $problem ]]; then
    printf '%s\n' "$candidate"
    exit
  fi
  refused+="; $candidate: $problem"
done
echo "scratch: no directory on $node for the optimizer state$refused; set OFFSTAGE_SCRATCH to one on a" \
  "local disk, or to 'none' to keep the state in host memory" >&2
exit 74
