#!/usr/bin/env bash
# Saves that last many steps, on a parallel file system emulated slow: perf/stage.sh [DIR] (default: the working directory; 4 GB are
# needed there). BUILD_DIR=<dir> uses another build, PEERS_PYTHON=<python> one with PyTorch for torch.save. Some 7 minutes.
set -euo pipefail
directory=$(realpath -e -- "${1:-.}")
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
exec python3 perf/stage.py "$BUILD_DIR/offstage" "$directory" "$(find_torch)"
