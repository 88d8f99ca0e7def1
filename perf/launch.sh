#!/usr/bin/env bash
# Backward against what its products take alone, on an emulated H100 to scale: perf/launch.sh. BUILD_DIR=<dir> uses another
# build. Some 2 minutes, 300 MB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."
source perf/prepare.sh
build perf_launch
exec python3 perf/launch.py "$BUILD_DIR/perf/perf_launch"
