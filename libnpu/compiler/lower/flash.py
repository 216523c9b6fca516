"""FlashSDPA as tasks: UnrollFlashSDPA makes a chain of tiles for each block of queries.

For each head and block of queries, tile by tile along the keys: the DPU multiplies queries and keys into a tile of scores
in CMX, a SHAVE makes exponentials of it and moves the running maximum, sum and output on, the DPU multiplies exponentials
and values. The sum and the output of the last tile are divided at the end. Chains go in lockstep, so many that DPUs and SHAVEs
work side by side, the product of the next tile before the exponentials of this one. Tiles are as large as CMX allows: no score
ever leaves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from npu_abi import C
from npu_model.dtypes import code_of_numpy

from libnpu.compiler import kernels
from libnpu.compiler.lower.attention import GAPS, QUERIES, SINGLE, attention, buffer, key_tiles, launch, matrix
from libnpu.compiler.lower.builder import FILL
from libnpu.compiler.lower.dpu_ops import Job, Window, emit_in_place
from libnpu.compiler.lower.errors import does_not_fit
from libnpu.compiler.lower.invariant import ppe_fields
from libnpu.compiler.lower.shave_tiler import launch_element_by_element
from libnpu.compiler.lower.view import View, dense
from libnpu.compiler.lower.weights import ActivationWeights, ConstantWeights

if TYPE_CHECKING:
    from libnpu.compiler.attention.masks import TileScores
    from libnpu.compiler.ir import Node
    from libnpu.compiler.lower.attention import Attention, Index
    from libnpu.compiler.lower.builder import Builder

KEYS = 16  # their number in a tile is a multiple where it can be: rows of MAC blocks
_SLACK_PERCENT = 15  # the plan with the fewest tasks is taken of those that are so near to the fastest
_OPERATIONS = 4  # of a SHAVE on each score, about
_FILL = 0.7  # of the room that tiles take: they have different lives, which leaves gaps; chosen by trials


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
    of = attention(builder, node)
    values = _columns(of)
    plan = _flash_plan(of)
    queries, batch = of.query.shape[-2], list(np.ndindex(*of.batch))
    tiles = list(key_tiles(of.lengths, plan.keys))
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
                    keys = _tile(of, of.keys[part], chain.index, columns, len(tiles) == 1, "keys", 0)
                    scored.append((chain, _product(of, chain.query, keys, node.attrs["scale"]), needs, whole))
            _exponentials(of, pending, values, len(tiles) == 1)
            pending = scored
        _exponentials(of, pending, values, len(tiles) == 1)
        for chain in chains:
            _finish(of, chain)
        if len(tiles) > 1:
            of.fetched.clear()


def _columns(of: Attention) -> View:
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


def _flash_plan(of: Attention) -> FlashPlan:
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


def _fastest(of: Attention, room: int, one: int) -> FlashPlan | None:
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


def _keys_that_fit(of: Attention, queries: int, chains: int, room: int, one: int) -> int:
    """Return the keys of a tile when all tiles may take `room` bytes, and those of one task `one`."""
    depth, wide, size, most = of.query.shape[-1], of.out.shape[-1], of.query.dtype.itemsize, max(of.lengths)
    masks = sum(4 if view is None else view.dtype.itemsize for view in of.masks)
    state = queries * (depth * size + 3 * wide * 4 + 8) + GAPS  # queries, two products, output, maximum and sum
    scores, tile = queries * (4 + size + masks), (depth + wide) * size
    heads = _heads_at_once(of, queries, chains)
    keys = min(
        (room - chains * state) // (2 * (chains * scores + heads * tile)), (one - state) // (scores + tile), most
    )
    return keys if keys == most else keys // KEYS * KEYS or keys


def _tasks(of: Attention, plan: FlashPlan) -> int:
    """Return the SHAVE tasks of all chains."""
    blocks = prod(of.batch) * -(-of.query.shape[-2] // plan.queries)
    return blocks * sum(-(-length // plan.keys) for length in of.lengths)


def _heads_at_once(of: Attention, queries: int, chains: int) -> int:
    """Return the most heads that chains in lockstep can be of, blocks of `queries` one after the other."""
    each = -(-of.query.shape[-2] // queries)
    aligned = each % chains == 0 or chains % each == 0
    return min(prod(of.batch), -(-chains // each) + (0 if aligned else 1))


def _room(of: Attention) -> tuple[int, int]:
    """Return the bytes that all tiles may take, and those of one task."""
    rooms = of.builder.rooms([view for view in (of.query, *of.keys, *of.values, of.out) if view.in_cmx])
    return int(max(rooms[0], rooms[1] * 3 // 4) * _FILL), rooms[-1]


def _flash_ps(of: Attention, plan: FlashPlan) -> float:
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


def _chain(of: Attention, index: Index, rows: slice) -> _Chain:
    count, wide = rows.stop - rows.start, of.out.shape[-1]
    box = matrix(of.query, index).sliced((rows.start, 0), (count, of.query.shape[-1]))
    query = (
        box
        if box.in_cmx and box.strides[-1] == box.dtype.itemsize
        else of.builder.fetch_dense(box, (0, 1), of.node, "queries")
    )
    most, total, output = (
        buffer(of, what, shape, SINGLE)
        for what, shape in (("most", (count,)), ("total", (count,)), ("output", (count, wide)))
    )
    return _Chain(index, rows, query, most, total, output)


def _tile(of: Attention, part: View, index: Index, columns: slice, keep: bool, what: str, axis: int) -> View:
    """Return `columns` along an axis of keys [S, D] or values [E, S], dense in CMX; one fetch for all chains that share it."""
    head = of.kv_index(index, part)
    key = (what, id(part), head, columns.start)
    if key not in of.fetched:
        if not keep:
            of.fetched = {k: v for k, v in of.fetched.items() if k[0] != what or k[3] == columns.start}
        starts, shape = [0, 0], list(part.shape[-2:])
        starts[axis], shape[axis] = columns.start, columns.stop - columns.start
        of.fetched[key] = _dense_rows(of, matrix(part, head).sliced(starts, shape), what)
    return of.fetched[key]


def _dense_rows(of: Attention, box: View, what: str) -> View:
    rows = dense(box.target, box.shape, box.dtype).strides
    if box.in_cmx and all(s == r for s, r, n in zip(box.strides, rows, box.shape, strict=True) if n > 1):
        return box
    return of.builder.fetch_dense(box, (0, 1), of.node, what)


def _product(of: Attention, left: View, right: View, scale: float) -> View:
    """Append left [M, K] times right [N, K]; return the result [M, N] in float32, in CMX."""
    out = buffer(of, "product", (left.shape[0], right.shape[0]), SINGLE)
    weights = ActivationWeights(right, ConstantWeights(None, 0, None, scale))
    window, fields = Window(), ppe_fields(None, scale)
    job = Job(of.node, C.NPU_DPU_MATMUL, _image(left), _image(out), window, window, 1, weights, fields, False, 2)
    emit_in_place(of.builder, job)
    return out


def _image(matrix: View) -> View:
    return View(matrix.target, matrix.offset, (1, 1, *matrix.shape), (0, 0, *matrix.strides), matrix.dtype)


def _exponentials(
    of: Attention, scored: list[tuple[_Chain, View, TileScores, slice]], values: View, keep: bool
) -> None:
    """Append what follows the scores of one tile of all chains: a SHAVE task and the product with the values each."""
    weights = []
    for chain, scores, needs, columns in scored:
        masks = [of.mask_tile(number, chain.index, chain.rows, columns) for number in needs.masks]
        weight = buffer(of, "weights", scores.shape, of.query.dtype)
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
        launch(of, program, [scores, *masks, weight, *state, *outputs], read, [weight, *state, *outputs[1:]])
        place = f"head {list(chain.index)} queries {chain.rows.start}:{chain.rows.stop}"
        of.builder.ops[-1].attrs |= {
            "chain": place,
            "keys": f"{columns.start}:{columns.stop}",
            "state": chain.most.target.name,
        }
        chain.steps += 1
        weights.append((chain, weight, columns))
    for chain, weight, columns in weights:
        tile = _tile(of, values, chain.index, columns, keep, "values", 1)
        chain.product = _product(of, weight, tile, 1.0)


def _finish(of: Attention, chain: _Chain) -> None:
    """Append the division by the sum, and the store."""
    box = matrix(of.out, chain.index).sliced((chain.rows.start, 0), chain.output.shape)
    tile = box if box.in_cmx else of.builder.scratch_tile(box, (0, 1), of.node)
    assert chain.product is not None
    total = View(chain.total.target, chain.total.offset, (*chain.total.shape, 1), (*chain.total.strides, 0), SINGLE)
    inputs = [total.broadcast(box.shape), chain.product, *([chain.output] if chain.steps > 1 else [])]
    sums = ("in", 1) if len(inputs) == 2 else ("add", ("in", 1), ("in", 2))
    codes = tuple(code_of_numpy(view.dtype) for view in inputs)
    program = kernels.elementwise(("div", sums, ("in", 0)), codes, code_of_numpy(tile.dtype))
    launch_element_by_element(of.builder, of.node, [program], [*inputs, tile])
    if tile is not box:
        of.builder.flush(box, tile, of.node)
