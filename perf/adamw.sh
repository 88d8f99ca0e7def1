#!/usr/bin/env bash
# The AdamW kernel against an in-place scale of the same memory. BUILD_DIR=<dir> uses another build.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ -z ${BUILD_DIR:-} ]]; then
  BUILD_DIR=build/release
  cmake --preset release >/dev/null
  cmake --build --preset release --target perf_adamw >/dev/null
fi
export OMP_PROC_BIND=${OMP_PROC_BIND:-true}
exec "$BUILD_DIR/perf/perf_adamw"
