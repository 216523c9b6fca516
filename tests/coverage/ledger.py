"""What the counterparts in a Python program returned: it counts once the program has compared it.

SUCCESS without a status needs no comparison: an exception would have ended the program. An error is compared by `expect`, a status
(False of `query`) by `equal`, before the thread's next call.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Returned:
    """The result of functions of npu.h, and what the counterpart in Python raised or returned."""

    functions: tuple[str, ...]
    result: str
    outcome: object


class _Thread(threading.local):
    last: Returned | None = None


_thread = _Thread()
compared: set[tuple[str, str]] = set()
not_compared: list[str] = []


def note(returned: Returned) -> None:
    """Note a result that has to be compared."""
    settle()
    _thread.last = returned


def note_success(functions: tuple[str, ...]) -> None:
    """Note that no exception came."""
    settle()
    compared.update((function, "SUCCESS") for function in functions)


def compare(outcome: object) -> None:
    """The program has compared `outcome`: if it is that of the thread's last call, the call counts."""
    last = _thread.last
    if last is not None and last.outcome is outcome:
        compared.update((function, last.result) for function in last.functions)
        _thread.last = None


def settle() -> None:
    """Complain when the thread's last result was not compared."""
    last, _thread.last = _thread.last, None
    if last is not None:
        not_compared.append(f"{', '.join(last.functions)}: {last.result} was not compared")
