#!/usr/bin/env bash
# Fuyou's update under backward on the machines of its Table 3, to scale: perf/overlap.sh [DIR [PICTURE]] (default:
# /dev/shm, where 200 MB are needed, and no picture). BUILD_DIR=<dir> uses another build. Some 6 minutes.
set -euo pipefail
directory=$(realpath "${1:-/dev/shm}")
picture=${2:+$(realpath "$2")}
cd "$(dirname "$0")/.."
if [[ -z ${BUILD_DIR:-} ]]; then
  BUILD_DIR=build/release
  cmake --preset release >/dev/null
  cmake --build --preset release --target perf_overlap >/dev/null
fi
python=python3
# Debian's, which packages.txt names, where another one comes first in PATH.
if [[ -n $picture && -x /usr/bin/python3 ]] && ! python3 -c "import matplotlib" 2>/dev/null; then python=/usr/bin/python3; fi
exec "$python" perf/overlap.py "$BUILD_DIR/perf/perf_overlap" "$directory" ${picture:+"$picture"}
