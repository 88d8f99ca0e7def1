#!/usr/bin/env bash
# Steps as offstage plan predicts them and as offstage train makes them, on emulated machines that are bound by different
# resources; how long the policy offstage chooses for the largest models; its steps beside those of the papers' policies, and
# beside those of many configurations that are tried, also on random machines: perf/plan.sh [DIR] (default: /dev/shm, where 300 MB
# are needed). BUILD_DIR=<dir> uses another build. PARTS=<words of predictions memory seconds search random policies regret>,
# MACHINES=<words of device path cores memory> and TRIED=<most configurations of a machine> run a part, ROWS=<words> the rows alone
# whose names have one of them, JOBS=<n> so many tried configurations at a time (3): regret takes 5 minutes for each machine then.
# RANDOM_MACHINES=<n> (60) and HAND=<n> (30): so many random machines, and so many random configurations on each by hand.
set -euo pipefail
directory=$(realpath -e -- "${1:-/dev/shm}")
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
exec python3 perf/plan.py "$BUILD_DIR/offstage" "$directory"
