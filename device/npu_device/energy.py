"""Energy of what the PMU counts, exact, in femtojoules. That of multiply-accumulates depends on their types: the DPU counts it."""

from __future__ import annotations

from npu_abi import C
from npu_model.profile import Profile

SHAVE, STATIC = int(C.NPU_PMU_ENERGY_SHAVE), int(C.NPU_PMU_ENERGY_STATIC)
CMX, NOC, DDR = int(C.NPU_PMU_ENERGY_CMX), int(C.NPU_PMU_ENERGY_NOC), int(C.NPU_PMU_ENERGY_DDR)
LANE_OPS = int(C.NPU_PMU_SHAVE_LANE_OPS)
CMX_BYTES = tuple(
    map(int, (C.NPU_PMU_DMA_CMX_READ, C.NPU_PMU_DMA_CMX_WRITE, C.NPU_PMU_SRAM_READ, C.NPU_PMU_SRAM_WRITE))
)
DDR_MOVED = int(C.NPU_PMU_DDR_MOVED)


def add_energy(counts: list[int], profile: Profile, time_ps: int) -> None:
    """Set the energies in `counts` (by enum npu_pmu, running totals at `time_ps`) that are sums over other counters and time."""
    energy = profile.energy
    counts[SHAVE] = counts[LANE_OPS] * energy.lane_fj
    counts[CMX] = sum(counts[kind] for kind in CMX_BYTES) * energy.cmx_byte_fj
    counts[NOC] = counts[DDR_MOVED] * energy.noc_byte_fj
    counts[DDR] = counts[DDR_MOVED] * energy.ddr_byte_fj
    counts[STATIC] = energy.static_mw * time_ps  # 1 mW for 1 ps is 1 fJ
