#!/usr/bin/env bash
# From text to a model that answers: pre-trains a small model on sentences, packs conversations with a loss mask, tunes the
# model on them with validation, exports it with its tokenizer, evaluates it before and after, and asks it a question. It
# takes some minutes on four cores.
#
#   jobs/finetune.sh [DIRECTORY]          everything goes below DIRECTORY (default runs/finetune)
#   STEPS=5 jobs/finetune.sh DIRECTORY    a rehearsal: so many steps of each training, and the answer is not judged
#   OFFSTAGE=PROGRAM RANKS=4 jobs/finetune.sh      another program than this tree's; so many ranks (default 2)
#   PREFIX/share/offstage/jobs/finetune.sh         the installed program
#
# Ends with 0 if the model answers rightly and stops by itself.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
if (($# > 1)) || [[ ${1:-} == -* ]]; then
  echo "finetune: usage: jobs/finetune.sh [DIRECTORY]" >&2
  exit 64
fi
place=$(realpath -m -- "${1:-runs/finetune}")
ranks=${RANKS:-2}
settings=(--config "$here/configs/runs/finetune.cfg" --optimizer.lr=3e-3 --optimizer.min-lr=3e-4)
if [[ -n ${STEPS:-} ]]; then settings+=(--optimizer.warmup-steps=1 "--train.steps=$STEPS"); fi

say() { printf '\n== %s\n' "$*"; }

if [[ ! -e $here/jobs/build.sh ]]; then : "${OFFSTAGE:=$(realpath -m -- "$here/../../bin/offstage")}"; fi  # installed
if [[ -z ${OFFSTAGE:-} ]]; then
  say "Packages and build"
  "$here/jobs/install-packages.sh" build
  "$here/jobs/build.sh" release offstage
  OFFSTAGE=$here/build/release/offstage
fi
offstage() { # COMMAND ...: alone
  "$OFFSTAGE" "$@"
}
export OMPI_MCA_orte_execute_quiet=1 # no banner, of Open MPI 4, for exit codes but 0
together() { # COMMAND ...: on all ranks
  if ((ranks == 1)); then offstage "$@"; else mpirun --oversubscribe --bind-to none -n "$ranks" "$OFFSTAGE" "$@"; fi
}

if [[ -e $place ]]; then
  echo "finetune: $place is there already; name another directory" >&2
  exit 74
fi
mkdir -p "$place"
cd "$place"

say "A tokenizer, sentences and conversations"
python3 "$here/jobs/finetune_data.py" .
cat > template.txt << 'END'
# One line for each role: what text its messages become. What lies in {learn} ... {/learn} counts in the loss.
eos       = "<|end|>"
user      = "<|user|>{content}\n"
assistant = "<|assistant|>{learn}{content}<|end|>{/learn}\n"
END
head -n 2 chats.jsonl

say "Pre-training on sentences"
offstage data pack --from text.jsonl --to text --tokenizer=base --format=megatron
together train --train.steps=150 "${settings[@]}" --run.dir=pretrained --data.train=text --data.cross-documents=true \
  --checkpoint.keep-best=off --train.patience=0 --train.valid-every=0
offstage export --from pretrained --to base-model --like=base

say "Conversations become tokens and a mask of what is learned"
for part in chats valid; do
  offstage data pack --from $part.jsonl --to $part --tokenizer=base-model --template=template.txt --format=megatron
done
offstage data inspect chats --sequence=192 --vocab=259

say "Tuning"
together train "${settings[@]}" --run.dir=tuned --train.init-from=base-model --data.train=chats \
  --data.valid=valid --train.valid-first=on

say "Before and after"
offstage export --from tuned/best --to tuned-model --like=base-model
together evaluate --from base-model --data=valid --sequence=192 --cross-documents=whole
together evaluate --from tuned-model --data=valid --sequence=192 --cross-documents=whole

say "A question"
question="What colour is the sky?"
answer=$(offstage generate --from tuned-model --template=template.txt --prompt="$question" --tokens=60)
printf '%s\n' "$answer"
echo "Everything is in $place; took $SECONDS s"
if [[ -n ${STEPS:-} ]]; then
  exit 0
fi
# What is shown has no special tokens: the question, its line's end, and the answer up to its end.
if [[ $answer == "$question"$'\n'"The sky is blue." ]]; then
  echo "PASS: it answers, and stops by itself"
else
  echo "FAIL: the answer is another one" >&2
  exit 1
fi
