#!/usr/bin/env python3
"""Deep Optimizer States' figures on emulated machines, to scale: share.py PROGRAM [PICTURE]

PROGRAM is perf_share. Two machines of the paper's section 5 (per GPU), slowed down by SCALE, so that the cores that do
the emulated device's work have time to spare. What the planner knows is what `perf_share probe` measures there. Prints
tables, draws the picture if one is named and matplotlib is there, and ends with RESULT lines."""
import json
import statistics
import subprocess
import sys

from measure import save_picture

SCALE = 200
PARAMETERS = 8 * 1024 * 1024
SUBGROUPS = 32

# Giga parameters per second, section 5.4 and Table 1: AdamW on the cores, FP32 to 16 bit on the cores, AdamW on the
# GPU, FP32 over the link in each direction. Ours converts inside AdamW: both together are the cores' rate.
MACHINES = {
    "V100": {"cpu": 2.0, "conversion": 8.7, "gpu": 35.0, "link": 3.0},
    "H100": {"cpu": 2.0, "conversion": 15.5, "gpu": 25.0, "link": 13.75},
}
SHARES = [0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1]
POLICIES = [
    ("zero3", ["update.transfers=blocking", "update.device-share=0"]),
    ("twinflow 20 %", ["update.transfers=blocking", "update.device-share=0", "update.device-resident=0.2"]),
    ("twinflow 50 %", ["update.transfers=blocking", "update.device-share=0", "update.device-resident=0.5"]),
    ("dos", ["update.device-share=auto"]),
    ("dos 20 %", ["update.device-share=auto", "update.device-resident=0.2"]),
    ("dos 50 %", ["update.device-share=auto", "update.device-resident=0.5"]),
]


def emulation(machine, cores=1.0):
    cpu = cores / (1 / machine["cpu"] + 1 / machine["conversion"])
    link = 4e9 * machine["link"] / SCALE
    return (f"device.emulate=h2d={link:.0f},d2h={link:.0f},update={machine['gpu'] * 1e9 / SCALE:.0f},"
            f"host-update={cpu * 1e9 / SCALE:.0f}")


def call(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{program} {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def update(program, arguments, subgroups=SUBGROUPS, steps=3):
    figures = call(program, "update", f"parameters={PARAMETERS}", f"subgroup={PARAMETERS // subgroups}",
                   f"steps={steps}", *arguments)
    return {name: statistics.median(values) for name, values in figures.items()}


def probe(program, setting):
    return [f"platform.{name}={rate}" for name, rate in call(program, "probe", setting).items()]


def sweep_shares(program, setting, rates):
    """Measured and expected seconds by share, and those of the planner's own share."""
    print(f"  {'share':>8} {'measured':>9} {'expected':>9} {'error':>7}   Gparam/s x {SCALE}")
    rows = []
    for share in [*SHARES, "auto"]:
        row = update(program, [setting, *rates, f"update.device-share={share}"])
        row["error"] = abs(row["expected_seconds"] / row["update_seconds"] - 1)
        print(f"  {share if share != 'auto' else 'auto ' + format(row['share'], '.2f'):>8} "
              f"{row['update_seconds']:9.3f} {row['expected_seconds']:9.3f} {row['error']:7.1%}   "
              f"{PARAMETERS / row['update_seconds'] * SCALE / 1e9:.2f}", flush=True)
        rows.append(row)
    return rows[:-1], rows[-1]


def sweep(program, name, setting, rates, variants):
    print(f"{name}")
    for label, arguments, more in variants:
        row = update(program, [setting, *rates, *arguments], **more)
        print(f"  {label:24} {row['update_seconds']:8.3f} s   share {row['share']:.2f}", flush=True)


def draw(plt, sweeps, policies):
    figure, axes = plt.subplots(1, 2, figsize=(11, 4))
    for name, (rows, chosen) in sweeps.items():
        line, = axes[0].plot([r["share"] for r in rows], [r["update_seconds"] for r in rows], "o-", label=f"{name} measured")
        axes[0].plot([r["share"] for r in rows], [r["expected_seconds"] for r in rows], "--", color=line.get_color(),
                     label=f"{name} expected")
        axes[0].plot([chosen["share"]], [chosen["update_seconds"]], "*", markersize=14, color=line.get_color())
    axes[0].set_xlabel("device share (stars: chosen)")
    axes[0].set_ylabel("update, seconds")
    axes[0].legend()
    names = list(policies)
    axes[1].bar([i - 0.2 for i in range(len(names))], [policies[n]["update_seconds"] for n in names], 0.38, label="update")
    axes[1].bar([i + 0.2 for i in range(len(names))], [policies[n]["iteration_seconds"] for n in names], 0.38,
                label="iteration")
    axes[1].set_xticks(range(len(names)), names, rotation=20)
    axes[1].set_ylabel("seconds")
    axes[1].set_title(f"Emulated H100 / {SCALE}")
    axes[1].legend()
    return figure


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    program = sys.argv[1]
    sweeps, bounds, rates = {}, {}, {}
    for name, machine in MACHINES.items():
        setting = emulation(machine)
        rates[name] = probe(program, setting)
        print(f"{name} / {SCALE}, as measured: {' '.join(rates[name])}")
        sweeps[name] = sweep_shares(program, setting, rates[name])
    h100 = emulation(MACHINES["H100"])
    # Forward and backward of the paper's 20 B model take some 0.6 of what ZeRO-3's update takes (Figure 7).
    passes = 0.2 * update(program, [h100, *rates["H100"], *POLICIES[0][1]])["update_seconds"]
    print(f"policies on H100 / {SCALE}, {3 * passes:.2f} s of stand-in for forward and backward")
    print(f"  {'policy':16} {'update':>8} {'iteration':>10}")
    policies = {}
    for name, keys in POLICIES:
        alone = update(program, [h100, *rates["H100"], *keys])
        whole = update(program, [h100, *rates["H100"], *keys, f"pass-seconds={passes}"])
        policies[name] = {**alone, "iteration_seconds": whole["iteration_seconds"]}
        print(f"  {name:16} {alone['update_seconds']:8.3f} {whole['iteration_seconds']:10.3f}", flush=True)
    sweep(program, "subgroup size (Figure 2)", h100, rates["H100"],
          [(f"{PARAMETERS // n // 1024} Ki parameters", ["update.device-share=0.5"], {"subgroups": n}) for n in (8, 16, 32, 64)])
    sweep(program, "resident share (Figures 10, 11)", h100, rates["H100"],
          [(f"{policy} {resident:.1f}", [*keys, f"update.device-resident={resident}"], {})
           for resident in (0, 0.1, 0.2, 0.3, 0.4, 0.5)
           for policy, keys in (("twinflow", POLICIES[0][1]), ("dos", ["update.device-share=auto"]))])
    print("cores per device (Figure 14)")
    for cores in (0.25, 0.5, 1, 2):
        setting = emulation(MACHINES["H100"], cores)
        known = probe(program, setting)
        both = [update(program, [setting, *known, *keys]) for keys in (POLICIES[0][1], ["update.device-share=auto"])]
        print(f"  {cores:5} of them: zero3 {both[0]['update_seconds']:.3f} s, dos {both[1]['update_seconds']:.3f} s, "
              f"share {both[1]['share']:.2f}", flush=True)
    if len(sys.argv) == 3:
        save_picture(sys.argv[2], draw, sweeps, policies)
    errors = [row["error"] for rows, _ in sweeps.values() for row in rows]
    regret = max(chosen["update_seconds"] / min(row["update_seconds"] for row in rows) - 1 for rows, chosen in sweeps.values())
    print(f"RESULT share_prediction_error {max(errors):.3f}")
    print(f"RESULT share_choice_regret {max(0.0, regret):.3f}")
    print(f"RESULT dos_speedup_update {policies['zero3']['update_seconds'] / policies['dos']['update_seconds']:.2f}")
    print(f"RESULT dos_vs_makespan {policies['dos']['bound_seconds'] / policies['dos']['update_seconds']:.2f}")


if __name__ == "__main__":
    main()
