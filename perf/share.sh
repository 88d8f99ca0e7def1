#!/usr/bin/env bash
# Deep Optimizer States' figures on emulated machines, to scale: perf/share.sh [PICTURE]. BUILD_DIR=<dir> uses another
# build. Some 5 minutes, 300 MB of memory.
set -euo pipefail
picture=${1:+$(realpath "$1")}
cd "$(dirname "$0")/.."
if [[ -z ${BUILD_DIR:-} ]]; then
  BUILD_DIR=build/release
  cmake --preset release >/dev/null
  cmake --build --preset release --target perf_share >/dev/null
fi
python=python3
# Debian's, which packages.txt names, where another one comes first in PATH.
if [[ -n $picture && -x /usr/bin/python3 ]] && ! python3 -c "import matplotlib" 2>/dev/null; then python=/usr/bin/python3; fi
exec "$python" perf/share.py "$BUILD_DIR/perf/perf_share" ${picture:+"$picture"}
