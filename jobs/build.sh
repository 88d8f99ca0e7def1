#!/usr/bin/env bash
# Configures and builds a preset of CMakePresets.json: jobs/build.sh PRESET [TARGET...]
# Compiles through ccache where it is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
jobs/fetch-headers.sh || true  # what needs them is left out
options=()
if command -v ccache > /dev/null; then options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
cmake --preset "$preset" "${options[@]}"
cmake --build --preset "$preset" --parallel "$(nproc)" ${1:+--target "$@"}
