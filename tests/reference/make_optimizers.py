#!/usr/bin/env python3
"""Makes files/optimizers.txt with PyTorch: make_optimizers.py [--out FILE].

Parameters after 50 steps of torch.optim in fp64, a line per optimizer: its name in Offstage, its momentum, then a
number per element. Start, gradients and numbers of the step are the formulas below, exact in fp32;
optimizers_test.cpp has them too.
"""
import argparse
from pathlib import Path

import torch

ELEMENTS = 24
STEPS = 50

DECAY = {"weight_decay": 0.125}
OPTIMIZERS = {
    ("adamw", 0.0): lambda p: torch.optim.AdamW(p, lr=2**-6, betas=(0.875, 0.9375), eps=2**-20, **DECAY),
    ("adam", 0.0): lambda p: torch.optim.Adam(p, lr=2**-6, betas=(0.875, 0.9375), eps=2**-20, **DECAY),
    ("adagrad", 0.0): lambda p: torch.optim.Adagrad(p, lr=2**-6, eps=2**-20, **DECAY),
    ("rmsprop", 0.0): lambda p: torch.optim.RMSprop(p, lr=2**-6, alpha=0.9375, eps=2**-20, **DECAY),
    ("rmsprop", 0.875): lambda p: torch.optim.RMSprop(p, lr=2**-6, alpha=0.9375, eps=2**-20, momentum=0.875, **DECAY),
    ("sgd", 0.0): lambda p: torch.optim.SGD(p, lr=2**-6, **DECAY),
    ("sgd", 0.875): lambda p: torch.optim.SGD(p, lr=2**-6, momentum=0.875, **DECAY),
}


def start(i):
    return (i * 29 % 64 - 31.5) / 16


def gradient(i, step):
    """Of sizes from 1/32 to 32, and zero now and then."""
    return (i * 37 + step * 101) % 64 / 32 * 2.0 ** (i % 6 - 1) - 2.0 ** (i % 6 - 2) * (step % 3)


def trained(make):
    p = torch.tensor([start(i) for i in range(ELEMENTS)], dtype=torch.float64, requires_grad=True)
    optimizer = make([p])
    for step in range(1, STEPS + 1):
        p.grad = torch.tensor([gradient(i, step) for i in range(ELEMENTS)], dtype=torch.float64)
        optimizer.step()
    return p.tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "files/optimizers.txt")
    with parser.parse_args().out.open("w") as out:
        for (name, momentum), make in OPTIMIZERS.items():
            print(name, momentum, *(f"{value:.17g}" for value in trained(make)), file=out)


if __name__ == "__main__":
    main()
