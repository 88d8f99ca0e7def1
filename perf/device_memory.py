#!/usr/bin/env python3
"""Deep Optimizer States' Figure 3 on the emulated device: device_memory.py OFFSTAGE [PICTURE]

Trains a small model for some steps with all activations kept and with recomputation, on a device whose memory has no room
for chunks of the update's own. Reads from the traces what of that memory holds something when, prints the peaks of each phase
and a plot of one step, draws the picture if one is named and matplotlib is there, and ends with RESULT lines."""
import bisect
import json
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import save_picture

STEPS, SHOWN = 4, 2  # the step of the tables, counted from 0
VARIANTS = {"all activations kept": "keep", "recomputation by block": "recompute"}
MODEL = {
    "model.family": "gpt2", "model.layers": 6, "model.hidden": 256, "model.heads": 4, "model.vocab": 256,
    "train.sequence": 256, "train.micro-batch": 4, "train.global-batch": 4, "update.subgroup-size": 262144,
    "update.device-share": 0.5, "update.device-chunk": 131072,
    "device.emulate": "h2d=55MB/s,d2h=55MB/s,update=25M,host-update=1.77M",  # share.py's H100 at 1/1000
}
RUN = {"train.steps": STEPS, "train.seed": 7, "optimizer.warmup-steps": 1, "run.threads": 1, "run.trace": "on"}
# Of that share; the device would have room for all, of which the cores' leave it under backward.
GRADIENTS = {"update.device-gradients": "5MiB"}
# From below to above.
SERIES = {"parameters": "P", "resident state": "R", "update chunks": "s", "lent chunks": "l", "held gradients": "h",
          "layer gradient": "g", "activations": "A"}
WIDTH, HEIGHT = 96, 18
MIB = 2 ** 20
SIZE = r"(?:([\d.]+) (B|KiB|MiB|GiB)|-)"


def call(program, command, keys):
    done = subprocess.run([program, command, *(f"--{key}={value}" for key, value in keys.items())],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{program} {command} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def mebibytes(pattern, text):
    """Of the first size that follows."""
    number, unit = re.search(pattern + SIZE, text).groups()
    return float(number) * {"B": 1 / MIB, "KiB": 1 / 1024, "MiB": 1, "GiB": 1024}[unit] if unit else 0.0


class Row:
    """The counter row of a trace, in MiB, and when the phases of a step began and ended."""

    def __init__(self, path):
        events = json.loads(path.read_text())
        counters = sorted((e for e in events if e["ph"] == "C" and e["name"] == "device memory"), key=lambda e: e["ts"])
        self.times = [e["ts"] for e in counters]
        self.values = [{name: e["args"][name] / MIB for name in SERIES} for e in counters]
        passes = {name: sorted(((e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["name"] == name))
                  for name in ("forward", "backward")}
        # Activations are in use from a little before the span on.
        begins = [self.times[bisect.bisect(self.times, begin) - 1] for begin, _ in passes["forward"]]
        ends = [end for _, end in passes["backward"]]
        self.phases = {"forward": (begins[SHOWN], passes["backward"][SHOWN][0]),
                       "backward": (passes["backward"][SHOWN][0], ends[SHOWN]),
                       "update": (ends[SHOWN], begins[SHOWN + 1])}

    def within(self, begin, end):
        """All values in [begin, end)."""
        return self.values[max(0, bisect.bisect_right(self.times, begin) - 1):bisect.bisect_left(self.times, end)]

    def at(self, time):
        return self.values[bisect.bisect_right(self.times, time) - 1]


def total(values):
    return sum(values.values())


def train(program, folder, name, fate):
    keys = {**MODEL, "train.activations": fate}
    table = call(program, "plan", {**keys, **GRADIENTS, "device.memory": "1GiB"})
    limit = mebibytes(r"together +", table) - mebibytes(r"chunks of the update +", table)
    directory = folder / fate
    out = call(program, "train", {**keys, **RUN, "device.memory": f"{int(limit * 1024)}KiB", "run.dir": directory,
                                  "data.train": folder / "train.txt", "data.format": "text"})
    row = Row(directory / "trace-0.json")
    peak = mebibytes(r"device memory per rank: peak ", out)
    print(f"{name}: MiB in use at most, of {limit:.1f} MiB that the device has, {peak:.1f} of them allocated")
    print(f"  {'phase':10} {'ms':>6} {'together':>9}  " + " ".join(f"{each:>14}" for each in SERIES))
    for phase, (begin, end) in row.phases.items():
        values = row.within(begin, end)
        print(f"  {phase:10} {(end - begin) / 1e3:6.0f} {max(map(total, values)):9.1f}  "
              + " ".join(f"{max(v[each] for v in values):14.2f}" for each in SERIES))
    plot(row, limit)
    return row, limit


def plot(row, limit):
    """A step from left to right; a column is the moment of its time at which most is in use."""
    begin, end = row.phases["forward"][0], row.phases["update"][1]
    columns = []
    for i in range(WIDTH):
        low, high = (begin + (end - begin) * (i + n) / WIDTH for n in (0, 1))
        most = max(row.within(low, high), key=total)
        letters, height = "", 0.0
        for name, letter in SERIES.items():
            height += most[name] / limit * HEIGHT
            letters += letter * (round(height) - len(letters))
        columns.append(letters.ljust(HEIGHT))
    for level in reversed(range(HEIGHT)):
        mark = f"{limit * (level + 1) / HEIGHT:6.1f}" if level % 3 == 2 else " " * 6
        print(f"{mark} |" + "".join(column[level] for column in columns).rstrip())
    marks = "".join(phase[:int(WIDTH * (until - since) / (end - begin))].ljust(round(WIDTH * (until - since) / (end - begin)), "-")
                    for phase, (since, until) in row.phases.items())
    print(f"   MiB +{marks}\n        " + ", ".join(f"{letter} {name}" for name, letter in SERIES.items()), flush=True)


def draw(plt, rows):
    figure, axes = plt.subplots(len(rows), 1, figsize=(9, 7))
    for axis, (name, (row, limit)) in zip(axes, rows.items()):
        begin, end = row.phases["forward"][0], row.phases["update"][1]
        inside = [time for time in row.times if begin < time < end]
        times = [begin, *inside, end]
        values = [row.at(time) for time in times]
        axis.stackplot([(time - begin) / 1e3 for time in times], *([v[each] for v in values] for each in SERIES),
                       labels=SERIES, step="post")
        axis.set_ylim(0, 1.12 * limit)
        axis.set_xlim(0, (end - begin) / 1e3)
        axis.axhline(limit, color="black", linestyle="--", linewidth=1)
        for phase, (since, _) in row.phases.items():
            axis.axvline((since - begin) / 1e3, color="grey", linewidth=0.5)
            axis.annotate(phase, ((since - begin) / 1e3, limit), xytext=(3, 3), textcoords="offset points")
        axis.set_title(name)
        axis.set_ylabel("device memory, MiB")
    axes[-1].set_xlabel("milliseconds of a step (dashed: what the device has)")
    axes[0].legend(loc="center", fontsize="small")
    return figure


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    numbers = random.Random(1)
    rows = {}
    with tempfile.TemporaryDirectory(prefix="offstage-device-memory-") as name:
        folder = Path(name)
        (folder / "train.txt").write_bytes(bytes(numbers.choices(range(97, 123), k=20_000)))
        for variant, fate in VARIANTS.items():
            rows[variant] = train(sys.argv[1], folder, variant, fate)
    if len(sys.argv) == 3:
        save_picture(sys.argv[2], draw, rows)
    for fate, (row, limit) in zip(VARIANTS.values(), rows.values()):
        updates = row.within(*row.phases["update"])
        print(f"RESULT device_memory_{fate}_peak_vs_limit {max(map(total, row.values)) / limit:.2f}")
        print(f"RESULT device_memory_{fate}_update_vs_limit {max(map(total, updates)) / limit:.2f}")


if __name__ == "__main__":
    main()
