"""Det: Gaussian elimination of a batch of small matrices, a pivot for each column, unrolled."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from libnpu.compiler.frontend.ops_index import INT32, positions
from libnpu.compiler.frontend.source import ModelError

if TYPE_CHECKING:
    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Expr, Value

X: Expr = ("in", 0)
Y: Expr = ("in", 1)
Z: Expr = ("in", 2)
MAX_SIZE = 32  # chosen: rows of a matrix, each about a dozen operations
SINGLE = np.dtype(np.float32)


def determinant(call: Call) -> Value:
    """Det of [..., M, M]: the product of the pivots, with a sign for each exchange of rows."""
    x, build = call.input(0), call.build
    if len(x.shape) < 2 or x.shape[-1] != x.shape[-2]:
        raise ModelError(f"node {call.name}: Det of {x.name} {x.shape}, which are no square matrices")
    size, batch = x.shape[-1], prod(x.shape[:-2])
    if size > MAX_SIZE:
        raise call.unimplemented(f"matrices of {size} rows, at most {MAX_SIZE}")
    left = build.reshape(x, (batch, size, size))
    result = build.const(np.ones((batch, 1, 1), np.float32), "one")
    for rows in range(size, 1, -1):
        column = build.slice(left, {2: (0, 1, 1)})
        magnitude = build.reshape(build.elementwise(("abs", X), [column]), (batch, rows))
        best = build.reshape(
            build.emit("ArgMax", [magnitude], {"axis": 1, "keepdims": True}, dtype=INT32), (batch, 1, 1)
        )
        row = positions(build, (1, rows, 1), 1)
        own: Expr = ("where", ("eq", Y, Z), X, ("const", 0.0))
        pivot_row = build.reduce(build.elementwise(own, [left, row, best]), "sum", [1], True)
        first = build.slice(left, {1: (0, 1, 1)})
        # The first row takes the place of the pivot's, whose own place nobody needs any more.
        swapped = build.elementwise(("where", ("eq", Y, Z), ("in", 3), X), [left, row, best, first])
        rest = build.slice(swapped, {1: (1, rows, 1)})
        pivot = build.slice(pivot_row, {2: (0, 1, 1)})
        turned: Expr = ("where", ("eq", Z, ("const", 0)), ("mul", X, Y), ("neg", ("mul", X, Y)))
        result = build.elementwise(turned, [result, pivot, best], SINGLE)
        factor: Expr = ("where", ("eq", Y, ("const", 0.0)), ("const", 0.0), ("div", X, Y))
        factors = build.elementwise(factor, [build.slice(rest, {2: (0, 1, 1)}), pivot])
        tail, line = build.slice(rest, {2: (1, rows, 1)}), build.slice(pivot_row, {2: (1, rows, 1)})
        left = build.elementwise(("sub", X, ("mul", Y, Z)), [tail, factors, line])
    last = build.elementwise(("mul", X, Y), [result, left], x.dtype)
    return build.reshape(last, x.shape[:-2])
