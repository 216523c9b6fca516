"""What a process writes about itself when it ends: once, whether Python ends it or the exit of a C program (libnpu/capi), which ends no Python."""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_reports: list[Callable[[], object]] = []


def at_end(report: Callable[[], object]) -> None:
    """Call `report` when the process ends, after those that came later."""
    if not _reports:
        atexit.register(write_reports)
    _reports.append(report)


def write_reports() -> None:
    """Call what is to be called at the end, the last one first, each once."""
    while _reports:
        _reports.pop()()
