#!/usr/bin/env bash
# Builds the release preset and packs it: jobs/packaging/make.sh
# Writes build/release/packages: offstage_VERSION_amd64.deb, offstage.def for Apptainer, and the module file.
set -euo pipefail
cd "$(dirname "$0")/../.."
jobs/build.sh release offstage documents
cpack --config build/release/CPackConfig.cmake
echo "build/release/packages: $(cd build/release/packages && echo offstage* modulefile)"
