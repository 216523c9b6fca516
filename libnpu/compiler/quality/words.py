"""Why a compiled model takes the time it takes, and what would help most, in words; from the statistics of its blob alone."""

from __future__ import annotations

from typing import Any

_SETS = {
    "DPU": "what the layers ask of all DPUs, however they are cut",
    "SHAVE": "the work of all SHAVEs",
    "DDR": "{compulsory_ddr_bytes} bytes of inputs, outputs and constants, which have to cross to and from DDR",
    "critical path": "the longest chain of layers, each at full width",
    "late weights": "a layer, and behind it the weights of later layers that CMX cannot hold ahead",
}
_LEAST = 0.01  # of the time: what saves less is not worth a word


def explain(report: dict[str, Any]) -> list[str]:
    """Return the lines for the report of a compilation that has `what_ifs`."""
    makespan, bound = report["predicted_makespan_ps"], report["lower_bound_ps"]
    if not makespan:
        return ["Nothing has to be done: the program has no tasks."]
    lines = [
        f"The program is predicted to take {_us(makespan)}, {report['makespan_over_bound']:.2f} times its lower bound of {_us(bound)}.",
        f"The bound is set by {_SETS[report['binding_resource']].format(**report)}; of the others "
        + ", ".join(f"{k} {_us(v)}" for k, v in report["bound_ps"].items() if k != report["binding_resource"])
        + ".",
    ]
    busy = {name: (ps, report["barrier_stall_ps"][name]) for name, ps in report["predicted_busy_ps"].items() if ps}
    lines += [
        f"{name.upper()}: {_us(ps)} of work in {report['tasks'][name]} tasks; units with tasks left wait for others {_us(stall)} in all."
        for name, (ps, stall) in busy.items()
    ]
    exposed = report["exposed_dma_ps"]
    lines.append(f"For {_us(exposed)} ({exposed / makespan:.0%}) DMA runs and no engine works.")
    lines += [f"Attention {a['layer']}: {a['path']} ({a['reason']})." for a in report.get("attention", ())]
    spilled = report["spill_out_bytes"] + report["spill_in_bytes"]
    lines.append(f"Spills move {spilled} bytes." if spilled else "Nothing is spilled.")
    gains = [entry for entry in report["what_ifs"] if entry["saves"] >= _LEAST]
    if not gains:
        return [*lines, "No single change that was tried saves 1 % of the time."]
    lines.append(f"What would help most: {_change(gains[0])}.")
    return [*lines, *(f"Less: {_change(entry)}." for entry in gains[1:])]


def _change(entry: dict[str, Any]) -> str:
    return f"{entry['change']}, by which it would take {_us(entry['makespan_ps'])} ({entry['saves']:.0%} less)"


def _us(ps: int) -> str:
    return f"{ps / 1e6:.1f} us"
