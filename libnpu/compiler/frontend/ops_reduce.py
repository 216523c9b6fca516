"""Handlers of reductions, softmax, normalisation over axes, and arg-max."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Expr, Value

X: Expr = ("in", 0)
Y: Expr = ("in", 1)
KINDS = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod"}


def reduce(call: Call) -> Value:
    """Reduce*; axes are an attribute up to opset 17 (ReduceSum: 12), an input from then on."""
    x = call.input(0)
    axes = call.ints(1, "axes", 13 if call.op == "ReduceSum" else 18)
    if not axes:
        if call.attrs.get("noop_with_empty_axes", 0):
            return _after(call, _before(call, x))
        axes = list(range(len(x.shape)))
    axes = sorted(call.axes(axes, len(x.shape)))
    keepdims = bool(call.attrs.get("keepdims", 1))
    if call.op == "ReduceLogSumExp":
        return _log_sum_exp(call, x, axes, keepdims)
    kind = KINDS.get(call.op, "sum")
    if not axes:
        return x
    return _after(call, call.build.reduce(_before(call, x), kind, axes, keepdims))


def softmax(call: Call) -> Value:
    """Softmax and LogSoftmax; before opset 13 over all axes from `axis` on together (default 1, then -1)."""
    x = call.input(0)
    rank = len(x.shape)
    log = call.op == "LogSoftmax"
    if call.opset >= 13:
        axis = call.axis(int(call.attrs.get("axis", -1)), rank)
        return call.build.emit("Softmax", [x], {"axis": axis, "log": log})
    axis = call.axis(int(call.attrs.get("axis", 1)), rank)
    wide = [index for index in range(axis, rank) if x.shape[index] > 1]
    if len(wide) <= 1:
        return call.build.emit("Softmax", [x], {"axis": wide[0] if wide else axis, "log": log})
    rows = int(np.prod(x.shape[:axis], dtype=np.int64))
    flat = call.build.reshape(x, (rows, int(np.prod(x.shape[axis:], dtype=np.int64))))
    return call.build.reshape(call.build.emit("Softmax", [flat], {"axis": 1, "log": log}), x.shape)


def arg_max(call: Call) -> Value:
    if call.attrs.get("select_last_index", 0):
        raise call.unimplemented("select_last_index 1")
    x = call.input(0)
    if call.op == "ArgMin":
        x = call.build.elementwise(("neg", X), [x])
    axis = call.axis(int(call.attrs.get("axis", 0)), len(x.shape))
    attrs = {"axis": axis, "keepdims": bool(call.attrs.get("keepdims", 1))}
    return call.build.emit("ArgMax", [x], attrs, dtype=np.dtype(np.int64))


def layer_norm(call: Call) -> Value:
    if call.output_count > 1:
        raise call.unimplemented("mean and deviation as outputs")
    x, scale, bias = call.input(0), call.input(1), call.optional(2)
    axis = call.axis(int(call.attrs.get("axis", -1)), len(x.shape))
    normal = _normalise(call, x, list(range(axis, len(x.shape))))
    result = call.build.elementwise(("mul", X, Y), [normal, scale])
    return result if bias is None else call.build.elementwise(("add", X, Y), [result, bias])


def instance_norm(call: Call) -> Value:
    x, scale, bias = call.input(0), call.input(1), call.input(2)
    normal = _normalise(call, x, list(range(2, len(x.shape))))
    shape = (x.shape[1], *[1] * (len(x.shape) - 2))
    scaled = call.build.elementwise(("mul", X, Y), [normal, call.build.reshape(scale, shape)])
    return call.build.elementwise(("add", X, Y), [scaled, call.build.reshape(bias, shape)])


def _normalise(call: Call, x: Value, axes: list[int]) -> Value:
    """(x - mean) / sqrt(variance + epsilon); the centred values are squared, so nothing cancels."""
    build = call.build
    epsilon = float(call.attrs.get("epsilon", 1e-5))
    centred = build.elementwise(("sub", X, Y), [x, build.reduce(x, "mean", axes, True)])
    variance = build.reduce(build.elementwise(("mul", X, X), [centred]), "mean", axes, True)
    inverse = build.elementwise(("rsqrt", ("add", X, ("const", epsilon))), [variance])
    return build.elementwise(("mul", X, Y), [centred, inverse])


def _before(call: Call, x: Value) -> Value:
    spelled: dict[str, Expr] = {
        "ReduceL1": ("abs", X),
        "ReduceL2": ("mul", X, X),
        "ReduceSumSquare": ("mul", X, X),
    }
    return call.build.elementwise(spelled[call.op], [x]) if call.op in spelled else x


def _after(call: Call, x: Value) -> Value:
    spelled: dict[str, Expr] = {"ReduceL2": ("sqrt", X), "ReduceLogSum": ("log", X)}
    return call.build.elementwise(spelled[call.op], [x]) if call.op in spelled else x


def _log_sum_exp(call: Call, x: Value, axes: list[int], keepdims: bool) -> Value:
    build = call.build
    largest = build.reduce(x, "max", axes, True)
    powers = build.elementwise(("exp", ("sub", X, Y)), [x, largest])
    total = build.elementwise(("add", ("log", X), Y), [build.reduce(powers, "sum", axes, True), largest])
    return total if keepdims else build.reshape(total, [d for i, d in enumerate(x.shape) if i not in axes])
