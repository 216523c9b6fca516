"""Handlers of scatters and TopK: every position is compared with every other, which bounds their size.

The vector engine compares whole tiles; what it finds goes on as reductions and gathers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.compiler.frontend.call import shape_product
from libnpu.compiler.frontend.ops_index import INT32, element_places, gather_flat, nd_places, positions
from libnpu.compiler.frontend.source import ModelError
from libnpu.compiler.frontend.unsigned import is_unsigned_word, ordered_value

if TYPE_CHECKING:
    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Expr, Value

X: Expr = ("in", 0)
Y: Expr = ("in", 1)
Z: Expr = ("in", 2)
MAX_PAIRS = 1 << 24  # chosen: comparisons of one operator, some milliseconds of a SHAVE
_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}


def scatter_elements(call: Call) -> Value:
    data, indices, updates, build = call.input(0), call.input(1), call.input(2), call.build
    axis = call.axis(int(call.attrs.get("axis", 0)), len(data.shape))
    if indices.shape != updates.shape:
        raise ModelError(f"node {call.name}: {call.op} of updates {updates.shape} at indices {indices.shape}")
    place = element_places(call, data, indices, axis)
    count = shape_product(indices.shape)
    flat = [
        build.reshape(data, (shape_product(data.shape), 1)),
        build.reshape(place, (count,)),
        build.reshape(updates, (count, 1)),
    ]
    return build.reshape(_scattered(call, *flat), data.shape)


def scatter_nd(call: Call) -> Value:
    data, indices, updates, build = call.input(0), call.input(1), call.input(2), call.build
    depth = indices.shape[-1]
    inner = data.shape[depth:]
    if not 0 < depth <= len(data.shape) or updates.shape != (*indices.shape[:-1], *inner):
        raise ModelError(
            f"node {call.name}: ScatterND of {data.shape}, updates {updates.shape}, indices {indices.shape}"
        )
    place = nd_places(call, data.shape, indices, 0)
    count, width = shape_product(indices.shape[:-1]), shape_product(inner)
    rows = build.reshape(data, (shape_product(data.shape[:depth]), width))
    result = _scattered(call, rows, build.reshape(place, (count,)), build.reshape(updates, (count, width)))
    return build.reshape(result, data.shape)


def tensor_scatter(call: Call) -> Value:
    """TensorScatter: a cache with an update at each batch's own place on one axis, which wraps round in mode circular."""
    cache, update, build = call.input(0), call.input(1), call.build
    axis = call.axis(int(call.attrs.get("axis", -2)), len(cache.shape))
    if [d for i, d in enumerate(cache.shape) if i != axis] != [d for i, d in enumerate(update.shape) if i != axis]:
        raise ModelError(f"node {call.name}: TensorScatter of {update.shape} into {cache.shape} on axis {axis}")
    if axis == 0:
        raise ModelError(f"node {call.name}: TensorScatter on axis 0, which is the batch")
    size, length = cache.shape[axis], update.shape[axis]
    given = call.optional(2)
    start = build.const(np.zeros(cache.shape[0], np.int64)) if given is None else given
    row = positions(build, (size,), 0)
    behind: Expr = ("sub", X, Y)  # how far a row of the cache is behind the first that the update writes
    if call.attrs.get("mode", b"linear") == b"circular":
        behind = ("mod", behind, ("const", size))
    wide = [size if index == axis else 1 for index in range(len(cache.shape))]
    parts = []
    for batch in range(cache.shape[0]):
        first = build.reshape(build.slice(start, {0: (batch, batch + 1, 1)}), (1,))
        if call.attrs.get("mode", b"linear") == b"linear":
            call.require(("and", ("ge", X, ("const", 0)), ("le", X, ("const", size - length))), [first])
        place = build.elementwise(("clip", behind, ("const", 0), ("const", length - 1)), [row, first], INT32)
        moved = build.emit("Gather", [build.slice(update, {0: (batch, batch + 1, 1)}), place], {"axis": axis})
        inside: Expr = ("and", ("ge", behind, ("const", 0)), ("lt", behind, ("const", length)))
        is_new = build.reshape(build.elementwise(inside, [row, first], INT32), wide)
        old = build.slice(cache, {0: (batch, batch + 1, 1)})
        parts.append(build.elementwise(("where", X, Y, Z), [is_new, moved, old], cache.dtype))
    return parts[0] if len(parts) == 1 else build.emit("Concat", parts, {"axis": 0})


def max_unpool(call: Call) -> Value:
    """MaxUnpool: zeros, but for the elements that a pooling has found, at the places in the whole tensor where it has."""
    x, indices, build = call.input(0), call.input(1), call.build
    rank = len(x.shape) - 2
    kernel, strides = call.per_axis("kernel_shape", rank, 1, 1), call.per_axis("strides", rank, 1, 1)
    pads = call.per_axis("pads", 2 * rank, 0, 0)
    if indices.shape != x.shape:
        raise ModelError(f"node {call.name}: MaxUnpool of {x.shape} at {indices.shape} with a kernel of {kernel}")
    sizes = [(x.shape[2 + i] - 1) * strides[i] + kernel[i] - pads[i] - pads[rank + i] for i in range(rank)]
    shape = (*x.shape[:2], *sizes)
    declared = call.shape()
    wanted = call.implied(2, "output_shape", list(declared) if declared else None) if call.optional(2) else list(shape)
    if any(want < have for want, have in zip(wanted, shape, strict=True)):
        raise call.unimplemented(f"an output of {wanted}, smaller than {list(shape)}")
    count, total = shape_product(x.shape), shape_product(shape)
    zeros = build.const(np.zeros((total, 1), x.dtype), "nothing")
    result = build.reshape(
        _scattered(call, zeros, build.reshape(indices, (count,)), build.reshape(x, (count, 1))), shape
    )
    after = [(0, want - have) for want, have in zip(wanted, shape, strict=True)]
    return build.emit("Pad", [result], {"pads": after, "value": 0.0}) if any(map(any, after)) else result


def _scattered(call: Call, data: Value, place: Value, updates: Value) -> Value:
    """Return rows of `data` [rows, width] with `updates` [count, width] at rows `place` [count].

    Of equal places the last wins; a place outside of the rows gets nothing.
    """
    build = call.build
    (rows, width), count = data.shape, updates.shape[0]
    reduction = call.attrs.get("reduction", b"none").decode()
    if reduction in ("max", "min") and is_unsigned_word(data.dtype):
        raise call.unimplemented(f"reduction {reduction} of {data.dtype}")
    pairs = rows * count * (width if reduction != "none" else 1)
    if pairs > MAX_PAIRS:
        raise call.unimplemented(f"{rows} places for {count} updates: {pairs} comparisons, at most {MAX_PAIRS}")
    row = positions(build, (rows, 1), 0)
    if reduction == "none":
        last: Expr = ("where", ("eq", X, Y), Z, ("const", -1))
        inputs = [row, build.reshape(place, (1, count)), positions(build, (1, count), 1)]
        winner = build.reduce(build.elementwise(last, inputs, INT32), "max", [1], True)
        taken = build.reshape(build.elementwise(("max", X, ("const", 0)), [winner]), (rows,))
        chosen = build.emit("Gather", [updates, taken], {"axis": 0})
        return build.elementwise(("where", ("lt", X, ("const", 0)), Y, Z), [winner, data, chosen], data.dtype)
    kind, op = _REDUCTIONS[reduction], reduction
    inputs = [
        build.reshape(row, (rows, 1, 1)),
        build.reshape(place, (1, count, 1)),
        build.reshape(updates, (1, count, width)),
    ]
    own: Expr = ("where", ("eq", X, Y), Z, ("const", _neutral(kind, data.dtype)))
    total = build.reduce(build.elementwise(own, inputs, data.dtype), kind, [1], False)
    return build.elementwise((op, X, Y), [data, total])


def _neutral(kind: str, dtype: np.dtype[Any]) -> float | int:
    if dtype == np.bool_:
        return int(kind in ("prod", "min"))
    if dtype.kind in "iu":
        info: Any = np.iinfo(dtype) if dtype.itemsize < 4 else np.iinfo(np.int32)
        return {"sum": 0, "prod": 1, "max": int(info.min), "min": int(info.max)}[kind]
    return {"sum": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}[kind]


def top_k(call: Call) -> list[Value]:
    """TopK: the rank of an element is the number of those that come before it."""
    x, build = call.input(0), call.build
    axis = call.axis(int(call.attrs.get("axis", -1)), len(x.shape))
    size, declared = x.shape[axis], call.shape()
    (k,) = call.implied(1, "k", [declared[axis]] if declared else None) if call.opset >= 10 else [int(call.attrs["k"])]
    if not 0 < k <= size:
        raise ModelError(f"node {call.name}: TopK of {k} elements on an axis of {size}")
    rest = [index for index in range(len(x.shape)) if index != axis]
    rows = shape_product(tuple(x.shape[index] for index in rest))
    if rows * size * size > MAX_PAIRS:
        raise call.unimplemented(f"{rows} times {size} elements: {rows * size * size} comparisons, at most {MAX_PAIRS}")
    flat = build.reshape(build.transpose(x, [*rest, axis]), (rows, size))
    keys = ordered_value(build, flat)
    first: Expr = ("gt" if call.attrs.get("largest", 1) else "lt", Y, X)
    before: Expr = ("or", first, ("and", ("eq", X, Y), ("lt", ("in", 3), Z)))
    mine, other = build.reshape(keys, (rows, size, 1)), build.reshape(keys, (rows, 1, size))
    inputs = [mine, other, positions(build, (1, size, 1), 1), positions(build, (1, 1, size), 2)]
    rank = build.reduce(build.elementwise(before, inputs, INT32), "sum", [2], False)
    places = [build.reshape(rank, (rows, 1, size)), positions(build, (1, k, 1), 1)]
    found = build.elementwise(("eq", X, Y), places, INT32)
    index = build.emit("ArgMax", [found], {"axis": 2, "keepdims": False}, dtype=np.dtype(np.int64))
    start = build.const((np.arange(rows, dtype=np.int32) * size).reshape(rows, 1), "rows")
    values = gather_flat(build, flat, build.elementwise(("add", X, Y), [index, start], INT32))
    order = [[*rest, axis].index(index) for index in range(len(x.shape))]
    shape = [*(x.shape[i] for i in rest), k]
    return [build.transpose(build.reshape(value, shape), order) for value in (values, index)]
