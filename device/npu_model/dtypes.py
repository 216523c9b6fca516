"""Element types: `enum npu_dtype` of npu_blob.h and what NumPy, profiles and people call them.

bfloat16 has no NumPy type of its own: `numpy_dtype` takes it from ml_dtypes, loaded on first use; everything that only
moves bits uses `storage_dtype`, which never needs it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from npu_abi import C

F16, BF16, F32, F64 = C.NPU_DT_F16, C.NPU_DT_BF16, C.NPU_DT_F32, C.NPU_DT_F64
I8, U8, I16, U16 = C.NPU_DT_I8, C.NPU_DT_U8, C.NPU_DT_I16, C.NPU_DT_U16
I32, U32, I64, U64, BOOL = C.NPU_DT_I32, C.NPU_DT_U32, C.NPU_DT_I64, C.NPU_DT_U64, C.NPU_DT_BOOL

_NAMES = {
    F16: "f16",
    BF16: "bf16",
    F32: "f32",
    F64: "f64",
    I8: "i8",
    U8: "u8",
    I16: "i16",
    U16: "u16",
    I32: "i32",
    U32: "u32",
    I64: "i64",
    U64: "u64",
    BOOL: "bool",
}
_CODES = {name: code for code, name in _NAMES.items()}
_SIZES = {F16: 2, BF16: 2, F32: 4, F64: 8, I8: 1, U8: 1, I16: 2, U16: 2, I32: 4, U32: 4, I64: 8, U64: 8, BOOL: 1}
_NUMPY: dict[int, np.dtype[Any]] = {
    F16: np.dtype("<f2"),
    F32: np.dtype("<f4"),
    F64: np.dtype("<f8"),
    I8: np.dtype("i1"),
    U8: np.dtype("u1"),
    I16: np.dtype("<i2"),
    U16: np.dtype("<u2"),
    I32: np.dtype("<i4"),
    U32: np.dtype("<u4"),
    I64: np.dtype("<i8"),
    U64: np.dtype("<u8"),
    BOOL: np.dtype("?"),
}
_CODE_OF_NUMPY = {dtype.name: code for code, dtype in _NUMPY.items()} | {"bfloat16": BF16}
_STORAGE: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}


class DtypeError(ValueError):
    """A type that `enum npu_dtype` does not have; the message names it."""


def name(code: int) -> str:
    """Return the short name of enum npu_dtype `code`: "f16", "i8", ..., as profiles and reports write it."""
    _check(code)
    return _NAMES[code]


def code_of_name(short_name: str) -> int:
    """Return the enum npu_dtype of a short name."""
    if short_name not in _CODES:
        raise DtypeError(f"no element type named {short_name!r}; there are {', '.join(_CODES)}")
    return _CODES[short_name]


def size_bytes(code: int) -> int:
    """Return the size of one element."""
    _check(code)
    return _SIZES[code]


def is_float(code: int) -> bool:
    """Tell whether `code` is a floating-point type."""
    return code in (F16, BF16, F32, F64)


def numpy_dtype(code: int) -> np.dtype[Any]:
    """Return the NumPy type of `code`, little endian; loads ml_dtypes for bfloat16."""
    _check(code)
    if code == BF16:
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return _NUMPY[code]


@cache
def code_of_numpy(dtype: np.dtype[Any] | type) -> int:
    """Return the enum npu_dtype of a NumPy type (ml_dtypes' bfloat16 included)."""
    found = np.dtype(dtype)
    if found.name not in _CODE_OF_NUMPY:
        raise DtypeError(f"NumPy type {found.name} has no enum npu_dtype")
    return _CODE_OF_NUMPY[found.name]


def storage_dtype(code: int) -> np.dtype[Any]:
    """Return the unsigned integer type that holds the bits of one element of `code`."""
    return _STORAGE[size_bytes(code)]


def integer_range(code: int) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer type."""
    if code == BOOL:
        return 0, 1
    if is_float(code) or code not in _NUMPY:
        raise DtypeError(f"element type {_NAMES.get(code, code)} is not an integer type")
    info = np.iinfo(_NUMPY[code])
    return int(info.min), int(info.max)


def _check(code: int) -> None:
    if code not in _NAMES:
        raise DtypeError(f"no element type {code} in enum npu_dtype")
