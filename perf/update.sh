#!/usr/bin/env bash
# The update phase of a state on storage against fio on the same directory: perf/update.sh [DIR]
# (default: the working directory; 10 GB are needed there). BUILD_DIR=<dir> uses another build.
set -euo pipefail
directory=$(realpath "${1:-.}")
cd "$(dirname "$0")/.."
if [[ -z ${BUILD_DIR:-} ]]; then
  BUILD_DIR=build/release
  cmake --preset release >/dev/null
  cmake --build --preset release --target perf_update >/dev/null
fi
# OpenMP threads that spin after AdamW keep the I/O threads from the CPU.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
program=$BUILD_DIR/perf/perf_update
rounds=5

scratch=$(mktemp -d "$directory/offstage-perf-XXXXXX")
pages_before=
clean_up() {
  rm -rf "$scratch"
  if [[ -n $pages_before ]]; then echo "$pages_before" >/proc/sys/vm/nr_hugepages; fi
}
trap clean_up EXIT
trap 'exit 1' INT TERM

read -r state_bytes request_bytes depth < <("$program" shape)

# fio's buffers lie on huge pages, as ours do; reserving them takes root.
opponent=engine
if command -v fio >/dev/null && [[ -w /proc/sys/vm/nr_hugepages ]]; then
  pages_before=$(cat /proc/sys/vm/nr_hugepages)
  wanted=$((pages_before + request_bytes * depth / 2097152 + 8))
  echo "$wanted" >/proc/sys/vm/nr_hugepages
  if (($(cat /proc/sys/vm/nr_hugepages) == wanted)); then opponent=fio; fi
fi
if [[ $opponent == engine ]]; then
  echo "no fio, or no right to reserve huge pages for it: compared with Offstage's own I/O engine, without compute"
fi

# fio FILE ARGUMENTS...: bytes per second of reads and writes together.
run_fio() {
  fio --name=update --filename="$scratch/fio" --size="$state_bytes" --bs="$request_bytes" \
    --iodepth="$depth" --ioengine=libaio --direct=1 --overwrite=1 --iomem=mmaphuge --minimal "$@" |
    awk -F';' '{ ms = $9 > $50 ? $9 : $50; printf "%.0f\n", ($6 + $47) * 1024 * 1000 / ms }'
}
run_opponent() {
  if [[ $opponent == fio ]]; then
    run_fio --rw=rw --rwmixread=50 --io_size=$((2 * 2 * state_bytes))
  else
    "$program" engine "$scratch" | tail -n 1
  fi
}
median() { printf '%s\n' "$@" | sort -g | sed -n "$((($# + 1) / 2))p"; }

# In place, in a file that is allocated and written: no appends.
if [[ $opponent == fio ]]; then run_fio --rw=write >/dev/null; fi

ours=()
theirs=()
for ((round = 1; round <= rounds; ++round)); do
  theirs+=("$(run_opponent)")
  "$program" update "$scratch" >"$scratch/log" || { cat "$scratch/log"; exit 1; }
  ours+=("$(tail -n 1 "$scratch/log")")
  head -n -1 "$scratch/log"
  echo "round $round: update ${ours[-1]}, $opponent ${theirs[-1]} bytes/s"
done
awk -v ours="$(median "${ours[@]}")" -v theirs="$(median "${theirs[@]}")" -v name="$opponent" 'BEGIN {
  printf "median: update %.2f GB/s, %s %.2f GB/s\n", ours / 1e9, name, theirs / 1e9
  printf "RESULT update_vs_fio %.2f\n", ours / theirs
}'
