#!/usr/bin/env bash
# A step beside busy processes: perf/busy.sh [DIR] (default: the working directory; 2 GB are needed there).
# BUILD_DIR=<dir> uses another build. Some 5 minutes.
set -euo pipefail
directory=$(realpath -e -- "${1:-.}")
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
exec python3 perf/busy.py "$BUILD_DIR/offstage" "$directory"
