#!/usr/bin/env bash
# Tokens that are generated, and what each costs as the text grows: perf/generate.sh [DIR] (default: the working directory; 1 GB is needed
# there). ROUNDS (3). BUILD_DIR=<dir> uses another build. Some 2 minutes.
set -euo pipefail
directory=$(realpath -e -- "${1:-.}")
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
exec python3 perf/generate.py "$BUILD_DIR/offstage" "$directory"
