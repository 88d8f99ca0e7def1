#!/usr/bin/env bash
# Installs what is missing, builds the release preset and runs all tests:
#   tests/run.sh [CTEST OPTION...]      for example tests/run.sh -L unit, or -R e2e
#   OFFSTAGE_TESTS=all tests/run.sh     more combinations and numbers of ranks, half as long again: tests/campaign.sh whole
# The last line counts the cases that were left out, after a line for each that says why.
set -euo pipefail
cd "$(dirname "$0")/.."
start=$SECONDS
jobs/install-packages.sh build
# For one kind of GPU unless told: half the compiler's time.
export CUDAARCHS=${CUDAARCHS:-90-real}
jobs/build.sh release
built=$SECONDS
status=0
if (($# == 0)); then
  echo "tests/run.sh: label nodes (networks and daemons of their own) is left to tests/campaign.sh nodes"
  left=nodes
  if [[ ${OFFSTAGE_TESTS:-} != all ]]; then
    echo "tests/run.sh: label more (other numbers of ranks, messages beyond 2 GiB, headers by themselves, perf/gpu.sh on a bare machine) is left to tests/campaign.sh whole"
    left+='|more'
  fi
  set -- --label-exclude "^($left)\$"
fi
# Tests share the cores. A rank that waits sleeps, and idle threads do.
export SLEEPING_YIELD=$PWD/build/release/tests/libsleeping_yield.so OMP_WAIT_POLICY=passive
# hwloc reads the machine once for all of them: it takes a virtual one as long as a short run to show its devices.
if lstopo-no-graphics --of xml --force build/release/topology.xml; then
  export HWLOC_XMLFILE=$PWD/build/release/topology.xml HWLOC_THISSYSTEM=1 HWLOC_THISSYSTEM_ALLOWED_RESOURCES=1
fi
# ext4 without a journal looks at the inodes that went shortly before whenever it makes a file, in the group of its
# directory: +T gives each test's directory a group of its own. Not below a long path: a socket's has at most 107 bytes.
if [[ -z ${TMPDIR:-} && ${#PWD} -le 60 ]] && mkdir -p build/release/tmp && chattr +T build/release/tmp 2> /dev/null; then
  export TMPDIR=$PWD/build/release/tmp
fi
# More than cores: most tests wait, for mpirun, Slurm and storage.
ctest --preset release --parallel "$((8 + 2 * $(nproc)))" "$@" || status=$?
echo "tests/run.sh: built in $((built - start)) s, tested in $((SECONDS - built)) s"
tests/skipped.py build/release/Testing/Temporary/LastTest.log || status=$((status == 0 ? 1 : status))
exit "$status"
