#!/usr/bin/env bash
# For Slurm's Epilog, or a line of the site's own: removes what a killed job of Offstage may have left in
# the node's scratch directories, and nothing else. Spill files are unlinked as soon as they are open, so
# there is seldom any. Directories named offstage-ID-* are taken, of this job and this user.
#
# OFFSTAGE_EPILOG_SCRATCH lists the scratch directories, separated by colons; a job's own environment is
# not known here. Ends with 0 always: anything else would drain the node.
set -uo pipefail
if [[ ! ${SLURM_JOB_ID:-} =~ ^[0-9]+$ || ! ${SLURM_JOB_UID:-} =~ ^[0-9]+$ ]]; then
  echo "offstage epilog: SLURM_JOB_ID and SLURM_JOB_UID are not set" >&2
  exit 0
fi

# As the job's user: in a directory of theirs a user could replace a part of a path by a link.
as_user=()
if ((EUID == 0 && SLURM_JOB_UID != 0)); then
  as_user=(setpriv --reuid="$SLURM_JOB_UID" --regid="${SLURM_JOB_GID:-$SLURM_JOB_UID}" --clear-groups)
fi
IFS=: read -ra places <<< "${OFFSTAGE_EPILOG_SCRATCH:-/tmp:/mnt/bb/${SLURM_JOB_USER:-}:/local/scratch}"
# The names are the user's. printf's %q shows their line breaks and escape sequences, in the C locale also all
# beyond ASCII; of however many there are a few lines tell.
export LC_ALL=C
for place in "${places[@]}"; do
  [[ $place == /* && -d $place ]] || continue
  # shellcheck disable=SC2016
  "${as_user[@]}" find -H "$place" -mindepth 1 -maxdepth 1 -xdev -type d -uid "$SLURM_JOB_UID" \
    -name "offstage-$SLURM_JOB_ID-*" \
    -exec bash -c 'printf "left %q\n" "$@"; exec rm -rf --one-file-system -- "$@"' _ {} + 2>&1 |
    awk -v job="offstage epilog: job $SLURM_JOB_ID" -v most=4 '
      length > 300 { $0 = substr($0, 1, 297) "..." }
      /^left / { if (++left <= most) print job " " $0; next }
      { if (++problems <= most) print job ": " $0 }
      END { if (left > most) print job " left " left - most " more"
        if (problems > most) print job ": and " problems - most " more problems" }'
done
exit 0
