"""IncrementalSDPA as tasks: for each head, keys and values pass through CMX as they are, and a SHAVE does all the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from npu_model.dtypes import code_of_numpy

from libnpu.compiler import kernels
from libnpu.compiler.lower.attention import GAPS, QUERIES, SINGLE, attention, buffer, key_tiles, launch, matrix
from libnpu.compiler.lower.errors import does_not_fit
from libnpu.compiler.lower.view import View

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libnpu.compiler.ir import Node
    from libnpu.compiler.lower.attention import Attention, Index
    from libnpu.compiler.lower.builder import Builder

# of a task, where there are as many; chosen: its start then costs less than its work
LEAST_KEYS = 64
# of a transfer of keys or values, where there are as many; chosen: its latency then is a small part of it
LEAST_BYTES = 1 << 16


@dataclass(slots=True, frozen=True)
class _Rows:
    """Single queries that one task computes: they share keys and values or, with `own_keys`, each is a head that has its own."""

    query: View  # [R, D]
    out: View  # [R, E]
    places: list[tuple[Index, int]]  # (index, query) of each row
    own_keys: bool = False


def lower_incremental(builder: Builder, node: Node) -> None:
    """Append the tasks of an IncrementalSDPA node: for each head of keys, the queries that share it, run by run of keys."""
    of = attention(builder, node)
    rows, keys, units = _incremental_plan(of)
    of.query = _brought(of, of.query, "queries")
    of.keys, of.values = (
        [_brought(of, v, what) for v in views] for views, what in ((of.keys, "keys"), (of.values, "values"))
    )
    groups, runs = list(_groups(of, rows)), list(_runs(of.lengths, keys))
    builder.expect_ops(node, len(groups) * len(runs))
    for first in range(0, len(groups), units):
        batch = groups[first : first + units]
        states = _states(of, sum(len(group.places) for group in batch)) if len(runs) > 1 else []
        batch = [replace(group, query=of.in_cmx(group.query, "queries")) for group in batch]
        done = []
        for number, run in enumerate(runs):
            row = 0
            for group in _together(of, batch, run):
                count, tile = len(group.places), None
                if number == len(runs) - 1:
                    tile = group.out if group.out.in_cmx else builder.scratch_tile(group.out, (0, 1), node)
                    done.append((group.out, tile))
                own = [v.sliced((row, *[0] * (len(v.shape) - 1)), (count, *v.shape[1:])) for v in states]
                _run(of, group, run, own, tile, number == 0)
                row += count
        for box, tile in done:
            if tile is not box:
                builder.flush(box, tile, node)


def _brought(of: Attention, view: View, what: str) -> View:
    """Return an operand of all heads where it is, or in CMX by one transfer when it is no larger than a transfer should be at least."""
    return of.in_cmx(view, what) if view.nbytes <= LEAST_BYTES else view


def _incremental_plan(of: Attention) -> tuple[int, int, int]:
    """Return (queries of a task, keys of a task, tasks side by side): as many as fit, with the keys and values of the next task.

    Those are what the ports bring meanwhile, one task's after the other. The keys are shared evenly by the tasks that they take.
    """
    builder, size, total = of.builder, of.keys[0].dtype.itemsize, sum(of.lengths)
    depth, wide = of.keys[0].shape[-1], of.out.shape[-1]
    shared = of.batch[-1] // min(part.shape[-3] for part in of.keys + of.values) if of.batch else 1
    masks = sum(4 if view is None else view.dtype.itemsize for view in of.masks)
    rooms = builder.rooms([view for view in (of.query, *of.keys, *of.values, of.out) if view.in_cmx])
    room, one = max(rooms[0], rooms[1] * 3 // 4), rooms[-1]
    best = (0, 0, 0)
    for units in (builder.shaves, 1):
        for queries in QUERIES:
            rows = max(min(queries, of.query.shape[-2]), shared if of.query.shape[-2] == 1 else 1)
            each, state = (depth + wide) * size + rows * masks, rows * (depth * 4 + wide * 8 + 8) + GAPS
            sets = units + 1 if builder.pingpong else units
            keys = min((room - units * state) // (each * sets), (one - state) // each, total)
            if keys > best[1]:
                best = (rows, keys, units)
            if keys >= min(LEAST_KEYS, total):
                return rows, -(-total // -(-total // keys)), units
    if not best[1]:
        raise does_not_fit(f"{of.node.name} (IncrementalSDPA)", "one key and its value", each + state, one)
    return best


def _groups(of: Attention, size: int) -> Iterator[_Rows]:
    """Yield the queries in groups of up to `size` rows that share keys."""
    heads = min(part.shape[-3] for part in of.keys + of.values) if of.batch else 1
    shared, queries = of.batch[-1] // heads if of.batch else 1, of.query.shape[-2]
    for index in np.ndindex(*of.batch):
        if queries == 1 and shared > 1:
            if index[-1] % shared == 0:
                places = [((*index[:-1], index[-1] + k), 0) for k in range(shared)]
                yield _Rows(_heads(of.query, index, shared), _heads(of.out, index, shared), places)
            continue
        for first in range(0, queries, size):
            count = min(size, queries - first)
            query, out = (matrix(v, index).sliced((first, 0), (count, v.shape[-1])) for v in (of.query, of.out))
            yield _Rows(query, out, [(index, first + k) for k in range(count)])


def _together(of: Attention, groups: list[_Rows], run: list[tuple[int, slice, int]]) -> Iterator[_Rows]:
    """Yield the groups of each task of a run of keys: heads of one query side by side where one alone has few keys."""
    keys = sum(columns.stop - columns.start for _, columns, _ in run)
    size = max(1, LEAST_KEYS // keys) if of.query.in_cmx and of.query.shape[-2] == 1 and of.batch else 1
    for _, same in groupby(groups, key=lambda group: group.places[0][0][:-1]):
        heads = list(same)
        for first in range(0, len(heads), size):
            some = heads[first : first + size]
            places = [place for group in some for place in group.places]
            if len(some) == 1 or len(places) > len(some):  # heads that share keys stay by themselves
                yield from some
            else:
                query, out = (_heads(v, places[0][0], len(places)) for v in (of.query, of.out))
                yield _Rows(query, out, places, own_keys=True)


def _heads(view: View, index: Index, count: int) -> View:
    """Return row 0 of `count` heads from `index` on, as a matrix."""
    first = matrix(view, index)
    return View(view.target, first.offset, (count, view.shape[-1]), (view.strides[-3], view.strides[-1]), view.dtype)


def _runs(lengths: Sequence[int], size: int) -> Iterator[list[tuple[int, slice, int]]]:
    """Yield the runs of keys of each task, as (part, keys of it, keys before it): of several parts where they fit and the first
    are few, as the tasks of enough keys can start before the other parts are there.
    """
    run: list[tuple[int, slice, int]] = []
    count = 0
    for part, columns, start in key_tiles(lengths, size):
        more = columns.stop - columns.start
        if run and (count + more > size or count >= LEAST_KEYS):
            yield run
            run, count = [], 0
        run.append((part, columns, start))
        count += more
    yield run


def _states(of: Attention, rows: int) -> list[View]:
    shapes = (("most", (rows,)), ("total", (rows,)), ("output", (rows, of.out.shape[-1])))
    return [buffer(of, what, shape, SINGLE) for what, shape in shapes]


def _run(
    of: Attention, group: _Rows, run: list[tuple[int, slice, int]], states: list[View], out: View | None, first: bool
) -> None:
    """Append the task of one run of keys; `out` of the last one."""
    operands = [group.query]
    numbers = range(len(of.masks))
    for part, columns, start in run:
        whole = slice(start + columns.start, start + columns.stop)
        for views, what in ((of.keys, "keys"), (of.values, "values")):
            operands.append(of.in_cmx(_keys_of(of, group, views[part], columns), what))
        operands += [_mask_rows(of, number, group.places, whole) for number in numbers]
    read = [*operands, *([] if first else states)]
    codes = tuple(code_of_numpy(operands[3 + number].dtype) for number in numbers)
    kinds = (code_of_numpy(group.query.dtype), code_of_numpy(of.keys[0].dtype), code_of_numpy(of.out.dtype))
    program = kernels.incremental_sdpa(
        of.node.attrs["expr"], codes, of.node.attrs["scale"], kinds, len(run), first, out is not None, group.own_keys
    )
    results = [] if out is None else [out]
    launch(of, program, [*operands, *states, *results], read, results or states)


def _keys_of(of: Attention, group: _Rows, part: View, columns: slice) -> View:
    """Return rows `columns` of the keys or values of a group: [n, D], or [R, n, D] of heads that have their own."""
    index = group.places[0][0]
    box = matrix(part, of.kv_index(index, part)).sliced(
        (columns.start, 0), (columns.stop - columns.start, part.shape[-1])
    )
    if not group.own_keys:
        return box
    return replace(box, shape=(len(group.places), *box.shape), strides=(part.strides[-3], *box.strides))


def _mask_rows(of: Attention, number: int, rows: list[tuple[Index, int]], columns: slice) -> View:
    """Return a mask [R, keys] of the rows of a group, in CMX."""
    (index, query), count = rows[0], len(rows)
    if count == 1 or rows[-1][0] == index:
        return of.mask_tile(number, index, slice(query, query + count), columns)
    tiles = [of.mask_tile(number, other, slice(0, 1), columns) for other, _ in rows]
    if all(tile == tiles[0] for tile in tiles):
        return tiles[0].broadcast((count, tiles[0].shape[1]))
    view = of.masks[number]
    if view is not None:
        heads = _heads(view, index, count).sliced((0, columns.start), (count, columns.stop - columns.start))
        return of.in_cmx(heads, "mask")
    arrays = [of.tiles.constant(number, other, slice(0, 1), columns) for other, _ in rows]
    stacked = np.concatenate([np.broadcast_to(a, (1, columns.stop - columns.start)) for a in arrays if a is not None])
    return of.in_cmx(of.builder.constant(stacked, f"{of.node.name}.mask"), "mask")
