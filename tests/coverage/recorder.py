"""Run a program in Python and note what the counterparts of npu.h's functions return: `python -m tests.coverage.recorder program.py arguments`.

The counterparts (python_api.py) are wrapped from outside before the program runs, so the library has nothing of this.
Only calls that the program itself makes count, not those that one function of the library makes to another, and only those whose
result it compared (ledger.py).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import runpy
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_abi import name_of

import libnpu
from libnpu.errors import NpuError
from tests.coverage import ledger
from tests.coverage.python_api import PYTHON, Python

_inside = threading.local()


@dataclass(frozen=True, slots=True)
class _Counterpart:
    """A call of Python, and the functions of npu.h that it stands for."""

    call: Callable[..., Any]
    entries: dict[str, Python]

    def functions(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[str, ...]:
        """Return those that a call with these arguments stands for."""
        if all(entry.when is None for entry in self.entries.values()):
            return tuple(self.entries)
        given = inspect.signature(self.call).bind(*arguments, **options).arguments
        return tuple(name for name, entry in self.entries.items() if entry.when is None or entry.when(given))

    @property
    def statuses(self) -> dict[Any, str]:
        """What its values stand for."""
        return {value: status for entry in self.entries.values() for value, status in entry.statuses.items()}


def _recorded(call: Callable[..., Any], entries: dict[str, Python]) -> Callable[..., Any]:
    counterpart = _Counterpart(call, entries)
    statuses = counterpart.statuses

    @functools.wraps(call)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        if getattr(_inside, "call", False):
            return call(*arguments, **options)
        functions = counterpart.functions(arguments, options)
        _inside.call = True
        try:
            found = call(*arguments, **options)
        except MemoryError as error:
            ledger.note(ledger.Returned(functions, "OUT_OF_HOST_MEMORY", error))
            raise
        except NpuError as error:
            result = name_of("npu_result", error.result).removeprefix("NPU_").removeprefix("ERROR_")
            ledger.note(ledger.Returned(functions, result, error))
            raise
        finally:
            _inside.call = False
        if statuses:
            ledger.note(ledger.Returned(functions, statuses.get(found, "SUCCESS"), found))
        else:
            ledger.note_success(functions)
        return found

    return wrapper


def record() -> None:
    """Wrap every counterpart."""
    by_name: dict[str, dict[str, Python]] = {}
    for function, entry in PYTHON.items():
        for name in entry.names:
            by_name.setdefault(name, {})[function] = entry
    for name, entries in by_name.items():
        owner: Any = libnpu
        *path, last = name.split(".")
        for part in path:
            owner = (
                getattr(owner, part) if hasattr(owner, part) else importlib.import_module(f"{owner.__name__}.{part}")
            )
        found = inspect.getattr_static(owner, last)
        if isinstance(found, property):
            assert found.fget is not None
            setattr(owner, last, property(_recorded(found.fget, entries), found.fset))
        else:
            setattr(owner, last, _recorded(found, entries))


def main() -> None:
    """Run the program that the command line names. Status 1 when it did not compare a result."""
    record()
    sys.argv = sys.argv[1:]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        ledger.settle()
        lines = "".join(f"{function} {result}\n" for function, result in sorted(ledger.compared))
        with Path(os.environ["NPU_COMPARED"]).open("a") as file:
            file.write(lines)
    if ledger.not_compared:
        sys.exit("\n".join(ledger.not_compared))


if __name__ == "__main__":
    main()
