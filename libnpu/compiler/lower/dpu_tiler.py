"""Tile sizes for matrix-engine operations: how many output rows and channels a task computes, and which loop is outside.

Pure arithmetic. Candidates that fit CMX are compared by predicted time: the busier of DMA and DPU, plus what cannot overlap
(the first loads and the last store). Weights are loaded once per channel tile (channels outside, or all kept), or once per
row tile; activations once per row tile, or once per channel tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from libnpu.compiler.lower.errors import does_not_fit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npu_model.profile import Profile

_SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)


@dataclass(slots=True, frozen=True)
class Geometry:
    """What a tile needs, as functions of its output rows r and channels c. Byte functions give 0 for resident operands."""

    rows: int  # of one image; split into tiles of `r`
    images: int
    channels: int
    channel_unit: int  # tiles hold multiples of this many channels, except the last
    act_bytes: Callable[[int, int], int]
    out_bytes: Callable[[int, int], int]
    weight_bytes: Callable[[int], int]
    act_per_channel: bool  # a channel tile reads only its own input channels
    compute_ps: int  # of the whole operation, without task overheads


@dataclass(slots=True, frozen=True)
class TilePlan:
    """The chosen tiling. `keep_weights`: every channel tile stays in CMX for all rows."""

    rows: int
    channels: int
    channels_outside: bool
    keep_weights: bool
    tile_bytes: int
    cost_ps: int


def sizes(total: int, unit: int) -> Iterator[int]:
    """Yield tile sizes that are multiples of `unit` (or `total`), largest first, without repeats."""
    units = -(-total // unit)
    last = 0
    for parts in (*_SPLITS, units):
        size = min(total, -(-units // parts) * unit)
        if size != last and parts <= units:
            last = size
            yield size


def plan_tiles(geometry: Geometry, room_bytes: int, profile: Profile, pingpong: bool, operation: str) -> TilePlan:
    """Return the cheapest tiling whose buffers fit `room_bytes`; two sets of them when `pingpong` and they fit at all.

    Raises CompileError that names `operation` when the smallest tile does not fit.
    """
    for copies in (2, 1) if pingpong else (1,):
        plans = list(_candidates(geometry, room_bytes, profile, copies))
        if plans:
            return min(plans, key=lambda p: (p.cost_ps, p.tile_bytes))
    smallest_rows, smallest_channels = (
        min(sizes(geometry.rows, 1)),
        min(sizes(geometry.channels, geometry.channel_unit)),
    )
    needed = _tile_bytes(geometry, smallest_rows, smallest_channels)
    raise does_not_fit(
        operation, f"a tile of {smallest_rows} rows and {smallest_channels} channels", needed, room_bytes
    )


def _tile_bytes(geometry: Geometry, rows: int, channels: int) -> int:
    return geometry.act_bytes(rows, channels) + geometry.out_bytes(rows, channels) + geometry.weight_bytes(channels)


def _candidates(geometry: Geometry, room: int, profile: Profile, copies: int) -> Iterator[TilePlan]:
    all_weights = geometry.weight_bytes(geometry.channels)
    for rows in sizes(geometry.rows, 1):
        row_tiles = -(-geometry.rows // rows) * geometry.images
        for channels in sizes(geometry.channels, geometry.channel_unit):
            channel_tiles = -(-geometry.channels // channels)
            act, out = geometry.act_bytes(rows, channels), geometry.out_bytes(rows, channels)
            weights = geometry.weight_bytes(channels)
            outs = out * min(copies, row_tiles * channel_tiles)
            acts = act * min(copies, row_tiles * (channel_tiles if geometry.act_per_channel else 1))
            reads_per_act = channel_tiles if geometry.act_per_channel else 1
            act_total, out_total = act * row_tiles, out * row_tiles * channel_tiles
            if all_weights + acts + outs <= room:
                traffic = act_total * reads_per_act + out_total + all_weights
                loads = row_tiles * reads_per_act * bool(act) + channel_tiles * bool(weights)
                yield _plan(geometry, profile, rows, channels, False, True, act + out + all_weights, traffic, loads)
            if channel_tiles > 1 and weights * min(copies, channel_tiles) + acts + outs <= room:
                traffic = act_total * channel_tiles + out_total + all_weights
                loads = row_tiles * channel_tiles * bool(act) + channel_tiles
                yield _plan(geometry, profile, rows, channels, True, False, act + out + weights, traffic, loads)
                traffic = act_total * reads_per_act + out_total + all_weights * row_tiles
                loads = row_tiles * (reads_per_act * bool(act) + channel_tiles)
                yield _plan(geometry, profile, rows, channels, False, False, act + out + weights, traffic, loads)


def _plan(
    geometry: Geometry,
    profile: Profile,
    rows: int,
    channels: int,
    channels_outside: bool,
    keep_weights: bool,
    tile_bytes: int,
    traffic: int,
    loads: int,
) -> TilePlan:
    tasks = -(-geometry.rows // rows) * geometry.images * -(-geometry.channels // channels)
    latency_ps = round(profile.ddr.latency_ns * 1000)
    stores = tasks if geometry.out_bytes(1, 1) else 0
    rate = min(profile.ddr.bytes_per_second, profile.dma.bytes_per_cycle * profile.dma.clock_hz * profile.dma_ports)
    dma_ps = traffic * 10**12 // rate + (loads + stores) * latency_ps // profile.dma_ports
    overhead = (profile.dpu.startup_cycles + 2 * profile.dpu.workload_cycles) * 10**12 // profile.dpu.clock_hz
    dpu_ps = geometry.compute_ps + tasks * overhead
    exposed = (
        (geometry.act_bytes(rows, channels) + geometry.weight_bytes(channels) + geometry.out_bytes(rows, channels))
        * 10**12
        // rate
    )
    return TilePlan(rows, channels, channels_outside, keep_weights, tile_bytes, max(dma_ps, dpu_ps) + exposed)
