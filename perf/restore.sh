#!/usr/bin/env bash
# How fast a checkpoint is loaded and verified, beside its disk: perf/restore.sh [DIR] (default: the working directory; 3 GB are needed there).
# BUILD_DIR=<dir> uses another build. Less than a minute.
set -euo pipefail
directory=$(realpath -e -- "${1:-.}")
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
exec python3 perf/restore.py "$BUILD_DIR/offstage" "$directory"
