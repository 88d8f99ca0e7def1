#!/usr/bin/env bash
# LLaMA 3.2 1B within 3 GiB of device and 3 GiB of host memory, everything on storage: perf/large.sh [DIR]. BUILD_DIR=<dir> uses
# another build, STEPS=N trains N steps instead of 2. DIR (a temporary directory by default) needs 40 GB. Some 10 minutes on four cores.
set -euo pipefail
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
exec python3 perf/large.py "$BUILD_DIR/offstage" "${1:-${TMPDIR:-/tmp}}" "${STEPS:-2}"
