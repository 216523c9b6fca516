"""Handlers of operators that are about positions: triangles, one-hot vectors, running sums, and gathers by element.

Positions are constants of int32. A gather by element is one from the flattened table, by indices that the engine computes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx

from libnpu.compiler.frontend.call import is_float, shape_product
from libnpu.compiler.frontend.source import ModelError
from libnpu.compiler.frontend.unsigned import ordered_value

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.compiler.frontend.builder import Builder
    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.frontend.infer import Shape
    from libnpu.compiler.ir import Expr, Value

X: Expr = ("in", 0)
Y: Expr = ("in", 1)
Z: Expr = ("in", 2)
INT32 = np.dtype(np.int32)
OUTSIDE: Expr = ("const", -(1 << 31))  # an index that no table has: the gather faults


def positions(build: Builder, shape: Shape, axis: int) -> Value:
    """Return 0, 1, ... along `axis`, of a shape that broadcasts to `shape`."""
    dims = [size if index == axis else 1 for index, size in enumerate(shape)]
    return build.const(np.arange(shape[axis], dtype=np.int32).reshape(dims), "positions")


def trilu(call: Call) -> Value:
    """Trilu; the diagonal may be computed."""
    x, build = call.input(0), call.build
    rank = len(x.shape)
    diagonal = call.optional(1)
    diagonal = build.const(np.zeros((), np.int64)) if diagonal is None else build.reshape(diagonal, ())
    above: Expr = ("sub", ("in", 2), Y)  # column - row
    kept: Expr = ("ge" if call.attrs.get("upper", 1) else "le", above, ("in", 3))
    nothing: Expr = ("const", 0.0 if is_float(x) else 0)
    inputs = [x, positions(build, x.shape, rank - 2), positions(build, x.shape, rank - 1), diagonal]
    return build.elementwise(("where", kept, X, nothing), inputs)


def eye_like(call: Call) -> Value:
    """EyeLike: a constant, of the shape of the operand."""
    x = call.input(0)
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(call.attrs["dtype"])) if "dtype" in call.attrs else x.dtype
    rows, columns = x.shape
    return call.build.const(np.eye(rows, columns, int(call.attrs.get("k", 0))).astype(dtype), f"{call.name}.eye")


def one_hot(call: Call) -> Value:
    """OneHot; an index outside of [-depth, depth) has no place."""
    indices, values, build = call.input(0), call.input(2), call.build
    depth = call.array(1, "depth")
    assert depth is not None
    count = int(depth.reshape(-1)[0])
    axis = call.axis(int(call.attrs.get("axis", -1)), len(indices.shape) + 1)
    if is_float(indices):
        indices = build.elementwise(("cast_i32", X), [indices], INT32)
    shape = (*indices.shape[:axis], count, *indices.shape[axis:])
    spread = build.reshape(indices, (*indices.shape[:axis], 1, *indices.shape[axis:]))
    off, on = (build.reshape(build.slice(values, {0: (place, place + 1, 1)}), ()) for place in (0, 1))
    from_start: Expr = ("where", ("lt", X, ("const", 0)), ("add", X, ("const", count)), X)
    expr: Expr = ("where", ("eq", from_start, Y), Z, ("in", 3))
    return build.elementwise(expr, [spread, positions(build, shape, axis), on, off], values.dtype)


def hardmax(call: Call) -> Value:
    """Hardmax: 1 at the first largest element; before opset 13 of all axes from `axis` on together."""
    x, build = call.input(0), call.build
    axis = call.axis(int(call.attrs.get("axis", -1 if call.opset >= 13 else 1)), len(x.shape))
    flat = x
    if call.opset < 13:
        flat, axis = build.reshape(x, (shape_product(x.shape[:axis]), shape_product(x.shape[axis:]))), 1
    largest = build.emit("ArgMax", [flat], {"axis": axis, "keepdims": True}, dtype=INT32)
    inputs = [largest, positions(build, flat.shape, axis)]
    return build.reshape(build.elementwise(("cast_f32", ("eq", X, Y)), inputs, x.dtype), x.shape)


def arg_max(call: Call) -> Value:
    """ArgMax and ArgMin; the last of equal elements is the first of the reversed ones."""
    x, build = ordered_value(call.build, call.input(0)), call.build
    if call.op == "ArgMin":
        # The order turned round within the type: -1 - x of an integer is always one, -x is not.
        reverse: Expr = ("neg", X) if is_float(x) else ("sub", ("const", -1), X)
        x = build.elementwise(reverse, [x], x.dtype if is_float(x) else INT32)
    axis = call.axis(int(call.attrs.get("axis", 0)), len(x.shape))
    attrs = {"axis": axis, "keepdims": bool(call.attrs.get("keepdims", 1))}
    if not call.attrs.get("select_last_index", 0):
        return build.emit("ArgMax", [x], attrs, dtype=np.dtype(np.int64))
    size = x.shape[axis]
    backwards = build.const(np.arange(size, dtype=np.int32)[::-1].copy(), "backwards")
    found = build.emit(
        "ArgMax", [build.emit("Gather", [x, backwards], {"axis": axis})], attrs, dtype=np.dtype(np.int64)
    )
    return build.elementwise(("sub", ("const", size - 1), X), [found])


def cumulative(call: Call) -> Value:
    """CumSum and CumProd, in a step for each power of two: each element takes in what is that far before it."""
    x, build = call.input(0), call.build
    given = call.array(1, "axis")
    assert given is not None
    axis = call.axis(int(given.reshape(-1)[0]), len(x.shape))
    size = x.shape[axis]
    op, neutral = ("add", 0.0) if call.op == "CumSum" else ("mul", 1.0)
    reverse = bool(call.attrs.get("reverse", 0))

    def moved(value: Value, distance: int) -> Value:
        if distance >= size:
            return build.const(np.full(x.shape, neutral, x.dtype))
        bounds, pad = ((distance, size, 1), (0, distance)) if reverse else ((0, size - distance, 1), (distance, 0))
        pads = [pad if index == axis else (0, 0) for index in range(len(x.shape))]
        return build.emit("Pad", [build.slice(value, {axis: bounds})], {"pads": pads, "value": neutral})

    total = moved(x, 1) if call.attrs.get("exclusive", 0) else x
    for step in range(max(0, size - 1).bit_length()):
        total = build.elementwise((op, X, Y), [total, moved(total, 1 << step)])
    return total


def gather_elements(call: Call) -> Value:
    """GatherElements: the index replaces the position on one axis, the others keep theirs."""
    data, indices, build = call.input(0), call.input(1), call.build
    axis = call.axis(int(call.attrs.get("axis", 0)), len(data.shape))
    fits = len(indices.shape) == len(data.shape) and all(
        mine <= size for index, (mine, size) in enumerate(zip(indices.shape, data.shape, strict=True)) if index != axis
    )
    if not fits:
        raise ModelError(
            f"node {call.name}: GatherElements of {data.name} {data.shape} by {indices.name} {indices.shape}"
        )
    strides = _strides(data.shape)
    others = sum(
        np.arange(size).reshape([-1 if k == index else 1 for k in range(len(data.shape))]) * strides[index]
        for index, size in enumerate(indices.shape)
        if index != axis
    )
    place = _place(build, indices, data.shape[axis], strides[axis], others)
    return build.emit(
        "Gather", [build.reshape(data, (-1 if 0 in data.shape else shape_product(data.shape),)), place], {"axis": 0}
    )


def gather_nd(call: Call) -> Value:
    """GatherND: the last axis of the indices is a position on the axes behind the batch."""
    data, indices, build = call.input(0), call.input(1), call.build
    batch, depth, rank = int(call.attrs.get("batch_dims", 0)), indices.shape[-1], len(indices.shape)
    if not 0 < depth <= len(data.shape) - batch or indices.shape[:batch] != data.shape[:batch] or rank <= batch:
        raise ModelError(
            f"node {call.name}: GatherND of {data.name} {data.shape} by {indices.name} {indices.shape}, batch {batch}"
        )
    reached, inner = data.shape[: batch + depth], data.shape[batch + depth :]
    strides = _strides(reached)
    others: NDArray[np.int64] | int = sum(
        np.arange(size).reshape([-1 if k == index else 1 for k in range(rank - 1)]) * strides[index]
        for index, size in enumerate(data.shape[:batch])
    )
    place: Value | None = None
    for index in range(depth):
        one = build.slice(indices, {rank - 1: (index, index + 1, 1)})
        part = _place(
            build, build.reshape(one, indices.shape[:-1]), reached[batch + index], strides[batch + index], others
        )
        place, others = part if place is None else build.elementwise(_sum_of_places(), [place, part]), 0
    assert place is not None
    table = build.reshape(data, (shape_product(reached), *inner))
    return build.emit("Gather", [table, place], {"axis": 0})


def reverse_sequence(call: Call) -> Value:
    """ReverseSequence: the first elements of each sequence, as many as its length says, the other way round."""
    x, lengths, build = call.input(0), call.input(1), call.build
    batch_axis, time_axis = int(call.attrs.get("batch_axis", 1)), int(call.attrs.get("time_axis", 0))
    strides, rank = _strides(x.shape), len(x.shape)
    others = sum(
        np.arange(size).reshape([-1 if k == index else 1 for k in range(rank)]) * strides[index]
        for index, size in enumerate(x.shape)
        if index != time_axis
    )
    length = build.reshape(lengths, [size if index == batch_axis else 1 for index, size in enumerate(x.shape)])
    turned: Expr = ("where", ("lt", X, Y), ("sub", ("sub", Y, ("const", 1)), X), X)
    source = build.elementwise(turned, [positions(build, x.shape, time_axis), length], INT32)
    place = _place(build, source, x.shape[time_axis], strides[time_axis], others)
    return build.emit("Gather", [build.reshape(x, (shape_product(x.shape),)), place], {"axis": 0})


def constant_shape(call: Call) -> Value:
    """ConstantOfShape and Range are constants, or depend on what is known at run time only."""
    what = ("shape",) if call.op == "ConstantOfShape" else ("start", "limit", "delta")
    for index, name in enumerate(what):
        call.array(index, name)
    raise AssertionError(f"{call.name}: {call.op} of constants is one")


def _strides(shape: Shape) -> list[int]:
    """Return the elements between neighbours on each axis."""
    return [math.prod(shape[index + 1 :]) for index in range(len(shape))]


def _place(build: Builder, indices: Value, size: int, stride: int, others: NDArray[np.int64] | int) -> Value:
    """Return others + index · stride, or OUTSIDE for an index that is not in [-size, size)."""
    from_start: Expr = ("where", ("lt", X, ("const", 0)), ("add", X, ("const", size)), X)
    inside: Expr = ("and", ("ge", X, ("const", -size)), ("lt", X, ("const", size)))
    offset = build.const(np.broadcast_to(np.asarray(others, np.int32), indices.shape).copy(), "places")
    expr: Expr = ("where", inside, ("add", ("mul", from_start, ("const", stride)), Y), OUTSIDE)
    return build.elementwise(expr, [indices, offset], INT32)


def _sum_of_places() -> Expr:
    return ("where", ("lt", ("min", X, Y), ("const", 0)), OUTSIDE, ("add", X, Y))
