#!/usr/bin/env bash
# Configures and builds a preset of CMakePresets.json: jobs/build.sh PRESET [TARGET...]
# Compiles through ccache where it is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
if (($# == 0)) || [[ $1 == -* ]]; then
  echo "build: usage: jobs/build.sh PRESET [TARGET...]; presets are release, debug, asan-ubsan, tsan and no-cuda" >&2
  exit 64
fi
preset=$1
shift
jobs/fetch-headers.sh || true  # what needs them is left out
mkdir -p build
exec {lock}> "build/$preset.lock"  # two builds in one directory would take each other's files
flock --nonblock "$lock" || { echo "Waiting for another build of $preset"; flock "$lock" || true; }
options=()
if command -v ccache > /dev/null; then options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
cmake --preset "$preset" "${options[@]}"
cmake --build --preset "$preset" --parallel "$(nproc)" ${1:+--target "$@"}
