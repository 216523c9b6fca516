"""Where in the program an operation was enqueued."""

from __future__ import annotations

import sys

INSIDE = __name__.partition(".")[0] + "."  # modules of this library


def calling_line() -> str:
    """Return "file:line" of the innermost frame outside of this library, "" when there is none."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").startswith(INSIDE):
        outer = frame.f_back
        if outer is None:
            return ""
        frame = outer
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
