#!/usr/bin/env bash
# The start of a run: perf/start.sh [DIR] (default: the working directory; 3 GB are needed there).
# BUILD_DIR=<dir> uses another build, PEERS_PYTHON=<python> one that has PyTorch. Some 2 minutes.
set -euo pipefail
directory=$(realpath -e -- "${1:-.}")
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
if [[ ! -x $BUILD_DIR/perf/perf_start ]]; then cmake --build "$BUILD_DIR" --target perf_start >/dev/null; fi
GOMP_SPINCOUNT=5000 "$BUILD_DIR/perf/perf_start"
exec python3 perf/start.py "$BUILD_DIR/offstage" "$directory" "$(find_torch)"
