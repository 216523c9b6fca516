"""Recipes of what goes by index."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.compiler.fuzz.draw import BOOL, Reject
from tests.compiler.fuzz.model import is_float
from tests.compiler.fuzz.recipes.movement import anything
from tests.compiler.fuzz.recipes.table import F32, I32, I64, recipe


def indices(g, op, shape, size, index=1, negative=True):
    """Return integers that are places in an axis of `size`, some from its end."""
    if not size:
        raise Reject
    dtype = g.choice(g.dtypes(op, index, (I32, I64)))
    return g.new(g.array(dtype, shape, -size if negative and g.opset >= 11 else 0, size - 1))


@recipe("Gather")
def gather(g, op):
    x = anything(g, op, 1)
    axis = g.axis(g.known(x).ndim)
    g.add(op, [x, indices(g, op, g.shape(g.whole(0, 2), 5), g.known(x).shape[axis])], {"axis": axis})


@recipe("GatherElements")
def gather_elements(g, op):
    x = anything(g, op, 1)
    shape = g.known(x).shape
    axis = g.axis(len(shape))
    places = [g.whole(1, size) if size else 0 for size in shape]
    places[axis] = g.choice((1, 2, 3, 5))
    g.add(op, [x, indices(g, op, places, shape[axis])], {"axis": axis})


@recipe("GatherND")
def gather_nd(g, op):
    x = anything(g, op, 1)
    shape = g.known(x).shape
    batch = g.whole(0, len(shape) - 1) if g.opset >= 12 and g.chance(0.3) else 0
    depth = g.whole(1, len(shape) - batch)
    places = (*shape[:batch], *g.shape(1, 4), depth)
    if 0 in shape:
        raise Reject
    limits = np.array(shape[batch : batch + depth])
    array = (g.rng.random(places) * limits).astype(np.int64) - limits * (g.rng.random(places) < 0.2)
    g.add(op, [x, g.new(np.asarray(array, I64))], {"batch_dims": batch} if batch else {})


@recipe("Scatter", "ScatterElements")
def scatter_elements(g, op):
    x = g.operand(g.dtypes(op), lambda a: a.ndim >= 1 and a.size <= 256, g.shape(g.whole(1, 3), 5))
    shape = g.known(x).shape
    if 0 in shape:
        raise Reject
    axis = g.axis(len(shape))
    places = tuple(g.whole(1, size) for size in shape)
    attrs = {"axis": axis}
    if "reduction" in g.schema(op).attributes and g.chance(0.5):
        attrs["reduction"] = g.choice(("add", "mul", *(["max", "min"] if g.opset >= 18 else [])))
        where = g.array(I64, places, 0, shape[axis] - 1)
    else:  # distinct along the axis, as there is no order
        where = np.argsort(
            g.rng.random([size if a != axis % len(shape) else shape[a] for a, size in enumerate(places)]), axis
        )
        where = where[tuple(slice(size) for size in places)].astype(np.int64)
    g.add(op, [x, g.new(where), g.like(x, places)], attrs)


@recipe("ScatterND")
def scatter_nd(g, op):
    x = g.operand(g.dtypes(op), lambda a: a.ndim >= 1 and a.size <= 256, g.shape(g.whole(1, 3), 5))
    shape = g.known(x).shape
    if 0 in shape:
        raise Reject
    depth = g.whole(1, len(shape))
    every = np.stack(np.meshgrid(*[np.arange(size) for size in shape[:depth]], indexing="ij"), -1).reshape(-1, depth)
    taken = every[g.rng.permutation(len(every))[: g.whole(1, min(6, len(every)))]]
    attrs = (
        {"reduction": g.choice(("add", "mul", *(["max", "min"] if g.opset >= 18 else [])))}
        if g.opset >= 16 and g.chance(0.5)
        else {}
    )
    g.add(op, [x, g.new(taken.astype(np.int64)), g.like(x, (len(taken), *shape[depth:]))], attrs)


@recipe("TopK")
def top_k(g, op):
    x = g.operand(g.dtypes(op), lambda a: a.ndim >= 1 and a.size <= 512 and 0 not in a.shape, g.shape(g.whole(1, 3), 8))
    axis = g.axis(g.known(x).ndim)
    attrs = {"axis": axis} | ({"largest": g.whole(0, 1)} if g.opset >= 11 else {})
    if g.opset < 11:
        attrs["axis"] %= g.known(x).ndim
    k = g.whole(1, g.known(x).shape[axis])
    extra = [g.constant([k], I64)] if g.opset >= 10 else []
    g.add(op, [x, *extra], attrs if extra else attrs | {"k": k}, 2)


@recipe("Compress")
def compress(g, op):
    x = anything(g, op, 1)
    axis = g.axis(g.known(x).ndim)
    taken = g.array(BOOL, (g.known(x).shape[axis],))
    g.add(op, [x, g.new(taken, True)], {"axis": axis if g.opset >= 11 else axis % g.known(x).ndim})


@recipe("Trilu")
def trilu(g, op):
    x = anything(g, op, 2)
    g.add(op, [x, *([g.constant(g.whole(-3, 3), I64)] if g.chance(0.6) else [])], {"upper": g.whole(0, 1)})


@recipe("EyeLike")
def eye_like(g, op):
    x = g.operand(g.dtypes(op), lambda a: a.ndim == 2, g.shape(2))
    attrs = {"k": g.whole(-2, 2)}
    if g.chance(0.5):
        attrs["dtype"] = helper.np_dtype_to_tensor_dtype(g.choice((F32, I32, I64)))
    g.add(op, [x], attrs)


@recipe("OneHot")
def one_hot(g, op):
    depth = g.whole(1, 6)
    places = g.new(g.array(g.choice((I64, I32, F32)), g.shape(g.whole(0, 2), 5), -depth, depth - 1))
    if is_float(g.known(places).dtype):
        g.fresh[places] = np.rint(g.fresh[places][0]), g.fresh[places][1]
    values = g.new(g.array(g.choice((F32, I64, I32)), (2,)))
    g.add(op, [places, g.constant(depth, I64), values], {"axis": g.whole(-1, g.known(places).ndim)})


@recipe("ReverseSequence")
def reverse_sequence(g, op):
    x = anything(g, op, 2)
    time = g.whole(0, 1)
    steps, batch = g.known(x).shape[time], g.known(x).shape[1 - time]
    if not steps * batch:
        raise Reject
    g.add(op, [x, g.new(g.array(I64, (batch,), 1, steps))], {"time_axis": time, "batch_axis": 1 - time})


@recipe("ConstantOfShape")
def constant_of_shape(g, op):
    value = helper.make_tensor("value", helper.np_dtype_to_tensor_dtype(F32), [1], [g.number(-1, 1)])
    g.add(op, [g.constant(g.shape(), I64)], {"value": value} if g.chance(0.7) else {})


@recipe("Range")
def range_(g, op):
    dtype = g.choice((F32, I64, I32))
    g.add(op, [g.constant(v, dtype) for v in (g.whole(-3, 2), g.whole(3, 9), g.whole(1, 3))], {})


@recipe("MaxUnpool")
def max_unpool(g, op):
    rank = g.choice((3, 4, 4))
    x = g.operand(g.dtypes(op, among=(F32,)), lambda a: a.ndim == rank and 0 not in a.shape, g.shape(rank, 5))
    shape, kernel = g.known(x).shape, [g.whole(1, 3) for _ in range(rank - 2)]
    total = g.known(x).size * int(np.prod(kernel))
    if total > 2000:
        raise Reject
    places = g.new(g.rng.permutation(total)[: g.known(x).size].reshape(shape).astype(I64))
    g.add(op, [x, places], {"kernel_shape": kernel, "strides": kernel})


@recipe("TensorScatter")
def tensor_scatter(g, op):
    batch, heads, rows, new, size = g.whole(1, 2), g.whole(1, 2), g.whole(2, 7), g.whole(1, 2), g.choice((1, 3, 8))
    cache = g.operand(g.dtypes(op, among=(F32, I32)), shape=(batch, heads, rows, size))
    update, circular = g.like(cache, (batch, heads, new, size)), g.chance(0.4)
    first = g.new(g.array(I64, (batch,), 0, rows - 1 if circular else rows - new))
    g.add(op, [cache, update, first], {"mode": "circular" if circular else "linear"})


@recipe("Shape", "Size")
def sizes(g, op):
    g.add(op, [anything(g, op, 0)], {})
