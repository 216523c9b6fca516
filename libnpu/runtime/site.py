"""Where in the program an operation was enqueued."""

from __future__ import annotations

import os
import sys
import threading
from functools import lru_cache
from types import CodeType

INSIDE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # this library's files
CERTAINLY_INSIDE = 3  # frames below: this function, Stream.enqueue, a method that programs call; then its wrapper

Place = tuple[CodeType, int]  # a code object and the offset of an instruction; its line is found when somebody asks


class _Insiders(dict[str, bool]):
    """Whether a file is one of this library's, or starts threads for it; found out on first use."""

    def __missing__(self, filename: str) -> bool:
        inside = self[filename] = filename.startswith(INSIDE) or filename == threading.__file__
        return inside


is_inside = _Insiders()


def calling_place() -> Place | str:
    """Return the place of the innermost frame outside of this library, "" when there is none."""
    frame = sys._getframe(CERTAINLY_INSIDE)
    while is_inside[frame.f_code.co_filename]:
        outer = frame.f_back
        if outer is None:
            return ""
        frame = outer
    return frame.f_code, frame.f_lasti


def line_of(place: Place) -> str:
    """Return "file:line"."""
    code, offset = place
    return f"{code.co_filename}:{_line_of(code, offset)}"


@lru_cache(maxsize=4096)
def _line_of(code: CodeType, offset: int) -> int:
    """Return a line in the code's file; code objects of several files are equal when their texts are."""
    line = next((line for start, end, line in code.co_lines() if start <= offset < end), None)
    return line or code.co_firstlineno
