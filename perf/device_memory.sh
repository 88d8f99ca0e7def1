#!/usr/bin/env bash
# Deep Optimizer States' Figure 3 on the emulated device: perf/device_memory.sh [PICTURE]. BUILD_DIR=<dir> uses another
# build. A minute, 300 MB of memory.
set -euo pipefail
picture=${1:+$(realpath "$1")}
cd "$(dirname "$0")/.."
if [[ -z ${BUILD_DIR:-} ]]; then
  BUILD_DIR=build/release
  cmake --preset release >/dev/null
  cmake --build --preset release --target offstage >/dev/null
fi
# OpenMP threads that spin keep the emulated device's from the CPU.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
python=python3
# Debian's, which packages.txt names, where another one comes first in PATH.
if [[ -n $picture && -x /usr/bin/python3 ]] && ! python3 -c "import matplotlib" 2>/dev/null; then python=/usr/bin/python3; fi
exec "$python" perf/device_memory.py "$BUILD_DIR/offstage" ${picture:+"$picture"}
