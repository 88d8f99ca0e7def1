#!/usr/bin/env bash
# The long checks, beside tests/run.sh: sanitizer builds, clang-tidy, format, fuzzing, failing storage, killed ranks.
#   tests/campaign.sh [STAGE...]      stages: format tidy asan-ubsan tsan fuzz faults kills (all unless told)
#   FUZZ_SECONDS=3600 tests/campaign.sh fuzz      so long for each parser (60 unless told)
#   FAULT_SECONDS=3600 FAULT_SEED=7 tests/campaign.sh faults    so long (600 unless told), from that seed on (any)
#   KILLS=200 tests/campaign.sh kills             so many (50 unless told), of a job's ranks under Slurm
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

# Open MPI and HDF5 keep memory until the process ends. hwloc's PCI plugin leaks a little in libpciaccess and is unloaded
# then, so that no suppression could name it: it stays out.
run_asan-ubsan() {
  jobs/build.sh asan-ubsan &&
    ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1 HWLOC_PLUGINS_BLACKLIST=hwloc_pci.so \
      ctest --test-dir build/asan-ubsan -L unit -E house --output-on-failure --parallel "$jobs"
}

# Without OpenMP and MPI, whose own synchronisation TSan does not see.
run_tsan() {
  local tests=(base_test aio_test device_test tiers_test update_pipeline_test
    shared_update_test fault_test parameters_test)
  jobs/build.sh tsan "${tests[@]}" &&
    TSAN_OPTIONS=halt_on_error=1 ctest --test-dir build/tsan --output-on-failure --parallel "$jobs" \
      --no-tests=error -R "^($(IFS='|'; echo "${tests[*]}"))$"
}

run_fuzz() {
  tests/fuzz/run.sh "${FUZZ_SECONDS:-60}"
}

# Storage that fails at random under updates, one process on each processor. A failure says its seed, with which
# fault_test repeats that round first.
run_faults() {
  local seed=${FAULT_SEED:-$RANDOM} processes=() process failed=0
  jobs/build.sh release fault_test || return
  for ((process = 0; process < jobs; ++process)); do
    (cd build/release/tests/update &&
      OFFSTAGE_FAULT_SECONDS=${FAULT_SECONDS:-600} OFFSTAGE_FAULT_SEED=$((seed + process * 1000000)) \
        ./fault_test --gtest_filter='Faults.AtRandom*') &
    processes+=($!)
  done
  for process in "${processes[@]}"; do wait "$process" || failed=1; done
  return "$failed"
}

run_kills() {
  jobs/build.sh release offstage && OFFSTAGE=$PWD/build/release/offstage tests/kills.py "${KILLS:-50}"
}

jobs/install-packages.sh build campaign || exit
stages=("$@")
((${#stages[@]})) || stages=(format tidy asan-ubsan tsan fuzz faults kills)
report=()
failed=0
for stage in "${stages[@]}"; do
  if ! declare -F "run_$stage" > /dev/null; then
    echo "campaign: no stage '$stage'; stages are format, tidy, asan-ubsan, tsan, fuzz, faults and kills" >&2
    exit 64
  fi
  echo "== $stage"
  start=$SECONDS
  if "run_$stage"; then result=passed; else result=FAILED failed=1; fi
  report+=("$(printf '%-12s %s after %d s' "$stage" "$result" $((SECONDS - start)))")
done
echo "== campaign"
printf '%s\n' "${report[@]}"
exit "$failed"
