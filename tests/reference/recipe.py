"""What make_references.py and curves_test.py must agree on with Offstage: which windows of the data a step
sees, its learning rate, and the run itself. Written from the descriptions in src/base/random.hpp,
src/data/dataset.hpp and src/train/step/schedule.hpp, in Python's standard library alone.
"""
import math

STEPS = 50
SEQUENCE = 16
MICRO_BATCH = 2
GLOBAL_BATCH = 8
SEED = 11
VOCAB = 64
WARMUP_STEPS = 5
LEARNING_RATE = 0.02
LEAST_LEARNING_RATE = 0.002
BETAS = (0.9, 0.95)
EPSILON = 1e-8
WEIGHT_DECAY = 0.1
CLIP = 1.0
# No step overflows from here, and 50 do not let it grow: skipped steps would hide what fp16 itself does.
LOSS_SCALE_START = 8192.0
LOSS_SCALE_WINDOW = 2000

WORD = 0xFFFFFFFF


def philox(key, stream, counter):
    """Philox 4x32-10 (Salmon et al., SC '11)."""
    key0, key1 = key & WORD, key >> 32
    c = [counter & WORD, counter >> 32, stream & WORD, stream >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ key0, b & WORD, (a >> 32) ^ c[3] ^ key1, a & WORD]
        key0, key1 = (key0 + 0x9E3779B9) & WORD, (key1 + 0xBB67AE85) & WORD
    return c


def shuffled(index, size, key, epoch):
    """Where index stands in a shuffle of [0, size): six Feistel rounds, walked until they land inside."""
    if size < 2:
        return index
    half = ((size - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for turn in range(6):
            left, right = right, left ^ (philox(key, epoch * 8 + turn, right)[0] & mask)
        index = left << half | right
        if index < size:
            return index


def windows(data):
    """Window w starts at token w T; neighbours share one token."""
    return (len(data) - 1) // SEQUENCE


def window(data, index):
    """Tokens and the targets that follow them."""
    piece = list(data[index * SEQUENCE:(index + 1) * SEQUENCE + 1])
    return piece[:-1], piece[1:]


def micro_batches(data, step):
    """The micro-batches of a step (from 1), each a list of (tokens, targets)."""
    count = windows(data)
    samples = range((step - 1) * GLOBAL_BATCH, step * GLOBAL_BATCH)
    rows = [window(data, shuffled(s % count, count, SEED, s // count)) for s in samples]
    return [rows[i:i + MICRO_BATCH] for i in range(0, GLOBAL_BATCH, MICRO_BATCH)]


def learning_rate(step):
    """Linear warm-up, then a cosine that reaches its least value in the last step."""
    if step <= WARMUP_STEPS:
        return LEARNING_RATE * step / WARMUP_STEPS
    angle = math.pi * (step - WARMUP_STEPS) / (STEPS - WARMUP_STEPS)
    return LEAST_LEARNING_RATE + (LEARNING_RATE - LEAST_LEARNING_RATE) * 0.5 * (1 + math.cos(angle))


def options(dtype):
    """The same run for `offstage train`: key=value."""
    keys = {
        "train.steps": STEPS, "train.sequence": SEQUENCE, "train.micro-batch": MICRO_BATCH,
        "train.global-batch": GLOBAL_BATCH, "train.seed": SEED,
        "optimizer.lr": LEARNING_RATE, "optimizer.min-lr": LEAST_LEARNING_RATE,
        "optimizer.schedule": "cosine", "optimizer.warmup-steps": WARMUP_STEPS,
        "optimizer.beta1": BETAS[0], "optimizer.beta2": BETAS[1], "optimizer.eps": EPSILON,
        "optimizer.weight-decay": WEIGHT_DECAY, "optimizer.clip": CLIP,
        "numerics.dtype": dtype,
    }
    if dtype == "fp16":
        keys |= {"numerics.loss-scale": "dynamic", "numerics.loss-scale-start": int(LOSS_SCALE_START),
                 "numerics.loss-scale-window": LOSS_SCALE_WINDOW}
    return [f"{key}={value}" for key, value in keys.items()]
