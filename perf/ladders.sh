#!/usr/bin/env bash
# Figures of the papers beside steps that `offstage plan` simulates for their models on their machines: perf/ladders.sh. Nothing is
# measured and no storage is used; some minutes. BUILD_DIR=<dir> uses another build, JOBS=<n> as many plans at a time (2).
set -euo pipefail
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
exec python3 perf/ladders.py "$BUILD_DIR/offstage"
