#!/usr/bin/env bash
# Tries what jobs/packaging makes as far as one machine can: tests/package.sh [DIRECTORY]. Needs root and Debian's mirrors.
# In a bare Debian 12 (mmdebstrap, into a temporary directory below DIRECTORY) the Apptainer definition's own steps install the package; a user
# of it then trains, by one rank and by two. Module files load in Environment Modules and in Lmod. `apptainer build` runs as well where
# apptainer is installed. Spack's recipe is compared with CMake and the package list by the test `packaging`.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=$PWD/build/release/packages
scratch=$(mktemp -d -p "${1:-${TMPDIR:-/tmp}}" offstage-package-XXXXXX)
root=$scratch/debian
trap 'umount "$root/proc" 2> /dev/null || true; rm -rf --one-file-system "$scratch"' EXIT
say() { printf '\n-- %s\n' "$*"; }
(($(id -u) == 0)) || { echo "package.sh: only root may make a Debian in a directory" >&2; exit 74; }

# section NAME: the lines of a section of the Apptainer definition.
section() { awk -v wanted="%$1" '/^%/ { on = $1 == wanted; next } on && NF' < "$packages/offstage.def"; }
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "$@"; }
as_user() { inside setpriv --reuid=1000 --regid=1000 --clear-groups env HOME=/home/user "$@"; }

say "Package"
rm -rf "$packages"
jobs/packaging/make.sh
dpkg-deb --info "$packages"/*.deb | grep Depends

say "A bare Debian 12"
mmdebstrap --quiet --variant=apt bookworm "$root"
mount -t proc proc "$root/proc"
inside useradd --create-home --uid 1000 user

say "The steps of offstage.def"
section files | while read -r from to; do cp "$from" "$root/$to"; done
section post > "$root/post.sh"
inside sh -ex /post.sh > "$scratch/post.log" 2>&1 || { cat "$scratch/post.log"; exit 1; }
section test > "$root/test.sh"
inside sh -ex /test.sh

say "A user trains"
mkdir "$root/home/user/work"
head -c 60000 CHANGELOG.md > "$root/home/user/work/text"
chown -R 1000:1000 "$root/home/user/work"
cat > "$root/home/user/work/train.sh" << 'END'
set -eux
cd ~/work
offstage help | grep -q 'train --config'
keys="--config /usr/share/offstage/configs/models/bytes-3m.cfg --data.train=text --train.sequence=64 --run.threads=1 --tiers.path=. --tiers.cache=0"
offstage train $keys --run.dir=one --train.steps=3
mpirun --oversubscribe -n 2 offstage train $keys --run.dir=two --train.steps=3 --train.global-batch=2
offstage train $keys --run.dir=two --train.steps=4 --train.global-batch=2
offstage checkpoint verify two
offstage plan $keys --ranks 2 | grep -q 'does it fit'
END
as_user sh /home/user/work/train.sh > "$scratch/train.log" 2>&1 || { cat "$scratch/train.log"; exit 1; }
grep -E '^([0-9TZ:-]+ )?(step|done|continuing)' "$scratch/train.log"

say "Job scripts, completion and man pages"
# 64: they ask for a configuration; all that they source was found.
for script in submit.sh interactive.sh; do
  status=0
  as_user /usr/share/offstage/jobs/$script > /dev/null 2>&1 || status=$?
  ((status == 64)) || { echo "$script ends with $status"; exit 1; }
done
inside bash -c '. /usr/share/bash-completion/completions/offstage
COMP_LINE="offstage train --run.header=f" COMP_POINT=29; _offstage; [[ ${COMPREPLY[*]} == full ]]'
inside test -s /usr/share/man/man1/offstage.1

say "Module files"
apt_install() { inside apt-get -q update && inside env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$@"; }
# Another place than /usr, as a site has it.
inside sh -c 'mkdir -p /opt/offstage/bin /opt/offstage/share && cp /usr/bin/offstage /opt/offstage/bin && cp -r /usr/share/offstage /opt/offstage/share'
# shellcheck disable=SC2016
check='module use /opt/offstage/share/offstage/modulefiles && module load offstage && module list &&
  [[ $(command -v offstage) == /opt/offstage/bin/offstage && -x $OFFSTAGE_HOME/jobs/submit.sh ]] &&
  module unload offstage && [[ $(command -v offstage) == /usr/bin/offstage && -z ${OFFSTAGE_HOME:-} ]]'
for system in environment-modules:/usr/share/modules/init/bash lmod:/usr/share/lmod/lmod/init/bash; do
  # Each conflicts with the other and takes its place.
  apt_install "${system%%:*}" > "$scratch/modules.log" 2>&1 || { cat "$scratch/modules.log"; exit 1; }
  inside bash -c ". ${system#*:} && $check" || { echo "the module file does not work with ${system%%:*}" >&2; exit 1; }
done

say "Removed again"
inside apt-get -q remove -y offstage > "$scratch/remove.log" 2>&1 || { cat "$scratch/remove.log"; exit 1; }
if inside find /usr -path '*offstage*' | grep .; then
  echo "the package leaves these behind" >&2
  exit 1
fi

if command -v apptainer > /dev/null; then
  say "Apptainer"
  apptainer build "$scratch/offstage.sif" "$packages/offstage.def" && apptainer test "$scratch/offstage.sif"
else
  echo "apptainer is not installed: its definition's steps ran in a directory instead"
fi
