"""Where in the program an operation was enqueued."""

from __future__ import annotations

import os
import sys

INSIDE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # this library's files


class _Insiders(dict[str, bool]):
    """Whether a file is one of this library's, found out on first use."""

    def __missing__(self, filename: str) -> bool:
        inside = self[filename] = filename.startswith(INSIDE)
        return inside


_is_inside = _Insiders()


def calling_line() -> str:
    """Return "file:line" of the innermost frame outside of this library, "" when there is none."""
    frame = sys._getframe(1)
    while _is_inside[frame.f_code.co_filename]:
        outer = frame.f_back
        if outer is None:
            return ""
        frame = outer
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
