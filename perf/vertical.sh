#!/usr/bin/env bash
# A step of eight micro-batches on an emulated device and a slow storage path, horizontal and vertical: perf/vertical.sh.
# BUILD_DIR=<dir> uses another build. Some 3 minutes, 300 MB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
exec python3 perf/vertical.py "$BUILD_DIR/offstage"
