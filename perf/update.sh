#!/usr/bin/env bash
# The update phase of a state on storage against fio on the same directory, alone and on two paths together:
# perf/update.sh [DIR] (default: the working directory; 14 GB are needed there). The two paths are two ext4 images on loop
# devices there (root), else two directories of DIR. tiers.verify's cost is measured in /dev/shm (6 GB of memory).
# BUILD_DIR=<dir> uses another build.
set -euo pipefail
directory=$(realpath -e -- "${1:-.}")
cd "$(dirname "$0")/.."
source perf/prepare.sh
build perf_update
# OpenMP threads that spin after AdamW keep the I/O threads from the CPU.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
program=$BUILD_DIR/perf/perf_update
rounds=${ROUNDS:-5}

scratch=$(mktemp -d "$directory/offstage-perf-XXXXXX")
fast=
pages_before=
mounted=() loops=()
clean_up() {
  for place in ${mounted[@]+"${mounted[@]}"}; do umount "$place"; done
  for device in ${loops[@]+"${loops[@]}"}; do losetup --detach "$device"; done
  rm -rf "$scratch" ${fast:+"$fast"}
  if [[ -n $pages_before ]]; then echo "$pages_before" >/proc/sys/vm/nr_hugepages; fi
}
trap clean_up EXIT
trap 'exit 1' INT TERM

read -r state_bytes request_bytes depth < <("$program" shape)

# fio's buffers lie on huge pages, as ours do; reserving them takes root.
opponent=engine
if command -v fio >/dev/null && [[ -w /proc/sys/vm/nr_hugepages ]]; then
  pages_before=$(cat /proc/sys/vm/nr_hugepages)
  wanted=$((pages_before + 2 * (request_bytes * depth / 2097152 + 4)))
  echo "$wanted" >/proc/sys/vm/nr_hugepages
  if (($(cat /proc/sys/vm/nr_hugepages) == wanted)); then opponent=fio; fi
fi
if [[ $opponent == engine ]]; then
  echo "no fio, or no right to reserve huge pages for it: compared with Offstage's own I/O engine, without compute"
fi

# run_fio SIZE IO_SIZE RW DIRECTORY...: bytes per second of reads and writes of all directories together.
run_fio() {
  local size=$1 io_size=$2 rw=$3 jobs=()
  shift 3
  for place in "$@"; do jobs+=(--name="job${#jobs[@]}" --filename="$place/fio"); done
  fio --size="$size" --io_size="$io_size" --rw="$rw" --rwmixread=50 --bs="$request_bytes" --iodepth="$depth" \
    --ioengine=libaio --direct=1 --overwrite=1 --iomem=mmaphuge --group_reporting --minimal "${jobs[@]}" |
    awk -F';' '{ ms = $9 > $50 ? $9 : $50; printf "%.0f\n", ($6 + $47) * 1024 * 1000 / ms }'
}
run_opponent() {
  if [[ $opponent == fio ]]; then
    run_fio $((state_bytes / $#)) $((2 * 2 * state_bytes / $#)) rw "$@"
  else
    "$program" engine "$@" | tail -n 1
  fi
}
median() { printf '%s\n' "$@" | sort -g | sed -n "$((($# + 1) / 2))p"; }

# compare NAME DIRECTORY...: alternating rounds of both, and the median of the rounds' ratios, which a disk whose speed drifts
# over minutes leaves alone.
compare() {
  local name=$1 ours=() theirs=() costs=() ratios=() rate cost
  shift
  # In place, in files that are allocated and written: no appends.
  if [[ $opponent == fio ]]; then run_fio $((state_bytes / $#)) $((state_bytes / $#)) write "$@" >/dev/null; fi
  for ((round = 1; round <= rounds; ++round)); do
    theirs+=("$(run_opponent "$@")")
    "$program" update "$@" >"$scratch/log" || { cat "$scratch/log"; exit 1; }
    read -r rate cost < <(tail -n 1 "$scratch/log")
    ours+=("$rate")
    costs+=("$cost")
    ratios+=("$(awk -v ours="$rate" -v theirs="${theirs[-1]}" 'BEGIN { print ours / theirs }')")
    head -n -1 "$scratch/log"
    echo "round $round: update ${ours[-1]}, $opponent ${theirs[-1]} bytes/s"
  done
  for place in "$@"; do rm -f "$place/fio"; done
  awk -v ours="$(median "${ours[@]}")" -v theirs="$(median "${theirs[@]}")" -v cost="$(median "${costs[@]}")" \
    -v ratio="$(median "${ratios[@]}")" -v name="$name" -v opponent="$opponent" 'BEGIN {
    printf "medians: update %.2f GB/s, %s %.2f GB/s\n", ours / 1e9, opponent, theirs / 1e9
    printf "RESULT %s_vs_fio %.2f\n", name, ratio
    printf "RESULT %s_cpu_seconds_per_gb %.3f\n", name, cost
  }'
}

# An ext4 image of $1 at $2. Its loop device reads and writes the disk itself: through the page cache it would be measured
# as memory. Fails where that is not allowed.
mount_image() {
  local device
  fallocate -l "$1" "$2.image" && mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$2.image" && mkdir -p "$2" &&
    device=$(losetup --find --show --direct-io=on "$2.image") && loops+=("$device") && mount "$device" "$2" &&
    mounted+=("$2")
}

compare update "$scratch"

one=$scratch/one two=$scratch/two
if ! { (($(id -u) == 0)) && mount_image $((state_bytes * 3 / 2 + 1073741824)) "$one" &&
  mount_image $((state_bytes * 3 / 2 + 1073741824)) "$two"; } 2>"$scratch/why"; then
  echo "two plain directories in place of two ext4 images: $(tail -n 1 "$scratch/why" | sed 's/^$/not root/')"
  mkdir -p "$one" "$two"
fi
compare update_two_paths "$one" "$two"

if [[ -w /dev/shm ]] && (($(df --output=avail -B1 /dev/shm | tail -n 1) > state_bytes * 5 / 4)); then
  fast=$(mktemp -d /dev/shm/offstage-perf-XXXXXX)
  "$program" verify "$fast" >"$scratch/log"
  read -r always sample off < <(tail -n 1 "$scratch/log")
  echo "update with tiers.verify=always $always s, sample $sample s, off $off s, on tmpfs"
  awk -v always="$always" -v sample="$sample" -v off="$off" 'BEGIN {
    printf "RESULT verify_always_cost %.2f\nRESULT verify_sample_cost %.2f\n", always / off, sample / off }'
else
  echo "tiers.verify is not measured: /dev/shm lacks the room"
fi
