"""CPU mappings that live. A mapping is an array of bytes; it ends when nothing refers to it any more."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Sequence

Mappings = dict[int, "weakref.ref[Any]"]  # those of something, in the order in which they were made


def track(mapping: Any, books: Sequence[Mappings], notes: Sequence[tuple[deque[Any], Any]]) -> None:
    """Enter a mapping in all `books`. When it ends it leaves them, and each of `notes` (queue, what) puts `what` in its queue: it
    may end in any thread and at any moment, so whoever cares looks there when it suits.
    """

    def ended(ref: weakref.ref[Any]) -> None:
        for book in books:
            book.pop(id(ref), None)
        for queue, what in notes:
            queue.append(what)

    ref = weakref.ref(mapping, ended)
    for book in books:
        book[id(ref)] = ref
