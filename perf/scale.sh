#!/usr/bin/env bash
# Many ranks: messages of a rank in a step, counted on up to 64 ranks and reckoned for 256; the start of 64 ranks; MLP-Offload's Figures 11
# and 12 and Deep Optimizer States' Figure 17 by offstage plan, with a model of the links between nodes and a PFS that nodes share;
# predicted against real steps on 1 to 8 ranks here, and as root on 2 and 4 nodes with networks of their own:
# perf/scale.sh [DIR] (default: /dev/shm, where 300 MB are needed). PARTS=<words of messages start figures real network> runs a part.
# OLDER=<program> starts 64 ranks of another build, too. BUILD_DIR=<dir> uses another build. Some 10 minutes.
set -euo pipefail
directory=$(realpath -e -- "${1:-/dev/shm}")
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
exec python3 perf/scale.py "$BUILD_DIR/offstage" "$directory"
