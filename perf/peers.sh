#!/usr/bin/env bash
# Training steps beside PyTorch and DeepSpeed on the same cores and disk: perf/peers.sh [DIR] (default: the working directory; 12 GB are
# needed there). The first run makes an environment with both from PyPI in PEERS_VENV (build/peers, some GB) unless PEERS_PYTHON names a Python
# that has them. DeepSpeed builds its parts with a C++ compiler and, for storage, libaio's headers. ROUNDS (3), STEPS (8); WAIT (600):
# seconds to wait for an idle machine before each run. TRY=1 takes a small model, to see that everything runs. BUILD_DIR=<dir> uses another build. Some 12 minutes where nobody else runs.
set -euo pipefail
directory=$(realpath -e -- "${1:-.}")
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
python=${PEERS_PYTHON:-}
if [[ -z $python ]]; then
  venv=${PEERS_VENV:-build/peers}
  python=$venv/bin/python
  [[ -x $python ]] || python3 -m venv "$venv"
  for package in torch deepspeed; do
    if ! "$python" -c "import $package" >/dev/null 2>&1; then
      echo "installing $package into $venv"
      "$python" -m pip install --quiet setuptools wheel ninja "$package" >"$venv/pip.log" 2>&1 ||
        echo "$package cannot be installed: $(tail -n 1 "$venv/pip.log")"
    fi
  done
fi
PATH=$(dirname "$(command -v -- "$python")"):$PATH # ninja, for DeepSpeed's builds
exec python3 perf/peers.py "$BUILD_DIR/offstage" "$directory" "$python"
