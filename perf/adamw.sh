#!/usr/bin/env bash
# The AdamW kernel against an in-place scale of the same memory. BUILD_DIR=<dir> uses another build.
set -euo pipefail
cd "$(dirname "$0")/.."
source perf/prepare.sh
build perf_adamw
export OMP_PROC_BIND=${OMP_PROC_BIND:-true}
exec "$BUILD_DIR/perf/perf_adamw"
