#!/usr/bin/env bash
# Steps that are all clipped, with update.overlap as it comes and off: perf/clipped.sh [DIR] (default: the working directory; 6 GB are
# needed there). BUILD_DIR=<dir> uses another build. Some 2 minutes.
set -euo pipefail
directory=$(realpath -e -- "${1:-.}")
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
exec python3 perf/clipped.py "$BUILD_DIR/offstage" "$directory"
