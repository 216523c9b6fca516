"""Arithmetic of the vector core on fp32 and s32 arrays. Each function's rounding is part of the instruction set.

Special functions are computed in float64 and rounded once to fp32, so that the last bit of a machine's math library does not
reach the result (except in the rare case in which it moves a float64 value over a rounding boundary of fp32).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from npu_model import casts

Array = NDArray[Any]
F32 = np.dtype(np.float32)
S32 = np.dtype(np.int32)
SMALL = 1024  # elements up to which NumPy's own fp16 conversion beats a call into C (measured)
QUIET_NAN = np.array(0x7FC00000, np.uint32).view(F32)  # the NaN that a store writes
INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1


def in_float64(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return `function` computed in float64 and rounded once to fp32."""

    def rounded(x: Array) -> Array:
        return function(x.astype(np.float64)).astype(np.float32)

    return rounded


def _rsqrt(x: Array) -> Array:
    return 1.0 / np.sqrt(x)


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


# erf(x) = x * P(u), u = 2 x^2 / ERF_LIMIT^2 - 1, for |x| <= ERF_LIMIT, where P interpolates at Chebyshev nodes (relative error
# below 2e-11, measured); beyond, 1 - erf < 2^-25 and the fp32 result is +-1.
_ERF_LIMIT = 4.0
_ERF_DEGREE = 20


def _erf_coefficients() -> tuple[float, ...]:
    """Return the coefficients of P in powers of u, highest first."""
    count = _ERF_DEGREE + 1
    angles = [math.pi * (k + 0.5) / count for k in range(count)]
    values = []
    for angle in angles:
        x = math.sqrt((math.cos(angle) + 1.0) * 0.5) * _ERF_LIMIT
        values.append(math.erf(x) / x)
    series = [
        (1.0 if j == 0 else 2.0) / count * math.fsum(v * math.cos(j * a) for v, a in zip(values, angles, strict=True))
        for j in range(count)
    ]
    return tuple(reversed(chebyshev.cheb2poly(series).tolist()))


_ERF = tuple(
    map(np.array, _erf_coefficients())
)  # arrays without dimensions: NumPy takes them faster than Python's floats


def _erf(x: Array) -> Array:
    """Return erf of a float64 array."""
    clamped = np.minimum(np.maximum(x, -_ERF_LIMIT), _ERF_LIMIT)
    u = clamped * clamped
    u *= 2.0 / _ERF_LIMIT**2
    u -= 1.0
    p: Array = u * _ERF[0]
    p += _ERF[1]
    for coefficient in _ERF[2:]:
        p *= u
        p += coefficient
    p *= clamped
    return p


def is_plain(x: Array) -> bool:
    """Tell whether fp32 `x` is so small an array, without NaN and without what fp16 does not hold, that NumPy may convert it.

    NumPy's NaNs differ between its builds.
    """
    return x.size <= SMALL and bool(np.maximum.reduce(np.abs(x), axis=None) < casts.F16_OVERFLOW)


def canonical(x: Array) -> Array:
    """Return fp32 `x` with one bit pattern for NaN. The others depend on the machine and on the place in the array."""
    if np.isnan(np.maximum.reduce(x, axis=None)):
        return np.where(np.isnan(x), QUIET_NAN, x)
    return x


def minimum(a: Array, b: Array) -> Array:
    """Return the smaller of fp32 values; NaN wins, and -0 is smaller than +0, which NumPy leaves to the machine."""
    least: Array = np.minimum(a, b)
    ties = a == b
    if np.any(ties):
        least = np.where(ties, (a.view(S32) | b.view(S32)).view(F32), least)
    return least


def maximum(a: Array, b: Array) -> Array:
    """Return the larger of fp32 values; NaN wins, and +0 is larger than -0."""
    most: Array = np.maximum(a, b)
    if b.ndim == 0 and not np.signbit(b):  # as of a ReLU: the result is no -0
        return most + np.float32(0.0)
    ties = a == b
    if np.any(ties):
        most = np.where(ties, (a.view(S32) & b.view(S32)).view(F32), most)
    return most


def least_along(x: Array, axis: int) -> Array:
    """Return `minimum` of fp32 values along an axis, which stays with length 1."""
    least: Array = np.minimum.reduce(x, axis=axis, keepdims=True)
    if np.any(least == 0.0):
        negative = np.any((x == 0.0) & np.signbit(x), axis=axis, keepdims=True)
        least = np.where(least == 0.0, np.where(negative, np.float32(-0.0), np.float32(0.0)), least)
    return least


def most_along(x: Array, axis: int) -> Array:
    """Return `maximum` of fp32 values along an axis, which stays with length 1."""
    most: Array = np.maximum.reduce(x, axis=axis, keepdims=True)
    if np.any(most == 0.0):
        positive = np.any((x == 0.0) & ~np.signbit(x), axis=axis, keepdims=True)
        most = np.where(most == 0.0, np.where(positive, np.float32(0.0), np.float32(-0.0)), most)
    return most


def round_bf16(x: Array) -> Array:
    """Return fp32 `x` rounded to bf16 (nearest even) and back; a NaN stays a quiet NaN."""
    return casts.bf16_to_f32(casts.f32_to_bf16(x))


def to_int(x: Array, low: int, high: int, dtype: Any) -> Array:
    """Return fp32 or s32 `x` as an integer type: fp32 rounds to nearest even, NaN becomes 0, values saturate to [low, high]."""
    if x.dtype == F32:
        wide = np.rint(x.astype(np.float64))
        wide[np.isnan(wide)] = 0.0
        return _saturate(wide, low, high, dtype)
    return np.clip(x.astype(np.int64), low, high).astype(dtype)


def truncate(x: Array) -> Array:
    """Return fp32 `x` as s32: towards zero, NaN becomes 0, values saturate."""
    wide = np.trunc(x.astype(np.float64))
    wide[np.isnan(wide)] = 0.0
    return _saturate(wide, INT32_MIN, INT32_MAX, np.int32)


def _saturate(wide: Array, low: int, high: int, dtype: Any) -> Array:
    """Return whole float64 values as integers of `dtype`; a bound that float64 cannot hold is applied after the conversion."""
    inside = np.clip(wide, float(low), np.nextafter(float(high), 0.0) if float(high) > high else float(high))
    result = inside.astype(dtype)
    result[wide >= float(high)] = high
    return result


def divide_i32(a: Array, b: Array) -> Array:
    """Return the quotient of s32 arrays, towards zero; the most negative number over -1 wraps. `b` has no zero.

    A float64 quotient of 32-bit integers is never rounded up to a whole number that it does not reach.
    """
    return np.trunc(a.astype(np.float64) / b).astype(np.int64).astype(np.int32)


def power(a: Array, b: Array) -> Array:
    """Return a ** b in float64, rounded once to fp32."""
    return np.asarray(np.power(a, b, dtype=np.float64)).astype(np.float32)


def fused(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c: the product exact in float64, the sum rounded to float64 and then to fp32."""
    product = a.astype(np.float64) * b
    return np.asarray(product + c).astype(np.float32)


def divide_f32(a: Array, b: Array) -> Array:
    """Return the correctly rounded fp32 quotient."""
    quotient: Array = np.divide(a, b, dtype=np.float32)
    return quotient


UNARY_F32: dict[str, Callable[[Array], Array]] = {
    "vsqrt": np.sqrt,
    "vrsqrt": in_float64(_rsqrt),
    "vrcp": np.reciprocal,
    "vexp": in_float64(np.exp),
    "vlog": in_float64(np.log),
    "vsigm": in_float64(_sigmoid),
    "vtanh": in_float64(np.tanh),
    "verf": in_float64(_erf),
    "vsin": in_float64(np.sin),
    "vcos": in_float64(np.cos),
    "vfloor": np.floor,
    "vceil": np.ceil,
    "vround": np.rint,
    "vneg": np.negative,
    "vabs": np.abs,
    "vsign": np.sign,
}
UNARY_I32: dict[str, Callable[[Array], Array]] = {
    "vneg": np.negative,
    "vabs": np.abs,
    "vsign": np.sign,
    "vnot": np.invert,
}
BINARY_F32: dict[str, Callable[[Array, Array], Array]] = {
    "vadd": np.add,
    "vsub": np.subtract,
    "vmul": np.multiply,
    "vdiv": divide_f32,
    "vmin": minimum,
    "vmax": maximum,
    "vmod": np.fmod,
    "vpow": power,
}
BINARY_I32: dict[str, Callable[[Array, Array], Array]] = {
    "vadd": np.add,
    "vsub": np.subtract,
    "vmul": np.multiply,
    "vdiv": divide_i32,
    "vmin": np.minimum,
    "vmax": np.maximum,
    "vmod": np.mod,
    "vand": np.bitwise_and,
    "vor": np.bitwise_or,
    "vxor": np.bitwise_xor,
    "vshl": lambda a, b: np.left_shift(a, b & 31),
    "vshr": lambda a, b: np.right_shift(a, b & 31),
}
COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "veq": np.equal,
    "vne": np.not_equal,
    "vlt": np.less,
    "vle": np.less_equal,
    "vgt": np.greater,
    "vge": np.greater_equal,
}
SPECIAL = frozenset(
    ("vdiv", "vmod", "vpow", "vsqrt", "vrsqrt", "vrcp", "vexp", "vlog", "vsigm", "vtanh", "verf", "vsin", "vcos")
)
