#!/usr/bin/env bash
# What a GPU adds, in four calls of less than nine minutes each: perf/gpu.sh T|A|B|C DIR.
#   T   the tests of label gpu, the cases of tests/e2e/gpu_test.py, and the tests under compute-sanitizer, side by side
#   A   attention and the pointwise kernels alone; forward and backward of a LLaMA of 1.1 G parameters, beside PyTorch (eager,
#       compiled, and with each backend of its attention); the time of each kernel
#   B   training runs of 8 layers of it as zero3, twinflow and dos, with traces; of 4 layers on storage, with a restart
#   C   the link, AdamW and sums of gradients against a copy within the device, updates of a state in host memory
# DIR gets SECTION.json, which always has all figures so far, and SECTION.log; B-POLICY.json.gz are traces, and tests/ has what
# each test printed. Each part has a time of its own, and one that fails or takes too long costs the others nothing. Ends with 1
# if something failed or there is no GPU.
#   STATE_GB=N       GB (10^9 bytes) of optimizer state in C's updates; 24, less where the host lacks room for it, unless told
#   HOST_GB=N        GB of host memory that B's runs may use; three quarters of what the machine shows, 48 at most, unless told
#   PARTS="P..."     these parts alone, behind the facts of the machine: of T tests alone; of A operations passes torch profile;
#                    of B zero3 twinflow dos storage; of C link adamw rates updates
#   SECONDS_LEFT=N   another time than nine minutes, dealt in the same proportions
#   DEVICE=host      the section on the emulated device instead, with a small model: no figure of a GPU
#   BUILD_DIR=DIR    another build than build/release, which is built otherwise, in time that does not count
#   CARRIED=DIR      what jobs/carry-packages.sh brought along, programs included
set -euo pipefail
if (($# != 2)) || [[ ! $1 =~ ^[TABC]$ ]]; then
  echo "usage: perf/gpu.sh T|A|B|C DIR" >&2
  exit 64
fi
section=$1
output=$(realpath -m -- "$2")
if [[ -n ${CARRIED:-} ]]; then CARRIED=$(realpath -- "$CARRIED"); fi
if [[ -n ${BUILD_DIR:-} ]]; then BUILD_DIR=$(realpath -- "$BUILD_DIR"); fi
cd "$(dirname "$0")/.."
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-32}  # as the program asks for itself; 8 to compare
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
  targets=(offstage perf_model perf_pointwise perf_share)
  if [[ $device == cuda ]]; then
    targets+=(perf_attention device_gpu_test kernels_optimizer_gpu_test kernels_pointwise_gpu_test
      kernels_products_gpu_test kernels_attention_gpu_test model_attention_gpu_test shared_update_gpu_test)
  fi
  jobs/build.sh release "${targets[@]}" > /dev/null
fi
if [[ ! -x $BUILD_DIR/offstage ]]; then
  echo "perf/gpu.sh: $BUILD_DIR has no offstage; is it a build?" >&2
  exit 1
fi
# OpenMP threads that spin after AdamW keep the threads that copy from the CPU.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} PYTHONDONTWRITEBYTECODE=1
exec python3 perf/gpu.py "$section" "$device" "$(realpath "$BUILD_DIR")" "$output"
