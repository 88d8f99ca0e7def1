#!/usr/bin/env bash
# The long checks, beside tests/run.sh: sanitizer builds, clang-tidy, format, fuzzing, failing storage, crashes, killed ranks,
# nodes, many ranks, packages.
#   tests/campaign.sh [STAGE...]      stages: format alone tidy benchmarks whole asan-ubsan tsan fuzz faults sweep crashes schedules
#       placements models kills nodes tokenizers looks scale package aarch64 (all unless told)
#   tests/campaign.sh whole           tests/run.sh with all combinations of settings, all numbers of ranks, each allocation and each
#       call of a pack, a reader or a conversion that fails, in place of a choice of them; also perf/gpu.sh on a bare machine
#   FUZZ_SECONDS=3600 tests/campaign.sh fuzz      so long for each parser (60 unless told)
#   FAULT_SECONDS=3600 FAULT_SEED=7 tests/campaign.sh faults    so long (600 unless told), from that seed on (any)
#   SWEEP_SECONDS=3600 SWEEP_SEED=7 tests/campaign.sh sweep     every file operation of small runs fails: begin no more after so
#       long (all unless told: some 60,000, which take hours); another seed (any) has other errnos at each operation.
#       Ends with RESULT sweep_faults and sweep_bad; a line per bad one says how to repeat it (tests/sweep/sweep.py --help)
#   CRASH_SECONDS=3600 SWEEP_SEED=7 tests/campaign.sh crashes     small runs: a rank killed at each call that changes a file,
#       1,500 of the things that a disk may hold after a loss of power, and 1,500 damages to files of checkpoints: begin no
#       more of each after so long (all unless told: some 7,500 kills)
#   SCHEDULE_SECONDS=86400 SCHEDULE_SEED=7 tests/campaign.sh schedules    likewise, of threads over the smallest pools
#   PLACEMENT_SECONDS=3600 PLACEMENT_SEED=7 tests/campaign.sh placements     random settings of whole runs that are ended again
#       and again, on cores and with CUDA on the CPU, for so long (600 unless told), from that seed on (any)
#   MODEL_SECONDS=3600 MODEL_SEED=7 tests/campaign.sh models     random shapes of models, whose loss is computed anew in Python, on cores
#       and with CUDA on the CPU, for so long (600 unless told), from that seed on (any)
#   KILLS=200 tests/campaign.sh kills             so many (50 unless told), of a job's ranks under Slurm
#   TEXT_MB=20 tests/campaign.sh tokenizers       so many MB of text of each sort (0.5 unless told): tokens against those of the `tokenizers`
#       package, which it installs from PyPI into build/tokenizers unless TOKENIZERS_PYTHON names a Python that has it
#   tests/campaign.sh looks                       `offstage report` in headless Chromium, and event files by the `tensorboard` package, which
#       it installs from PyPI into build/tensorboard unless TENSORBOARD_PYTHON names a Python that has it
#   NODES=losses tests/campaign.sh nodes          tests/nodes/losses_test.py alone (sample, pfs, network, losses unless told).
#       As root: nodes with networks of their own on this machine, with a distributed file system; some 15 minutes
#   SCALE_RANKS=128 tests/campaign.sh scale       so many ranks (64 unless told): the bits of one, and how many messages
# Ends with one line per stage; the exit code is 1 if one failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
jobs=$(nproc)

sources() { # sources ENDING...: files of the tree, one a line
  local ending
  for ending in "$@"; do find src kernels tests perf -name "*.$ending" -type f; done | sort
}

run_format() {
  sources hpp cpp cu | xargs clang-format --dry-run --Werror
}

# The tsan preset's compile commands: without OpenMP and CUDA, whose headers clang does not have. -w: the
# compiler's own warnings are g++'s business.
run_tidy() {
  cmake --preset tsan > /dev/null &&
    find src kernels -name '*.cpp' -type f | sort |
    xargs -P "$jobs" -n 1 clang-tidy-16 -p build/tsan --quiet --extra-arg=-w 2> /dev/null
}

# Each source by itself, without precompiled headers: it includes what it uses. The release preset compiles several together.
run_alone() {
  cmake --preset tsan > /dev/null &&
    python3 -c 'import json, os
for each in json.load(open("build/tsan/compile_commands.json")):
    if os.path.exists(each["file"]):  # else a build makes it
        print("cd", each["directory"], "&&", each["command"], "-fsyntax-only")' |
    xargs -P "$jobs" -d '\n' -n 1 bash -c
}

# That they compile; tests build two of them.
run_benchmarks() {
  jobs/build.sh release benchmarks
}

run_whole() {
  OFFSTAGE_TESTS=all tests/run.sh
}

# With nvcc also the CUDA code on the CPU, as compute-sanitizer's memcheck sees it on a GPU.
# Open MPI and HDF5 keep memory until the process ends. hwloc's PCI plugin leaks a little in libpciaccess and is unloaded
# then, so that no suppression could name it: it stays out. So do Open MPI's, and what cuDNN loads: programs that start these are not
# asked for leaks.
run_asan-ubsan() {
  local failed=0 leaky='^(train_test|cudnn_test|perf_share_runs|perf_launch_runs)' asan=strict_string_checks=1
  local -x UBSAN_OPTIONS=print_stacktrace=1 HWLOC_PLUGINS_BLACKLIST=hwloc_pci.so
  local check=(ctest --test-dir build/asan-ubsan --output-on-failure --parallel "$jobs" --no-tests=error)
  jobs/build.sh asan-ubsan || return
  ASAN_OPTIONS=detect_leaks=1:$asan "${check[@]}" -L unit -E "house|$leaky" || failed=1
  ASAN_OPTIONS=detect_leaks=0:$asan "${check[@]}" -R "$leaky" || failed=1
  return "$failed"
}

# Without OpenMP and MPI, whose own synchronisation TSan does not see; so oneDNN, which brings OpenMP, has one thread.
run_tsan() {
  local tests=(base_test aio_test device_test tiers_test model_transformer_test summing_test update_test
    shared_update_test overlap_test fault_test parameters_test checkpoint_files_test activations_test)
  jobs/build.sh tsan "${tests[@]}" &&
    OMP_NUM_THREADS=1 TSAN_OPTIONS=halt_on_error=1 ctest --test-dir build/tsan --output-on-failure --parallel "$jobs" \
      --no-tests=error -R "^($(IFS='|'; echo "${tests[*]}"))$"
}

run_fuzz() {
  tests/fuzz/run.sh "${FUZZ_SECONDS:-60}"
}

# at_random FOLDER TEST FILTER SECONDS SEED, on each processor, from seeds far apart. A failure says its seed, with
# which the test repeats that round first.
at_random() {
  local folder=$1 test=$2 filter=$3 processes=() process failed=0
  jobs/build.sh release "$test" || return
  for ((process = 0; process < jobs; ++process)); do
    (cd "build/release/tests/$folder" &&
      export OFFSTAGE_FAULT_SECONDS=$4 OFFSTAGE_FAULT_SEED=$(($5 + process * 1000000)) &&
      "./$test" --gtest_filter="$filter") &
    processes+=($!)
  done
  for process in "${processes[@]}"; do wait "$process" || failed=1; done
  return "$failed"
}

# Storage that fails at random under updates.
run_faults() {
  at_random update fault_test 'Faults.AtRandom*' "${FAULT_SECONDS:-600}" "${FAULT_SEED:-$RANDOM}"
}

# Each file operation of small runs, in turn.
run_sweep() {
  jobs/build.sh release offstage faulty_files && tests/sweep/sweep.py
}

# A save ends at any moment, or what it left is damaged.
run_crashes() {
  local failed=0 all=(--seconds "${CRASH_SECONDS:-0}")
  jobs/build.sh release offstage faulty_files || return
  tests/sweep/sweep.py --of kills "${all[@]}" || failed=1
  tests/sweep/sweep.py --of power --sample 1500 "${all[@]}" || failed=1
  tests/sweep/sweep.py --of damage --sample 1500 "${all[@]}" || failed=1
  return "$failed"
}

# Random schedules of threads over the smallest pools: of leases, then of whole updates under backward, half the time
# each.
run_schedules() {
  local seconds=$(((${SCHEDULE_SECONDS:-600} + 1) / 2)) seed=${SCHEDULE_SEED:-$RANDOM} failed=0
  at_random tiers tiers_test 'TrialSchedules.*' "$seconds" "$seed" || failed=1
  at_random update overlap_test 'OverlapSchedules.*' "$seconds" "$seed" || failed=1
  return "$failed"
}

# Random placements of one run after the other, under signals and faults of files: the bits of the plain run. On cores, then
# with CUDA on the CPU, half the time each.
run_placements() {
  local seconds=$(((${PLACEMENT_SECONDS:-600} + 1) / 2)) seed=${PLACEMENT_SEED:-$RANDOM} build=$PWD/build/release failed=0
  local -x FAULTY_FILES=$build/tests/sweep/libfaulty_files.so
  jobs/build.sh release offstage offstage_on_cpu nccl_on_cpu faulty_files || return
  OFFSTAGE=$build/offstage tests/placements.py "$seconds" "$seed" host || failed=1
  # Where NCCL itself is installed, it finds no GPU.
  LD_LIBRARY_PATH=$build/tests/cuda_on_cpu/nccl:${LD_LIBRARY_PATH:-} \
    OFFSTAGE=$build/tests/cuda_on_cpu/offstage_on_cpu tests/placements.py "$seconds" "$seed" cuda || failed=1
  return "$failed"
}

run_models() {
  local build=$PWD/build/release
  jobs/build.sh release offstage offstage_on_cpu || return
  OFFSTAGE=$build/offstage ON_CPU=$build/tests/cuda_on_cpu/offstage_on_cpu \
    tests/models.py "${MODEL_SECONDS:-600}" "${MODEL_SEED:-$RANDOM}"
}

run_kills() {
  jobs/build.sh release offstage && OFFSTAGE=$PWD/build/release/offstage tests/kills.py "${KILLS:-50}"
}

run_tokenizers() {
  local python=${TOKENIZERS_PYTHON:-build/tokenizers/bin/python}
  jobs/build.sh release offstage || return
  if [[ -z ${TOKENIZERS_PYTHON:-} ]]; then
    [[ -x $python ]] || python3 -m venv build/tokenizers || return
    "$python" -c "import tokenizers" > /dev/null 2>&1 || "$python" -m pip install --quiet tokenizers || return
  fi
  OFFSTAGE=$PWD/build/release/offstage "$python" tests/tokens/conformance_test.py --verbose
}

run_looks() {
  local python=${TENSORBOARD_PYTHON:-build/tensorboard/bin/python}
  jobs/build.sh release offstage || return
  if [[ -z ${TENSORBOARD_PYTHON:-} ]]; then
    [[ -x $python ]] || python3 -m venv build/tensorboard || return
    "$python" -c "import tensorboard" > /dev/null 2>&1 || "$python" -m pip install --quiet tensorboard 'setuptools<81' || return
  fi
  OFFSTAGE=$PWD/build/release/offstage TENSORBOARD_PYTHON=$(realpath -s "$python") tests/e2e/looks_test.py --verbose
}

run_nodes() {
  local test failed=0
  slurm/test-cluster/nodes.sh check || { echo "campaign: nodes: left out"; return 0; }
  jobs/build.sh release offstage faulty_files || return
  for test in ${NODES:-sample pfs network losses}; do
    OFFSTAGE=$PWD/build/release/offstage "tests/nodes/${test}_test.py" --verbose || failed=1
  done
  return "$failed"
}

run_scale() {
  jobs/build.sh release offstage &&
    OFFSTAGE=$PWD/build/release/offstage SCALE_RANKS=${SCALE_RANKS:-64} python3 tests/e2e/scale_test.py --verbose
}

# Package, module file and Apptainer definition, in a bare Debian.
run_package() {
  tests/package.sh
}

# Cross-compiled, and its kernels by an emulator.
run_aarch64() {
  tests/aarch64.sh
}

all=(format alone tidy benchmarks whole asan-ubsan tsan fuzz faults sweep crashes schedules placements models kills nodes tokenizers looks scale package aarch64)
stages=("$@")
((${#stages[@]})) || stages=("${all[@]}")
for stage in "${stages[@]}"; do
  if ! declare -F "run_$stage" > /dev/null; then
    echo "campaign: no stage '$stage'; stages are ${all[*]}" >&2
    exit 64
  fi
done
jobs/install-packages.sh build campaign || exit
report=()
failed=0
for stage in "${stages[@]}"; do
  echo "== $stage"
  start=$SECONDS
  if "run_$stage"; then result=passed; else result=FAILED failed=1; fi
  report+=("$(printf '%-12s %s after %d s' "$stage" "$result" $((SECONDS - start)))")
done
echo "== campaign"
printf '%s\n' "${report[@]}"
exit "$failed"
