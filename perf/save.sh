#!/usr/bin/env bash
# Checkpoints under the next step against checkpoints between steps: perf/save.sh [DIR] (default: the working directory; 5 GB
# are needed there). BUILD_DIR=<dir> uses another build. Some 3 minutes.
set -euo pipefail
directory=$(realpath -e -- "${1:-.}")
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
exec python3 perf/save.py "$BUILD_DIR/offstage" "$directory"
