"""Handlers of bitwise operators, shifts and remainders."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx

from libnpu.compiler.frontend import constants, unsigned
from libnpu.compiler.frontend.builder import Dequantised
from libnpu.compiler.frontend.source import ModelError

if TYPE_CHECKING:
    from libnpu.compiler.frontend.builder import Builder
    from libnpu.compiler.frontend.call import Call
    from libnpu.compiler.ir import Expr, Value

X: Expr = ("in", 0)
Y: Expr = ("in", 1)
BITWISE = {"BitwiseAnd": "bit_and", "BitwiseOr": "bit_or", "BitwiseXor": "bit_xor"}
_WORD_BITS = 32


def bitwise(call: Call) -> Value:
    return call.build.elementwise((BITWISE[call.op], X, Y), [call.input(0), call.input(1)])


def bitwise_not(call: Call) -> Value:
    return call.build.elementwise(("bit_not", X), [call.input(0)])


def bit_shift(call: Call) -> Value:
    """BitShift; a count below zero or of all bits and more leaves the sign alone."""
    x, count = call.input(0), call.input(1)
    left = call.attrs["direction"] == b"LEFT"
    if left:
        shifted: Expr = ("shl", X, Y)
    elif unsigned.is_unsigned_word(x.dtype):
        shifted = unsigned.shifted_right(X, Y)
    else:
        shifted = ("shr", X, Y)
    within: Expr = ("eq", ("bit_and", Y, ("const", -min(8 * x.dtype.itemsize, _WORD_BITS))), ("const", 0))
    sign: Expr = ("const", 0) if left or x.dtype.kind == "u" else ("shr", X, ("const", _WORD_BITS - 1))
    return call.build.elementwise(("where", within, shifted, sign), [x, count])


def mod(call: Call) -> Value:
    """Mod: the sign of the divisor, or with fmod 1 of the dividend."""
    x, y = call.input(0), call.input(1)
    if unsigned.is_unsigned_word(x.dtype):
        expr = unsigned.remainder(X, Y)
    else:
        expr = ("fmod" if call.attrs.get("fmod", 0) else "mod", X, Y)
    return call.build.elementwise(expr, [x, y])


def quantize(call: Call) -> Value:
    """QuantizeLinear to integers of 8 and 16 bits: per tensor, along an axis, or in blocks of one."""
    x, scale, zero, build = call.input(0), call.input(1), call.optional(2), call.build
    if zero is None:
        kind = int(call.attrs.get("output_dtype", 0))
        target = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind)) if kind else np.dtype(np.uint8)
    else:
        target = zero.dtype
    if target.kind not in "iu" or target.itemsize > 2:
        raise call.unimplemented(f"the type {target}")
    info = np.iinfo(target)
    rounded: Expr = ("round", ("div", X, Y))
    moved: Expr = rounded if zero is None else ("add", rounded, ("cast_f32", ("in", 2)))
    inside: Expr = ("clip", moved, ("const", float(info.min)), ("const", float(info.max)))
    inputs = [x, spread(call, x, scale), *([] if zero is None else [spread(call, x, zero)])]
    return build.elementwise(("cast_i32", inside), inputs, target)


def _widened(build: Builder, value: Value) -> Value:
    """Return a constant of 4-bit integers as one of bytes."""
    wide = {"int4": np.int8, "uint4": np.uint8}.get(value.dtype.name)
    return value if wide is None or value.const is None else build.const(value.const.astype(wide), value.name)


def dequantize(call: Call) -> Value:
    """DequantizeLinear: (x - zero point) · scale. Constants become one; what is not in blocks is noted as `Dequantised`."""
    x, scale, zero, build = call.input(0), call.input(1), call.optional(2), call.build
    operands = [x, scale, *([] if zero is None else [zero])]
    if all(value.const is not None for value in operands):
        array = constants.dequantised(call.opset, call.attrs, [value.const for value in operands], call.name)
        result = build.const(array, f"{call.name}.value")
    elif x.dtype.kind not in "iu" or x.dtype.itemsize > 4:
        raise call.unimplemented(f"the type {x.dtype}")
    else:
        whole: Expr = X if zero is None else ("sub", X, ("in", 2))
        inputs = [x, *(spread(call, x, value) for value in operands[1:])]
        result = build.elementwise(("mul", ("cast_f32", whole), Y), inputs, scale.dtype)
    if len(scale.shape) <= 1:
        x, zero = _widened(build, x), None if zero is None else _widened(build, zero)
        build.dequantised[result] = Dequantised(x, scale, zero, int(call.attrs.get("axis", 1)) % max(len(x.shape), 1))
    return result


def spread(call: Call, x: Value, value: Value) -> Value:
    """Return a scale or zero point so that it broadcasts to `x`: one number, one per element of the axis, or one per block."""
    build, rank = call.build, len(x.shape)
    if math.prod(value.shape) == 1:
        return build.reshape(value, ())
    axis = call.axis(int(call.attrs.get("axis", 1)), rank)
    if len(value.shape) == 1 and value.shape[0] == x.shape[axis]:
        return build.reshape(value, [size if index == axis else 1 for index, size in enumerate(x.shape)])
    block = int(call.attrs.get("block_size", 0))
    if len(value.shape) != rank or not block or value.shape[axis] * block != x.shape[axis]:
        raise ModelError(f"node {call.name}: {call.op} of {x.name} {x.shape} by {value.name} {value.shape}")
    apart = build.reshape(value, (*value.shape[: axis + 1], 1, *value.shape[axis + 1 :]))
    return build.reshape(build.expand(apart, (*value.shape[: axis + 1], block, *value.shape[axis + 1 :])), x.shape)
