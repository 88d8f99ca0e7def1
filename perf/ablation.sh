#!/usr/bin/env bash
# MLP-Offload's ablation on an emulated Testbed-1: perf/ablation.sh [DIR [PICTURE]] (default: /dev/shm, where 1 GB is
# needed, and no picture). BUILD_DIR=<dir> uses another build.
set -euo pipefail
directory=$(realpath "${1:-/dev/shm}")
picture=${2:+$(realpath "$2")}
cd "$(dirname "$0")/.."
if [[ -z ${BUILD_DIR:-} ]]; then
  BUILD_DIR=build/release
  cmake --preset release >/dev/null
  cmake --build --preset release --target perf_ablation >/dev/null
fi
python=python3
# Debian's, which packages.txt names, where another one comes first in PATH.
if [[ -n $picture && -x /usr/bin/python3 ]] && ! python3 -c "import matplotlib" 2>/dev/null; then python=/usr/bin/python3; fi
exec "$python" perf/ablation.py "$BUILD_DIR/perf/perf_ablation" "$directory" ${picture:+"$picture"}
