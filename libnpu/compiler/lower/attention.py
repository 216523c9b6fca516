"""Attention as tasks: UnrollFlashSDPA makes a chain of tiles for each block of queries, IncrementalSDPA one of SHAVE tasks.

FlashSDPA. For each head and block of queries, tile by tile along the keys: the DPU multiplies queries and keys into a tile of scores
in CMX, a SHAVE makes exponentials of it and moves the running maximum, sum and output on, the DPU multiplies exponentials
and values. The sum and the output of the last tile are divided at the end. Chains go in lockstep, so many that DPUs and SHAVEs
work side by side, the product of the next tile before the exponentials of this one.

IncrementalSDPA. For each head: keys and values pass through CMX as they are, and a SHAVE does all the rest.

Tiles are as large as CMX allows: no score ever leaves it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C
from npu_model.dtypes import code_of_numpy

from libnpu.compiler import kernels
from libnpu.compiler.attention.masks import Masks, TileScores
from libnpu.compiler.lower.builder import FILL
from libnpu.compiler.lower.dpu_ops import Job, Window, emit_in_place
from libnpu.compiler.lower.errors import does_not_fit
from libnpu.compiler.lower.invariant import ppe_fields
from libnpu.compiler.lower.shave_tiler import launch_element_by_element
from libnpu.compiler.lower.view import View, dense
from libnpu.compiler.lower.weights import ActivationWeights, ConstantWeights
from libnpu.compiler.program import Buffer, ShavePayload

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libnpu.compiler.ir import Node, Value
    from libnpu.compiler.lower.builder import Builder

QUERIES = (128, 64, 32, 16, 8, 4, 2, 1)  # of a block
KEYS = 16  # their number in a tile is a multiple where it can be: rows of MAC blocks
_SLACK_PERCENT = 15  # the plan with the fewest tasks is taken of those that are so near to the fastest
_OPERATIONS = 4  # of a SHAVE on each score, about
LEAST_KEYS = (
    64  # of a task of IncrementalSDPA, where there are as many; chosen: its start then costs less than its work
)
LEAST_BYTES = (
    1 << 16
)  # of a transfer of keys or values, where there are as many; chosen: its latency then is a small part of it
_GAPS = 512  # what alignment takes of the buffers of a chain
_FILL = 0.7  # of the room that tiles take: they have different lives, which leaves gaps; chosen by trials
_SINGLE = np.dtype(np.float32)
Index = tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Attention:
    """Operands of one attention as matrices by batch index."""

    builder: Builder
    node: Node
    query: View  # [..., M, D]
    keys: list[View]  # [..., S_i, D]
    values: list[View]  # [..., S_i, E]
    out: View  # [..., M, E]
    masks: list[View | None]  # [..., M, S], None of a constant
    tiles: Masks
    stored: dict[bytes, View] = field(default_factory=dict)  # tiles of constant masks by content
    fetched: dict[tuple[Any, ...], View] = field(default_factory=dict)

    @property
    def batch(self) -> Index:
        return self.query.shape[:-2]

    @property
    def lengths(self) -> list[int]:
        """Keys of each part."""
        return [part.shape[-2] for part in self.keys]

    def kv_index(self, index: Index, part: View) -> Index:
        """Return where the head of a query is among those of keys or values."""
        if not index or part.shape[-3] == self.batch[-1]:
            return index
        return (*index[:-1], index[-1] // (self.batch[-1] // part.shape[-3]))

    def mask_tile(self, number: int, index: Index, rows: slice, columns: slice) -> View:
        """Return a tile [rows, columns] of a mask in CMX."""
        view, shape = self.masks[number], (rows.stop - rows.start, columns.stop - columns.start)
        if view is not None:
            box = _matrix(view, index).sliced((rows.start, columns.start), shape)
            return self.in_cmx(box, "mask")
        array = self.tiles.constant(number, index, rows, columns)
        assert array is not None
        array = np.ascontiguousarray(array)
        key = array.tobytes() + repr((array.dtype, array.shape)).encode()
        if key not in self.stored:
            self.stored[key] = self.builder.constant(array, f"{self.node.name}.mask")
        return self.in_cmx(self.stored[key].broadcast(shape), "mask")

    def in_cmx(self, box: View, what: str) -> View:
        """Return matrices that a SHAVE can read row by row: where they are, or in a buffer of their own."""
        one_run = all(
            s in (0, box.dtype.itemsize) for s, n in zip(box.strides[-1:], box.shape[-1:], strict=True) if n > 1
        )
        return box if box.in_cmx and one_run else self.builder.fetch(box, tuple(range(len(box.shape))), self.node, what)


def _attention(builder: Builder, node: Node) -> _Attention:
    parts, value = node.attrs["parts"], node.outputs[0]
    operands = [v for v in node.inputs if v is not None]
    query, keys, values = operands[0], operands[1 : 1 + parts], operands[1 + parts : 1 + 2 * parts]
    masks = operands[1 + 2 * parts :]
    builder.relieve([query, *keys, *values, *[m for m in masks if m.const is None]], builder.cmx_bytes // 2, node)
    shape = (*query.shape[:-1], sum(key.shape[-2] for key in keys))
    tiles = Masks(node.attrs["expr"], masks, shape)
    return _Attention(
        builder,
        node,
        builder.home(query),
        [builder.home(v) for v in keys],
        [builder.home(v) for v in values],
        builder.place(value, _out_order(builder, value)),
        [
            None if array is not None else builder.home(v).broadcast(shape)
            for v, array in zip(masks, tiles.constants, strict=True)
        ],
        tiles,
    )


def _out_order(builder: Builder, value: Value) -> tuple[int, ...] | None:
    """Return the order in which a transposition behind the result wants it, so that it moves nothing."""
    readers = builder.readers(value)
    if len(readers) == 1 and readers[0].op == "Transpose":
        return tuple(readers[0].attrs["perm"])
    return None


def _matrix(view: View, index: Index) -> View:
    offset = view.offset + sum(i * s for i, s in zip(index, view.strides, strict=False))
    return View(view.target, offset, view.shape[-2:], view.strides[-2:], view.dtype)


# ---- flash ----------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class FlashPlan:
    """Queries of a block, keys of a tile, and chains in lockstep."""

    queries: int
    keys: int
    chains: int


@dataclass(slots=True, eq=False)
class _Chain:
    """One block of queries of one head on its way along the keys. `product` is that of the last tile, not yet added."""

    index: Index
    rows: slice
    query: View
    most: View
    total: View
    output: View
    steps: int = 0
    product: View | None = None


def lower_flash(builder: Builder, node: Node) -> None:
    """Append the chains of a FlashSDPA node."""
    of = _attention(builder, node)
    values = _columns(of)
    plan = _flash_plan(of)
    queries, batch = of.query.shape[-2], list(np.ndindex(*of.batch))
    tiles = list(_key_tiles(of.lengths, plan.keys))
    blocks = [
        (index, slice(r, min(r + plan.queries, queries))) for index in batch for r in range(0, queries, plan.queries)
    ]
    builder.expect_ops(node, len(blocks) * 3 * len(tiles))
    for first in range(0, len(blocks), plan.chains):
        chains = [_chain(of, *block) for block in blocks[first : first + plan.chains]]
        pending: list[tuple[_Chain, View, TileScores, slice]] = []
        for part, columns, start in tiles:
            whole = slice(start + columns.start, start + columns.stop)
            counted = [(chain, of.tiles.tile(chain.index, chain.rows, whole)) for chain in chains]
            scored = []
            for chain, needs in counted:
                if needs is not None:
                    keys = _tile(of, of.keys[part], chain.index, columns, len(tiles) == 1, "keys")
                    scored.append((chain, _product(of, chain.query, keys, _SINGLE, node.attrs["scale"]), needs, whole))
            _exponentials(of, pending, values, len(tiles) == 1)
            pending = scored
        _exponentials(of, pending, values, len(tiles) == 1)
        for chain in chains:
            _finish(of, chain)
        if len(tiles) > 1:
            of.fetched.clear()


def _columns(of: _Attention) -> View:
    """Return the values as [..., E, S], which is how the engine reads them, the keys of all parts one after the other."""
    last = of.values[0]
    if len(of.values) == 1 and last.strides[-2] == last.dtype.itemsize:
        return last.permuted((*range(len(last.shape) - 2), len(last.shape) - 1, len(last.shape) - 2))
    rank = len(last.shape)
    order = (*range(rank - 2), rank - 1, rank - 2)
    shape = (*last.shape[:-2], sum(of.lengths), last.shape[-1])
    whole = of.builder.storage(f"{of.node.name}.values", shape, last.dtype, order)
    start = 0
    for part in of.values:
        box = whole.sliced([start if k == rank - 2 else 0 for k in range(rank)], part.shape)
        of.builder.copy(box, part, of.node, "transpose values")
        start += part.shape[-2]
    return whole.permuted(order)


def _key_tiles(lengths: Sequence[int], size: int) -> Iterator[tuple[int, slice, int]]:
    """Yield (part, keys of it, keys before it) of each tile."""
    start = 0
    for part, length in enumerate(lengths):
        for first in range(0, length, size):
            yield part, slice(first, min(first + size, length)), start
        start += length


def _flash_plan(of: _Attention) -> FlashPlan:
    """Return the tiles that fit with the next keys and values beside them.

    Queries and chains are those that would be fastest with all of the profile's CMX, keys are as many as there is room for.
    """
    room, one = _room(of)
    profile, size = of.builder.profile, of.query.dtype.itemsize
    whole = profile.cmx.workspace_bytes
    wanted = _fastest(of, int(whole * of.builder.tiles * FILL * _FILL), whole)
    keys = 0 if wanted is None else _keys_that_fit(of, wanted.queries, wanted.chains, room, one)
    if wanted is not None and keys >= min(KEYS, max(of.lengths)):
        return FlashPlan(wanted.queries, keys, wanted.chains)
    found = _fastest(of, room, one)
    if found is None:
        least = 2 * (of.query.shape[-1] + 2 * of.out.shape[-1]) * size
        raise does_not_fit(f"{of.node.name} (FlashSDPA)", "one query and one key", least, one)
    return found


def _fastest(of: _Attention, room: int, one: int) -> FlashPlan | None:
    """Return the plan with the fewest tasks of those that are nearly the fastest, by a rough prediction; None when none fits."""
    count, found = of.query.shape[-2], []
    for chains in (2 * of.builder.shaves, of.builder.shaves, 1):
        for queries in (min(q, count) for q in QUERIES if q < 2 * count):
            keys = _keys_that_fit(of, queries, chains, room, one)
            if keys >= 1:
                plan = FlashPlan(queries, keys, chains)
                found.append((_flash_ps(of, plan), plan))
    if not found:
        return None
    limit = min(found, key=lambda entry: entry[0])[0] * (100 + _SLACK_PERCENT) / 100
    return min((e for e in found if e[0] <= limit), key=lambda e: (_tasks(of, e[1]), e[0]))[1]


def _keys_that_fit(of: _Attention, queries: int, chains: int, room: int, one: int) -> int:
    """Return the keys of a tile when all tiles may take `room` bytes, and those of one task `one`."""
    depth, wide, size, most = of.query.shape[-1], of.out.shape[-1], of.query.dtype.itemsize, max(of.lengths)
    masks = sum(4 if view is None else view.dtype.itemsize for view in of.masks)
    state = queries * (depth * size + 3 * wide * 4 + 8) + _GAPS  # queries, two products, output, maximum and sum
    scores, tile = queries * (4 + size + masks), (depth + wide) * size
    heads = _heads_at_once(of, queries, chains)
    keys = min(
        (room - chains * state) // (2 * (chains * scores + heads * tile)), (one - state) // (scores + tile), most
    )
    return keys if keys == most else keys // KEYS * KEYS or keys


def _tasks(of: _Attention, plan: FlashPlan) -> int:
    """Return the SHAVE tasks of all chains."""
    blocks = prod(of.batch) * -(-of.query.shape[-2] // plan.queries)
    return blocks * sum(-(-length // plan.keys) for length in of.lengths)


def _heads_at_once(of: _Attention, queries: int, chains: int) -> int:
    """Return the most heads that chains in lockstep can be of, blocks of `queries` one after the other."""
    each = -(-of.query.shape[-2] // queries)
    aligned = each % chains == 0 or chains % each == 0
    return min(prod(of.batch), -(-chains // each) + (0 if aligned else 1))


def _room(of: _Attention) -> tuple[int, int]:
    """Return the bytes that all tiles may take, and those of one task."""
    rooms = of.builder.rooms([view for view in (of.query, *of.keys, *of.values, of.out) if view.in_cmx])
    return int(max(rooms[0], rooms[1] * 3 // 4) * _FILL), rooms[-1]


def _flash_ps(of: _Attention, plan: FlashPlan) -> float:
    """Return about how long the chains take: the work and the start of SHAVE tasks, and keys and values once for chains in lockstep."""
    profile, total = of.builder.profile, sum(of.lengths)
    blocks = prod(of.batch) * -(-of.query.shape[-2] // plan.queries)
    tiles = sum(-(-length // plan.keys) for length in of.lengths)
    each = plan.queries * (total + tiles * of.out.shape[-1]) * _OPERATIONS / profile.shave.lanes["f32"]
    cycles = blocks * (each + tiles * profile.shave.startup_cycles) / min(of.builder.shaves, plan.chains)
    rounds = -(-blocks // plan.chains) * _heads_at_once(of, plan.queries, plan.chains)
    loaded = rounds * total * (of.query.shape[-1] + of.out.shape[-1]) * of.query.dtype.itemsize
    latency = -(-blocks // plan.chains) * tiles * profile.ddr.latency_ns * 1000
    return cycles * 1e12 / profile.shave.clock_hz + loaded * 1e12 / profile.ddr.bytes_per_second + latency


def _chain(of: _Attention, index: Index, rows: slice) -> _Chain:
    count, wide = rows.stop - rows.start, of.out.shape[-1]
    box = _matrix(of.query, index).sliced((rows.start, 0), (count, of.query.shape[-1]))
    query = (
        box
        if box.in_cmx and box.strides[-1] == box.dtype.itemsize
        else of.builder.fetch(box, (0, 1), of.node, "queries")
    )
    most, total, output = (
        _buffer(of, what, shape, _SINGLE)
        for what, shape in (("most", (count,)), ("total", (count,)), ("output", (count, wide)))
    )
    return _Chain(index, rows, query, most, total, output)


def _buffer(of: _Attention, what: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> View:
    name = f"{of.node.name}.{what}.{len(of.builder.ops)}.{len(of.fetched)}"
    return dense(Buffer(name, prod(shape) * dtype.itemsize), shape, dtype)


def _tile(of: _Attention, part: View, index: Index, columns: slice, keep: bool, what: str) -> View:
    """Return rows `columns` of keys [S, D], or of values that lie as such, dense in CMX; one fetch for all chains that share it."""
    head = of.kv_index(index, part)
    key = (what, id(part), head, columns.start)
    if key not in of.fetched:
        if not keep:
            of.fetched = {k: v for k, v in of.fetched.items() if k[0] != what or k[3] == columns.start}
        box = _matrix(part, head).sliced((columns.start, 0), (columns.stop - columns.start, part.shape[-1]))
        of.fetched[key] = _dense_rows(of, box, what)
    return of.fetched[key]


def _dense_rows(of: _Attention, box: View, what: str) -> View:
    rows = dense(box.target, box.shape, box.dtype).strides
    if box.in_cmx and all(s == r for s, r, n in zip(box.strides, rows, box.shape, strict=True) if n > 1):
        return box
    return of.builder.fetch(box, (0, 1), of.node, what)


def _product(of: _Attention, left: View, right: View, dtype: np.dtype[Any], scale: float) -> View:
    """Append left [M, K] times right [N, K]; return the result [M, N], in CMX."""
    out = _buffer(of, "product", (left.shape[0], right.shape[0]), dtype)
    weights = ActivationWeights(right, ConstantWeights(None, 0, None, scale))
    window, fields = Window(), ppe_fields(None, scale)
    job = Job(of.node, C.NPU_DPU_MATMUL, _image(left), _image(out), window, window, 1, weights, fields, False, 2)
    emit_in_place(of.builder, job)
    return out


def _image(matrix: View) -> View:
    return View(matrix.target, matrix.offset, (1, 1, *matrix.shape), (0, 0, *matrix.strides), matrix.dtype)


def _exponentials(
    of: _Attention, scored: list[tuple[_Chain, View, TileScores, slice]], values: View, keep: bool
) -> None:
    """Append what follows the scores of one tile of all chains: a SHAVE task and the product with the values each."""
    weights = []
    for chain, scores, needs, columns in scored:
        masks = [of.mask_tile(number, chain.index, chain.rows, columns) for number in needs.masks]
        weight = _buffer(of, "weights", scores.shape, of.query.dtype)
        state = [chain.most, chain.total]
        outputs = [] if chain.product is None else [chain.product, chain.output]
        first, has_output = chain.steps == 0, chain.steps > 1
        program = kernels.flash_sdpa(
            needs.expr,
            tuple(code_of_numpy(mask.dtype) for mask in masks),
            code_of_numpy(of.query.dtype),
            first,
            bool(outputs),
            has_output,
        )
        read = [scores, *masks, *([] if first else state), *outputs[: 2 if has_output else 1]]
        _launch(of, program, [scores, *masks, weight, *state, *outputs], read, [weight, *state, *outputs[1:]])
        place = f"head {list(chain.index)} queries {chain.rows.start}:{chain.rows.stop}"
        of.builder.ops[-1].attrs |= {
            "chain": place,
            "keys": f"{columns.start}:{columns.stop}",
            "state": chain.most.target.name,
        }
        chain.steps += 1
        weights.append((chain, weight, columns))
    for chain, weight, columns in weights:
        head = _matrix(values, of.kv_index(chain.index, values))
        key = ("values", 0, of.kv_index(chain.index, values), columns.start)
        if key not in of.fetched:
            if not keep:
                of.fetched = {k: v for k, v in of.fetched.items() if k[0] != "values" or k[3] == columns.start}
            box = head.sliced((0, columns.start), (head.shape[0], columns.stop - columns.start))
            of.fetched[key] = _dense_rows(of, box, "values")
        chain.product = _product(of, weight, of.fetched[key], _SINGLE, 1.0)


def _finish(of: _Attention, chain: _Chain) -> None:
    """Append the division by the sum, and the store."""
    box = _matrix(of.out, chain.index).sliced((chain.rows.start, 0), chain.output.shape)
    tile = box if box.in_cmx else of.builder.scratch_tile(box, (0, 1), of.node)
    assert chain.product is not None
    total = View(chain.total.target, chain.total.offset, (*chain.total.shape, 1), (*chain.total.strides, 0), _SINGLE)
    inputs = [total.broadcast(box.shape), chain.product, *([chain.output] if chain.steps > 1 else [])]
    sums = ("in", 1) if len(inputs) == 2 else ("add", ("in", 1), ("in", 2))
    codes = tuple(code_of_numpy(view.dtype) for view in inputs)
    program = kernels.elementwise(("div", sums, ("in", 0)), codes, code_of_numpy(tile.dtype))
    launch_element_by_element(of.builder, of.node, [program], [*inputs, tile])
    if tile is not box:
        of.builder.flush(box, tile, of.node)


def _launch(
    of: _Attention, program: kernels.Program, operands: Sequence[View], read: Sequence[View], written: Sequence[View]
) -> None:
    """Append a SHAVE task that reads and writes several operands, some of them both."""
    described = [kernels.Operand(i, code_of_numpy(v.dtype), v.shape, v.strides) for i, v in enumerate(operands)]
    template = program.args(described)
    payload = ShavePayload(program.code, [v.ref for v in operands], template)
    cost = kernels.cost_cycles(program, template, of.builder.profile)
    reads = list({v.access(): None for v in read})
    of.builder.shave(of.node, payload, reads, [v.access() for v in written], cost)


# ---- incremental ----------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class _Rows:
    """Single queries that one task computes: they share keys and values or, with `own_keys`, each is a head that has its own."""

    query: View  # [R, D]
    out: View  # [R, E]
    places: list[tuple[Index, int]]  # (index, query) of each row
    own_keys: bool = False


def lower_incremental(builder: Builder, node: Node) -> None:
    """Append the tasks of an IncrementalSDPA node: for each head of keys, the queries that share it, run by run of keys."""
    of = _attention(builder, node)
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


def _brought(of: _Attention, view: View, what: str) -> View:
    """Return an operand of all heads where it is, or in CMX by one transfer when it is no larger than a transfer should be at least."""
    return of.in_cmx(view, what) if view.nbytes <= LEAST_BYTES else view


def _incremental_plan(of: _Attention) -> tuple[int, int, int]:
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
            each, state = (depth + wide) * size + rows * masks, rows * (depth * 4 + wide * 8 + 8) + _GAPS
            sets = units + 1 if builder.pingpong else units
            keys = min((room - units * state) // (each * sets), (one - state) // each, total)
            if keys > best[1]:
                best = (rows, keys, units)
            if keys >= min(LEAST_KEYS, total):
                return rows, -(-total // -(-total // keys)), units
    if not best[1]:
        raise does_not_fit(f"{of.node.name} (IncrementalSDPA)", "one key and its value", each + state, one)
    return best


def _groups(of: _Attention, size: int) -> Iterator[_Rows]:
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
            query, out = (_matrix(v, index).sliced((first, 0), (count, v.shape[-1])) for v in (of.query, of.out))
            yield _Rows(query, out, [(index, first + k) for k in range(count)])


def _together(of: _Attention, groups: list[_Rows], run: list[tuple[int, slice, int]]) -> Iterator[_Rows]:
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
    first = _matrix(view, index)
    return View(view.target, first.offset, (count, view.shape[-1]), (view.strides[-3], view.strides[-1]), view.dtype)


def _runs(lengths: Sequence[int], size: int) -> Iterator[list[tuple[int, slice, int]]]:
    """Yield the runs of keys of each task, as (part, keys of it, keys before it): of several parts where they fit and the first
    are few, as the tasks of enough keys can start before the other parts are there.
    """
    run: list[tuple[int, slice, int]] = []
    count = 0
    for part, columns, start in _key_tiles(lengths, size):
        more = columns.stop - columns.start
        if run and (count + more > size or count >= LEAST_KEYS):
            yield run
            run, count = [], 0
        run.append((part, columns, start))
        count += more
    yield run


def _states(of: _Attention, rows: int) -> list[View]:
    shapes = (("most", (rows,)), ("total", (rows,)), ("output", (rows, of.out.shape[-1])))
    return [_buffer(of, what, shape, _SINGLE) for what, shape in shapes]


def _run(
    of: _Attention, group: _Rows, run: list[tuple[int, slice, int]], states: list[View], out: View | None, first: bool
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
    _launch(of, program, [*operands, *states, *results], read, results or states)


def _keys_of(of: _Attention, group: _Rows, part: View, columns: slice) -> View:
    """Return rows `columns` of the keys or values of a group: [n, D], or [R, n, D] of heads that have their own."""
    index = group.places[0][0]
    box = _matrix(part, of.kv_index(index, part)).sliced(
        (columns.start, 0), (columns.stop - columns.start, part.shape[-1])
    )
    if not group.own_keys:
        return box
    return replace(box, shape=(len(group.places), *box.shape), strides=(part.strides[-3], *box.strides))


def _mask_rows(of: _Attention, number: int, rows: list[tuple[Index, int]], columns: slice) -> View:
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
