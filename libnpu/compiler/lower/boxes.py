"""Box tiling: one operation computed box by box over its iteration space, operands in place or through tile buffers.

Used by everything whose tasks are the same program on a smaller box: SHAVE kernels and element-wise matrix-engine tasks. The
convolution loop nest, with halos and weights, is `dpu_tiler.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import inf, prod
from typing import TYPE_CHECKING

from libnpu.compiler.lower.errors import does_not_fit
from libnpu.compiler.lower.view import aligned

if TYPE_CHECKING:
    from libnpu.compiler.ir import Node
    from libnpu.compiler.lower.builder import Builder
    from libnpu.compiler.lower.view import Order, View

PARALLEL_ELEMENTS = 8192  # below, a second task costs more than it saves; chosen: about the start-up cost of a SHAVE
ROUND_ELEMENTS = 8192  # of a task, at least, where each unit has several; chosen by trials
ROUNDS_SLACK = (
    1.21  # of the time on the busiest unit that more boxes may take, for the sake of other layers; chosen by trials
)
BALANCE = 0.85  # of the time on the busiest unit that another cut may take to be preferred; chosen by trials
STREAM_BYTES = 1 << 17  # a streamed operation of this size is cut further, so that loads, tasks and stores overlap

RUN_BYTES = 256  # in DDR that a cut should leave together; chosen by trials: 128 and 512 were slower

Emit = Callable[["list[View]", "View"], None]


def box_of(view: View, starts: Sequence[int], sizes: Sequence[int]) -> View:
    """Return the part of `view` that belongs to a box of the iteration space; axes of one element belong to every box."""
    own_starts = [0 if n == 1 else a for a, n in zip(starts, view.shape, strict=True)]
    own_sizes = [1 if n == 1 else k for k, n in zip(sizes, view.shape, strict=True)]
    return view.sliced(own_starts, own_sizes)


def in_place(view: View, order: Order) -> bool:
    """Whether a task that walks `order` can use the view where it is, without jumping inside rows."""
    if not view.in_cmx:
        return False
    steps = [view.strides[k] for k in order if view.shape[k] > 1 and view.strides[k] != 0]
    return not steps or (steps == sorted(steps, reverse=True) and steps[-1] == view.dtype.itemsize)


def chunks(shape: Sequence[int], axes: Sequence[int], pieces: int, steps: Sequence[int] | None = None) -> list[int]:
    """Return the box size that cuts `shape` into about `pieces` boxes along `axes` in turn: an axis only when those before are cut up.

    An axis is cut into multiples of its step while all can be, and further only then.
    """
    size, left = list(shape), pieces
    for unit in ([1] * len(shape),) if steps is None else (steps, [1] * len(shape)):
        for axis in axes:
            if left == 1:
                return size
            units = -(-size[axis] // unit[axis])
            cuts = min(units, left)
            size[axis] = min(size[axis], -(-units // cuts) * unit[axis])
            left = -(-left // cuts)
    return size


def cuts_of_long_runs(src: View, dst: View) -> tuple[list[int], list[int]]:
    """Return how to cut a box of both views so that the elements that lie together stay long runs: all axes, those first along which
    most lie together anyway, and the steps along each that leave RUN_BYTES together in DDR.
    """

    def inside(view: View, axis: int) -> int:
        order = view.order()
        return prod(view.shape[k] for k in order[order.index(axis) + 1 :])

    axes = range(len(dst.shape))
    together = [min(inside(view, k) for view in (src, dst)) for k in axes]
    far = [view for view in (src, dst) if not view.in_cmx]
    steps = [max((-(-RUN_BYTES // (inside(v, k) * v.dtype.itemsize)) for v in far), default=1) for k in axes]
    return sorted(axes, key=lambda k: (-together[k], k)), steps


def each_box(shape: Sequence[int], size: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield (starts, sizes) of every box, the last axis fastest."""
    for starts in product(*(range(0, n, k) for n, k in zip(shape, size, strict=True))):
        yield starts, tuple(min(k, n - a) for a, k, n in zip(starts, size, shape, strict=True))


def tile_boxes(
    builder: Builder,
    node: Node,
    inputs: Sequence[View],
    out: View,
    shape: Sequence[int],
    orders: Sequence[Order],
    axes: Sequence[int],
    usable: Sequence[bool],
    units: int,
    emit: Emit,
    beside: Sequence[View] = (),
    between: int = 0,
    parallel: float = PARALLEL_ELEMENTS,
    steps: Sequence[int] | None = None,
) -> None:
    """Call `emit(input tiles, output tile)` for every box of the iteration space `shape`, with loads before and stores after.

    `inputs` and `out` have the iteration space's rank, with one element where they do not vary. Boxes are cut along `axes`
    (outermost first). `usable[i]` says that input i is read in place; the others, and an output in DDR, pass through tile
    buffers that are dense in `orders` (inputs, then the output). `units` engines can work at once. `beside` are further
    operands that stay in CMX all the while, `between` the bytes that `emit` allocates for each element of a box.
    From `parallel` elements on all units have a box.
    """
    streamed = [view for view, used in zip(inputs, usable, strict=True) if not used]
    streamed += [] if out.in_cmx else [out]
    resident = [view for view, used in zip(inputs, usable, strict=True) if used] + ([out] if out.in_cmx else [])
    resident += beside

    def tile_bytes(size: Sequence[int]) -> int:
        return sum(
            aligned(
                prod(1 if n == 1 or s == 0 else k for k, n, s in zip(size, v.shape, v.strides, strict=True))
                * v.dtype.itemsize
            )
            for v in streamed
        ) + aligned(prod(size) * between)

    size = _box_size(builder, node, shape, axes, tile_bytes, builder.rooms(resident), units, steps)
    pieces = _count(shape, size)
    if prod(shape) >= parallel:
        rounds = min(builder.grain, max(1, prod(shape) // units // ROUND_ELEMENTS))
        if tile_bytes(shape) >= STREAM_BYTES:
            rounds = max(rounds, 2)
        least, fitting = -(-pieces // units), size
        tries = [
            _balanced(shape, axes, count * units, units, lambda box: tile_bytes(box) <= tile_bytes(fitting), steps)
            for count in range(max(least, rounds), least - 1, -1)
        ]
        limit = min(_work(shape, box, units) for box in tries) * ROUNDS_SLACK
        size = next(box for box in tries if _work(shape, box, units) <= limit)
    builder.expect_ops(node, _count(shape, size))
    loaded: dict[tuple[int, int, tuple[int, ...]], View] = {}
    for starts, sizes in each_box(shape, size):
        tiles = []
        for index, (view, used) in enumerate(zip(inputs, usable, strict=True)):
            box = box_of(view, starts, sizes)
            if not used:
                key = (index, box.offset, box.shape)
                if key not in loaded:
                    loaded = {k: v for k, v in loaded.items() if k[0] != index}
                    loaded[key] = builder.fetch(box, orders[index], node, f"in{index}")
                box = loaded[key]
            tiles.append(box)
        box = box_of(out, starts, sizes)
        tile = box if out.in_cmx else builder.scratch_tile(box, orders[-1], node)
        emit(tiles, tile)
        if tile is not box:
            builder.flush(box, tile, node)


def _count(shape: Sequence[int], size: Sequence[int]) -> int:
    return prod(-(-n // k) for n, k in zip(shape, size, strict=True))


def _work(shape: Sequence[int], size: Sequence[int], units: int) -> int:
    """Return the elements that the busiest of `units` gets of boxes of `size`."""
    return -(-_count(shape, size) // units) * prod(size)


def _balanced(
    shape: Sequence[int],
    axes: Sequence[int],
    pieces: int,
    units: int,
    fits: Callable[[Sequence[int]], bool],
    steps: Sequence[int] | None,
) -> list[int]:
    """Return the box size that cuts `shape` into about `pieces` along `axes`, the first ones left out where `units` then end sooner.

    What is cut behind the first axis lies in several pieces, so that has to gain BALANCE; the innermost axis is not cut for it.
    """
    tries = [chunks(shape, axes[first:], pieces, steps) for first in range(max(1, len(axes) - 1))]
    best = min(tries, key=lambda size: _work(shape, size, units) if fits(size) else inf)
    return best if _work(shape, best, units) < _work(shape, tries[0], units) * BALANCE else tries[0]


def _box_size(
    builder: Builder,
    node: Node,
    shape: Sequence[int],
    axes: Sequence[int],
    tile_bytes: Callable[[Sequence[int]], int],
    rooms: Sequence[int],
    units: int,
    steps: Sequence[int] | None,
) -> list[int]:
    """Return the largest box whose tile buffers fit: two sets of them for each unit when double buffering, else one, beside all
    that lives in CMX where boxes are not small for that; else a set for each unit, one or two of all, at last one to the brim.
    """
    limit = prod(shape[k] for k in axes)
    whole = tile_bytes(shape)
    tries = [(room, 2 * units, ROUND_ELEMENTS) for room in rooms[:-1] if builder.pingpong]
    tries += [(rooms[-2], units, ROUND_ELEMENTS)]
    tries += [(rooms[-2], copies, 0) for copies in ((2, 1) if builder.pingpong else (1,))]
    tries += [(rooms[-1], 1, 0)]
    for room, copies, least in tries:
        if whole <= min(room, rooms[-1]):
            return list(shape)
        pieces = max(1, whole * copies // max(room, 1))
        while True:
            size = chunks(shape, axes, pieces, steps)
            if prod(size) < least:
                break
            if tile_bytes(size) * copies <= room and tile_bytes(size) <= rooms[-1]:
                return size
            if pieces >= limit:
                break
            pieces = min(limit, pieces * 5 // 4 + 1)
    raise does_not_fit(f"{node.name} ({node.op})", f"a box of {size}", tile_bytes(size), room)
