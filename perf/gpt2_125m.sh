#!/usr/bin/env bash
# A GPT-2 of 124 M parameters in 4 GiB of host memory: import, 5 steps with the state on storage, export.
# perf/gpt2_125m.sh [DIR [RANKS]] (default: the working directory, 1; 8 GB are needed there). BUILD_DIR=<dir> uses
# another build.
set -euo pipefail
directory=$(realpath -e -- "${1:-.}")
ranks=${2:-1}
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
exec python3 perf/gpt2_125m.py "$BUILD_DIR/offstage" "$directory" "$ranks"
