"""Run a program in Python and note what the counterparts of npu.h's functions return: `python -m tests.coverage.recorder program.py arguments`.

The counterparts (python_api.py) are wrapped from outside before the program runs, so the library has nothing of this.
Only calls that the program itself makes count, not those that one function of the library makes to another.
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
from pathlib import Path
from typing import Any

from npu_abi import name_of

import libnpu
from libnpu.errors import NpuError
from tests.coverage.python_api import PYTHON

_inside = threading.local()
_seen: set[tuple[str, str]] = set()


def _note(functions: list[str], result: str) -> None:
    for function in functions:
        _seen.add((function, result))


def _recorded(call: Callable[..., Any], functions: list[str], statuses: dict[Any, str]) -> Callable[..., Any]:
    @functools.wraps(call)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        if getattr(_inside, "call", False):
            return call(*arguments, **options)
        _inside.call = True
        try:
            found = call(*arguments, **options)
        except NpuError as error:
            _note(functions, name_of("npu_result", error.result).removeprefix("NPU_").removeprefix("ERROR_"))
            raise
        finally:
            _inside.call = False
        _note(functions, statuses.get(found, "SUCCESS") if statuses else "SUCCESS")
        return found

    return wrapper


def record() -> None:
    """Wrap every counterpart."""
    by_name: dict[str, list[str]] = {}
    statuses: dict[str, dict[Any, str]] = {}
    for function, entry in PYTHON.items():
        for name in entry.names:
            by_name.setdefault(name, []).append(function)
            statuses.setdefault(name, {}).update(entry.statuses)
    for name, functions in by_name.items():
        owner: Any = libnpu
        *path, last = name.split(".")
        for part in path:
            owner = (
                getattr(owner, part) if hasattr(owner, part) else importlib.import_module(f"{owner.__name__}.{part}")
            )
        found = inspect.getattr_static(owner, last)
        if isinstance(found, property):
            assert found.fget is not None
            setattr(owner, last, property(_recorded(found.fget, functions, statuses[name]), found.fset))
        else:
            setattr(owner, last, _recorded(found, functions, statuses[name]))


def main() -> None:
    """Run the program that the command line names."""
    record()
    sys.argv = sys.argv[1:]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        lines = "".join(f"{function} {result}\n" for function, result in sorted(_seen))
        with Path(os.environ["NPU_COVERAGE"]).open("a") as file:
            file.write(lines)


if __name__ == "__main__":
    main()
