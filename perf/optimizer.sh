#!/usr/bin/env bash
# The optimizer kernels against an in-place scale of the same memory. BUILD_DIR=<dir> uses another build.
set -euo pipefail
cd "$(dirname "$0")/.."
source perf/prepare.sh
build perf_optimizer
export OMP_PROC_BIND=${OMP_PROC_BIND:-true}
exec "$BUILD_DIR/perf/perf_optimizer" "$@"
