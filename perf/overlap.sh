#!/usr/bin/env bash
# Fuyou's update under backward on the machines of its Table 3, to scale: perf/overlap.sh [DIR [PICTURE]] (default:
# /dev/shm, where 200 MB are needed, and no picture). BUILD_DIR=<dir> uses another build. Some 6 minutes.
set -euo pipefail
directory=$(realpath -e -- "${1:-/dev/shm}")
picture=${2:+$(realpath -- "$2")}
cd "$(dirname "$0")/.."
source perf/prepare.sh
build perf_overlap
exec "$(find_python "$picture")" perf/overlap.py "$BUILD_DIR/perf/perf_overlap" "$directory" ${picture:+"$picture"}
