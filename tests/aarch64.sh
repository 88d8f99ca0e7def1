#!/usr/bin/env bash
# Offstage for aarch64, cross-compiled without CUDA, and tests of its kernels and models by an emulator of that processor:
# tests/aarch64.sh [DIR] (build/aarch64 unless told). DIR/root gets Debian's packages for it, which are only unpacked.
# What an emulator of processes cannot show: asynchronous I/O, which it lacks, several ranks, and the order in which cores see
# each other's writes.
set -euo pipefail
cd "$(dirname "$0")/.."
directory=$(realpath -m -- "${1:-build/aarch64}")
tests=(kernels_optimizer_test kernels_pointwise_test kernels_products_test model_gradient_test model_transformer_test)
for tool in aarch64-linux-gnu-g++ qemu-aarch64-static curl; do
  command -v "$tool" > /dev/null || {
    echo "tests/aarch64.sh: $tool is missing; jobs/install-packages.sh build campaign installs it" >&2
    exit 74
  }
done

export AARCH64_ROOT=$directory/root
if [[ ! -e $AARCH64_ROOT/complete ]]; then
  rm -rf "$AARCH64_ROOT" "$directory/apt"
  mkdir -p "$AARCH64_ROOT" "$directory"/apt/{lists,cache/archives}/partial "$directory/apt/packages"
  : > "$directory/apt/status"
  cat > "$directory/apt/conf" << END
APT::Architecture "arm64";
APT::Architectures {"arm64";};
Dir::State::Lists "$directory/apt/lists";
Dir::State::status "$directory/apt/status";
Dir::Cache "$directory/apt/cache";
END
  export APT_CONFIG=$directory/apt/conf
  mapfile -t packages < <(awk '/^\[/ { section = $1 } section == "[build]" && $1 ~ /-dev$/ { print $1 }' jobs/packages.txt)
  apt-get update -qq
  (
    cd "$directory/apt/packages"
    apt-get install --no-install-recommends --yes --print-uris libc6-dev libstdc++-12-dev libgomp1 "${packages[@]}" |
      grep "^'" | cut -d\' -f2 | xargs -P 8 -n 1 curl --silent --show-error --fail --location --remote-name
    for package in *.deb; do dpkg -x "$package" "$AARCH64_ROOT"; done
  )
  touch "$AARCH64_ROOT/complete"
fi

libraries=$AARCH64_ROOT/usr/lib/aarch64-linux-gnu
export PKG_CONFIG_SYSROOT_DIR=$AARCH64_ROOT PKG_CONFIG_LIBDIR=$libraries/pkgconfig:$AARCH64_ROOT/usr/share/pkgconfig
cmake -S . -B "$directory/build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$PWD/tests/aarch64.cmake" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DOFFSTAGE_CUDA=OFF -DOFFSTAGE_PERF=OFF -DOFFSTAGE_PRECOMPILE=ON -DCMAKE_UNITY_BUILD=ON > "$directory/cmake.log"
ninja -C "$directory/build" offstage "${tests[@]}"

emulated=(qemu-aarch64-static -L "$AARCH64_ROOT" -E "LD_LIBRARY_PATH=$libraries:$libraries/openmpi/lib:$AARCH64_ROOT/lib/aarch64-linux-gnu")
export OMPI_MCA_ess_singleton_isolated=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=2
"${emulated[@]}" "$directory/build/offstage" --version
failed=0
for test in "${tests[@]}"; do
  # A limit of memory is the emulator's own, too.
  "${emulated[@]}" "$(find "$directory/build/tests" -name "$test" -type f)" --gtest_brief=1 --gtest_filter=-*MemoryEnds || failed=1
done
exit "$failed"
