"""Tile sizes for matrix-engine operations: how many output rows and channels a task computes, and which loop is outside.

Pure arithmetic. Candidates that fit CMX are compared by predicted time: the busiest of DMA, DPU and management core, plus what
cannot overlap (the first loads and the last store; half of the weights, which the operation before hides as a rule). Weights
are loaded once per channel tile (channels outside, or all kept), or once per group of row tiles; activations once per row
tile, where those of a group stay while the channel tiles pass, or once per channel tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from libnpu.compiler.lower.errors import does_not_fit
from libnpu.compiler.lower.view import aligned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from npu_model.profile import Profile

PS_PER_SECOND = 10**12
# What a unit's part of an operation takes at least, to be cut for the sake of others; chosen by trials.
LONG_PS = 3_000_000
GRAIN_PERCENT = 12  # that more tasks may cost, for the sake of others; chosen by trials
USE_MARGIN = 2  # of the time in which a unit uses weights, chosen: it waits for its turn and for barriers, too
SLACK_PERCENT = 3  # of predicted time that fewer tasks may cost; chosen by trials: what the prediction leaves out
_SPLITS = (*range(1, 9), *(k << n for n in range(7) for k in (10, 12, 14, 16)))  # to 1024


@dataclass(slots=True, frozen=True)
class Geometry:
    """What a tile needs, as functions of its output rows r and channels c. Byte functions give 0 for resident operands."""

    rows: int  # of one image; split into tiles of `r`
    row_unit: int  # tiles hold multiples of this many rows, except the last
    images: int
    channels: int
    channel_unit: int  # tiles hold multiples of this many channels, except the last
    act_bytes: Callable[[int, int], int]
    out_bytes: Callable[[int, int], int]  # of the buffer that a task writes
    other_bytes: Callable[[int, int], int]  # of a second operand that each task loads
    stored: bool  # the task's buffer goes to DDR
    weight_bytes: Callable[[int], int]
    act_run_bytes: Callable[[int], int]  # contiguous in DDR when `c` channels are loaded, stored
    out_run_bytes: Callable[[int], int]
    act_per_channel: bool  # a channel tile reads only its own input channels
    parts: int  # engine tasks per tile
    task_cycles: Callable[[Sequence[tuple[int, int]]], list[int]]  # of the engine, for each (rows, channels)
    copied_bytes: Callable[[int], int] = lambda rows: 0  # from CMX to CMX, of a task of `rows`
    inner_bytes: Callable[[int, int], int] = lambda rows, channels: 0  # of what a task writes and only it reads
    weights_stay: bool = False  # in CMX, where another operation has brought them or will find them
    constant_weights: bool = False  # that a task brings in


@dataclass(slots=True, frozen=True)
class TilePlan:
    """The chosen tiling. `keep_weights`: every channel tile stays in CMX for all rows.

    Unless `channels_outside`, the inputs of `group` row tiles stay in CMX while all channel tiles pass, each for the whole group.
    """

    rows: int
    channels: int
    channels_outside: bool
    keep_weights: bool
    tile_bytes: int
    cost_ps: int
    work_ps: int  # of all units together
    tasks: int
    channel_tiles: int  # for each row tile
    group: int = 1


def sizes(total: int, unit: int) -> Iterator[int]:
    """Yield tile sizes that are multiples of `unit` (or `total`), largest first, without repeats."""
    units = -(-total // unit)
    last = 0
    for parts in (*_SPLITS, units):
        size = min(total, -(-units // parts) * unit)
        if size != last and parts <= units:
            last = size
            yield size


def plan_tiles(
    geometry: Geometry,
    rooms_bytes: Sequence[int],
    profile: Profile,
    pingpong: bool,
    operation: str,
    units: int = 1,
    grain: int = 1,
) -> TilePlan:
    """Return the tiling with the fewest tasks among those that are nearly the fastest, but `grain` tiles of rows for each unit where they are long.

    `rooms_bytes` are the bytes that its buffers should and may take, and that those of one task can. `units` engines work at
    once: two sets of buffers for each, when `pingpong`, are tried in all but the last, then one set, at last one in all; one set of
    weights does where units use them in less time than the ports need to bring the others'. Raises CompileError that names `operation`
    when the smallest tile does not fit.
    """
    rows, channels = sizes(geometry.rows, geometry.row_unit), sizes(geometry.channels, geometry.channel_unit)
    tiles = list(product(rows, channels))
    needed = {tile: _tile_bytes(geometry, *tile) for tile in tiles}
    tiles = [tile for tile in tiles if needed[tile] <= rooms_bytes[-1]]
    if not tiles:
        smallest = min(needed, key=lambda tile: needed[tile])
        what = f"a tile of {smallest[0]} rows and {smallest[1]} channels"
        raise does_not_fit(operation, what, needed[smallest], rooms_bytes[-1])
    cycles = dict(zip(tiles, geometry.task_cycles(tiles), strict=True))
    tries = [(room, 2 * units) for room in rooms_bytes[:-1] if pingpong]
    tries += [(rooms_bytes[-2], units), (rooms_bytes[-1], 1)]
    for room, copies in tries:
        plans = [
            plan for tile in tiles for plan in _candidates(geometry, *tile, cycles[tile], room, profile, copies, units)
        ]
        if plans:
            slack = SLACK_PERCENT if grain == 1 else GRAIN_PERCENT
            limit_ps = min(plan.cost_ps for plan in plans) * (100 + slack) // 100
            wanted = max(1, min(grain * units, limit_ps // LONG_PS))
            plans = [plan for plan in plans if plan.cost_ps <= limit_ps]
            # Work beyond that of others hides behind loads here only.
            work_ps = min(plan.work_ps for plan in plans) * (100 + GRAIN_PERCENT) // 100
            return min(
                (p for p in plans if p.work_ps <= work_ps),
                key=lambda p: (
                    max(0, wanted - p.tasks // (p.channel_tiles if grain > 1 else 1)),
                    p.tasks,
                    p.cost_ps,
                    p.tile_bytes,
                ),
            )
    raise AssertionError(f"{operation}: a tile fits, but no loop order does")


def _tile_bytes(geometry: Geometry, rows: int, channels: int) -> int:
    operands = (geometry.act_bytes, geometry.out_bytes, geometry.other_bytes, geometry.inner_bytes)
    return sum(aligned(size(rows, channels)) for size in operands) + geometry.weight_bytes(channels)


def _candidates(
    geometry: Geometry,
    rows: int,
    channels: int,
    cycles: int,
    room: int,
    profile: Profile,
    copies: int,
    units: int,
) -> Iterator[TilePlan]:
    """Yield the loop orders in which tiles of this size fit with `copies` sets of streamed buffers."""
    row_tiles = -(-geometry.rows // rows) * geometry.images
    channel_tiles = -(-geometry.channels // channels)
    tasks = row_tiles * channel_tiles
    act, out, other, inner = (
        aligned(size(rows, channels))
        for size in (geometry.act_bytes, geometry.out_bytes, geometry.other_bytes, geometry.inner_bytes)
    )
    weights, all_weights = geometry.weight_bytes(channels), geometry.weight_bytes(geometry.channels)
    acts_per_row = channel_tiles if geometry.act_per_channel else 1
    buffers = (out + other + inner) * min(copies, tasks) + act * min(copies, row_tiles * acts_per_row)
    stored = out if geometry.stored else 0
    copied = geometry.copied_bytes(rows)
    copied_cycles = copied * tasks // min(profile.dma.bytes_per_cycle, profile.dma.cmx_bytes_per_cycle)
    streams = (stored > 0) + (other > 0) + (copied > 0)
    core = profile.core
    rate = min(profile.ddr.bytes_per_second, profile.dma.bytes_per_cycle * profile.dma.clock_hz * profile.dma_ports)
    latency_ps = round(profile.ddr.latency_ns * 1000) // profile.dma_ports
    dpu_ps = -(-tasks // units) * cycles * PS_PER_SECOND // profile.dpu.clock_hz
    fetched = 0 if geometry.weights_stay else weights
    sets = min(copies, channel_tiles)
    if geometry.constant_weights and fetched:
        # While the ports fill the buffers of some units the others work.
        filled_ps = weights * profile.dma_ports * PS_PER_SECOND // rate * (units // profile.dma_ports - 1)
        used_ps = row_tiles * cycles * PS_PER_SECOND // profile.dpu.clock_hz
        sets = min(sets, units) if used_ps * USE_MARGIN <= filled_ps else sets
    exposed_ps = (act + other + stored + fetched // 2) * PS_PER_SECOND // rate

    def plan(
        outside: bool, keep: bool, held: int, act_loads: int, weight_bytes: int, weight_loads: int, group: int = 1
    ) -> TilePlan:
        traffic = act * act_loads + (other + stored) * tasks + (weight_bytes if fetched else 0)
        transfers = (act_loads if act else 0) + (weight_loads if fetched else 0) + streams * tasks
        port_cycles = _port_cycles(profile, act * act_loads, geometry.act_run_bytes(channels))
        port_cycles += _port_cycles(profile, (other + stored) * tasks, geometry.out_run_bytes(channels))
        port_cycles += copied_cycles
        port_cycles += transfers * (profile.dma.setup_cycles + 1)
        port_ps = port_cycles * PS_PER_SECOND // (profile.dma.clock_hz * profile.dma_ports)
        ddr_ps = traffic * PS_PER_SECOND // rate
        dma_ps = max(ddr_ps, port_ps) + min(ddr_ps, port_ps) // 4 + transfers * latency_ps
        core_cycles = core.fetch_cycles + core.dispatch_cycles + core.barrier_cycles
        core_ps = (tasks * geometry.parts + transfers) * core_cycles * PS_PER_SECOND // core.clock_hz
        # The inputs of a group come when those of the group before have gone.
        waits_ps = max(0, row_tiles - group) * act * PS_PER_SECOND // rate if group > 1 else 0
        # What is copied is what the next task takes.
        waits_ps += copied_cycles * PS_PER_SECOND // (profile.dma.clock_hz * profile.dma_ports)
        cost_ps = max(dma_ps, dpu_ps, core_ps) + exposed_ps + waits_ps
        tile_bytes = act + out + other + inner + held
        return TilePlan(rows, channels, outside, keep, tile_bytes, cost_ps, dpu_ps, tasks, channel_tiles, group)

    if all_weights + buffers <= room:
        yield plan(False, True, all_weights, row_tiles * acts_per_row, all_weights, channel_tiles)
    if channel_tiles > 1 and weights * sets + buffers <= room:
        yield plan(True, False, weights, tasks, all_weights, channel_tiles)
        yield plan(False, False, weights, row_tiles * acts_per_row, all_weights * row_tiles, tasks)
    if channel_tiles > 1 and act and not geometry.act_per_channel:
        sets = max(1, copies // units)  # of weights: all units use one at a time
        for group in _groups(row_tiles, units):
            shares = (out + other + inner, copies), (act, group), (weights, sets)
            if units * sum(size * -(-count // units) for size, count in shares) <= room:
                passes = -(-row_tiles // group)
                held = weights + act * (group - 1)
                yield plan(False, False, held, row_tiles, all_weights * passes, channel_tiles * passes, group)


def _groups(row_tiles: int, units: int) -> Iterator[int]:
    """Yield the numbers of row tiles that may share the weights: as many for each unit, up to all."""
    group = max(2, units)
    while group < row_tiles:
        yield group
        group *= 2
    if row_tiles > 1:
        yield row_tiles


def _port_cycles(profile: Profile, total_bytes: int, run_bytes: int) -> int:
    """Return the cycles of one DMA port for bytes that lie in runs; runs cost extra and short ones count as longer."""
    dma = profile.dma
    per_run = -(-max(run_bytes, dma.min_run_bytes) // dma.bytes_per_cycle) + dma.run_cycles
    return total_bytes // max(run_bytes, 1) * per_run
