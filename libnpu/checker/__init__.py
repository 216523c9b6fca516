"""The synchronisation detective: which order between host, streams and memory a program takes for granted."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from libnpu.runtime import observer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libnpu.checker.watch import Checker


@contextmanager
def check() -> Iterator[Checker]:
    """Watch the contexts that are made inside; what is found is in the checker's `findings`, complete at the end."""
    from libnpu.checker.watch import Checker

    checker = Checker()
    outer, observer.current = observer.current, checker
    try:
        yield checker
    finally:
        observer.current = outer
        checker.detach()
