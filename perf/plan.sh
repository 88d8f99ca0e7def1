#!/usr/bin/env bash
# Steps as offstage plan predicts them and as offstage train makes them, on emulated machines that are bound by different
# resources: perf/plan.sh [DIR] (default: /dev/shm, where 300 MB are needed). BUILD_DIR=<dir> uses another build. ROWS=<words>
# runs the rows alone whose names have one of them. Some 3 minutes.
set -euo pipefail
directory=$(realpath -- "${1:-/dev/shm}")
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
exec python3 perf/plan.py "$BUILD_DIR/offstage" "$directory"
