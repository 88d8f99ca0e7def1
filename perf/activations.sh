#!/usr/bin/env bash
# Activations that leave the device, pipelined and serial, and how many (Fuyou, Figures 8 and 9), on an emulated device to scale:
# perf/activations.sh. BUILD_DIR=<dir> uses another build. Some 4 minutes, 300 MB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
exec python3 perf/activations.py "$BUILD_DIR/offstage"
