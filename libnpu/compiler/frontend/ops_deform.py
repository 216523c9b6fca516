"""DeformConv: pixels at places that the engine computes from offsets, weighted from their four neighbours, and a matrix product."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from libnpu.compiler.frontend.ops_index import INT32
from libnpu.compiler.frontend.ops_window import kernel_of, window_of
from libnpu.compiler.frontend.source import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.frontend.ops_window import Window
    from libnpu.compiler.ir import Expr, Value

X: Expr = ("in", 0)
Y: Expr = ("in", 1)
SINGLE = np.dtype(np.float32)


def deform_conv(call: Call) -> Value:
    """DeformConv of images with two axes; places outside of the image count as 0."""
    x, w, offset, build = call.input(0), call.input(1), call.input(2), call.build
    if len(x.shape) != 4:
        raise call.unimplemented(f"{len(x.shape) - 2} spatial axes")
    (n, c, *sizes), group = x.shape, call.groups()
    groups, window = call.groups("offset_group"), window_of(call, x, kernel_of(call, x, w))
    outputs, taps = window.counts(x.shape[2:]), prod(window.kernel)
    places = (n, groups, taps, *outputs)
    if c % groups or w.shape[0] % group or w.shape[1] * group != c or offset.shape != (n, groups * taps * 2, *outputs):
        raise ModelError(
            f"node {call.name}: DeformConv of {x.shape} by {w.shape}, offsets {offset.shape}, {groups} groups of them"
        )
    given = build.reshape(offset, (n, groups, taps, 2, *outputs))
    axes = [_coordinate(call, given, places, axis, window) for axis in (0, 1)]
    images = np.arange(n * groups, dtype=np.int32).reshape(n, groups, 1, 1, 1) * prod(sizes)
    pixels = build.transpose(build.reshape(x, (n, groups, c // groups, *sizes)), [0, 1, 3, 4, 2])
    table = build.reshape(pixels, (n * groups * prod(sizes), c // groups))
    mask = call.optional(4)
    scale = None if mask is None else build.reshape(mask, (*places, 1))
    total: Value | None = None
    for corner in ((0, 0), (0, 1), (1, 0), (1, 1)):
        part = _corner(call, table, axes, corner, sizes, images)
        total = part if total is None else build.elementwise(("add", X, Y), [total, part])
    assert total is not None
    if scale is not None:
        total = build.elementwise(("mul", X, Y), [total, scale])
    columns = build.reshape(
        build.transpose(total, [0, 1, 5, 2, 3, 4]), (n, group, c // group * taps, prod(outputs))
    )  # channels, then taps
    rows = build.reshape(w, (group, w.shape[0] // group, c // group * taps))
    product = build.emit("MatMul", [rows, columns, None], {"act": None, "scale": 1.0})
    result = build.reshape(product, (n, w.shape[0], *outputs))
    bias = call.optional(3)
    if bias is None:
        return result
    return build.elementwise(("add", X, Y), [result, build.reshape(bias, (w.shape[0], 1, 1))])


def _coordinate(call: Call, offset: Value, places: tuple[int, ...], axis: int, window: Window) -> Value:
    """Return where on an axis every tap looks, in pixels, of the shape `places`."""
    build = call.build
    stride, dilation, pad = window.strides[axis], window.dilations[axis], window.pads[axis]
    tap = np.indices(tuple(window.kernel))[axis].reshape(1, 1, -1, 1, 1) * dilation - pad
    step = np.arange(places[3 + axis]) * stride
    regular = tap + step.reshape([1, 1, 1, *(-1 if index == axis else 1 for index in (0, 1))])
    moved = build.reshape(build.slice(offset, {3: (axis, axis + 1, 1)}), places)
    return build.elementwise(("add", X, Y), [moved, build.const(regular.astype(np.float32), "taps")], SINGLE)


def _corner(
    call: Call, table: Value, axes: list[Value], corner: tuple[int, int], sizes: list[int], images: NDArray[np.int32]
) -> Value:
    """Return the neighbours of all places on one side, times their weights: [places..., channels]."""
    build = call.build
    places, weights = [], []
    for place, step, size in zip(axes, corner, sizes, strict=True):
        element: Expr = ("add", ("floor", X), ("const", float(step)))
        near: Expr = ("sub", ("const", 1.0), ("abs", ("sub", X, element)))
        bounded: Expr = ("clip", element, ("const", 0.0), ("const", float(size - 1)))
        weights.append(build.elementwise(("where", ("eq", bounded, element), near, ("const", 0.0)), [place], SINGLE))
        places.append(build.elementwise(("cast_i32", bounded), [place], INT32))
    flat: Expr = ("add", ("add", ("mul", X, ("const", sizes[1])), Y), ("in", 2))
    index = build.elementwise(flat, [*places, build.const(images, "images")], INT32)
    pixel = build.emit("Gather", [table, index], {"axis": 0})
    weight = build.elementwise(("mul", X, Y), weights, SINGLE)
    wide = build.reshape(weight, (*weight.shape, 1))
    kept: Expr = ("where", ("eq", Y, ("const", 0.0)), ("const", 0.0), ("mul", X, Y))  # 0 × NaN is nothing here
    return build.elementwise(kept, [pixel, wide])
