#!/usr/bin/env bash
# Installs what is missing, builds the release preset and runs all tests:
#   tests/run.sh [CTEST OPTION...]      for example tests/run.sh -L unit, or -R e2e
set -euo pipefail
cd "$(dirname "$0")/.."
start=$SECONDS
jobs/install-packages.sh build
jobs/build.sh release
built=$SECONDS
status=0
ctest --preset release --parallel "$(nproc)" "$@" || status=$?
echo "tests/run.sh: built in $((built - start)) s, tested in $((SECONDS - built)) s"
exit "$status"
