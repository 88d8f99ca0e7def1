#!/usr/bin/env python3
"""Writes files/masked.json: what transformers computes of conversations with a loss mask, packed into windows.

Needs torch and transformers, as make_references.py does. The documents, their masks and the windows that hold them
are written down here, without Offstage's packing; labels are -100 where a token does not count, where a document
begins and where a window holds none. "z_loss": once more with PaLM's auxiliary loss, which no loss here includes. "alone": once more, where a document sees itself alone and its positions
count from its begin.
"""
import json
import random
from pathlib import Path

import torch
import transformers

FILES = Path(__file__).resolve().parent / "files"
MODEL = "llama"
ALONE = "llama", "gpt2", "mistral"
SEQUENCE = 16
VOCAB = 64
STEPS = 5
LEARNING_RATE = 0.01
Z_LOSS = 0.05
# Lengths of documents, window by window; 20 is longer than a window and cut.
WINDOWS = [[10, 7], [9, 8], [17], [20], [12, 5], [11, 4]]


def documents():
    numbers = random.Random(3)
    made = []
    for window in WINDOWS:
        for length in window:
            prompt = numbers.randint(1, length // 2)
            tokens = [numbers.randrange(1, VOCAB) for _ in range(length)]
            made.append({"tokens": tokens, "mask": [0] * prompt + [1] * (length - prompt)})
    return made


def batch(all_documents):
    rest = iter(all_documents)
    ids, labels = [], []
    for window in WINDOWS:
        row, targets = [], []
        for _ in window:
            document = next(rest)
            row += document["tokens"]
            targets += [-100] + [t if m else -100 for t, m in zip(document["tokens"][1:], document["mask"][1:])]
        padding = max(0, SEQUENCE + 1 - len(row))
        ids.append((row + [0] * padding)[:SEQUENCE + 1])
        labels.append((targets + [-100] * padding)[:SEQUENCE + 1])
    return torch.tensor(ids), torch.tensor(labels)


def alone(window):
    """Arguments with which a document sees itself alone, a token so many keys at most: the mask that is added to
    scores, and positions."""
    masks, positions = [], []
    for lengths in WINDOWS:
        place = sum(([i] * n for i, n in enumerate(lengths)), [])[:SEQUENCE + 1]
        place += [len(lengths)] * (SEQUENCE + 1 - len(place))
        positions.append([t - place.index(place[t]) for t in range(SEQUENCE + 1)])
        masks.append([[0.0 if place[key] == place[query] and 0 <= query - key < window else torch.finfo(torch.float32).min
                       for key in range(SEQUENCE + 1)] for query in range(SEQUENCE + 1)])
    return {"attention_mask": torch.tensor(masks)[:, None], "position_ids": torch.tensor(positions)}


def train(name, ids, labels, documents_apart, z_loss=0.0):
    model = transformers.AutoModelForCausalLM.from_pretrained(FILES / name, dtype=torch.float32, attn_implementation="eager")
    arguments = alone(getattr(model.config, "sliding_window", None) or SEQUENCE + 1) if documents_apart else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    losses, norms = [], []
    for _ in range(STEPS):
        output = model(input_ids=ids, labels=labels, **arguments)
        loss = output.loss
        optimizer.zero_grad()
        squares = output.logits[:, :-1].logsumexp(-1)[labels[:, 1:] != -100] ** 2
        (loss + z_loss * squares.mean()).backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
    with torch.no_grad():
        after = model(input_ids=ids, labels=labels, **arguments).loss.item()
    print(f"{name}: losses {losses}, then {after}")
    return {"loss": losses, "grad_norm": norms, "loss_after": after}


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    made = documents()
    ids, labels = batch(made)
    counted = int((labels[:, 1:] != -100).sum())
    (FILES / "masked.json").write_text(json.dumps({
        "model": MODEL, "sequence": SEQUENCE, "steps": STEPS, "learning_rate": LEARNING_RATE, "windows": len(WINDOWS),
        "counted": counted, "documents": made, **train(MODEL, ids, labels, False),
        "z_loss": {"weight": Z_LOSS, **train(MODEL, ids, labels, False, Z_LOSS)},
        "alone": {name: train(name, ids, labels, True) for name in ALONE}}) + "\n")
    print(f"{counted} of {labels.numel()} labels count")


if __name__ == "__main__":
    main()
