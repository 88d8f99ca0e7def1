#!/usr/bin/env bash
# Four ranks on one real path, tiers.exclusive on against off (MLP Figures 4 and 5): perf/contention.sh [DIR] (default: the
# working directory; 2 GB are needed there). BUILD_DIR=<dir> uses another build.
set -euo pipefail
directory=$(realpath -- "${1:-.}")
cd "$(dirname "$0")/.."
source perf/prepare.sh
build perf_ablation
exec python3 perf/contention.py "$BUILD_DIR/perf/perf_ablation" "$directory"
