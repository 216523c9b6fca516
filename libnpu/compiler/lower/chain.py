"""Vertical fusion: layers of the matrix engine of which each reads the result of the one before, band of rows by band of rows.

What lies between them does not fit in CMX as a whole, but a band of it does, with the rows beside it that the next layer's
window sees: these are copied from the band before. All channels of a band are computed, with all weights in CMX. A chain is
fused where that is not slower by prediction than one layer after the other, as other layers have the use of DDR then.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from libnpu.compiler.lower.dpu_ops import (
    batches,
    current_job,
    emit_job,
    far_ps,
    geometry_of,
    job_task,
    load_act,
    plan_of,
    resident_views,
    row_tiles_of,
    with_dense_channels,
)
from libnpu.compiler.lower.dpu_tiler import SLACK_PERCENT, plan_tiles
from libnpu.compiler.lower.errors import CompileError
from libnpu.compiler.lower.view import aligned, dense
from libnpu.compiler.program import DdrKind, DdrTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libnpu.compiler.lower.builder import Builder
    from libnpu.compiler.lower.dpu_ops import Job, Window
    from libnpu.compiler.lower.dpu_tiler import Geometry, TilePlan
    from libnpu.compiler.lower.view import View

BANDS = 3  # for each tile, where that costs little: the next loads come while one is computed; chosen by trials
MAX_LAYERS = 4  # of a chain; chosen: behind more of them bands are mostly rows that are computed again
_FILL = 0.9  # of the room of one operation: a chain has more buffers, of different lives; chosen by trials

Band = tuple[int, int, int]  # image, first row, row after the last


class Link(NamedTuple):
    """A layer of a chain: its job over whole planes, the one that does the same alone, and whether others read its input too."""

    job: Job
    alone: Job
    is_shared: bool


class Chain:
    """Layers of which each reads the result of the one before, as many as are worth it at a time."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._links: list[Link] = []
        self._plan: TilePlan | None = None

    @property
    def last(self) -> Job:
        """The job of the last layer."""
        return self._links[-1].job

    def extend(self, link: Link) -> bool:
        """Take one more layer; False when those before it are emitted for that, as the chain is not worth it with that one."""
        links = [*self._links, link]
        plan = _plan(self._builder, _passing(self._builder, links), links) if 1 < len(links) <= MAX_LAYERS else None
        belongs = plan is not None or not self._links
        if not belongs:
            self.emit()
        self._links, self._plan = (links, plan) if belongs else ([link], None)
        return belongs

    def emit(self) -> None:
        """Append the tasks of the layers."""
        if self._plan is None:
            emit_job(self._builder, self._links[0].alone)
        else:
            shared = [link.is_shared for link in self._links[1:]]
            _emit_bands(self._builder, _passing(self._builder, self._links), self._plan, shared)


def _can_follow(before: Job, then: Job) -> bool:
    """Whether a job may take bands of the result of another one: each sees rows of it, not only padding."""
    y, rows = then.y, then.act.shape[1]
    sees_rows = y.pad <= (y.kernel - 1) * y.dilation and (then.out.shape[1] - 1) * y.stride - y.pad < rows
    return sees_rows and not before.out.in_cmx


def _passing(builder: Builder, links: Sequence[Link]) -> list[Job]:
    """Return jobs whose results, but for the last one's, have no home in CMX: a band of them goes from each to the next."""
    jobs = [current_job(builder, link.job) for link in links]
    for k, (job, then) in enumerate(pairwise(jobs)):
        if job.out.in_cmx:
            nowhere = DdrTensor(job.out.target.name, job.out.nbytes, DdrKind.SCRATCH)
            between = dense(nowhere, job.out.shape, job.out.dtype)
            jobs[k], jobs[k + 1] = replace(jobs[k], out=between), replace(then, act=between)
    return jobs


class _Part(NamedTuple):
    """Rows [low, end) of an image that the next layer of a chain reads for a band; those from `start` on are new."""

    image: int
    low: int
    start: int
    end: int


def _emit_bands(builder: Builder, jobs: list[Job], plan: TilePlan, stores: list[bool]) -> None:
    first, last = with_dense_channels(builder, jobs[0]), jobs[-1]
    jobs = [first, *jobs[1:]]
    weights = [job.weights.load(builder, job.node, 0, job.out.shape[3]) for job in jobs]
    # Of each job: the rows of the band before, and the first of them.
    held: list[tuple[View, int] | None] = [None] * len(jobs)
    ends = [0] * len(jobs)
    for batch in batches(row_tiles_of(last.out.shape[0], last.out.shape[1], plan.rows), builder.tiles):
        parts = [_parts(jobs, band, ends) for band in batch]
        tiles: list[View | None] = [None] * len(batch)
        for k, job in enumerate(jobs):
            tasks, taken, tiles = [], tiles, []
            for act, part in zip(taken, (each[k] for each in parts), strict=True):
                rows, channels = (part.image, part.start, part.end), (0, job.out.shape[3])
                tile = None if job is last or part.low == part.end else _tile(builder, job, part)
                if part.start < part.end:
                    source = act or load_act(builder, first, rows, channels)
                    place = None if tile is None else _rows(tile, part.start - part.low, part.end - part.start)
                    tasks.append(job_task(builder, job, source, weights[k], rows, channels, place))
                tiles.append(tile)
            for task in tasks:
                task.finish(builder, job is last or stores[k])
            for tile, part in zip(tiles, (each[k] for each in parts), strict=True):
                if tile is not None:
                    _keep(builder, job, tile, part, held[k])
                    held[k] = tile, part.low


def _parts(jobs: list[Job], band: Band, ends: list[int]) -> list[_Part]:
    """Return the rows of each job's result for a band of the last one's; `ends` has how many rows there are of each, and is advanced."""
    image, first, end = band
    if first == 0:
        ends[:] = [0] * len(ends)
    found = [_Part(image, first, first, end)]
    for k in range(len(jobs) - 2, -1, -1):
        then = found[-1]
        low = high = ends[k]
        if then.start < then.end:
            low, high = jobs[k + 1].y.inputs(then.start, then.end - then.start)
            low, high = max(low, 0), min(high, jobs[k].out.shape[1])
        found.append(_Part(image, low, min(max(low, ends[k]), high), high))
        ends[k] = max(ends[k], high)
    return found[::-1]


def _tile(builder: Builder, job: Job, part: _Part) -> View:
    """Return a fresh tile for the rows of a part."""
    _, _, columns, channels = job.out.shape
    box = job.out.sliced((part.image, part.low, 0, 0), (1, part.end - part.low, columns, channels))
    return builder.scratch_tile(box, (0, 1, 2, 3), job.node)


def _keep(builder: Builder, job: Job, tile: View, part: _Part, before: tuple[View, int] | None) -> None:
    """Copy the rows of a part that are not new from the tile of the band before."""
    count = part.start - part.low
    if count:
        assert before is not None
        view, low = before
        builder.copy(_rows(tile, 0, count), _rows(view, part.low - low, count), job.node, "halo")


def _rows(view: View, first: int, count: int) -> View:
    return view.sliced((0, first, 0, 0), (1, count, *view.shape[2:]))


def _plan(builder: Builder, jobs: list[Job], links: Sequence[Link]) -> TilePlan | None:
    """Return the tiling of jobs in one loop over the rows of the last; None when that is slower by prediction."""
    jobs = [_as_fetched(jobs[0]), *jobs[1:]]
    first, last = jobs[0], jobs[-1]
    read = {first.act.target, *(job.follower.other.target for job in jobs[:-1] if job.follower is not None)}
    if last.out.target in read or not all(_can_follow(*pair) for pair in pairwise(jobs)):
        return None
    homes = [current_job(builder, link.job).out for link in links[:-1]]
    rooms = builder.rooms([view for job in jobs for view in resident_views(job)], homes)
    room = int(rooms[0] * _FILL)
    try:
        plan = plan_tiles(
            _bands(jobs, [geometry_of(builder, job) for job in jobs]),
            (room, room, min(room, rooms[-1])),
            builder.profile,
            builder.pingpong,
            "",
            builder.tiles,
            BANDS,
        )
        apart_ps = sum(_alone_ps(builder, _as_fetched(current_job(builder, link.alone))) for link in links)
    except CompileError:
        return None
    return plan if plan.cost_ps * (100 + SLACK_PERCENT) <= apart_ps * 100 else None


def _alone_ps(builder: Builder, job: Job) -> int:
    """Return the time of a job by itself, which may read its input from another tile."""
    plan = plan_of(builder, job)
    is_far = job.act_resident and builder.cannot_be_everywhere(job.act)
    return plan.cost_ps + (far_ps(builder, job, plan) if is_far else 0)


def _as_fetched(job: Job) -> Job:
    """Return a job whose input is in DDR with its channels side by side, as it is made to be before any of it is fetched."""
    act = job.act
    return job if act.in_cmx else replace(job, act=dense(act.target, act.shape, act.dtype))


def _bands(jobs: list[Job], each: list[Geometry]) -> Geometry:
    """Return what a band needs, as functions of its rows of the last job's result."""
    first, last = each[0], each[-1]

    def rows(count: int, halo: bool = True) -> list[int]:
        found = [count]
        for job in reversed(jobs[1:]):
            found.append(min(_taken(job.y, found[-1]) if halo else found[-1] * job.y.stride, job.act.shape[1]))
        return found[::-1]

    def cycles(tiles: Sequence[tuple[int, int]]) -> list[int]:
        counts = [rows(count, False) for count, _ in tiles]
        found = [g.task_cycles([(n[k], g.channels) for n in counts]) for k, g in enumerate(each)]
        return [sum(column) for column in zip(*found, strict=True)]

    def halo_bytes(rows: int) -> int:
        kept = [job.y for job in jobs[1:]]
        sizes = [g.out_bytes(1, g.channels) for g in each[:-1]]
        return (
            sum(max(0, _taken(y, 1) - y.stride) * size for y, size in zip(kept, sizes, strict=True))
            if rows < last.rows
            else 0
        )

    return replace(
        last,
        channel_unit=last.channels,
        act_bytes=lambda r, _: first.act_bytes(rows(r)[0], first.channels),
        inner_bytes=lambda r, _: (
            sum(
                aligned(g.out_bytes(n, g.channels)) + aligned(g.other_bytes(n, g.channels))
                for g, n in zip(each[:-1], rows(r), strict=False)
            )
            + sum(g.inner_bytes(n, g.channels) for g, n in zip(each, rows(r), strict=True))
        ),
        weight_bytes=lambda _: sum(g.weight_bytes(g.channels) for g in each),
        act_run_bytes=lambda _: first.act_run_bytes(first.channels),
        act_per_channel=False,
        parts=sum(g.parts for g in each),
        copied_bytes=halo_bytes,
        task_cycles=cycles,
        weights_stay=all(g.weights_stay for g in each),
    )


def _taken(window: Window, rows: int) -> int:
    """Return the rows that so many rows of a result read."""
    return (rows - 1) * window.stride + (window.kernel - 1) * window.dilation + 1
