#!/usr/bin/env bash
# What the scripts beside it share, which source it from the root of the tree. Runs nothing by itself.
set -euo pipefail

# build TARGET: sets BUILD_DIR to build/release and builds TARGET there, unless BUILD_DIR names a build already.
build() {
  if [[ -n ${BUILD_DIR:-} ]]; then return; fi
  BUILD_DIR=build/release
  cmake --preset release >/dev/null
  cmake --build --preset release --target "$1" >/dev/null
}

# find_python PICTURE: prints the Python to run; one that can draw if PICTURE is not empty and there is such.
find_python() {
  # Debian's, which packages.txt names, where another one comes first in PATH.
  if [[ -n $1 && -x /usr/bin/python3 ]] && ! python3 -c "import matplotlib" >/dev/null 2>&1; then
    echo /usr/bin/python3
  else
    echo python3
  fi
}

# find_torch: prints a Python that has PyTorch: PEERS_PYTHON, that of the environment that perf/peers.sh makes, or python3; nothing if
# none has.
find_torch() {
  local python
  for python in "${PEERS_PYTHON:-}" "${PEERS_VENV:-build/peers}/bin/python" python3; do
    if [[ -n $python ]] && "$python" -c "import torch" >/dev/null 2>&1; then
      command -v -- "$python"
      return
    fi
  done
}
