"""Matrix-engine operations as tiles: convolution, matmul and pooling share one loop nest over row and channel tiles.

A `Job` says what is computed on [N][Y][X][Z] views; `emit_job` picks a tiling (`dpu_tiler.py`) and appends loads, tasks and
stores. Each task is one invariant with several variants (channel blocks, or row groups).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from npu_abi import C, dtype
from npu_model.cycles import dpu_cycles
from npu_model.dpu_walk import GRIDS
from npu_model.dtypes import code_of_numpy

from libnpu.compiler.lower.dpu_tiler import PS_PER_SECOND, Geometry, TilePlan, plan_tiles
from libnpu.compiler.lower.eltwise import block_rows
from libnpu.compiler.lower.errors import CompileError
from libnpu.compiler.lower.invariant import variant_channels, variants
from libnpu.compiler.lower.view import View, aligned
from libnpu.compiler.lower.weights import ActivationWeights, ConstantWeights, Loaded, WeightSource
from libnpu.compiler.program import Buffer, DpuPayload

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from libnpu.compiler.ir import Node
    from libnpu.compiler.lower.builder import Builder
    from libnpu.compiler.lower.eltwise import Follower
    from libnpu.compiler.lower.tail import Head, Tail

_T = TypeVar("_T")
MPE_PIXELS = 16  # pixels of a MAC block, which a matmul fills from its rows one after the other
_MEMORY_ORDER = (0, 1, 2, 3)
# Bytes of a task's result, chosen: to store as much, or to add to it, takes less than the start of a task.
SMALL_PARTS = 1 << 10
MOST_WHOLE = 1 << 16  # bytes of a result that waits for all of its tasks, chosen: the last store is that much longer


@dataclass(slots=True, frozen=True)
class Window:
    """Kernel geometry along one axis."""

    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    pad: int = 0  # before the first element

    def inputs(self, first: int, count: int) -> tuple[int, int]:
        """Return the input range [lo, hi) that outputs [first, first + count) read; it may leave the tensor."""
        low = first * self.stride - self.pad
        return low, low + (count - 1) * self.stride + (self.kernel - 1) * self.dilation + 1


@dataclass(slots=True, frozen=True)
class Job:
    """One operation on the matrix engine. `act` and `out` are [N][Y][X][Z] views; Z of `out` is split by `weights`.

    With a `follower` or a `tail`, `out` is where that puts its result; the operation's own result is a tile that nobody else sees.
    """

    node: Node
    op: int  # enum npu_dpu_op
    act: View
    out: View
    y: Window
    x: Window
    groups: int
    weights: WeightSource
    fields: dict[str, Any]  # PPE and flags of the invariant
    per_channel: bool = False  # output channel z reads input channel z only
    row_axis: int = 1  # Y, or X for MATMUL
    follower: Follower | None = None
    tail: Tail | None = None  # not beside a follower
    head: Head | None = None  # makes pieces of `act`, which then is nowhere as a whole

    @property
    def last_node(self) -> Node:
        """The node whose result goes to `out`."""
        after = self.follower or self.tail
        return self.node if after is None else after.node

    @property
    def own_dtype(self) -> np.dtype[Any]:
        """The type of the operation's own result."""
        return self.out.dtype if self.tail is None else self.tail.before

    @property
    def writes_home(self) -> bool:
        """Whether the engine writes where the output goes."""
        return self.out_resident and self.follower is None and self.tail is None

    @property
    def act_resident(self) -> bool:
        """Whether the engine can read the input where it is: in CMX with dense channels."""
        return self.act.in_cmx and _channels_dense(self.act)

    @property
    def out_resident(self) -> bool:
        """Whether the engine can write the output where it goes."""
        return self.out.in_cmx and _channels_dense(self.out)

    @property
    def other_resident(self) -> bool:
        """Whether a follower can read its other operand where it is."""
        return self.follower is None or (self.follower.other.in_cmx and _channels_dense(self.follower.other))

    @property
    def taps(self) -> int:
        """Multiply-accumulates, or compared elements, of one output element."""
        channels = 1 if self.per_channel else self.act.shape[3] // self.groups
        return self.y.kernel * self.x.kernel * channels

    def input_channels(self, c0: int, c1: int) -> tuple[int, int]:
        """Return the input channels of output channels [c0, c1), which cover whole groups."""
        if self.per_channel:
            return c0, c1
        if self.groups == 1:
            return 0, self.act.shape[3]
        per_group_in, per_group_out = self.act.shape[3] // self.groups, self.out.shape[3] // self.groups
        return c0 // per_group_out * per_group_in, -(-c1 // per_group_out) * per_group_in


def _channels_dense(view: View) -> bool:
    """Whether channels lie side by side and no two pixels share a byte: what the engine demands of its tensors."""
    if view.shape[3] > 1 and view.strides[3] != view.dtype.itemsize:
        return False
    extent = view.shape[3] * view.dtype.itemsize
    for stride, count in sorted(zip(view.strides[1:3], view.shape[1:3], strict=True)):
        if count > 1:
            if stride < extent:
                return False
            extent += (count - 1) * stride
    return True


def emit_job(builder: Builder, job: Job) -> None:
    """Append the tiles of one operation."""
    job, plan = _planned(builder, with_dense_channels(builder, current_job(builder, job)))
    images, rows, channels = job.out.shape[0], job.out.shape[job.row_axis], job.out.shape[3]
    row_tiles = row_tiles_of(images, rows, plan.rows)
    channel_tiles = [(c0, min(c0 + plan.channels, channels)) for c0 in range(0, channels, plan.channels)]
    builder.expect_ops(job.node, len(row_tiles) * len(channel_tiles))
    whole = _whole_tile(builder, job, len(channel_tiles))
    if whole is not None:
        for task in _tasks(builder, job, plan, row_tiles, channel_tiles, whole):
            last = task
        replace(last, box=job.out, tile=whole, other=None if job.follower is None else job.follower.other).finish(
            builder
        )
        return
    for tasks in batches(_tasks(builder, job, plan, row_tiles, channel_tiles), builder.tiles):
        for task in tasks:
            task.finish(builder)


def _whole_tile(builder: Builder, job: Job, channel_tiles: int) -> View | None:
    """Return a buffer for the whole result of a job in parts so small that to follow or store each would take longer; None
    where its tasks write their parts where they go, or those are large.
    """
    size = job.out.nbytes
    if (
        job.writes_home
        or job.tail is not None
        or size > SMALL_PARTS * channel_tiles
        or size > MOST_WHOLE
        or channel_tiles == 1
    ):
        return None
    return builder.scratch_tile(job.out, _MEMORY_ORDER, job.node)


def emit_in_place(builder: Builder, job: Job) -> None:
    """Append a job as one task; its operands are in CMX, as the engine wants them."""
    row, c = (0, 0, job.out.shape[job.row_axis]), (0, job.out.shape[3])
    job_task(builder, job, load_act(builder, job, row, c), job.weights.load(builder, job.node, *c), row, c)


def with_dense_channels(builder: Builder, job: Job) -> Job:
    """Return the job with an input whose channels lie side by side, so that tiles of it are fetched in long runs."""
    if job.act.shape[3] == 1 or job.act.strides[3] == job.act.dtype.itemsize:
        return job
    return replace(job, act=builder.dense_home(job.act, _MEMORY_ORDER, job.node))


def _tasks(
    builder: Builder,
    job: Job,
    plan: TilePlan,
    row_tiles: list[tuple[int, int, int]],
    channel_tiles: list[tuple[int, int]],
    whole_tile: View | None = None,
) -> Iterator[_Task]:
    """Append the tasks of a plan, each when the one before has been taken; into a buffer for the whole result, where there is one."""

    def task(act: View, loaded: Loaded, row: tuple[int, int, int], c: tuple[int, int]) -> _Task:
        tile = None if whole_tile is None else whole_tile.sliced(*_box(job, row, c))
        return job_task(builder, job, act, loaded, row, c, tile)

    kept: dict[tuple[int, int], Loaded] = {}
    if plan.channels_outside:
        for c in channel_tiles:
            loaded = job.weights.load(builder, job.node, *c)
            for row in row_tiles:
                yield task(load_act(builder, job, row, c), loaded, row, c)
        return
    whole = (0, job.out.shape[3])
    for first in range(0, len(row_tiles), plan.group):
        group = row_tiles[first : first + plan.group]
        own = job.per_channel or job.groups > 1
        acts = [None if own else load_act(builder, job, row, whole) for row in group]
        for c in channel_tiles:
            loaded_c = kept.get(c) or job.weights.load(builder, job.node, *c)
            if plan.keep_weights:
                kept[c] = loaded_c
            for row, act in zip(group, acts, strict=True):
                yield task(act or load_act(builder, job, row, c), loaded_c, row, c)


def batches(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Yield as many tasks as there are tiles at a time: what follows them comes behind all, so that they run side by side."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def row_tiles_of(images: int, rows: int, size: int) -> list[tuple[int, int, int]]:
    """Return (image, first row, row after the last) of every tile of `size` rows."""
    return [(n, r0, min(r0 + size, rows)) for n in range(images) for r0 in range(0, rows, size)]


def _planned(builder: Builder, job: Job) -> tuple[Job, TilePlan]:
    """Return the tiling of a job, and the job with as many of its operands moved to DDR as that takes."""
    while True:
        try:
            return job, plan_of(builder, job)
        except CompileError:
            buffers = [view.target for view in resident_views(job) if isinstance(view.target, Buffer)]
            if not buffers:
                raise
            builder.evict(max(buffers, key=lambda buffer: buffer.size_bytes), job.node)
            job = current_job(builder, job)


def plan_of(builder: Builder, job: Job) -> TilePlan:
    """Return the tiling of a job as it is. Raises CompileError."""
    rooms = builder.rooms(resident_views(job))
    label = f"{job.node.name} ({job.node.op})"
    return plan_tiles(
        geometry_of(builder, job), rooms, builder.profile, builder.pingpong, label, builder.tiles, builder.grain
    )


def resident_views(job: Job) -> list[View]:
    """Return the operands that the engine uses where they are."""
    views = [v for v, used in ((job.act, job.act_resident), (job.out, job.out_resident)) if used]
    if job.follower is not None and job.other_resident:
        views.append(job.follower.other)
    if isinstance(job.weights, ActivationWeights) and job.weights.resident:
        views.append(job.weights.matrix)
    return views


def current_job(builder: Builder, job: Job) -> Job:
    """Return the job with its operands where they are now."""
    weights, follower = job.weights, job.follower
    if isinstance(weights, ActivationWeights):
        weights = replace(weights, matrix=builder.current(weights.matrix))
    if follower is not None:
        follower = replace(follower, other=builder.current(follower.other))
    act, out = builder.current(job.act), builder.current(job.out)
    return replace(job, act=act, out=out, weights=weights, follower=follower)


def geometry_of(builder: Builder, job: Job) -> Geometry:
    unit = builder.profile.channel_alignment
    if job.groups > 1 and not job.per_channel:
        per_group = job.out.shape[3] // job.groups
        unit = per_group * max(1, -(-unit // per_group))
    in_rows, in_columns = job.act.shape[job.row_axis], job.act.shape[3 - job.row_axis]
    out_columns = job.out.shape[3 - job.row_axis]
    window = job.y if job.row_axis == 1 else job.x
    act_streamed, other_streamed, out_resident = not job.act_resident, not job.other_resident, job.out_resident
    tail, own_size = job.tail, job.own_dtype.itemsize
    column_bytes = out_columns * job.out.dtype.itemsize

    def act_bytes(rows: int, channels: int) -> int:
        if not act_streamed:
            return 0
        low, high = job.input_channels(0, channels)
        used = min(in_rows, window.inputs(0, rows)[1] + window.pad)
        return used * in_columns * (high - low) * job.act.dtype.itemsize

    def out_bytes(rows: int, channels: int) -> int:
        return 0 if job.writes_home else rows * column_bytes * channels

    def inner_bytes(rows: int, channels: int) -> int:
        taken, elements = 0, rows * out_columns * channels
        if job.head is not None:
            taken = act_bytes(rows, channels) // job.act.dtype.itemsize * job.head.source.dtype.itemsize
        if tail is None:
            return taken
        return taken + elements * tail.between_bytes + (0 if tail.in_place else aligned(elements * own_size))

    def other_bytes(rows: int, channels: int) -> int:
        return rows * column_bytes * channels if other_streamed else 0

    def act_run_bytes(channels: int) -> int:
        low, high = job.input_channels(0, channels)
        return _run_bytes(job.act, high - low, builder.profile.dma.bytes_per_cycle)

    return Geometry(
        rows=job.out.shape[job.row_axis],
        row_unit=MPE_PIXELS if job.op == C.NPU_DPU_MATMUL else 1,
        images=job.out.shape[0],
        channels=job.out.shape[3],
        channel_unit=min(unit, job.out.shape[3]),
        act_bytes=act_bytes,
        out_bytes=out_bytes,
        other_bytes=other_bytes,
        stored=not out_resident,
        weight_bytes=lambda channels: aligned(job.weights.tile_bytes(channels)),
        act_run_bytes=act_run_bytes,
        out_run_bytes=lambda channels: _out_run_bytes(job, channels, builder.profile.dma.bytes_per_cycle),
        act_per_channel=job.per_channel or job.groups > 1,
        parts=1 + (job.follower is not None) + (0 if tail is None else max(1, len(tail.passes))),
        task_cycles=lambda tiles: task_cycles(builder, job, tiles),
        weights_stay=isinstance(job.weights, ConstantWeights) and job.weights.stays,
        constant_weights=isinstance(job.weights, ConstantWeights),
        inner_bytes=inner_bytes,
    )


def load_act(builder: Builder, job: Job, row: tuple[int, int, int], c: tuple[int, int]) -> View:
    """Return the input of a row tile: a box of the home when resident, else fetched."""
    window = job.y if job.row_axis == 1 else job.x
    low, high = window.inputs(row[1], row[2] - row[1])
    low, high = max(low, 0), min(high, job.act.shape[job.row_axis])
    z0, z1 = job.input_channels(*c)
    starts, extents = [row[0], 0, 0, z0], [1, job.act.shape[1], job.act.shape[2], z1 - z0]
    starts[job.row_axis], extents[job.row_axis] = low, high - low
    if job.head is not None:
        return job.head.piece(builder, starts, extents)
    box = job.act.sliced(starts, extents)
    return box if job.act_resident else builder.fetch_dense(box, _MEMORY_ORDER, job.node, "act")


@dataclass(slots=True, frozen=True)
class _Task:
    """An invariant of a job that has been appended, without what follows it."""

    job: Job
    row: tuple[int, int, int]
    box: View  # of the output
    tile: View  # where the result is
    other: View | None  # of a follower
    final: View | None = None  # where that of a tail goes, unless to a place of its own

    def finish(self, builder: Builder, stores: bool = True) -> View:
        """Append the follower or the tail and, where the home is in DDR and if it `stores`, the store. Return where the result, or the follower's, is in CMX."""
        job, tile = self.job, self.tile
        if job.follower is not None:
            assert self.other is not None
            other = self.other
            if not job.other_resident:
                other = builder.fetch(other, _MEMORY_ORDER, job.follower.node, "other")
            job.follower.emit(builder, tile, other, self.box if job.out_resident else tile)
        if job.tail is not None:
            if self.final is not None:
                tile = self.final
            elif job.out_resident:
                tile = self.box
            elif not job.tail.in_place:
                tile = builder.scratch_tile(self.box, self.box.order(), job.tail.node)
            job.tail.emit(builder, self.tile, tile)
        if job.out_resident:
            return self.box
        if stores:
            builder.flush(self.box, tile, job.node)
        return tile


def _box(job: Job, row: tuple[int, int, int], c: tuple[int, int]) -> tuple[list[int], list[int]]:
    """Return the start and the size, along each axis of a job's output, of rows `row` and channels `c`."""
    starts, extents = [row[0], 0, 0, c[0]], [1, job.out.shape[1], job.out.shape[2], c[1] - c[0]]
    starts[job.row_axis], extents[job.row_axis] = row[1], row[2] - row[1]
    return starts, extents


def job_task(
    builder: Builder,
    job: Job,
    act: View,
    loaded: Loaded,
    row: tuple[int, int, int],
    c: tuple[int, int],
    tile: View | None = None,
) -> _Task:
    """Append one invariant: output rows `row`, channels `c`, into `tile` or else where the job says, or a fresh tile."""
    starts, extents = _box(job, row, c)
    box = job.out.sliced(starts, extents)
    final = tile if job.tail is not None and not job.tail.in_place else None
    if final is not None or tile is None:
        own = replace(box, dtype=job.own_dtype)
        tile = box if job.writes_home else builder.scratch_tile(own, _MEMORY_ORDER, job.node)
    pads = {}
    for axis, window, before, after in ((1, job.y, "pad_top", "pad_bottom"), (2, job.x, "pad_left", "pad_right")):
        first, count = (row[1], row[2] - row[1]) if axis == job.row_axis else (0, job.out.shape[axis])
        low, high = window.inputs(first, count)
        pads[before], pads[after] = max(0, -low), max(0, high - job.act.shape[axis])
    fields = {
        **_static_fields(job),
        "in_x": act.shape[2],
        "in_y": act.shape[1],
        "in_z": act.shape[3],
        "out_x": tile.shape[2],
        "out_y": tile.shape[1],
        "out_z": tile.shape[3],
        "act_stride_x": _stride(act, 2),
        "act_stride_y": _stride(act, 1),
        "out_stride_x": _stride(tile, 2),
        "out_stride_y": _stride(tile, 1),
        "groups": _groups(job, act.shape[3]),
    }
    payload = DpuPayload(
        {"act_addr": act.ref, "out_addr": tile.ref, **loaded.refs}, fields, list(variants(tile.shape[1:], pads))
    )
    builder.dpu(job.node, payload, [act.access(), *loaded.reads], [tile.access()])
    if job.op in (C.NPU_DPU_CONV, C.NPU_DPU_DWCONV, C.NPU_DPU_MATMUL):
        builder.macs += tile.shape[1] * tile.shape[2] * tile.shape[3] * job.taps
    other = job.follower.other.sliced(starts, extents) if job.follower is not None else None
    return _Task(job, row, box, tile, other, final)


def _static_fields(job: Job) -> dict[str, Any]:
    """Return the fields of an invariant that all tasks of the job share."""
    return {
        "op": job.op,
        "kernel_x": job.x.kernel,
        "kernel_y": job.y.kernel,
        "stride_x": job.x.stride,
        "stride_y": job.y.stride,
        "dilation_x": job.x.dilation,
        "dilation_y": job.y.dilation,
        "act_dtype": code_of_numpy(job.act.dtype),
        "wt_dtype": code_of_numpy(job.weights.dtype or job.act.dtype),
        "out_dtype": code_of_numpy(job.own_dtype),
        "mpe_grid": C.NPU_MPE_16X16,  # until the builder knows the fastest one
        **job.fields,
    }


def _groups(job: Job, in_channels: int) -> int:
    if job.per_channel or job.groups == 1:
        return 1
    return in_channels * job.groups // job.act.shape[3]


def _run_bytes(view: View, channels: int, whole_row: int) -> int:
    """Return the length of the runs that a box of `channels` channels has in its home; long rows count as `whole_row` or more."""
    size = view.dtype.itemsize
    if view.shape[3] > 1 and view.strides[3] != size:
        return size
    if channels < view.shape[3] or (view.shape[2] > 1 and view.strides[2] != channels * size):
        return channels * size
    return max(view.shape[2] * channels * size, whole_row)


def _out_run_bytes(job: Job, channels: int, whole_row: int) -> int:
    """Return the length of the runs in which a task's result goes to its home: those of a row where a tail turns it so."""
    size = job.out.dtype.itemsize
    if job.tail is not None and not job.tail.in_place and job.out.strides[2] == size:
        return max(job.out.shape[2] * size, whole_row)
    return _run_bytes(job.out, channels, whole_row)


def far_ps(builder: Builder, job: Job, plan: TilePlan) -> int:
    """Return what it costs that the input of a job is in the CMX of one tile, for the DPUs of all."""
    tile = [(plan.rows, plan.channels)]
    more = task_cycles(builder, job, tile, True)[0] - task_cycles(builder, job, tile)[0]
    passes = -(-plan.tasks // builder.tiles) * (builder.tiles - 1)
    return more * passes * PS_PER_SECOND // (builder.tiles * builder.profile.dpu.clock_hz)


def task_cycles(builder: Builder, job: Job, tiles: Sequence[tuple[int, int]], is_far: bool = False) -> list[int]:
    """Return the engine's cycles of one task for each (rows, channels), by the cost model; `is_far`: its input is in another tile."""
    alike = tuple(_static_fields(job).items()), job.groups, job.per_channel, job.row_axis, job.follower is None
    key = *alike, job.act.shape, job.out.shape, is_far, *tiles
    if key not in builder.task_cycles:
        builder.task_cycles[key] = _task_cycles(builder, job, tiles, is_far)
    found = builder.task_cycles[key]
    if job.tail is None:
        return found
    columns = job.out.shape[3 - job.row_axis]
    return [cycles + job.tail.dpu_cycles(r * c * columns) for cycles, (r, c) in zip(found, tiles, strict=True)]


def _task_cycles(builder: Builder, job: Job, tiles: Sequence[tuple[int, int]], is_far: bool) -> list[int]:
    """As `task_cycles`, without a tail."""
    records = np.zeros(len(tiles), dtype("npu_dpu_invariant"))
    records["act_addr"] = C.NPU_CMX_BASE + C.NPU_CMX_TILE_STRIDE if is_far else 0
    parts = np.zeros(len(tiles), dtype("npu_dpu_variant"))
    for field, value in _static_fields(job).items():
        records[field] = value
    rows, channels = np.array(tiles).T
    along, across = ("y", "x") if job.row_axis == 1 else ("x", "y")
    window = job.y if job.row_axis == 1 else job.x
    taken = np.array([hi - lo for lo, hi in (job.input_channels(0, int(c)) for c in channels)])
    reach = (rows - 1) * window.stride + (window.kernel - 1) * window.dilation + 1
    records[f"in_{along}"] = np.minimum(reach, job.act.shape[job.row_axis])
    records[f"in_{across}"] = job.act.shape[3 - job.row_axis]
    records["in_z"] = taken
    records["groups"] = [_groups(job, int(z)) for z in taken]
    for record, prefix in ((records, "out_"), (parts, "size_")):
        record[prefix + along], record[prefix + across] = rows, job.out.shape[3 - job.row_axis]
        record[prefix + "z"] = channels
    records["variant_count"], records["variant_first"] = 1, np.arange(len(tiles))
    parts["invariant_index"] = np.arange(len(tiles))
    start = builder.profile.dpu.startup_cycles
    each = []
    for most in variant_channels(_static_fields(job), builder.profile.dpu):
        counts = -(-channels // most)
        parts["size_z"] = -(-channels // counts)
        for grid in GRIDS:
            records["mpe_grid"] = grid
            each.append(counts * (dpu_cycles(builder.profile, records, parts) - start) + start)
    found = np.minimum.reduce(each)
    if job.follower is not None:
        parts["size_z"] = channels
        records["op"], records["act_dtype"] = C.NPU_DPU_ELTWISE_ADD, code_of_numpy(job.out.dtype)
        pixels = parts["size_x"] * parts["size_y"]
        parts["size_y"] = [block_rows(int(count)) for count in pixels]
        parts["size_x"] = pixels // parts["size_y"]
        found += dpu_cycles(builder.profile, records, parts)
    return [int(count) for count in found]


def _stride(view: View, axis: int) -> int:
    """Return the byte stride of X (2) or Y (1); the dense one for an axis of one element."""
    if view.shape[axis] > 1:
        return view.strides[axis]
    x = view.strides[2] if view.shape[2] > 1 else view.shape[3] * view.dtype.itemsize
    return x if axis == 2 else x * view.shape[2]
