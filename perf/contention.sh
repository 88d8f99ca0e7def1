#!/usr/bin/env bash
# Four ranks on one path, tiers.exclusive true, false and auto (MLP Figures 4 and 5): perf/contention.sh [DIR [ROUNDS [PATH...]]] (default:
# the working directory, where 2 GB are needed; 5; all of contention.py's paths). BUILD_DIR=<dir> uses another build.
set -euo pipefail
directory=$(realpath -e -- "${1:-.}")
cd "$(dirname "$0")/.."
source perf/prepare.sh
build perf_ablation
exec python3 perf/contention.py "$BUILD_DIR/perf/perf_ablation" "$directory" "${@:2}"
