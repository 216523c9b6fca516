"""Calls that were refused for a mistake in what is used when, and the program went on all the same.

An exception that is on its way through the program, or being handled, is not ignored yet; one that has ended the program was not
ignored at all. Of a C program nobody sees whether it looks at results: it goes on with its next call.
"""

from __future__ import annotations

import sys
from threading import get_ident
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.runtime.host_threads import HOST as THREADS

if TYPE_CHECKING:
    from libnpu.checker.findings import Finding
    from libnpu.errors import NpuError

OUTSIDE = (C.NPU_ERROR_OUT_OF_RANGE, C.NPU_ERROR_ARG_SIZE, C.NPU_ERROR_ARG_KIND)  # of a range that is asked for
ENDINGS = ("free", "destroy", "close", "unload", "unregister")


def rule_of(call: str, error: NpuError) -> str | None:
    """Return the rule that a refused call breaks, None for other errors."""
    if error.result == C.NPU_ERROR_STALE_HANDLE:
        return "DOUBLE-FREE" if any(word in call for word in ENDINGS) else "UAF"
    if error.result == C.NPU_ERROR_WRONG_CONTEXT:
        return "CTX-MISMATCH"
    if error.result in OUTSIDE and error.asked is not None and error.asked.outside:
        return "OOB"
    if error.result == C.NPU_ERROR_NOT_PERMITTED and THREADS.in_function:
        return "CALLBACK-API"
    return None


class Refusals:
    """Refused calls that may turn out to be ignored."""

    def __init__(self) -> None:
        self._waiting: dict[NpuError, tuple[int, Finding]] = {}  # with the thread that was told

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, error: NpuError, finding: Finding) -> None:
        """The calling thread is told that its call is refused."""
        self._waiting[error] = get_ident(), finding

    def ignored(self, *, at_end: bool = False) -> list[Finding]:
        """Return, once, what the calling thread has ignored when it makes another call; `at_end`: what all have."""
        me, told = get_ident(), _in_flight()
        known = [error for error, (thread, _) in self._waiting.items() if at_end or thread == me]
        return [self._waiting.pop(error)[1] for error in known if error not in told]


def _in_flight() -> set[BaseException | None]:
    """Return the exceptions that the calling thread is handling, those behind them, and the one that has ended the program."""
    found: set[BaseException | None] = {getattr(sys, "last_value", None)}
    error = sys.exc_info()[1]
    while error is not None and error not in found:
        found.add(error)
        error = error.__context__
    return found
