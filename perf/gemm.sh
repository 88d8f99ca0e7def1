#!/usr/bin/env bash
# Forward and backward of one bf16 block against oneDNN's rate at its shapes. BUILD_DIR=<dir> uses another build.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ -z ${BUILD_DIR:-} ]]; then
  BUILD_DIR=build/release
  cmake --preset release >/dev/null
  cmake --build --preset release --target perf_gemm >/dev/null
fi
unset OMP_NUM_THREADS  # nproc would repeat it
OMP_NUM_THREADS=$(nproc)
export OMP_NUM_THREADS OMP_PROC_BIND=${OMP_PROC_BIND:-true}
exec "$BUILD_DIR/perf/perf_gemm"
