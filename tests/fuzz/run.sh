#!/usr/bin/env bash
# Fuzzes the parsers with libFuzzer, AddressSanitizer and UBSan, beginning with the corpus in the tree:
#   tests/fuzz/run.sh SECONDS [TARGET...]      SECONDS for each target; default all of targets.txt
# New inputs that reach new code stay in build/fuzz/corpus/TARGET; with MERGE=1 they are merged, minimised,
# into tests/fuzz/corpus/TARGET. What fails is left as build/fuzz/TARGET/crash-... and the exit code is 1.
# Needs clang 16 or later (std::source_location); FUZZ_CXX names another compiler.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
seconds=${1:?usage: tests/fuzz/run.sh SECONDS [TARGET...]}
shift
cxx=${FUZZ_CXX:-clang++-16}
out=build/fuzz
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
# HDF5 asks for as much as a damaged size says before it compares a checksum, and goes on where it gets nothing.
# Where C++ asks for so much, the target fails.
export ASAN_OPTIONS=${ASAN_OPTIONS:-allocator_may_return_null=1:max_allocation_size_mb=1024}

# The parsers' rooms, and those of what they call. The linker takes from them what a target needs.
rooms=(base platform/aio platform/h5 platform/memory platform/mpi state data huggingface tokens parquet pack report checkpoint)
packages=(mpi hdf5-serial libxxhash zlib libzstd icu-uc libpcre2-8)
read -ra libraries <<< "$(pkg-config --libs "${packages[@]}") -laio -lsentencepiece"
read -ra headers <<< "$(pkg-config --cflags "${packages[@]}")"
compile=("$cxx" -std=c++20 -O1 -g -w "-fsanitize=address,undefined" -fno-sanitize-recover=all -DFMT_HEADER_ONLY
  -DOMPI_SKIP_MPICXX '-DOFFSTAGE_VERSION="fuzzed"' '-DOFFSTAGE_BUILD=""' '-DOFFSTAGE_LIBRARIES=""' '-DOFFSTAGE_GPU_ARCHITECTURES=""'
  "-I$PWD" "-I$PWD/src" "${headers[@]}")

build_rooms() {
  local room
  rm -rf "$out/rooms" "$out/rooms.a"
  for room in "${rooms[@]}"; do
    mkdir -p "$out/rooms/$room"
    (cd "$out/rooms/$room" && find "$OLDPWD/src/$room" -maxdepth 1 -name '*.cpp' -print0 |
      xargs -0 -P "$(nproc)" -n 2 "${compile[@]}" -fsanitize=fuzzer-no-link -c)
  done
  find "$out/rooms" -name '*.o' -print0 | xargs -0 ar qcs "$out/rooms.a"
}

build() { # NAME
  "${compile[@]}" -fsanitize=fuzzer "$here/${1}_fuzz.cpp" "$out/rooms.a" "${libraries[@]}" -o "$out/${1}_fuzz"
}

fuzz() { # NAME
  mkdir -p "$out/corpus/$1" "$out/$1"
  "$out/${1}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=1000000 -max_len=8192 -verbosity=0 \
    -print_final_stats=1 -artifact_prefix="$out/$1/" "$out/corpus/$1" "$here/corpus/$1"
}

merge() { # NAME
  local merged=$out/merged/$1
  rm -rf "$merged"
  mkdir -p "$merged"
  "$out/${1}_fuzz" -set_cover_merge=1 -use_counters=0 -max_len=1024 -verbosity=0 "$merged" "$here/corpus/$1" "$out/corpus/$1"
  rm -f "$here/corpus/$1"/[0-9a-f]*[0-9a-f]
  cp "$merged"/* "$here/corpus/$1/"
}

mkdir -p "$out"
echo "== rooms"
build_rooms
status=0
while read -r name _; do
  if (($# > 0)) && [[ " $* " != *" $name "* ]]; then
    continue
  fi
  echo "== $name"
  build "$name" || { status=1; continue; }
  fuzz "$name" || status=1
  if [[ ${MERGE:-0} == 1 ]]; then
    merge "$name"
  fi
done < "$here/targets.txt"
exit "$status"
