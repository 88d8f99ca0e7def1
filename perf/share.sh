#!/usr/bin/env bash
# Deep Optimizer States' figures on emulated machines, to scale: perf/share.sh [PICTURE]. BUILD_DIR=<dir> uses another
# build. Some 5 minutes, 300 MB of memory.
set -euo pipefail
picture=${1:+$(realpath -- "$1")}
cd "$(dirname "$0")/.."
source perf/prepare.sh
build perf_share
exec "$(find_python "$picture")" perf/share.py "$BUILD_DIR/perf/perf_share" ${picture:+"$picture"}
