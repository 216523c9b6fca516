"""Handlers of products of integers: ConvInteger, MatMulInteger, and the QLinear operators that bring them back to 8 bits.

The matrix engine multiplies int8 and uint8 less a zero point each, adds in 32 bits, and hands the sum on as float32. So that all
32 bits arrive, a product whose sums may reach 2^24 is cut along what is summed, and the parts are added as integers.
Conv, MatMul and Gemm between DequantizeLinear and QuantizeLinear are the same (`of_integers`).
A zero point that the engine does not take, because it is computed or differs by row or column, is expanded:
sum (a - ra)(b - rb) = sum ab - ra · sum b - rb · sum a + count · ra · rb.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from libnpu.compiler import products
from libnpu.compiler.frontend import ops_integer as integer
from libnpu.compiler.frontend.builder import Dequantised, Sums
from libnpu.compiler.frontend.ops_window import columns_of_taps, kernel_of, window_of
from libnpu.compiler.frontend.source import ModelError
from libnpu.errors import Unimplemented, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from numpy.typing import NDArray

    from libnpu.compiler.frontend.builder import Builder
    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.frontend.ops_window import Window
    from libnpu.compiler.ir import Expr, Value

X: Expr = ("in", 0)
Y: Expr = ("in", 1)
EXACT = 1 << 24  # float32 holds every integer up to this
INT32 = np.dtype(np.int32)
SAME_SCALE = 1e-6  # of a float32 product, relative: its rounding and that of its factors


def matmul_integer(call: Call) -> Value:
    """MatMulInteger: int32 sums; zero points of one number, per row of A or per column of B."""
    return product(call, call.input(0), call.input(1), call.optional(2), call.optional(3))


def conv_integer(call: Call) -> Value:
    """ConvInteger: int32 sums."""
    return convolution(call, call.input(0), call.input(1), call.optional(2), call.optional(3))


def qlinear_matmul(call: Call) -> Value:
    """QLinearMatMul: sums · (a_scale · b_scale / y_scale), rounded, plus the zero point."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (call.input(index) for index in range(8))
    total = product(call, a, b, a_zero, b_zero)
    scales = [_along(call.build, a_scale, -2), _along(call.build, b_scale, -1), y_scale]
    return requantised(call, total, scales, y_zero)


def qlinear_conv(call: Call) -> Value:
    """QLinearConv: as QLinearMatMul; the scale of the weights and the bias are by output channel."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (call.input(index) for index in range(8))
    build, bias, rank = call.build, call.optional(8), len(x.shape) - 2
    total = convolution(call, x, w, x_zero, w_zero)
    if bias is not None:
        call.expect(8, w.shape[:1])
        total = build.elementwise(("add", X, Y), [total, build.reshape(bias, (w.shape[0], *[1] * rank))])
    by_channel = build.reshape(w_scale, (w.shape[0], *[1] * rank)) if math.prod(w_scale.shape) > 1 else w_scale
    return requantised(call, total, [x_scale, by_channel, y_scale], y_zero)


def quantize(call: Call) -> Value:
    """QuantizeLinear; of sums times scales in one multiplication, as in QLinearConv and QLinearMatMul."""
    scale, zero, sums = call.input(1), call.optional(2), call.build.sums.get(call.input(0))
    if sums is None or zero is None or zero.dtype.kind not in "iu" or math.prod((*scale.shape, *zero.shape)) != 1:
        return integer.quantize(call)
    bounds = _whole_bounds(sums, scale, zero)
    if bounds is None:
        return integer.quantize(call)
    return requantised(call, sums.total, [*sums.scales, scale], zero, bounds)


def of_integers(call: Call) -> Value | None:
    """Return Conv, MatMul or Gemm of values that were 8-bit integers, multiplied as such; None of others.

    It is noted as `Sums`, unless a bias has another scale.
    """
    build = call.build
    a, b = (None if value is None else build.dequantised.get(value) for value in call.inputs[:2])
    if a is None or b is None or math.prod(a.scale.shape) != 1 or not _has_scale(call, b):
        return None
    if any(each.whole.dtype.name not in ("int8", "uint8") or 0 in each.whole.shape for each in (a, b)):
        return None
    try:
        total, columns = _integer_product(call, a, b)
    except (Unsupported, Unimplemented):
        return None
    channels: list[int] = [-1 if index == columns % len(total.shape) else 1 for index in range(len(total.shape))]
    scales = a.scale, _laid(build, b.scale, channels)
    bias, addend = call.optional(2), None
    if bias is not None:
        addend = _whole_bias(build, bias, a.scale, b.scale)
        if addend is not None:
            total = build.elementwise(("add", X, Y), [total, _laid(build, addend, channels)])
    inputs = [total, *(build.reshape(each, ()) if math.prod(each.shape) == 1 else each for each in scales)]
    result = build.elementwise(("mul", ("cast_f32", X), ("mul", Y, ("in", 2))), inputs, a.scale.dtype)
    if bias is not None and addend is None:
        laid = _laid(build, bias, channels) if call.op == "Conv" else bias
        return build.elementwise(("add", X, Y), [result, laid])
    build.sums[result] = Sums(total, scales)
    return result


def _has_scale(call: Call, b: Dequantised) -> bool:
    """Whether the second operand has one scale, or one per column of the result."""
    if math.prod(b.scale.shape) == 1:
        return True
    if call.op == "Conv":
        return b.axis == 0
    return len(b.whole.shape) == 2 and b.axis == (0 if call.op == "Gemm" and call.attrs.get("transB", 0) else 1)


def _integer_product(call: Call, a: Dequantised, b: Dequantised) -> tuple[Value, int]:
    """Return the int32 sums and their axis of columns."""
    build = call.build
    if call.op == "Conv":
        return convolution(call, a.whole, b.whole, a.zero, b.zero), 1
    left, right = a.whole, b.whole
    if call.op == "Gemm":
        if call.attrs.get("alpha", 1.0) != 1.0 or call.attrs.get("beta", 1.0) != 1.0 or len(left.shape) != 2:
            raise call.unimplemented("factors")
        if call.attrs.get("transA", 0):
            left = build.transpose(left, [1, 0])
        if call.attrs.get("transB", 0):
            right = build.transpose(right, [1, 0])
    return product(call, left, right, a.zero, b.zero), -1


def _laid(build: Builder, value: Value, shape: list[int]) -> Value:
    """Return numbers per column, or one, so that they lie along the columns."""
    if math.prod(value.shape) == 1:
        return value
    return build.reshape(value, [math.prod(value.shape) if size < 0 else size for size in shape])


def _whole_bias(build: Builder, bias: Value, first: Value, second: Value) -> Value | None:
    """Return the integers of a bias when its scale is that of the sums."""
    found = build.dequantised.get(bias)
    if found is None or (found.zero is not None and (found.zero.const is None or np.any(found.zero.const))):
        return None
    known = [value.const for value in (found.scale, first, second)]
    if any(array is None for array in known) or found.whole.dtype != INT32:
        return None
    own, *factors = (np.asarray(array, np.float64).reshape(-1) for array in known)
    return found.whole if np.allclose(own, factors[0] * factors[1], rtol=SAME_SCALE, atol=0) else None


def _whole_bounds(sums: Sums, scale: Value, zero: Value) -> tuple[float | None, float | None] | None:
    """Return how far below and above the zero point clipped sums are once they are quantised; None when that is not known."""
    found: list[float | None] = []
    for bound in (sums.low, sums.high):
        if math.isinf(bound) or bound == 0:
            found.append(0.0 if bound == 0 else None)
        elif scale.const is None or not scale.const.reshape(-1)[0] > 0:
            return None
        else:
            found.append(float(np.rint(np.float32(bound) / scale.const.astype(np.float32).reshape(-1)[0])))
    return found[0], found[1]


def requantised(
    call: Call, total: Value, scales: list[Value], zero: Value, bounds: tuple[float | None, float | None] = (None, None)
) -> Value:
    """Return int32 sums · (first · second / third scale), to nearest even, plus `zero`, saturated to its type and within `bounds` above `zero`."""
    build, info = call.build, np.iinfo(zero.dtype)
    scales = [build.reshape(scale, ()) if math.prod(scale.shape) == 1 else scale for scale in scales]
    known = [scale.const for scale in scales]
    if all(array is not None for array in known):
        first, second, third = (np.asarray(array, np.float32) for array in known)
        factor = [build.const((first * second) / third, f"{call.name}.scale")]
        scale: Expr = Y
    else:
        factor = scales
        scale = ("div", ("mul", Y, ("in", 2)), ("in", 3))
    moved: Expr = ("add", ("round", ("mul", ("cast_f32", X), scale)), ("cast_f32", ("in", 1 + len(factor))))
    place: Expr = ("cast_f32", ("in", 1 + len(factor)))
    ends: list[Expr] = [("const", float(info.min)), ("const", float(info.max))]
    inside: Expr = ("clip", moved, *ends)
    if any(bound is not None for bound in bounds):
        below, above = (
            ("add", place, ("const", end)) if end else place for end in (bounds[0] or 0.0, bounds[1] or 0.0)
        )
        inner = [ends[0] if bounds[0] is None else below, ends[1] if bounds[1] is None else above]
        inside = ("clip", ("clip", moved, *inner), *ends)
    inputs = [total, *factor, build.reshape(zero, ()) if math.prod(zero.shape) == 1 else zero]
    return build.elementwise(("cast_i32", inside), inputs, zero.dtype)


def product(call: Call, a: Value, b: Value, a_zero: Value | None, b_zero: Value | None) -> Value:
    """Return the int32 matrix product of two 8-bit values less their zero points, of ranks as MatMul's."""
    build = call.build
    _check_types(call, a, b)
    left = build.reshape(a, (1, *a.shape)) if len(a.shape) == 1 else a
    right = build.reshape(b, (*b.shape, 1)) if len(b.shape) == 1 else b
    if left.shape[-1] != right.shape[-2]:
        raise ModelError(f"node {call.name}: {call.op} of {a.name} {a.shape} and {b.name} {b.shape}")
    (a_known, a_rest), (b_known, b_rest) = _zero_point(call, a_zero), _zero_point(call, b_zero)
    depth = left.shape[-1]
    largest = _largest(left.dtype, a_known)
    each = np.full((depth, 1), _largest(right.dtype, b_known), np.int64)
    if right.const is not None:
        magnitudes = np.abs(right.const.astype(np.int64) - b_known)
        each = np.moveaxis(magnitudes, -2, 0).reshape(depth, -1)
    total: Value | None = None
    for first, last in _parts(each * largest):
        taken = _sliced(build, left, -1, first, last), _sliced(build, right, -2, first, last)
        part = build.emit("MatMulInteger", taken, {"zeros": [a_known, b_known], "ending": None}, dtype=INT32)
        total = part if total is None else build.elementwise(("add", X, Y), [total, part])
    assert total is not None
    if a_rest is not None:
        sums = _summed(build, right, b_known, -2)
        total = build.elementwise(("sub", X, ("mul", Y, ("in", 2))), [total, _along(build, a_rest, -2), sums])
    if b_rest is not None:
        sums = _summed(build, left, a_known, -1)
        total = build.elementwise(("sub", X, ("mul", Y, ("in", 2))), [total, _along(build, b_rest, -1), sums])
    if a_rest is not None and b_rest is not None:
        both: Expr = ("mul", ("const", depth), ("mul", Y, ("in", 2)))
        total = build.elementwise(("add", X, both), [total, _along(build, a_rest, -2), _along(build, b_rest, -1)])
    shape = list(total.shape)
    if len(b.shape) == 1:
        del shape[-1]
    if len(a.shape) == 1:
        del shape[-2 if len(b.shape) > 1 else -1]
    return build.reshape(total, shape)


def convolution(
    call: Call,
    x: Value,
    w: Value,
    x_zero: Value | None,
    w_zero: Value | None,
    window: Window | None = None,
    group: int | None = None,
) -> Value:
    """Return the int32 convolution of two 8-bit values less their zero points; padding adds nothing.

    `window` and `group` are by default what the node says. What the engine does not do as a convolution is a matrix product of taps.
    """
    build = call.build
    _check_types(call, x, w)
    if window is None or group is None:
        window, group = window_of(call, x, kernel_of(call, x, w)), call.groups()
    if w.shape[1] * group != x.shape[1] or w.shape[0] % group or 0 in w.shape:
        raise ModelError(f"node {call.name}: {call.op} of {x.name} {x.shape} by {w.name} {w.shape}, {group} groups")
    known = _constant_weights(w, w_zero)
    if known is None or not window.suits_engine:
        return _product_of_taps(call, x, w, x_zero, w_zero, window, group)
    weights, w_known = known
    x_known, rest = _zero_point(call, x_zero)
    if window.rank == 1:
        image = build.reshape(x, (*x.shape[:2], 1, x.shape[2]))
        weights = weights.reshape(*w.shape[:2], 1, *window.kernel)
    else:
        image = x
    attrs = window.attrs("strides", "pads", "dilations") | {
        "group": group,
        "zeros": [x_known, w_known],
        "ending": None,
    }
    shifted = weights.astype(np.int64) - w_known
    each = np.abs(shifted).sum(axis=(2, 3)).T * _largest(x.dtype, x_known)  # [C / group, O]
    total: Value | None = None
    parts = list(_parts(each))
    if group > 1 and len(parts) > 1:
        return _product_of_taps(call, x, w, x_zero, w_zero, window, group)
    for first, last in parts:
        channels = image if group > 1 else _sliced(build, image, 1, first, last)
        taps_of_part = build.const(np.ascontiguousarray(weights[:, first:last]), w.name)
        part = build.emit("ConvInteger", [channels, taps_of_part], dict(attrs), dtype=INT32)
        total = part if total is None else build.elementwise(("add", X, Y), [total, part])
    assert total is not None
    if rest is not None:
        places = {name: attrs[name] for name in ("pads", "strides", "dilations")}
        inside = products.convolve(np.ones((1, *image.shape[1:])), shifted, places, group)
        sums = build.const(inside.astype(np.int32), f"{call.name}.sums")
        total = build.elementwise(("sub", X, ("mul", Y, ("in", 2))), [total, build.reshape(rest, ()), sums])
    return build.reshape(total, (*total.shape[:2], total.shape[3])) if window.rank == 1 else total


def _product_of_taps(
    call: Call, x: Value, w: Value, x_zero: Value | None, w_zero: Value | None, window: Window, group: int
) -> Value:
    """Return a convolution as the product of the weights' rows and columns of taps; outside of the image these are the zero point."""
    build, outputs = call.build, window.counts(x.shape[2:])
    known, rest = _zero_point(call, x_zero)
    if rest is not None and any(window.pads):
        x = _surrounded(call, x, x_zero, window)
        window = replace(window, pads=[0] * 2 * window.rank)
    columns = columns_of_taps(call, x, window, group, float(known))
    rows = build.reshape(w, (group, w.shape[0] // group, math.prod(w.shape[1:])))
    if w_zero is not None and math.prod(w_zero.shape) > 1:
        w_zero = build.reshape(w_zero, (group, w.shape[0] // group, 1))
    total = product(call, rows, columns, w_zero, x_zero)
    return build.reshape(total, (x.shape[0], w.shape[0], *outputs))


def _surrounded(call: Call, x: Value, zero: Value | None, window: Window) -> Value:
    """Return an image padded with a computed zero point."""
    assert zero is not None
    build, rank = call.build, window.rank
    pads = [(0, 0), (0, 0), *zip(window.pads[:rank], window.pads[rank:], strict=True)]
    padded = build.emit("Pad", [x], {"pads": pads, "value": 0.0})
    within = np.pad(np.ones((1, 1, *x.shape[2:]), np.bool_), pads)
    inside = build.const(within, f"{call.name}.inside")
    chosen: Expr = ("where", Y, X, ("in", 2))
    return build.elementwise(chosen, [padded, inside, build.reshape(zero, ())])


def _check_types(call: Call, *values: Value) -> None:
    for value in values:
        if value.dtype.kind not in "iu" or value.dtype.itemsize != 1:
            raise call.unimplemented(f"the type {value.dtype}")


def _largest(dtype: np.dtype[Any], zero: int) -> int:
    """Return the largest magnitude of a value of `dtype` less a zero point."""
    info = np.iinfo(dtype)
    return max(abs(int(info.min) - zero), abs(int(info.max) - zero))


def _parts(bounds: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return ranges of the first axis, as long as possible, over which the bounds of every column add up to at most EXACT."""
    found, start, total = [], 0, np.zeros(bounds.shape[1], np.int64)
    for index, row in enumerate(bounds):
        if index > start and (total + row).max(initial=0) > EXACT:
            found.append((start, index))
            start, total = index, np.zeros_like(total)
        total = total + row
    return [*found, (start, len(bounds))]


def _zero_point(call: Call, zero: Value | None) -> tuple[int, Value | None]:
    """Return a zero point as the number that the engine takes and a value to expand, of which one is nothing."""
    if zero is None:
        return 0, None
    if zero.const is not None and np.all(zero.const == zero.const.flat[0]):
        return int(zero.const.flat[0]), None
    return 0, call.build.elementwise(X, [zero], INT32)


def _constant_weights(w: Value, zero: Value | None) -> tuple[NDArray[Any], int] | None:
    """Return weights and the zero point that the engine takes, None where it takes neither or they are computed.

    Those of zero points by channel become int8 without one.
    """
    if w.const is None or (zero is not None and zero.const is None):
        return None
    if zero is None or zero.const is None or np.all(zero.const == zero.const.flat[0]):
        return w.const, 0 if zero is None or zero.const is None else int(zero.const.flat[0])
    shifted = w.const.astype(np.int64) - zero.const.astype(np.int64).reshape(-1, *[1] * (len(w.shape) - 1))
    if shifted.min() < -128 or shifted.max() > 127:
        return None
    return shifted.astype(np.int8), 0


def _along(build: Builder, value: Value, axis: int) -> Value:
    """Return a scale or zero point so that its numbers lie along `axis` -2 or -1 of a matrix."""
    if math.prod(value.shape) == 1:
        return build.reshape(value, ())
    return build.reshape(value, (*value.shape, 1)) if axis == -2 and len(value.shape) == 1 else value


def _sliced(build: Builder, x: Value, axis: int, first: int, last: int) -> Value:
    place = axis % len(x.shape)
    if (first, last) == (0, x.shape[place]):
        return x
    if x.const is not None:
        return build.const(np.ascontiguousarray(np.take(x.const, range(first, last), place)), x.name)
    return build.slice(x, {place: (first, last, 1)})


def _summed(build: Builder, x: Value, zero: int, axis: int) -> Value:
    """Return the int32 sums of `x` less a zero point along an axis, which stays."""
    place = axis % len(x.shape)
    if x.const is not None:
        sums = (x.const.astype(np.int64) - zero).sum(axis=place, keepdims=True)
        return build.const(sums.astype(np.int32), f"{x.name}.sums")
    moved = build.elementwise(("sub", X, ("const", zero)), [x], INT32)
    return build.reduce(moved, "sum", [place], True)


def matmul_to_float(call: Call) -> Value:
    """MatMulIntegerToFloat: sums · (a_scale · b_scale), and a bias."""
    a, b, a_scale, b_scale = (call.input(index) for index in range(4))
    total = product(call, a, b, call.optional(4), call.optional(5))
    return scaled(call, total, a_scale, b_scale, call.optional(6))


def dynamic_matmul(call: Call) -> Value:
    """DynamicQuantizeMatMul: A becomes uint8 over its own range, then as MatMulIntegerToFloat."""
    a, b, b_scale = (call.input(index) for index in range(3))
    quantised, a_scale, a_zero = dynamically_quantised(call.build, a)
    total = product(call, quantised, b, a_zero, call.optional(3))
    return scaled(call, total, a_scale, b_scale, call.optional(4))


def scaled(call: Call, total: Value, a_scale: Value, b_scale: Value, bias: Value | None) -> Value:
    """Return int32 sums of a product times the scales of both sides, by row and by column, plus a bias, as floats."""
    build = call.build
    scales = [_along(build, a_scale, -2), _along(build, b_scale, -1)]
    result = build.elementwise(("mul", ("cast_f32", X), ("mul", Y, ("in", 2))), [total, *scales], a_scale.dtype)
    return result if bias is None else build.elementwise(("add", X, Y), [result, bias])


def dynamically_quantised(build: Builder, x: Value) -> tuple[Value, Value, Value]:
    """Return `x` as uint8, its scale and its zero point, as DynamicQuantizeLinear does: the range holds 0."""
    axes = range(len(x.shape))
    least, most = (build.reduce(x, kind, axes, False) for kind in ("min", "max"))
    low, high = ("min", X, ("const", 0.0)), ("max", Y, ("const", 0.0))
    span: Expr = ("sub", high, low)
    step: Expr = ("where", ("eq", span, ("const", 0.0)), ("const", 1.0), ("div", span, ("const", 255.0)))
    scale = build.elementwise(step, [least, most])
    place: Expr = ("round", ("clip", ("neg", ("div", low, Y)), ("const", 0.0), ("const", 255.0)))
    zero = build.elementwise(("cast_i32", place), [least, scale], np.dtype(np.uint8))
    moved: Expr = ("add", ("round", ("div", X, Y)), ("cast_f32", ("in", 2)))
    inside: Expr = ("clip", moved, ("const", 0.0), ("const", 255.0))
    return build.elementwise(("cast_i32", inside), [x, scale, zero], np.dtype(np.uint8)), scale, zero


def qgemm(call: Call) -> Value:
    """QGemm: alpha · A' · B' plus int32 C, as 8 bits when an output scale is given, else as float."""
    a, a_scale, a_zero, b, b_scale, b_zero = (call.input(index) for index in range(6))
    build, c, y_scale, alpha = call.build, call.optional(6), call.optional(7), float(call.attrs.get("alpha", 1.0))
    if call.attrs.get("transA", 0):
        a = build.transpose(a, [1, 0])
    if call.attrs.get("transB", 0):
        b = build.transpose(b, [1, 0])
    total = product(call, a, b, a_zero, b_zero)
    if c is not None:
        total = build.elementwise(("add", X, Y), [total, c])
    if alpha != 1.0:
        a_scale = build.elementwise(("mul", X, ("const", alpha)), [a_scale])
    if y_scale is None:
        return scaled(call, total, a_scale, b_scale, None)
    return requantised(call, total, [a_scale, _along(build, b_scale, -1), y_scale], call.input(8))


QUANTISED: dict[str, Callable[[Call], Value]] = {
    "MatMulInteger": matmul_integer,
    "ConvInteger": conv_integer,
    "QLinearMatMul": qlinear_matmul,
    "QLinearConv": qlinear_conv,
}
# Of the domain com.microsoft, which has no schemas here.
CONTRIBUTED: dict[str, Callable[[Call], Value]] = {
    "MatMulIntegerToFloat": matmul_to_float,
    "DynamicQuantizeMatMul": dynamic_matmul,
    "QGemm": qgemm,
    "QuantizeLinear": quantize,
    "DequantizeLinear": integer.dequantize,
}
