"""Arguments of public calls, checked before anything is done: who gives one of a wrong type is told which."""

from __future__ import annotations

from operator import index
from typing import TypeVar

T = TypeVar("T")


def whole(value: object, name: str) -> int:
    """Return an integer argument. Raises TypeError for what is none, 1.5 included."""
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise wrong(value, name, "an integer") from None


def instance_of(value: object, kind: type[T], name: str) -> T:
    """Return an argument of type `kind`. Raises TypeError for another."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise wrong(value, name, f"{article} {kind.__name__}")
    return value


def wrong(value: object, name: str, wanted: str) -> TypeError:
    """Return the error of an argument that is no `wanted`."""
    return TypeError(f"{name} must be {wanted}, not {type(value).__name__}")
