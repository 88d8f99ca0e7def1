#!/usr/bin/env bash
# What a GPU adds, in one call: perf/gpu.sh [JSON]. Runs the tests of label gpu, and again under compute-sanitizer's memcheck
# where that is installed; measures forward and backward of a LLaMA of 1.1 G parameters beside PyTorch (scaled_dot_product_attention,
# compiled and not), by kernel, its training under the policies zero3, twinflow and dos and on storage with a restart, the link,
# the AdamW kernel against a copy within the device, and the update of a state in host memory under the policies. Is meant to take
# less than 10 minutes, and writes all figures to JSON (perf/results/gpu-NAME.json). Ends with 1 if something failed or there is no GPU.
#   STATE_GB=24      GB (10^9 bytes) of optimizer state in host memory; what the host lacks room for is cut
#   DEVICE=host      the whole script on the emulated device instead, with a small state: no figure of a GPU; JSON if named
#   BUILD_DIR=DIR    another build than build/release, which is built otherwise
#   CARRIED=DIR      what jobs/carry-packages.sh brought along, programs included
set -euo pipefail
output=${1:+$(realpath -m -- "$1")}
if [[ -n ${CARRIED:-} ]]; then CARRIED=$(realpath -- "$CARRIED"); fi
if [[ -n ${BUILD_DIR:-} ]]; then BUILD_DIR=$(realpath -- "$BUILD_DIR"); fi
cd "$(dirname "$0")/.."
device=${DEVICE:-cuda}
case $device in
  cuda)
    listed="not installed"
    if command -v nvidia-smi > /dev/null; then listed=$(nvidia-smi -L 2>&1 || true); fi
    if [[ $listed != *GPU\ 0* ]]; then
      echo "perf/gpu.sh: no GPU is to be seen here (nvidia-smi: ${listed:-lists none});" \
        "DEVICE=host tries the script on the emulated device" >&2
      exit 1
    fi
    ;;
  host) ;;
  *)
    echo "perf/gpu.sh: DEVICE=$device; cuda or host" >&2
    exit 64
    ;;
esac
if [[ -n ${CARRIED:-} ]]; then
  if [[ ! -r $CARRIED/env.sh ]]; then
    echo "perf/gpu.sh: CARRIED=$CARRIED has no env.sh; jobs/carry-packages.sh makes one" >&2
    exit 64
  fi
  BUILD_DIR=${BUILD_DIR:-$CARRIED/build}
  # shellcheck source=/dev/null
  source "$CARRIED/env.sh"
fi
if [[ -z ${BUILD_DIR:-} ]]; then
  BUILD_DIR=build/release
  targets=(offstage perf_model perf_share)
  if [[ $device == cuda ]]; then
    targets+=(perf_attention perf_pointwise device_gpu_test kernels_optimizer_gpu_test kernels_pointwise_gpu_test
      kernels_products_gpu_test kernels_attention_gpu_test shared_update_gpu_test)
  fi
  jobs/build.sh release "${targets[@]}" > /dev/null
fi
if [[ ! -x $BUILD_DIR/perf/perf_share ]]; then
  echo "perf/gpu.sh: $BUILD_DIR has no perf/perf_share; build the target perf_share there" >&2
  exit 1
fi
# OpenMP threads that spin after AdamW keep the threads that copy from the CPU.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
exec python3 perf/gpu.py "$device" "$BUILD_DIR" ${output:+"$output"}
