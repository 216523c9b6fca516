"""Handlers of com.microsoft's QLinear operators: dequantised, computed in float32 and quantised again, as one expression where that is one.

Sums of pooling are of integers, which are exact, and multiplied once.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from libnpu.compiler.frontend import ops_reduce as reduction
from libnpu.compiler.frontend.ops_fused import channels_last
from libnpu.compiler.frontend.ops_quantised import EXACT, INT32, convolution, qlinear_conv, requantised
from libnpu.compiler.frontend.ops_window import counts_of, sum_of_taps, window_of
from libnpu.compiler.frontend.source import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.frontend.ops_window import Window
    from libnpu.compiler.ir import Expr, Value

X: Expr = ("in", 0)
Y: Expr = ("in", 1)


def qlinear_sum(call: Call) -> Value:
    """QLinearAdd and QLinearMul: every bit as DequantizeLinear, Add or Mul, and QuantizeLinear, which the standard defines.

    onnxruntime's own kernel adds by fused operations, so that a sum half way between two steps may end one apart there.
    """
    a, b = (_real(call, first) for first in (0, 3))
    op = "add" if call.op == "QLinearAdd" else "mul"
    return _narrow(call, (op, a[0](0), b[0](len(a[1]))), [*a[1], *b[1]], 6)


def qlinear_map(call: Call) -> Value:
    """QLinearSigmoid and QLinearLeakyRelu."""
    x, inputs = _real(call, 0)
    expr: Expr = ("sigmoid", x(0))
    if call.op == "QLinearLeakyRelu":
        expr = ("leaky_relu", x(0), ("const", float(call.attrs.get("alpha", 0.01))))
    return _narrow(call, expr, inputs, 3)


def qlinear_where(call: Call) -> Value:
    """QLinearWhere: of two values with a scale each."""
    condition = call.input(0)
    a, b = (_real(call, first) for first in (1, 4))
    chosen: Expr = ("where", ("in", len(a[1]) + len(b[1])), a[0](0), b[0](len(a[1])))
    return _narrow(call, chosen, [*a[1], *b[1], condition], 7)


def qlinear_concat(call: Call) -> Value:
    """QLinearConcat: of values with a scale each; one that has the result's stays as it is."""
    build, parts = call.build, []
    for first in range(2, len(call.inputs), 3):
        x, inputs = _real(call, first)
        same = all(_is_same(call, first + 1 + place, place) for place in (0, 1))
        parts.append(call.input(first) if same else _narrow(call, x(0), inputs, 0))
    axis = call.axis(int(call.attrs["axis"]), len(parts[0].shape))
    return build.emit("Concat", parts, {"axis": axis})


def _is_same(call: Call, index: int, other: int) -> bool:
    """Whether two operands are the same number."""
    a, b = (call.optional(place) for place in (index, other))
    if a is None or b is None or a is b:
        return a is b
    return a.const is not None and b.const is not None and bool(np.all(a.const == b.const))


def qlinear_softmax(call: Call) -> Value:
    """QLinearSoftmax; `opset` says which Softmax it is of."""
    x, inputs = _real(call, 0)
    real = call.build.elementwise(x(0), inputs, inputs[1].dtype)
    attrs = {name: value for name, value in call.attrs.items() if name == "axis"}
    opset = int(call.attrs.get("opset", call.opset))
    weights = reduction.softmax(replace(call, op="Softmax", opset=opset, inputs=[real], attrs=attrs))
    return _narrow(call, X, [weights], 3)


def qlinear_pool(call: Call) -> Value:
    """QLinearAveragePool and QLinearGlobalAveragePool: sums of a window times (x_scale / (y_scale · count)), as requantised."""
    if call.attrs.get("channels_last", 0):
        return channels_last(replace(call, attrs=call.attrs | {"channels_last": 0}), qlinear_pool)
    x, scale, zero, y_scale, y_zero = (call.optional(index) for index in range(5))
    if x is None or scale is None or y_scale is None:
        raise ModelError(f"node {call.name}: {call.op} lacks an operand")
    build = call.build
    if call.op == "QLinearGlobalAveragePool":
        window = window_of(replace(call, attrs={}), x, list(x.shape[2:]))
        counts = np.array(math.prod(x.shape[2:]), np.float32)
    else:
        window = window_of(call, x, call.attrs["kernel_shape"])
        counts = counts_of(x, window, bool(call.attrs.get("count_include_pad", 0))).astype(np.float32)
    if y_zero is None:
        y_zero = build.const(np.zeros((), x.dtype), f"{call.name}.zero")
    if y_scale.const is not None:
        divisors = build.const(y_scale.const.reshape(()) * counts, f"{call.name}.divisors")
    else:
        one_each = build.const(counts, f"{call.name}.counts")
        divisors = build.elementwise(("mul", X, Y), [one_each, build.reshape(y_scale, ())])
    one = build.const(np.ones((), np.float32), f"{call.name}.one")
    return requantised(call, _sums(call, x, zero, window), [scale, one, divisors], y_zero)


def _sums(call: Call, x: Value, zero: Value | None, window: Window) -> Value:
    """Return int32 sums of windows less the zero point: a convolution by ones where the matrix engine does it."""
    build, taps = call.build, math.prod(window.kernel)
    if window.suits_engine and taps * 2 * np.iinfo(x.dtype).max <= EXACT:
        ones = build.const(np.ones((x.shape[1], 1, *window.kernel), np.int8), f"{call.name}.ones")
        return convolution(call, x, ones, zero, None, window, x.shape[1])
    moved: Expr = X if zero is None else ("sub", X, Y)
    shifted = build.elementwise(moved, [x, *([] if zero is None else [build.reshape(zero, ())])], INT32)
    if tuple(window.kernel) == x.shape[2:] and not any(window.pads):
        return build.reduce(shifted, "sum", range(2, len(x.shape)), True)
    return sum_of_taps(call, shifted, window)


def conv_channels(call: Call) -> Value:
    """QLinearConv, with the channels last or behind the batch."""
    return channels_last(call, qlinear_conv) if call.attrs.get("channels_last", 0) else qlinear_conv(call)


def _real(call: Call, first: int) -> tuple[Callable[[int], Expr], list[Value]]:
    """Return the float32 that the operand at `first` stands for, as an expression of inputs from a number on, and these inputs."""
    x, scale, zero, build = call.input(first), call.input(first + 1), call.optional(first + 2), call.build
    inputs = [x, build.reshape(scale, ()), *([] if zero is None else [build.reshape(zero, ())])]

    def real(at: int) -> Expr:
        whole: Expr = ("in", at) if zero is None else ("sub", ("in", at), ("in", at + 2))
        return ("mul", ("cast_f32", whole), ("in", at + 1))

    return real, inputs


def _narrow(call: Call, expr: Expr, inputs: list[Value], first: int) -> Value:
    """Return an expression in steps of the scale at operand `first`, plus the zero point behind it, as 8 bits."""
    scale, zero, build, at = call.input(first), call.optional(first + 1), call.build, len(inputs)
    target = inputs[0].dtype if zero is None else zero.dtype
    info = np.iinfo(target)
    moved: Expr = ("round", ("div", expr, ("in", at)))
    if zero is not None:
        moved = ("add", moved, ("cast_f32", ("in", at + 1)))
    inside: Expr = ("clip", moved, ("const", float(info.min)), ("const", float(info.max)))
    ends = [build.reshape(scale, ()), *([] if zero is None else [build.reshape(zero, ())])]
    return build.elementwise(("cast_i32", inside), [*inputs, *ends], target)


QLINEAR: dict[str, Callable[[Call], Value]] = {
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), qlinear_sum),
    **dict.fromkeys(("QLinearSigmoid", "QLinearLeakyRelu"), qlinear_map),
    "QLinearWhere": qlinear_where,
    "QLinearConcat": qlinear_concat,
    "QLinearSoftmax": qlinear_softmax,
    **dict.fromkeys(("QLinearAveragePool", "QLinearGlobalAveragePool"), qlinear_pool),
    "QLinearConv": conv_channels,
}
