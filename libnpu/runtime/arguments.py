"""Arguments of public calls, checked before anything is done: who gives one of a wrong type is told which."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Mapping
from numbers import Number
from operator import index
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from npu_abi import C

from libnpu.errors import NpuError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
MOST_BITS = (
    128  # chosen: beyond all that arguments may be, so that whose limit is passed still says so, and short in a message
)


def whole(value: object, name: str) -> int:
    """Return an integer argument. Raises TypeError for what is none, 1.5 included, INVALID_VALUE beyond MOST_BITS."""
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        raise wrong(value, name, "an integer") from None
    if number.bit_length() > MOST_BITS:
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"{name} is {shown(number)}; {MOST_BITS} bits are the most")
    return number


def unsigned(value: object, name: str, bits: int) -> int:
    """As `whole`, for a field of so many bits without a sign."""
    number = whole(value, name)
    if not 0 <= number < 1 << bits:
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"{name} is {shown(number)}; 0 to 2^{bits} - 1 are allowed")
    return number


def wholes(values: object, name: str) -> list[int]:
    """Return an argument that is a sequence of integers. Raises as `whole`."""
    try:
        found = iter(values)  # type: ignore[call-overload]
    except TypeError:
        raise wrong(values, name, "a sequence of integers") from None
    return [whole(value, f"each of {name}") for value in found]


def shown(value: object) -> str:
    """Return an argument for a message, also one that is too long, or too deep, to be written out."""
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, Number):
        return str(value)
    try:
        return reprlib.repr(value) if isinstance(value, list | tuple | dict | set) else repr(value)
    except (ValueError, RecursionError):  # of a number in it
        return f"a {type(value).__name__}"


def truth(value: object, name: str) -> bool:
    """Return an argument that is true or false. Raises TypeError for what is neither, as an array of several."""
    try:
        return bool(value)
    except (TypeError, ValueError):
        raise wrong(value, name, "true or false") from None


def path_of(value: object, name: str) -> str:
    """Return a path as text. Raises TypeError for what is none, FILE for one with a NUL, which no file has."""
    try:
        path = os.fsdecode(value)  # type: ignore[arg-type]
    except TypeError:
        raise wrong(value, name, "a path (str or os.PathLike)") from None
    if "\0" in path:
        raise NpuError(C.NPU_ERROR_FILE, f"embedded null byte: {path!r}")
    return path


def mapping_of(value: object, name: str) -> Mapping[Any, Any]:
    """Return an argument that is a mapping. Raises TypeError for what is none."""
    if not isinstance(value, Mapping):
        raise wrong(value, name, "a mapping")
    return value


def dtype_of(value: Any, name: str) -> np.dtype[Any]:
    """Return what NumPy takes for a type of elements. Raises TypeError for what is none."""
    try:
        dtype: np.dtype[Any] = np.dtype(value)
    except (TypeError, ValueError, RecursionError):
        raise TypeError(f"{name} must be a NumPy type, not {shown(value)}") from None
    return dtype


def instance_of(value: object, kind: type[T], name: str) -> T:
    """Return an argument of type `kind`. Raises TypeError for another."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise wrong(value, name, f"{article} {kind.__name__}")
    return value


def wrong(value: object, name: str, wanted: str) -> TypeError:
    """Return the error of an argument that is no `wanted`."""
    return TypeError(f"{name} must be {wanted}, not {type(value).__name__}")


def environment_switch(name: str, getenv: Callable[[str], str | None]) -> bool:
    """Return what an environment variable says that is 0 (as unset, or empty) or 1. Raises INVALID_VALUE for others."""
    value = getenv(name) or "0"
    if value not in ("0", "1"):
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"{name} is {value!r}; 0 and 1 are allowed")
    return value == "1"
