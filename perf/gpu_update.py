"""What gpu.py's section C measures with perf_share: link, AdamW on the device, and updates of a state in host memory."""
import os
import statistics

from gpu_run import last_json, memory

# Bytes per parameter: p, m and v; beside them in host memory the accumulated gradient.
STATE, HOST = 12, 14
# Parameters are a multiple of what perf_share's 16 layers take in whole chunks.
GRANULE = 16 * 65536
POLICIES = {
    "zero3": ["update.transfers=blocking", "update.device-share=0"],
    "twinflow 20 %": ["update.transfers=blocking", "update.device-share=0", "update.device-resident=0.2"],
    "dos": ["update.device-share=auto"],
    "dos 20 %": ["update.device-share=auto", "update.device-resident=0.2"],
}
# What DEVICE=host pretends to be: a link and rates in the proportions of the H100 machine of Deep Optimizer States.
EMULATION = "device.emulate=h2d=275MB/s,d2h=275MB/s,update=125M,host-update=8860000"


def share(section, *arguments):
    """What perf_share found on the device, as its last line says."""
    setting = "device.kind=cuda" if section.on_gpu else EMULATION
    return last_json(section.call([section.build / "perf" / "perf_share", *arguments, setting]))


def measure_link(section):
    link = share(section, "link")
    section.keep("device", link.pop("device"))
    section.keep("device_bytes", link.pop("device_bytes"))
    section.keep("link", link)
    section.say("link, GB/s              to the device    to the host")
    for name, suffix in (("pinned", ""), ("pinned, both at once", "_both"), ("pageable", "_pageable")):
        section.say(f"  {name:22} {link['to_device' + suffix] / 1e9:12.2f} {link['to_host' + suffix] / 1e9:14.2f}")


def measure_adamw(section):
    # An emulated update rate would be what the copy is held against.
    elements = 64 * GRANULE if section.on_gpu else GRANULE
    setting = "device.kind=cuda" if section.on_gpu else "device.kind=host"
    kernel = last_json(section.call([section.build / "perf" / "perf_share", "kernel", f"parameters={elements}", "steps=7", setting]))
    section.keep("kernel", kernel)
    section.say(f"AdamW on the device: {kernel['parameters_per_second'] / 1e9:.2f} G parameters/s, "
                f"{kernel['update_bytes_per_second'] / 1e9:.0f} GB/s; sums of gradients "
                f"{kernel['accumulate_bytes_per_second'] / 1e9:.0f} GB/s; sums of squares {kernel['norm_bytes_per_second'] / 1e9:.0f} GB/s; "
                f"a copy within it {kernel['copy_bytes_per_second'] / 1e9:.0f} GB/s")


def measure_rates(section):
    rates = share(section, "probe")
    section.keep("rates", rates)
    section.say("rates: " + ", ".join(f"{name} {rate / 1e9:.2f} G/s" for name, rate in rates.items()))


def parameters(section):
    """STATE_GB's, taken as it is; else 24 GB, cut to what host memory has room for."""
    given = os.environ.get("STATE_GB")
    wanted = int(float(given or (24 if section.on_gpu else 0.1)) * 1e9 / STATE)
    # The rest is for the probe, the working copy where the device is emulated, and everyone else.
    room = int(0.75 * memory()["available"] / HOST)
    if given is None and wanted > room:
        section.say(f"state cut from {wanted * STATE / 1e9:.1f} GB to {room * STATE / 1e9:.1f} GB, which host memory has room for")
        wanted = room
    return max(1, wanted // GRANULE) * GRANULE


def measure_updates(section):
    """Each policy's update; what one cannot do, the others can. The planner is told the rates that were measured."""
    count = parameters(section)
    section.keep("state_bytes", count * STATE)
    known = [f"platform.{name}={rate}" for name, rate in section.figures.get("rates", {}).items()]
    # 32 subgroups and chunks as long as a run's; where the state is small, as many of both in proportion.
    subgroup = max(65536, count // 32 // 65536 * 65536)
    chunk = min(4 * 1024 * 1024, subgroup) if section.on_gpu else 65536
    section.say(f"update of {count * STATE / 1e9:.1f} GB of state, {count / 1e9:.3f} G parameters")
    section.say(f"  {'policy':16} {'seconds':>8} {'Gparam/s':>9} {'share':>6} {'expected':>9} {'makespan':>9}")
    for index, (name, keys) in enumerate(POLICIES.items()):
        with section.guard(f"update, {name}", len(POLICIES) - index) as seconds:
            steps = last_json(section.call(
                [section.build / "perf" / "perf_share", "update", f"parameters={count}", f"subgroup={subgroup}", "steps=3",
                 "device.kind=cuda" if section.on_gpu else EMULATION, f"update.device-chunk={chunk}", *known, *keys], seconds))
            row = {key: statistics.median(values) for key, values in steps.items()}
            section.keep("policies", name, {**row, "all_update_seconds": steps["update_seconds"]})
            section.say(f"  {name:16} {row['update_seconds']:8.3f} {count / row['update_seconds'] / 1e9:9.3f} {row['share']:6.3f} "
                        f"{row['expected_seconds']:9.3f} {row['bound_seconds']:9.3f}")


def results(figures):
    """RESULT figures, without the device's name."""
    found, policies = {}, figures.get("policies", {})
    if "kernel" in figures:
        found["adamw_vs_copy"] = figures["kernel"]["update_vs_copy"]
        found["accumulate_vs_copy"] = figures["kernel"]["accumulate_vs_copy"]
        found["norm_vs_copy"] = figures["kernel"]["norm_vs_copy"]
    if "zero3" in policies and "dos" in policies:
        found["dos_speedup_update"] = policies["zero3"]["update_seconds"] / policies["dos"]["update_seconds"]
        if policies["dos"]["bound_seconds"] > 0:  # else the rates are not known
            found["dos_vs_makespan"] = policies["dos"]["bound_seconds"] / policies["dos"]["update_seconds"]
    return found
