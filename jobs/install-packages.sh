#!/usr/bin/env bash
# Installs what is missing of packages.txt beside this script: jobs/install-packages.sh [SECTION...]
# Section `build` unless told. Ends with 0 if all are there in the end, with 74 and the command that
# root must run if it may not install.
set -euo pipefail
list="$(dirname "$0")/packages.txt"

if ! command -v dpkg-query > /dev/null; then
  echo "install-packages: not a Debian system; $list names what is needed" >&2
  exit 0
fi

missing=()
for section in "${@:-build}"; do
  packages=$(awk -v wanted="[$section]" '
    { sub(/#.*/, "") } /^\[/ { on = $1 == wanted; found += on; next } on && NF { print $1 }
    END { exit !found }' < "$list") ||
    { echo "install-packages: no section [$section] in $list" >&2; exit 64; }
  for package in $packages; do
    if ! dpkg-query -W -f '${db:Status-Status}\n' "$package" 2> /dev/null | grep -qx installed; then
      missing+=("$package")
    fi
  done
done
if ((${#missing[@]} == 0)); then exit 0; fi

install=(apt-get install -y --no-install-recommends "${missing[@]}")
as_root=()
if (($(id -u) != 0)); then
  if command -v sudo > /dev/null && { [[ -t 0 ]] || sudo -n true 2> /dev/null; }; then
    as_root=(sudo)
  else
    echo "install-packages: packages are missing; ask root to run: apt-get update && ${install[*]}" >&2
    exit 74
  fi
fi
echo "Installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
if ! { "${as_root[@]}" apt-get update -q && "${as_root[@]}" "${install[@]}" -q; }; then
  echo "install-packages: apt-get failed; run it by hand: apt-get update && ${install[*]}" >&2
  exit 74
fi
