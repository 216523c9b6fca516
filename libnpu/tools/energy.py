"""What a run cost in joules, and what its engines did meanwhile, from what it added to the PMU counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npu_model.profile import load_profile

from libnpu.tools.console import PS_PER_S, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping

# Part -> what is counted of it
PARTS = {
    "DPU": "multiply-accumulates",
    "SHAVE": "lane operations",
    "CMX": "bytes read and written",
    "NOC": "bytes to and from DDR",
    "DDR": "bytes read and written",
    "STATIC": "idle power over time",
}
FJ_PER_J = 10**15


def energy_json(counters: Mapping[str, int], profile: str) -> dict[str, Any]:
    """Return the energy of a run with `counters`, whole femtojoules by part; `time_ps` is from its launch to its return to the host."""
    parts = {name.lower(): counters[f"ENERGY_{name}"] for name in PARTS}
    time_ps = counters["CYCLES"] * PS_PER_S / load_profile(profile).dpu.clock_hz
    total = sum(parts.values())
    return {
        "parts_fj": parts,
        "total_fj": total,
        "time_ps": round(time_ps),
        "watts": total / FJ_PER_J * PS_PER_S / time_ps if time_ps else 0.0,
    }


def engines_json(counters: Mapping[str, int]) -> dict[str, Any]:
    """Return cycles by engine kind and `mac_util`, the multiply-accumulates done over those offered (None: none was)."""
    offered = counters["DPU_MAC_SLOTS"]
    kinds = {
        kind: {
            "unit_active": counters[f"{kind}_BUSY"],
            "mem_pending": counters[f"{kind}_MEM_PENDING"],
            "mem_stall": counters[f"{kind}_MEM_STALL"],
        }
        for kind in ("DMA", "DPU", "SHAVE")
    }
    return {"mac_util": counters["DPU_MACS"] / offered if offered else None, "cycles": kinds}


def print_engines(engines: dict[str, Any]) -> None:
    """Print the cycles of `engines_json`."""
    rows = [
        (kind, *(f"{cycles[name]:,}" for name in ("unit_active", "mem_pending", "mem_stall")))
        for kind, cycles in engines["cycles"].items()
    ]
    print_table("cycles, all units together", ("engine", "unit active", "memory pending", "memory stall"), rows)


def format_energy(fj: float) -> str:
    """Return femtojoules with the unit that leaves 1 to 999: `1.234 mJ`."""
    for unit, size in (("J", 10**15), ("mJ", 10**12), ("µJ", 10**9), ("nJ", 10**6), ("pJ", 10**3)):
        if fj >= size:
            return f"{fj / size:.3f} {unit}"
    return f"{fj:.0f} fJ"
