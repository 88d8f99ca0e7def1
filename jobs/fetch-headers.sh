#!/usr/bin/env bash
# Gets the headers of [headers] in packages.txt, wheels of PyPI whose sha256 stands there, into .cache/headers, where CMake
# looks for them: jobs/fetch-headers.sh. By pip, as it is configured (mirrors, proxies, --find-links). Nothing to do where
# they are; where they cannot be had, a line says so, and what needs them is not built: ends with 74.
# For a machine without a way out: run it on one that has, and take .cache/headers along.
# Ends with 64 for a wrong call.
set -euo pipefail
if (($# > 0)); then
  echo "usage: jobs/fetch-headers.sh" >&2
  exit 64
fi
cd "$(dirname "$0")/.."
headers=.cache/headers
scratch=
trap 'rm -rf "$scratch"' EXIT

# What pip takes for a line of packages.txt. The wheel of one interpreter and system is taken everywhere: its headers are
# all the same, and so one sha256 does.
system=(--only-binary ":all:" --implementation cp --python-version 3.11 --abi cp311 --platform manylinux_2_28_x86_64)
status=0
while read -r name version sum; do
  place=$headers/$name-$version
  if [[ -d $place ]]; then continue; fi
  mkdir -p "$headers"
  scratch=$(mktemp -d -p "$headers")
  echo "$name==$version --hash=sha256:$sum" > "$scratch/wanted.txt"
  if ! python3 -m pip --quiet --disable-pip-version-check download --no-deps --require-hashes "${system[@]}" \
    --retries 0 --timeout 10 --dest "$scratch" --requirement "$scratch/wanted.txt" > "$scratch/log" 2>&1; then
    echo "fetch-headers: no $name $version: $(grep -m 1 ERROR "$scratch/log" || tail -n 1 "$scratch/log")" >&2
    status=74
  else
    python3 -c '
import glob, sys, zipfile
[wheel] = glob.glob(sys.argv[1] + "/*.whl")
with zipfile.ZipFile(wheel) as archive:
    archive.extractall(sys.argv[1] + "/out", [name for name in archive.namelist() if name.startswith("include/")])' "$scratch"
    mv -T "$scratch/out" "$place" 2> /dev/null || [[ -d $place ]]  # another build may have been faster
  fi
  rm -rf "$scratch"
done < <(awk '{ sub(/#.*/, "") } /^\[/ { on = $1 == "[headers]"; next } on && NF == 3' < jobs/packages.txt)
exit "$status"
