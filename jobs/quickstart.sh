#!/usr/bin/env bash
# From a fresh checkout to a model that learned: installs what is missing, builds, trains a small model
# on the C and C++ headers of this machine with the optimizer state on storage, stops it midway by a
# signal, goes on from the checkpoint, compares the result with the text's unigram entropy, and lets the
# model write.
#
#   jobs/quickstart.sh [DIRECTORY]        everything goes below DIRECTORY (default runs/quickstart)
#   OFFSTAGE_SCRATCH=/nvme jobs/quickstart.sh      the optimizer state goes to /nvme/offstage-quickstart
#
# Ends with 0 if the validation loss is at least 0.5 nat below the entropy.
set -euo pipefail
cd "$(dirname "$0")/.."
if (($# > 1)) || [[ ${1:-} == -* ]]; then
  echo "quickstart: usage: jobs/quickstart.sh [DIRECTORY]" >&2
  exit 64
fi
place=$(realpath -m -- "${1:-runs/quickstart}")
run=$place/run
storage=${OFFSTAGE_SCRATCH:+$OFFSTAGE_SCRATCH/offstage-quickstart}
storage=$(realpath -m -- "${storage:-$place/storage}")
config=configs/runs/quickstart.cfg
steps=$(awk -F= '$1 ~ /^ *steps *$/ { print $2 + 0 }' < "$config")

say() { printf '\n== %s\n' "$*"; }

say "Packages and build"
jobs/install-packages.sh build
jobs/build.sh release offstage

say "Text: C and C++ headers of this machine"
if [[ -e $run && ! -f $run/metrics.jsonl ]]; then
  echo "quickstart: $run is there and is no run of Offstage; name another directory" >&2
  exit 74
fi
rm -rf "$run"
mkdir -p "$place" "$storage"
python3 jobs/header_text.py "$place"

# mpirun prints a banner for every exit code but 0; that of Open MPI 4 keeps it to itself if told so.
export OMPI_MCA_orte_execute_quiet=1
train=(tests/mpi.sh 2 build/release/offstage train --config "$config" --run.threads=1
  "--run.dir=$run" "--data.train=$place/train.txt" "--data.valid=$place/valid.txt" "--tiers.path=$storage")

say "Training on 2 ranks until a signal at half of $steps steps"
echo "${train[*]}"
"${train[@]}" &
launcher=$!
trap 'kill "$launcher" 2> /dev/null || true' EXIT
half() { # true once metrics.jsonl has the middle step
  [[ -f $run/metrics.jsonl ]] && grep -q "\"step\": *$((steps / 2))\b" "$run/metrics.jsonl"
}
while kill -0 "$launcher" 2> /dev/null && ! half; do sleep 0.2; done
kill -USR1 "$launcher" 2> /dev/null || true
status=0
wait "$launcher" || status=$?
trap - EXIT
if ((status != 75)); then
  echo "quickstart: the stopped run ended with $status instead of 75 (saved, more to do)" >&2
  exit $((status == 0 ? 1 : status))
fi

say "The same command goes on from the checkpoint"
build/release/offstage checkpoint ls "$run/checkpoints"
"${train[@]}"

say "Result"
python3 - "$place" "$steps" <<'PYTHON'
import collections, json, math, sys

place, steps = sys.argv[1], int(sys.argv[2])
text = open(f"{place}/valid.txt", "rb").read()
entropy = -sum(n / len(text) * math.log(n / len(text)) for n in collections.Counter(text).values())
records = [json.loads(line) for line in open(f"{place}/run/metrics.jsonl")]
done = [r["step"] for r in records if "loss" in r]
assert done == list(range(1, steps + 1)), "metrics.jsonl does not have every step once"
loss = [r["valid_loss"] for r in records if "valid_loss" in r][-1]
good = loss is not None and loss <= entropy - 0.5
print(f"unigram entropy of the validation text  {entropy:.3f} nats per byte")
print(f"validation loss after {steps} steps         {loss:.3f} nats per byte" if loss is not None
      else "validation loss: not finite")
print("PASS: at least 0.5 nat below" if good else "FAIL: not 0.5 nat below")
sys.exit(0 if good else 1)
PYTHON

say "What the model writes after 'static inline '"
build/release/offstage generate --from "$run/checkpoints" --prompt 'static inline ' --tokens 240 --temperature 0.8
echo

cat << END

Run directory  $run
  metrics      $run/metrics.jsonl  (one JSON object per step)
  checkpoints  $run/checkpoints
State on       $storage  (empty between runs: its files live as long as the run)
Look around    build/release/offstage checkpoint ls $run/checkpoints
               build/release/offstage generate --from $run/checkpoints --prompt 'struct ' --temperature 0.8
               h5dump -n $(printf '%s\n' "$run"/checkpoints/step-* | tail -n 1)/master.h5
END
echo "Everything is in $place; took $SECONDS s"
