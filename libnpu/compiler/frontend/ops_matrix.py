"""Handlers of the operators that the matrix engine computes: convolution, pooling, matrix product."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.compiler.frontend.call import is_float
from libnpu.compiler.frontend.ops_quantised import of_integers
from libnpu.compiler.frontend.ops_window import MAX_FIELD, convolve, kernel_of, max_by_taps, mean_by_taps, window_of
from libnpu.compiler.frontend.source import ModelError

if TYPE_CHECKING:
    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Value

# Rows or columns of one window: `lower.pooling` makes of them at most 252 parts, whole blocks of four, each of one kernel.
MAX_IMAGE = 252 * MAX_FIELD


def conv(call: Call) -> Value:
    """Conv; weights and bias may be computed."""
    x, w, bias = call.input(0), call.input(1), call.optional(2)
    if not is_float(x):
        raise call.unimplemented(f"input type {x.dtype}")
    kernel = kernel_of(call, x, w)
    call.expect(2, w.shape[:1])
    if (whole := of_integers(call)) is not None:
        return whole
    if bias is not None and bias.const is not None and not np.any(bias.const):
        bias = None
    return convolve(call, x, w, bias, window_of(call, x, kernel), call.groups())


def max_pool(call: Call) -> list[Value]:
    x, with_indices = call.input(0), call.output_count > 1
    window = window_of(call, x, call.attrs["kernel_shape"])
    if not window.suits_engine or with_indices or not is_float(x):
        return max_by_taps(call, x, window, with_indices)
    attrs = window.attrs("kernel", "strides", "pads", "dilations")
    return [_drop_height(call, x, call.build.emit("MaxPool", [_with_height(call, x)], attrs))]


def average_pool(call: Call) -> Value:
    x = call.input(0)
    window = window_of(call, x, call.attrs["kernel_shape"])
    counted = bool(call.attrs.get("count_include_pad", 0)) and any(window.pads)
    if not window.suits_engine or max(window.dilations) > 1 or (counted and any(window.extra)):
        return mean_by_taps(call, x, window, counted)
    attrs = window.attrs("kernel", "strides", "pads") | {"count_include_pad": counted}
    return _drop_height(call, x, call.build.emit("AvgPool", [_with_height(call, x)], attrs))


def global_pool(call: Call) -> Value:
    """GlobalAveragePool and GlobalMaxPool: one window over the image up to MAX_IMAGE, else a reduction."""
    x = call.input(0)
    average = call.op == "GlobalAveragePool"
    if len(x.shape) == 4 and min(x.shape[2:]) > 0 and max(x.shape[2:]) <= MAX_IMAGE:
        attrs: dict[str, Any] = {"kernel": list(x.shape[2:]), "strides": [1, 1], "pads": [0, 0, 0, 0]}
        attrs |= {"count_include_pad": False} if average else {"dilations": [1, 1]}
        return call.build.emit("AvgPool" if average else "MaxPool", [x], attrs)
    return call.build.reduce(x, "mean" if average else "max", range(2, len(x.shape)), keepdims=True)


def matmul(call: Call, scale: float = 1.0) -> Value:
    """MatMul, times a scale."""
    a, b = call.input(0), call.input(1)
    if not is_float(a):
        raise call.unimplemented(f"input type {a.dtype}")
    if scale == 1.0 and (whole := of_integers(call)) is not None:
        return whole
    build = call.build
    left = build.reshape(a, (1, *a.shape)) if len(a.shape) == 1 else a
    right = build.reshape(b, (*b.shape, 1)) if len(b.shape) == 1 else b
    product = build.emit("MatMul", [left, right, None], {"act": None, "scale": scale})
    shape = list(product.shape)
    if len(b.shape) == 1:
        del shape[-1]
    if len(a.shape) == 1:
        del shape[-2 if len(b.shape) > 1 else -1]
    return build.reshape(product, shape)


def gemm(call: Call) -> Value:
    """alpha · A' · B' + beta · C. A constant C of one row becomes the bias, anything else an addition."""
    a, b, c = call.input(0), call.input(1), call.optional(2)
    if not is_float(a):
        raise call.unimplemented(f"input type {a.dtype}")
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise ModelError(f"node {call.name}: Gemm of {a.name} {a.shape} and {b.name} {b.shape}, rank 2 expected")
    if (whole := of_integers(call)) is not None:
        return whole
    build = call.build
    alpha, beta = float(call.attrs.get("alpha", 1.0)), float(call.attrs.get("beta", 1.0))
    if call.attrs.get("transA", 0):
        a = build.transpose(a, [1, 0])
    if call.attrs.get("transB", 0):
        b = build.transpose(b, [1, 0])
    columns = b.shape[1]
    call.expect_broadcast(2, (a.shape[0], columns))
    bias: Value | None = None
    if c is not None and c.const is not None and (c.const.size == 1 or c.shape in ((columns,), (1, columns))):
        row = np.broadcast_to(c.const.reshape(-1), (columns,))
        bias = build.const((row.astype(np.float64) * beta).astype(row.dtype), c.name)
    product = build.emit("MatMul", [a, b, bias], {"act": None, "scale": alpha})
    if c is None or bias is not None:
        return product
    addend = build.elementwise(("mul", ("in", 0), ("const", beta)), [c]) if beta != 1.0 else c
    return build.elementwise(("add", ("in", 0), ("in", 1)), [product, addend])


def _with_height(call: Call, x: Value) -> Value:
    return call.build.reshape(x, (*x.shape[:2], 1, x.shape[2])) if len(x.shape) == 3 else x


def _drop_height(call: Call, source: Value, y: Value) -> Value:
    return call.build.reshape(y, (*y.shape[:2], y.shape[3])) if len(source.shape) == 3 else y
