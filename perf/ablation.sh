#!/usr/bin/env bash
# MLP-Offload's ablation on an emulated Testbed-1: perf/ablation.sh [DIR [PICTURE]] (default: /dev/shm, where 1 GB is
# needed, and no picture). BUILD_DIR=<dir> uses another build.
set -euo pipefail
directory=$(realpath -e -- "${1:-/dev/shm}")
picture=${2:+$(realpath -- "$2")}
cd "$(dirname "$0")/.."
source perf/prepare.sh
build perf_ablation
exec "$(find_python "$picture")" perf/ablation.py "$BUILD_DIR/perf/perf_ablation" "$directory" ${picture:+"$picture"}
