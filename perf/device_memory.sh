#!/usr/bin/env bash
# Deep Optimizer States' Figure 3 on the emulated device: perf/device_memory.sh [PICTURE]. BUILD_DIR=<dir> uses another
# build. A minute, 300 MB of memory.
set -euo pipefail
picture=${1:+$(realpath -- "$1")}
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
exec "$(find_python "$picture")" perf/device_memory.py "$BUILD_DIR/offstage" ${picture:+"$picture"}
