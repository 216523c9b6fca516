"""NonMaxSuppression where the number of selected boxes is declared: each step takes the best box of every class at once.

A step finds each row's largest score, compares that box with all others of its image, and strikes out those that overlap.
The boxes that were taken then move together; the program faults when they are not as many as declared.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from libnpu.compiler.frontend.ops_index import INT32, kept_places, positions
from libnpu.compiler.frontend.ops_scatter import MAX_PAIRS
from libnpu.compiler.frontend.source import ModelError

if TYPE_CHECKING:
    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Expr, Value

MAX_STEPS = 256  # chosen: about twenty operations so many times
SINGLE = np.dtype(np.float32)
NOTHING: Expr = ("const", -math.inf)


def non_max_suppression(call: Call) -> Value:
    """NonMaxSuppression: [selected, 3] of image, class and box, best first within a class."""
    boxes, scores, build = call.input(0), call.input(1), call.build
    declared = call.shape()
    if declared is None:
        raise call.unsupported("a number of selected boxes that only a run tells")
    (images, count, four), classes, total = boxes.shape, scores.shape[1], declared[0]
    if four != 4 or scores.shape != (images, classes, count):
        raise ModelError(f"node {call.name}: NonMaxSuppression of boxes {boxes.shape} and scores {scores.shape}")
    rows, steps = images * classes, min(count, total)
    if steps > MAX_STEPS:
        raise call.unimplemented(f"{steps} selected boxes, at most {MAX_STEPS}")
    if rows * count > MAX_PAIRS or (rows * steps) ** 2 > MAX_PAIRS:
        raise call.unimplemented(f"{rows * count} scores, {rows * steps} candidates")
    limits = [
        _scalar(call, index, fill) for index, fill in ((2, np.int64(0)), (3, np.float32(0)), (4, np.float32(-math.inf)))
    ]
    # Each of the four edges [rows, count]: every class has the boxes of its image.
    edges = [build.reshape(build.expand(build.reshape(edge, (images, 1, count)), (images, classes, count)), (rows, count))
             for edge in _edges(call, boxes)]  # fmt: skip
    above: Expr = ("where", ("gt", ("in", 0), ("in", 1)), ("in", 0), NOTHING)
    left = build.elementwise(above, [build.reshape(scores, (rows, count)), limits[2]], SINGLE)
    start = build.const(np.arange(rows, dtype=np.int32).reshape(rows, 1) * count, "rows")
    column = positions(build, (rows, count), 1)
    found, flags = [], []
    for step in range(steps):
        best = build.emit("ArgMax", [left], {"axis": 1, "keepdims": True}, dtype=INT32)
        most = build.reduce(left, "max", [1], True)
        more: Expr = ("and", ("gt", ("in", 0), NOTHING), ("lt", ("const", step), ("in", 1)))
        taken = build.elementwise(more, [most, limits[0]], INT32)
        found.append(best)
        flags.append(taken)
        place = build.elementwise(("add", ("in", 0), ("in", 1)), [best, start], INT32)
        own = [build.emit("Gather", [build.reshape(edge, (rows * count,)), place], {"axis": 0}) for edge in edges]
        out: Expr = ("or", ("eq", ("in", 10), ("in", 11)), ("gt", _overlap(), ("in", 8)))
        struck: Expr = ("where", ("and", ("in", 9), out), NOTHING, ("in", 12))
        left = build.elementwise(struck, [*edges, *own, limits[1], taken, column, best, left], SINGLE)
    candidates = rows * steps
    image, kind = np.divmod(np.repeat(np.arange(rows, dtype=np.int32), steps), classes)
    triple = [
        build.const(image.reshape(candidates, 1), "images"),
        build.const(kind.reshape(candidates, 1), "classes"),
        build.reshape(build.emit("Concat", found, {"axis": 1}), (candidates, 1)),
    ]
    place = kept_places(call, build.reshape(build.emit("Concat", flags, {"axis": 1}), (candidates,)), total)
    selected = build.emit("Gather", [build.emit("Concat", triple, {"axis": 1}), place], {"axis": 0})
    return build.elementwise(("in", 0), [selected], np.dtype(np.int64))


def _scalar(call: Call, index: int, fill: np.generic) -> Value:
    value = call.optional(index)
    return call.build.const(np.asarray(fill), "default") if value is None else call.build.reshape(value, ())


def _edges(call: Call, boxes: Value) -> list[Value]:
    """Return low y, low x, high y, high x [images, count], whichever corners the boxes name."""
    build = call.build
    parts = [build.reshape(build.slice(boxes, {2: (index, index + 1, 1)}), boxes.shape[:2]) for index in range(4)]
    if call.attrs.get("center_point_box", 0):  # x, y, width, height
        half: Expr = ("mul", ("in", 1), ("const", 0.5))
        return [build.elementwise((op, ("in", 0), half), [parts[at], parts[2 + at]], SINGLE)
                for op in ("sub", "add") for at in (1, 0)]  # fmt: skip
    return [build.elementwise((op, ("in", 0), ("in", 1)), [parts[at], parts[2 + at]], SINGLE)
            for op in ("min", "max") for at in (0, 1)]  # fmt: skip


def _overlap() -> Expr:
    """Return intersection over union of the boxes with edges in 0 to 3 and in 4 to 7; 0 where they do not meet."""
    sides: list[Expr] = []
    for low in (0, 1):
        inner: Expr = ("sub", ("min", ("in", 2 + low), ("in", 6 + low)), ("max", ("in", low), ("in", 4 + low)))
        sides.append(("max", inner, ("const", 0.0)))
    shared: Expr = ("mul", sides[0], sides[1])

    def area(first: int) -> Expr:
        height: Expr = ("sub", ("in", first + 2), ("in", first))
        return ("mul", height, ("sub", ("in", first + 3), ("in", first + 1)))

    union: Expr = ("sub", ("add", area(0), area(4)), shared)
    meet: Expr = ("gt", shared, ("const", 0.0))
    return ("where", meet, ("div", shared, union), ("const", 0.0))
