#!/usr/bin/env bash
# Text to tokens beside Hugging Face's `tokenizers` with all its threads, on the same file and cores: perf/pack.sh [DIR] (default: the
# working directory; 500 MB are needed there). The first run makes an environment with the package from PyPI in PACK_VENV (build/tokenizers)
# unless TOKENIZERS_PYTHON names a Python that has it. ROUNDS (3), MEGABYTES (64) of text. BUILD_DIR=<dir> uses another build. Some 3 minutes.
set -euo pipefail
directory=$(realpath -e -- "${1:-.}")
cd "$(dirname "$0")/.."
source perf/prepare.sh
build offstage
python=${TOKENIZERS_PYTHON:-}
if [[ -z $python ]]; then
  venv=${PACK_VENV:-build/tokenizers}
  python=$venv/bin/python
  [[ -x $python ]] || python3 -m venv "$venv"
  "$python" -c "import tokenizers, numpy" >/dev/null 2>&1 || "$python" -m pip install --quiet tokenizers numpy
fi
exec "$python" perf/pack.py "$BUILD_DIR/offstage" "$directory"
