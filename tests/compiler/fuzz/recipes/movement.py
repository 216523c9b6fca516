"""Recipes of what moves data."""

from __future__ import annotations

import numpy as np

from tests.compiler.fuzz.draw import FLOATS, Reject
from tests.compiler.fuzz.recipes.table import I64, recipe


def anything(g, op, least=0, index=0):
    return g.operand(g.dtypes(op, index), lambda a: a.ndim >= least, g.shape(g.whole(least, 5)))


@recipe("Dropout")
def dropout(g, op):
    g.add(op, [g.operand(g.dtypes(op, among=FLOATS))], {})


@recipe("Reshape")
def reshape(g, op):
    x = anything(g, op)
    shape, sizes = [], list(g.known(x).shape)
    while sizes:  # neighbours come together, or fall apart
        size = sizes.pop(0)
        if sizes and g.chance(0.5):
            size *= sizes.pop(0)
        if size > 3 and size % 2 == 0 and g.chance(0.4):
            shape += [2, size // 2]
        else:
            shape.append(size)
    if g.chance(0.3):
        shape.insert(g.whole(0, len(shape)), 1)
    if shape and 0 not in shape and g.chance(0.5):
        shape[g.whole(0, len(shape) - 1)] = -1
    g.add(op, [x, g.constant(shape, I64)], {"allowzero": 1} if 0 in shape and g.opset >= 14 and -1 not in shape else {})


@recipe("Flatten")
def flatten(g, op):
    x = anything(g, op)
    rank = g.known(x).ndim
    g.add(op, [x], {"axis": g.whole(-rank if g.opset >= 11 else 0, rank)})


@recipe("Squeeze", "Unsqueeze")
def squeeze(g, op):
    x = anything(g, op)
    shape, attrs = g.known(x).shape, {}
    ones = [axis for axis, size in enumerate(shape) if size == 1]
    if op == "Squeeze":
        axes = [axis - len(shape) * (g.opset >= 11 and g.chance(0.4)) for axis in ones[: g.whole(1, max(1, len(ones)))]]
        if not axes:
            raise Reject
        extra = g.integers(op, "axes", axes, attrs) if g.chance(0.8) else []
    else:
        rank = len(shape) + g.whole(1, 2)
        axes = g.axes(rank)[: rank - len(shape)]
        if rank > 6 or g.opset < 11:
            axes = [axis % rank for axis in axes]
        if len(axes) != rank - len(shape):
            raise Reject
        extra = g.integers(op, "axes", axes, attrs)
    g.add(op, [x, *extra], attrs)


@recipe("Transpose")
def transpose(g, op):
    x = anything(g, op)
    g.add(op, [x], {"perm": g.rng.permutation(g.known(x).ndim).tolist()} if g.chance(0.85) else {})


@recipe("Slice")
def slice_(g, op):
    x = anything(g, op, 1)
    shape, attrs = g.known(x).shape, {}
    axes = g.axes(len(shape))
    steps = [g.choice((1, 1, 1, 2, 3, -1, -2)) for _ in axes] if g.opset >= 10 else [1] * len(axes)
    starts, ends = [], []
    for axis, step in zip(axes, steps, strict=True):
        size = shape[axis]
        first, last = sorted((g.whole(0, size), g.whole(0, size)))
        last = max(last, first + 1) + (2**31 if g.chance(0.1) else 0)
        start, end = (first, last) if step > 0 else (min(last, size) - 1, first - 1 if first else -(2**31))
        starts.append(start - size if 0 <= start < size and g.chance(0.3) else start)
        ends.append(end)
    if g.opset < 10:
        attrs |= {"axes": [axis % len(shape) for axis in axes], "starts": starts, "ends": ends}
    extra = [] if g.opset < 10 else [g.constant(values, I64) for values in (starts, ends, axes, steps)]
    g.add(op, [x, *extra], attrs)


@recipe("Split")
def split(g, op):
    x = anything(g, op, 1)
    shape = g.known(x).shape
    axis = g.axis(len(shape))
    size, attrs = shape[axis], {"axis": axis if g.opset >= 11 else axis % len(shape)}
    count = g.whole(1, min(3, max(size, 1)))
    cuts = sorted(g.rng.permutation(max(size - 1, 0))[: count - 1] + 1)
    sizes = np.diff([0, *cuts, size]).tolist()
    if g.opset >= 18 and g.chance(0.4) and size >= count and -(-size // count) * (count - 1) < size:
        g.add(op, [x], attrs | {"num_outputs": count}, count)
    else:
        extra = g.integers(op, "split", sizes, attrs)
        g.add(op, [x, *extra], attrs, count)


@recipe("Concat")
def concat(g, op):
    x = anything(g, op, 1)
    shape = g.known(x).shape
    axis = g.axis(len(shape)) if g.opset >= 11 else g.axis(len(shape)) % len(shape)
    others = []
    for _ in range(g.whole(0, 3)):
        other = list(shape)
        other[axis] = g.choice((0, 1, 2, 3, 5))
        others.append(x if g.chance(0.2) else g.like(x, tuple(other)))
    g.add(op, g.turned([x, *others]), {"axis": axis})


@recipe("Expand")
def expand(g, op):
    x = anything(g, op)
    shape = [g.choice((1, size)) if size != 1 else g.choice((1, 2, 3, 7)) for size in g.known(x).shape]
    if g.chance(0.3) and len(shape) < 5:
        shape.insert(0, g.choice((1, 2, 3)))
    g.add(op, [x, g.constant(shape, I64)], {})


@recipe("Tile")
def tile(g, op):
    x = anything(g, op)
    g.add(op, [x, g.constant([g.choice((1, 1, 2, 3)) for _ in g.known(x).shape], I64)], {})


@recipe("Pad")
def pad(g, op):
    x = anything(g, op, 1)
    shape = g.known(x).shape
    mode = g.choice(("constant", "constant", "reflect", "edge", *(["wrap"] if g.opset >= 19 else [])))
    axes = g.axes(len(shape)) if g.opset >= 18 and g.chance(0.3) else None
    sizes = [shape[axis] for axis in axes] if axes else shape
    pads = [
        g.whole(-1 if mode == "constant" and size > 2 and g.chance(0.3) else 0, min(2, max(size - 1, 0)))
        for size in (*sizes, *sizes)
    ]
    if g.opset < 11:
        g.add(op, [x], {"mode": mode, "pads": pads, "value": g.number(-1, 1)})
        return
    value = g.new(g.array(g.known(x).dtype, (), -1, 1), True) if mode == "constant" and g.chance(0.5) else ""
    extra = [g.constant(pads, I64), *([value] if value or axes else []), *([g.constant(axes, I64)] if axes else [])]
    g.add(op, [x, *extra], {"mode": mode})


@recipe("DepthToSpace", "SpaceToDepth")
def depth_to_space(g, op):
    block = g.choice((1, 2, 2, 3))
    n, c, h, w = g.shape(4, 5)
    shape = (n, c * block**2, h, w) if op == "DepthToSpace" else (n, c, h * block, w * block)
    attrs = {"blocksize": block} | ({"mode": "CRD"} if op == "DepthToSpace" and g.opset >= 11 and g.chance(0.5) else {})
    index = 1 if op == "DepthToSpace" else 2
    fits = (
        (lambda a: a.ndim == 4 and a.shape[1] % block**2 == 0)
        if index == 1
        else (lambda a: a.ndim == 4 and not (a.shape[2] % block or a.shape[3] % block))
    )
    g.add(op, [g.operand(g.dtypes(op), fits, shape)], attrs)
