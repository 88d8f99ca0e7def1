#!/usr/bin/env bash
# Activations that leave the device: pipelined and serial, how many, and what throughput (Fuyou, Figures 8, 9 and 5), on emulated devices to scale:
# perf/activations.sh [pipelined|choice|throughput]... BUILD_DIR=<dir> uses another build. Some 20 minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
exec python3 perf/activations.py "$BUILD_DIR/offstage" "$@"
