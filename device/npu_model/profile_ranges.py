"""Which numbers a hardware profile may hold: the limits of the ABI, and what keeps the arithmetic of the clock exact.

Every numeric field of `Profile` has a row, dotted; the values of a table (`lanes`) share one. Both ends are allowed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npu_abi import C, sizeof

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npu_model.profile import Profile

INSN_BYTES = sizeof("npu_shv_insn")
NAME_BYTES = 63  # what the parameters and properties of a device have room for
_HZ = (10**5, 0xFFFFFFFF)  # chosen: slower devices miss the boot time-out; PLL_FREQ_HZ has 32 bits
_CYCLES = (0, 10**6)  # chosen: messages stay within their time-outs
_RATE = (1, 1 << 30)  # per cycle; 2^30 stands for "not the limit"
_NS = (0, 10**9)  # chosen: a second
_FJ = (0, 10**9)  # chosen: a microjoule

RANGES: dict[str, tuple[float, float]] = {
    "tiles": (1, C.NPU_MAX_TILES),
    "shaves_per_tile": (1, C.NPU_MAX_SHAVES_PER_TILE),
    "dma_ports": (1, C.NPU_MAX_DMA_PORTS),
    "barriers_per_tile": (1, C.NPU_MAX_BARRIER_IDS),
    "channel_alignment": (1, 1024),
    "dpu.clock_hz": _HZ,
    "dpu.macs_per_cycle": (0, 1 << 30),  # 0: the type is not offered
    "dpu.startup_cycles": _CYCLES,
    "dpu.workload_cycles": _CYCLES,
    "dpu.context_cycles": _CYCLES,
    "dpu.ppe_elements_per_cycle": _RATE,
    "dpu.ppe_float_elements_per_cycle": _RATE,
    "dpu.cmx_read_bytes_per_cycle": _RATE,
    "dpu.act_read_bytes_per_cycle": _RATE,
    "dpu.wt_read_bytes_per_cycle": _RATE,
    "dpu.cmx_write_bytes_per_cycle": _RATE,
    "dpu.dw_macs_per_cycle": (0, 1 << 30),
    "dpu.dw_channels": _RATE,
    "dpu.dw_block_cycles": _CYCLES,
    "dpu.dw_stride_percent": (0, 1000),
    "dpu.dw_row_columns": (0, 12),
    "dpu.eltwise_elements_per_cycle": _RATE,
    "shave.clock_hz": _HZ,
    "shave.lanes": _RATE,
    "shave.special_cycles": _CYCLES,
    "shave.load_bytes_per_cycle": _RATE,
    "shave.store_bytes_per_cycle": _RATE,
    "shave.strided_elements_per_cycle": _RATE,
    "shave.latency_cycles": _CYCLES,
    "shave.scalar_cycles": _CYCLES,
    "shave.startup_cycles": _CYCLES,
    "shave.max_cycles": (1, 10**9),
    "shave.icache_line_bytes": (INSN_BYTES, C.NPU_PAGE_SIZE),  # a line lies in one page
    "shave.icache_ways": (1, 1024),
    "shave.icache_sets": (1, 1 << 20),
    "shave.fetch_bytes_per_cycle": _RATE,
    "dma.clock_hz": _HZ,
    "dma.bytes_per_cycle": _RATE,
    "dma.cmx_bytes_per_cycle": _RATE,
    "dma.setup_cycles": _CYCLES,
    "dma.run_cycles": _CYCLES,
    "dma.min_run_bytes": (1, 1 << 20),
    "dma.grant_bytes": (256, 1 << 30),  # chosen: fewer bytes mean more events than bytes
    "core.clock_hz": _HZ,
    "core.fetch_cycles": _CYCLES,
    "core.dispatch_cycles": _CYCLES,
    "core.barrier_cycles": _CYCLES,
    "core.job_cycles": _CYCLES,
    "core.command_cycles": _CYCLES,
    "core.message_cycles": _CYCLES,
    "core.fence_cycles": _CYCLES,
    "core.block_cycles": _CYCLES,
    "core.ready_cycles": _CYCLES,
    "core.fifo_depth": (1, 1024),
    "core.starvation_cycles": (1, 1 << 40),
    "core.drain_cycles": (1, 1 << 40),
    "ddr.capacity_bytes": (4 << 20, 1 << 40),  # the driver's own structures fit into 4 MiB
    "ddr.bytes_per_second": (10**6, 10**15),
    "ddr.latency_ns": _NS,
    "cmx.workspace_bytes": (4096, C.NPU_CMX_TILE_STRIDE),
    "cmx.alignment_bytes": (1, 4096),
    "cmx.latency_cycles": _CYCLES,
    "energy.mac_fj": _FJ,
    "energy.lane_fj": _FJ,
    "energy.cmx_byte_fj": _FJ,
    "energy.noc_byte_fj": _FJ,
    "energy.ddr_byte_fj": _FJ,
    "energy.static_mw": (0, 10**6),
    "host.api_call_ns": _NS,
    "host.ioctl_ns": _NS,
    "host.mmio_ns": _NS,
    "host.interrupt_ns": _NS,
    "host.copy_bytes_per_ns": (1e-6, 1e12),
    "host.sync_line_ns": (0, 10**6),
}
TYPES: dict[str, frozenset[str]] = {  # the rows that a table must have, no more and no less
    "dpu.macs_per_cycle": frozenset({"u8", "i8", "f16", "bf16", "f32"}),
    "dpu.act_read_bytes_per_cycle": frozenset({"16x16", "8x16", "4x16"}),
    "dpu.wt_read_bytes_per_cycle": frozenset({"16x16", "8x16", "4x16"}),
    "dpu.dw_macs_per_cycle": frozenset({"u8", "i8", "f16", "bf16", "f32"}),
    "shave.lanes": frozenset({"f32", "f16", "i32"}),
    "energy.mac_fj": frozenset({"u8", "i8", "f16", "bf16", "f32"}),
    "shave.special_cycles": frozenset({"f32", "f16", "i32"}),
}


def problem(profile: Profile) -> str | None:
    """Return what is wrong with the numbers of `profile`, naming field, value and limits; None when nothing is."""
    length = len(profile.name.encode())
    if not 0 < length <= NAME_BYTES:
        return f"name has {length} bytes; 1 to {NAME_BYTES} are allowed"
    for name, (low, high) in RANGES.items():
        value: Any = profile
        for part in name.split("."):
            value = getattr(value, part)
        if name in TYPES and value.keys() != TYPES[name]:
            return f"{name} has {sorted(value)}; it must have {sorted(TYPES[name])}"
        for field, number in _numbers(name, value):
            if not low <= number <= high:
                return f"{field} is {number}; {low} to {high} are allowed"
    line = profile.shave.icache_line_bytes
    if line & (line - 1):
        return f"shave.icache_line_bytes is {line}; it must be a power of two"
    return None


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        yield from ((f"{name}.{key}", number) for key, number in value.items())
    else:
        yield name, value
