#!/usr/bin/env bash
# What smaller moments cost in loss: perf/moments.sh [DIR] (default: the working directory; some 100 MB are needed there).
# Each run takes one core, as many at a time as there are cores (JOBS=N: so many). STEPS, SEEDS and CONFIG as in moments.py.
# Runs that DIR/moments has are not repeated. BUILD_DIR=<dir> uses another build. Some 40 minutes on 4 cores.
set -euo pipefail
directory=$(realpath -e -- "${1:-.}")
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
exec "$(find_python picture)" perf/moments.py "$BUILD_DIR/offstage" "$directory"
