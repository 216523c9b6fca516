"""Conversions of 16-bit floats, bit by bit: exact on the way up; round to nearest even, overflow to infinity on the way down.

Values travel as their bits (uint16). NaN stays NaN: quiet, sign and upper payload kept. Subnormals are exact. Each function
takes any shape and layout and returns a new C-contiguous array. The C and the NumPy form (`native=None`) give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from npu_model import dtypes
from npu_model.native import Native, load

Bits: TypeAlias = npt.NDArray[np.uint16]
F32: TypeAlias = npt.NDArray[np.float32]
F64: TypeAlias = npt.NDArray[np.float64]
F16_OVERFLOW = 65520.0  # half way from the largest fp16 to the next power of two, which rounds up

_C_ARRAYS = {np.uint16: "uint16_t[]", np.float32: "float[]", np.float64: "double[]"}

Choice: TypeAlias = Native | Literal["auto"] | None


def f16_to_f32(bits: Bits, native: Choice = "auto") -> F32:
    """Return the values of fp16 bits as float32."""
    helper, bits = _prepare(bits, np.uint16, native)
    if helper is None:
        return _f16_table()[bits]
    return _convert(helper, helper.lib.npu_f16_to_f32, bits, np.float32, helper.avx2)


def f16_to_f64(bits: Bits, native: Choice = "auto") -> F64:
    """Return the values of fp16 bits as float64."""
    helper, bits = _prepare(bits, np.uint16, native)
    if helper is None:
        return _f16_table()[bits].astype(np.float64)
    return _convert(helper, helper.lib.npu_f16_to_f64, bits, np.float64, helper.avx2)


def f32_to_f16(values: F32, native: Choice = "auto") -> Bits:
    """Return float32 values rounded to fp16 bits."""
    helper, values = _prepare(values, np.float32, native)
    if helper is None:
        return _f32_to_f16_numpy(values)
    return _convert(helper, helper.lib.npu_f32_to_f16, values, np.uint16, helper.avx2)


def f16_infinities(bits: Bits, native: Choice = "auto") -> int:
    """Return how many fp16 bits, C-contiguous, are an infinity."""
    helper = load() if native == "auto" else native
    if helper is None:
        return int(np.count_nonzero((bits & 0x7FFF) == 0x7C00))
    return int(helper.lib.npu_f16_infinities(helper.pointer("uint16_t[]", bits), bits.size))


def f16_overflows(values: F32) -> int:
    """Return how many float32 values are finite and an infinity once rounded to fp16."""
    magnitude = np.abs(values)
    return int(np.count_nonzero((magnitude >= F16_OVERFLOW) & (magnitude < np.inf)))


def bf16_to_f32(bits: Bits, native: Choice = "auto") -> F32:
    """Return the values of bf16 bits as float32."""
    helper, bits = _prepare(bits, np.uint16, native)
    if helper is None:
        wide = bits.astype(np.uint32) << np.uint32(16)
        return np.where((wide & 0x7FFFFFFF) > 0x7F800000, wide | np.uint32(0x400000), wide).view(np.float32)
    return _convert(helper, helper.lib.npu_bf16_to_f32, bits, np.float32)


def f32_to_bf16(values: F32, native: Choice = "auto") -> Bits:
    """Return float32 values rounded to bf16 bits."""
    helper, values = _prepare(values, np.float32, native)
    if helper is None:
        bits = values.view(np.uint32)
        rounded = (bits + (np.uint32(0x7FFF) + (bits >> 16 & 1))) >> 16
        quiet = bits >> 16 | np.uint32(0x40)
        return np.where((bits & 0x7FFFFFFF) > 0x7F800000, quiet, rounded).astype(np.uint16)
    return _convert(helper, helper.lib.npu_f32_to_bf16, values, np.uint16)


def widen(bits: npt.NDArray[Any], code: int, native: Choice = "auto") -> F32:
    """Return stored bits (unsigned, as dtypes.storage_dtype) of float type F16, BF16 or F32 as float32."""
    if code == dtypes.F16:
        return f16_to_f32(bits, native)
    if code == dtypes.BF16:
        return bf16_to_f32(bits, native)
    if code == dtypes.F32:
        return np.array(bits, dtype=np.uint32, order="C").view(np.float32)
    raise dtypes.DtypeError(f"element type {dtypes.name(code)} does not widen to f32")


def narrow(values: F32, code: int, native: Choice = "auto") -> npt.NDArray[Any]:
    """Return float32 values rounded to float type F16, BF16 or F32, as stored bits."""
    if code == dtypes.F16:
        return f32_to_f16(values, native)
    if code == dtypes.BF16:
        return f32_to_bf16(values, native)
    if code == dtypes.F32:
        return np.array(values, dtype=np.float32, order="C").view(np.uint32)
    raise dtypes.DtypeError(f"f32 does not narrow to element type {dtypes.name(code)}")


def _prepare(values: npt.NDArray[Any], dtype: type, native: Choice) -> tuple[Native | None, npt.NDArray[Any]]:
    if values.dtype != dtype:
        raise TypeError(f"expected an array of {np.dtype(dtype).name}, got {values.dtype.name}")
    helper, flags = load() if native == "auto" else native, values.flags
    if not (flags.c_contiguous and flags.aligned):
        values = np.require(values, requirements=["C", "A"]).reshape(values.shape)
    return helper, values


def _convert(
    native: Native, function: Callable[..., None], source: npt.NDArray[Any], dtype: type, *options: object
) -> npt.NDArray[Any]:
    """Return what a function of native.c makes of `source`: as many elements of `dtype`."""
    out: npt.NDArray[Any] = np.empty(source.shape, dtype)
    pointer = native.pointer
    function(
        pointer(_C_ARRAYS[source.dtype.type], source), pointer(_C_ARRAYS[out.dtype.type], out), source.size, *options
    )
    return out


def _f32_to_f16_numpy(values: F32) -> Bits:
    bits = values.view(np.uint32)
    with np.errstate(all="ignore"):
        rounded = values.astype(np.float16).view(np.uint16)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    if nan.any():  # NumPy's payload differs between its builds
        rounded = np.where(nan, (bits >> 16 & 0x8000) | 0x7E00 | (bits >> 13 & 0x3FF), rounded).astype(np.uint16)
    return rounded


@cache
def _f16_table() -> F32:
    """Return the float32 value of each of the 65536 fp16 bit patterns."""
    bits = np.arange(65536, dtype=np.uint32)
    sign, exponent, fraction = bits >> 15 << 31, bits >> 10 & 31, bits & 1023
    normal = sign | (exponent + 112) << 23 | fraction << 13
    special = sign | np.uint32(0x7F800000) | fraction << 13 | np.where(fraction != 0, np.uint32(0x400000), np.uint32(0))
    table = np.where(exponent == 31, special, normal).view(np.float32)
    subnormal = (fraction.astype(np.float32) * np.float32(2.0**-24)).view(np.uint32) | sign
    table = np.where(exponent == 0, subnormal.view(np.float32), table)
    table.flags.writeable = False
    return table
