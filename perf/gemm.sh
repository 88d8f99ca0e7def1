#!/usr/bin/env bash
# Forward and backward of one bf16 block against oneDNN's rate at its shapes. BUILD_DIR=<dir> uses another build.
set -euo pipefail
cd "$(dirname "$0")/.."
source perf/prepare.sh
build perf_gemm
unset OMP_NUM_THREADS  # nproc would repeat it
OMP_NUM_THREADS=$(nproc)
export OMP_NUM_THREADS OMP_PROC_BIND=${OMP_PROC_BIND:-true}
exec "$BUILD_DIR/perf/perf_gemm"
