"""AffineGrid, and GridSample: places in the image that the engine computes, gathers of whole pixels there, and their weighted sum.

Pixels are gathered from the image with channels last, so that one place fetches all channels of it.
"""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from libnpu.compiler.frontend.call import shape_product
from libnpu.compiler.frontend.source import ModelError

if TYPE_CHECKING:
    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Expr, Value

X: Expr = ("in", 0)
Y: Expr = ("in", 1)
SINGLE, INT32 = np.dtype(np.float32), np.dtype(np.int32)
_CUBIC = -0.75  # the coefficient that ONNX fixes


def grid_sample(call: Call) -> Value:
    """GridSample of any rank; the last axis of the grid holds x, y, ... from -1 to 1."""
    x, grid, build = call.input(0), call.input(1), call.build
    rank = len(x.shape) - 2
    if grid.shape[-1] != rank or len(grid.shape) != len(x.shape) or grid.shape[0] != x.shape[0]:
        raise ModelError(f"node {call.name}: GridSample of {x.name} {x.shape} at {grid.name} {grid.shape}")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode := call.attrs.get("mode", b"linear").decode(), mode)
    if mode == "cubic" and rank != 2:
        raise call.unsupported(f"mode cubic and {rank} spatial axes")
    n, c, *sizes = x.shape
    pixels = build.reshape(build.transpose(x, [0, *range(2, 2 + rank), 1]), (n * math.prod(sizes), c))
    last = len(grid.shape) - 1
    coordinates = [build.slice(grid, {last: (rank - 1 - axis, rank - axis, 1)}) for axis in range(rank)]
    reach = {"nearest": range(1), "linear": range(2), "cubic": range(-1, 3)}[mode]
    total: Value | None = None
    for corner in product(reach, repeat=rank):
        taps = [
            _tap(call, coordinate, size, step, mode)
            for coordinate, size, step in zip(coordinates, sizes, corner, strict=True)
        ]
        pixel = _pixel(call, pixels, [tap[0] for tap in taps], sizes, n)
        weights = [tap[1] for tap in taps]
        expr: Expr = X
        for index in range(rank):
            expr = (
                "where",
                ("eq", ("in", 1 + index), ("const", 0.0)),
                ("const", 0.0),
                ("mul", expr, ("in", 1 + index)),
            )
        part = build.elementwise(expr, [pixel, *weights], x.dtype)
        total = part if total is None else build.elementwise(("add", X, Y), [total, part])
    assert total is not None
    return build.transpose(build.reshape(total, (n, *grid.shape[1:-1], c)), [0, 1 + rank, *range(1, 1 + rank)])


def affine_grid(call: Call) -> Value:
    """AffineGrid: the places of an image's pixels, from -1 to 1 with a 1 behind, times each matrix of `theta` [N, 2, 3] or [N, 3, 4]."""
    theta, size, build = call.input(0), call.input(1), call.build
    rank = theta.shape[1] if len(theta.shape) == 3 else 0
    declared = call.shape()
    if rank not in (2, 3) or theta.shape[2] != rank + 1 or size.shape != (rank + 2,):
        raise ModelError(f"node {call.name}: AffineGrid of {theta.name} {theta.shape} for {size.name} {size.shape}")
    if size.const is None and declared is not None and len(declared) == rank + 2:
        sizes = list(declared[1:-1])
        known = build.const(np.array([theta.shape[0], *sizes], np.int32), "implied")
        given = [build.slice(size, {0: (0, 1, 1)}), build.slice(size, {0: (2, rank + 2, 1)})]
        call.require(("eq", X, Y), [build.emit("Concat", given, {"axis": 0}), known])
    else:
        array = call.array(1, "size")
        assert array is not None
        count, _, *sizes = (int(number) for number in array.reshape(-1))
        if count != theta.shape[0]:
            raise ModelError(f"node {call.name}: AffineGrid of {theta.name} {theta.shape} for {count} images")
    aligned = bool(call.attrs.get("align_corners", 0))
    if min(sizes) < 1 or (aligned and 1 in sizes):
        raise call.unsupported(f"an image of {sizes}")
    axes = [np.linspace(-1, 1, n) if aligned else (2 * np.arange(n) + 1) / n - 1 for n in sizes]
    places = [*np.meshgrid(*axes, indexing="ij")[::-1], np.ones(sizes)]  # x first
    base = build.const(np.stack(places, axis=-1).reshape(1, -1, rank + 1).astype(theta.dtype), f"{call.name}.places")
    turned = build.transpose(theta, [0, 2, 1])
    moved = build.emit("MatMul", [base, turned, None], {"act": None, "scale": 1.0})
    return build.reshape(moved, (theta.shape[0], *sizes, rank))


def _tap(call: Call, coordinate: Value, size: int, step: int, mode: str) -> tuple[Value, Value]:
    """Return the element `step` behind the place of a coordinate, inside of the axis, and its weight: 0 where zeros pad.

    Both come from the coordinate itself, in float32 under every policy of precision.
    """
    build, padding = call.build, call.attrs.get("padding_mode", b"zeros").decode()
    if call.attrs.get("align_corners", 0):
        place: Expr = ("mul", ("add", X, ("const", 1.0)), ("const", (size - 1) / 2))
    else:
        edges: Expr = ("mul", ("add", X, ("const", 1.0)), ("const", float(size)))
        place = ("mul", ("sub", edges, ("const", 1.0)), ("const", 0.5))
    place = place if mode == "cubic" else _padded(call, place, size, padding)
    if mode == "nearest":
        element: Expr = ("round", place)
        weight: Expr = ("const", 1.0)
    else:
        element = ("add", ("floor", place), ("const", float(step)))
        distance: Expr = ("abs", ("sub", place, element))
        weight = _cubic(distance) if mode == "cubic" else ("sub", ("const", 1.0), distance)
    element, inside = _bounded(call, element, size, padding)
    index = build.elementwise(("cast_i32", element), [coordinate], INT32)
    return index, build.elementwise(("where", inside, weight, ("const", 0.0)), [coordinate], SINGLE)


def _padded(call: Call, place: Expr, size: int, padding: str) -> Expr:
    """Return a place brought into the axis; of zeros, as it is."""
    if padding == "border":
        return ("clip", place, ("const", 0.0), ("const", float(size - 1)))
    return _reflected(call, place, size) if padding == "reflection" else place


def _reflected(call: Call, place: Expr, size: int) -> Expr:
    """Return a place mirrored at the ends: centres of the first and last elements, or without align_corners their borders."""
    low, span = (0.0, float(size - 1)) if call.attrs.get("align_corners", 0) else (-0.5, float(size))
    if span == 0:
        return ("mul", place, ("const", 0.0))
    wave: Expr = ("mod", ("sub", place, ("const", low)), ("const", 2 * span))
    mirrored: Expr = ("sub", ("const", span), ("abs", ("sub", wave, ("const", span))))
    return ("clip", ("add", mirrored, ("const", low)), ("const", 0.0), ("const", float(size - 1)))


def _bounded(call: Call, element: Expr, size: int, padding: str) -> tuple[Expr, Expr]:
    """Return a whole place as one inside of the axis, and whether what is there counts."""
    if padding == "reflection":
        return _reflected(call, element, size), ("ge", element, element)
    bounded: Expr = ("clip", element, ("const", 0.0), ("const", float(size - 1)))
    return bounded, ("eq", bounded, element) if padding == "zeros" else ("ge", element, element)


def _cubic(distance: Expr) -> Expr:
    """Return the weight of an element at a distance below 2."""
    a = _CUBIC

    def polynomial(*coefficients: float) -> Expr:
        total: Expr = ("const", coefficients[0])
        for coefficient in coefficients[1:]:
            total = ("add", ("mul", total, distance), ("const", coefficient))
        return total

    return (
        "where",
        ("le", distance, ("const", 1.0)),
        polynomial(a + 2, -(a + 3), 0.0, 1.0),
        polynomial(a, -5 * a, 8 * a, -4 * a),
    )


def _pixel(call: Call, pixels: Value, places: list[Value], sizes: list[int], batch: int) -> Value:
    """Return the channels [n, points..., c] of the elements at places [n, points..., 1] by axis."""
    build = call.build
    shape = places[0].shape
    start = np.arange(batch, dtype=np.int32).reshape(batch, *[1] * (len(shape) - 1)) * shape_product(tuple(sizes))
    flat: Expr = ("in", 0)
    for index, size in enumerate(sizes[1:], 1):
        flat = ("add", ("mul", flat, ("const", size)), ("in", index))
    inputs = [*places, build.const(start, "images")]
    place = build.elementwise(("add", flat, ("in", len(places))), inputs, INT32)
    return build.emit("Gather", [pixels, build.reshape(place, shape[:-1])], {"axis": 0})
