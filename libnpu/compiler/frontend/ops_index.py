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
    from collections.abc import Sequence

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
    declared = call.shape()
    axis = call.axis(int(call.attrs.get("axis", -1)), len(indices.shape) + 1)
    (count,) = call.implied(1, "depth", [declared[axis]] if declared else None)
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
    """CumSum and CumProd; of a computed axis, along each, and the one chosen."""
    x, given, build = call.input(0), call.input(1), call.build
    rank = len(x.shape)
    if given.const is not None:
        return _cumulative(call, x, call.axis(int(given.const.reshape(-1)[0]), rank))
    chosen = build.reshape(given, ())
    result = _cumulative(call, x, 0)
    for axis in range(1, rank):
        is_it: Expr = ("or", ("eq", X, ("const", axis)), ("eq", X, ("const", axis - rank)))
        result = build.elementwise(("where", is_it, Y, Z), [chosen, _cumulative(call, x, axis), result], x.dtype)
    return result


def _cumulative(call: Call, x: Value, axis: int) -> Value:
    """Return running sums or products, in a step for each power of two: each element takes in what is that far before it."""
    build = call.build
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
    data, indices = call.input(0), call.input(1)
    axis = call.axis(int(call.attrs.get("axis", 0)), len(data.shape))
    return gather_flat(call.build, data, element_places(call, data, indices, axis))


def gather_flat(build: Builder, data: Value, place: Value) -> Value:
    """Return the elements of the flattened `data` at `place`."""
    return build.emit("Gather", [build.reshape(data, (shape_product(data.shape),)), place], {"axis": 0})


def element_places(call: Call, data: Value, indices: Value, axis: int) -> Value:
    """Return where in the flattened `data` the element is that has the index on `axis`, and else the position of the index."""
    pairs = zip(indices.shape, data.shape, strict=False)
    fits = all(mine <= size for index, (mine, size) in enumerate(pairs) if index != axis)
    if len(indices.shape) != len(data.shape) or not fits:
        what = f"{data.name} {data.shape} by {indices.name} {indices.shape}"
        raise ModelError(f"node {call.name}: {call.op} of {what}")
    strides = _strides(data.shape)
    kept = [stride if index != axis else 0 for index, stride in enumerate(strides)]
    return _place(call.build, indices, data.shape[axis], strides[axis], _offsets(indices.shape, kept))


def gather_nd(call: Call) -> Value:
    """GatherND: the last axis of the indices is a position on the axes behind the batch."""
    data, indices = call.input(0), call.input(1)
    batch = int(call.attrs.get("batch_dims", 0))
    depth = batch + indices.shape[-1]
    if depth > len(data.shape) or indices.shape[:batch] != data.shape[:batch] or len(indices.shape) <= batch:
        what = f"{data.name} {data.shape} by {indices.name} {indices.shape}, batch {batch}"
        raise ModelError(f"node {call.name}: GatherND of {what}")
    table = call.build.reshape(data, (shape_product(data.shape[:depth]), *data.shape[depth:]))
    return call.build.emit("Gather", [table, nd_places(call, data.shape, indices, batch)], {"axis": 0})


def nd_places(call: Call, shape: Shape, indices: Value, batch: int) -> Value:
    """Return where in the first axes of `shape`, flattened, the positions are that the last axis of `indices` holds."""
    build, rank, depth = call.build, len(indices.shape), indices.shape[-1]
    strides = _strides(shape[: batch + depth])
    others = _offsets(indices.shape[:-1], [*strides[:batch], *[0] * (rank - 1 - batch)])
    place: Value | None = None
    for index in range(depth):
        one = build.reshape(build.slice(indices, {rank - 1: (index, index + 1, 1)}), indices.shape[:-1])
        part = _place(build, one, shape[batch + index], strides[batch + index], others)
        both: Expr = ("where", ("lt", ("min", X, Y), ("const", 0)), OUTSIDE, ("add", X, Y))
        place, others = part if place is None else build.elementwise(both, [place, part]), np.zeros((), np.int64)
    if place is None:
        raise ModelError(f"node {call.name}: {call.op} by positions {indices.name} {indices.shape} on no axis")
    return place


def reverse_sequence(call: Call) -> Value:
    """ReverseSequence: the first elements of each sequence, as many as its length says, the other way round."""
    x, lengths, build = call.input(0), call.input(1), call.build
    batch_axis, time_axis = int(call.attrs.get("batch_axis", 1)), int(call.attrs.get("time_axis", 0))
    strides = _strides(x.shape)
    others = _offsets(x.shape, [stride if index != time_axis else 0 for index, stride in enumerate(strides)])
    length = build.reshape(lengths, [size if index == batch_axis else 1 for index, size in enumerate(x.shape)])
    turned: Expr = ("where", ("lt", X, Y), ("sub", ("sub", Y, ("const", 1)), X), X)
    source = build.elementwise(turned, [positions(build, x.shape, time_axis), length], INT32)
    place = _place(build, source, x.shape[time_axis], strides[time_axis], others)
    return gather_flat(build, x, place)


def compress(call: Call) -> Value:
    """Compress, of a known condition, or where the length is declared: the element of rank r is the one before which the condition holds r times."""
    x, condition, build = call.input(0), call.input(1), call.build
    declared = call.shape()
    if declared is None and condition.const is None:
        raise call.unimplemented("a result whose shape is not declared")
    if "axis" in call.attrs:
        axis = call.axis(int(call.attrs["axis"]), len(x.shape))
    else:
        x, axis = build.reshape(x, (shape_product(x.shape),)), 0
    if condition.const is not None:
        places = np.flatnonzero(condition.const).astype(np.int32)
        return build.emit("Gather", [x, build.const(places, f"{call.name}.places")], {"axis": axis})
    assert declared is not None
    count, length = declared[axis], min(condition.shape[0], x.shape[axis])
    kept = build.slice(condition, {0: (0, length, 1)}) if length < condition.shape[0] else condition
    place = kept_places(call, build.elementwise(("cast_bool", X), [kept], INT32), count)
    return build.emit("Gather", [x, place], {"axis": axis})


def kept_places(call: Call, flags: Value, count: int) -> Value:
    """Return where the `count` truths of `flags` [length] are; the program faults when there are not as many."""
    build, length = call.build, flags.shape[0]
    before: Expr = ("where", ("lt", Y, Z), X, ("const", 0))  # whether an earlier one is kept
    rows, columns = positions(build, (length, 1), 0), positions(build, (1, length), 1)
    pairs = build.elementwise(before, [build.reshape(flags, (1, length)), columns, rows], INT32)
    rank = build.reduce(pairs, "sum", [1], False)
    total = build.reduce(flags, "sum", [0], False)
    call.require(("eq", X, ("const", count)), [total])
    wanted = [build.reshape(rank, (1, length)), positions(build, (count, 1), 0), build.reshape(flags, (1, length))]
    found = build.elementwise(("and", ("eq", X, Y), Z), wanted, INT32)
    return build.emit("ArgMax", [found], {"axis": 1, "keepdims": False}, dtype=INT32)


def constant_of_shape(call: Call) -> Value:
    """ConstantOfShape of a computed operand, where the shape is declared; of a constant it is one itself."""
    shape = call.implied(0, "shape", call.shape())
    value = onnx.numpy_helper.to_array(call.attrs["value"]).reshape(()) if "value" in call.attrs else np.float32(0)
    return call.build.const(np.full(shape, value), f"{call.name}.filled")


def range_(call: Call) -> Value:
    """Range of computed bounds, where the length is declared: the last element is within the limit, the next one is not."""
    start, limit, delta = (call.build.reshape(call.input(index), ()) for index in range(3))
    declared = call.shape()
    if declared is None or len(declared) != 1:
        bounds = [call.array(index, what) for index, what in enumerate(("start", "limit", "delta"))]
        raise ModelError(
            f"node {call.name}: Range of {', '.join(str(bound) for bound in bounds)}: no elements, or more than memory holds"
        )
    count, build = declared[0], call.build
    zero, one = (0.0, 1.0) if is_float(start) else (0, 1)
    number = float(count) if is_float(start) else count

    def within(steps: Expr) -> Expr:
        at: Expr = ("add", X, ("mul", steps, Z))
        return ("where", ("gt", Z, ("const", zero)), ("lt", at, Y), ("gt", at, Y))

    last: Expr = within(("const", number - one)) if count else ("const", 1)
    call.require(("and", last, ("not", within(("const", number)))), [start, limit, delta])
    place: Expr = ("cast_f32", X) if is_float(start) else X
    inputs = [positions(build, (count,), 0), start, delta]
    return build.elementwise(("add", Y, ("mul", place, Z)), inputs, start.dtype)


def _strides(shape: Shape) -> list[int]:
    """Return the elements between neighbours on each axis."""
    return [math.prod(shape[index + 1 :]) for index in range(len(shape))]


def _offsets(shape: Shape, strides: Sequence[int]) -> NDArray[np.int64]:
    """Return, of a shape that broadcasts to `shape`, the sum of position times stride over the axes."""
    total = np.zeros((1,) * len(shape), np.int64)
    for index, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if stride:
            total = total + np.arange(size).reshape([-1 if k == index else 1 for k in range(len(shape))]) * stride
    return total


def _place(build: Builder, indices: Value, size: int, stride: int, others: NDArray[np.int64]) -> Value:
    """Return others + index · stride, of the shape of both, or OUTSIDE for an index that is not in [-size, size)."""
    from_start: Expr = ("where", ("lt", X, ("const", 0)), ("add", X, ("const", size)), X)
    inside: Expr = ("and", ("ge", X, ("const", -size)), ("lt", X, ("const", size)))
    offset = build.const(others.astype(np.int32), "places")
    expr: Expr = ("where", inside, ("add", ("mul", from_start, ("const", stride)), Y), OUTSIDE)
    return build.elementwise(expr, [indices, offset], INT32)
