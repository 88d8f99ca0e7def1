#!/usr/bin/env bash
# The update phase with fewer bytes of state, on a disk and on the emulated testbed of MLP-Offload: perf/bytes.sh [DIR]
# (default: the working directory, on the disk; 9 GB are needed there). BUILD_DIR=<dir> uses another build. Some 6 minutes.
set -euo pipefail
directory=$(realpath -e -- "${1:-.}")
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
build perf_update
exec python3 perf/bytes.py "$BUILD_DIR" "$directory"
