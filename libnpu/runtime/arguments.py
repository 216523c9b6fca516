"""Arguments of public calls, checked before anything is done: who gives one of a wrong type is told which."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, TypeVar

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


def shown(number: float) -> str:
    """Return a number for a message, also one that is too long to be written out."""
    if isinstance(number, int) and number.bit_length() > MOST_BITS:
        return f"a number of {number.bit_length()} bits"
    return str(number)


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
