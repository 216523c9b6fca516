"""All counters of a device at one moment, for tools that look again and again: the PMU's, and those of the memory path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.tools.memory_counters import Look, look
from libnpu.trace.slices import ENGINES

if TYPE_CHECKING:
    from npu_model.profile import Profile

    from libnpu.runtime import Device


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counters at `time_ps`. `memory` is None at fidelity `fast`, whose memory path counts nothing."""

    profile: Profile
    time_ps: int
    counters: dict[str, int]
    memory: Look | None

    def since(self, before: Snapshot, counter: str) -> int:
        """Return what a counter of the PMU grew by."""
        return self.counters[counter] - before.counters[counter]

    def memory_since(self, before: Snapshot) -> Look | None:
        """Return what was counted of the memory path."""
        return self.memory.since(before.memory) if self.memory and before.memory else self.memory

    def utilisation(self, before: Snapshot, units: dict[str, int]) -> dict[str, float]:
        """Return the share of time for which the units of each engine were at work since `before`, 0 to 1."""
        cycles = self.since(before, "CYCLES")
        return {e: self.since(before, f"{e}_BUSY") / (cycles * units[e]) if cycles else 0.0 for e in ENGINES}


def snapshot(device: Device, origin_ps: int = 0) -> Snapshot:
    """Read a device, at no virtual time. Times are from `origin_ps` on."""
    counts = device.mmio(C.NPU_REG_NOC_PORTS) & 0xFFFF
    return Snapshot(device.profile, device.now_ps - origin_ps, device.counters(), look(device) if counts else None)


def units_of(profile: Profile, tiles: int) -> dict[str, int]:
    """Return how many units of each engine there are for somebody with so many tiles."""
    return {"DMA": profile.dma_ports, "DPU": tiles, "SHAVE": tiles * profile.shaves_per_tile}


def is_own(client: str) -> bool:
    """Tell whether a client of memory is a part of the NPU."""
    return client.startswith("npu")
