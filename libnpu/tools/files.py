"""The files of a command: what is wrong with one that it reads, and those that it writes, told apart from those that it reads before any work, and written whole or not at all."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from libnpu.tools.console import ToolError

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_targets(targets: Mapping[str, str | None], sources: Mapping[str, str | None]) -> None:
    """Refuse to write over a file that is read, or two files over each other.

    Both map what the command line calls a file to its path; None is a file that was not asked for. Devices and pipes may
    be written any number of times. Raises ToolError, also when the folder of a target does not exist.
    """
    taken = {_identity(path): name for name, path in sources.items() if path is not None}
    for name, path in targets.items():
        if path is None:
            continue
        if not Path(path).parent.is_dir():
            raise ToolError(f"{name} {path}: there is no folder {Path(path).parent}")
        if Path(path).is_dir():
            raise ToolError(f"{name} {path}: is a folder")
        identity = _identity(path)
        if identity is None:
            continue
        if identity in taken:
            raise ToolError(f"{name} {path}: is the same file as {taken[identity]}")
        taken[identity] = name


def write_file(path: str, data: bytes) -> None:
    """Write `data` to `path`. An OSError names the file, and leaves none that is cut short."""
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        if error.filename is None:  # a full disk is reported by a write, which knows no name
            error.filename = path
            if Path(path).is_file():
                Path(path).unlink()
        raise


# What reading a file of another kind as a trace raises.
INVALID = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


def what_is_wrong(error: Exception) -> str:
    """Return what one of `INVALID` says about the file that was read as a trace."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return f"it is no JSON: {error}"
    if isinstance(error, KeyError):
        return f"{error.args[0]!r} is missing" if isinstance(error.args[0], str) else f"it does not say what {error} is"
    if isinstance(error, ValueError):
        return str(error)
    return "something in it is not of the type that it has in a trace"


def _identity(path: str) -> tuple[int, int] | str | None:
    """Return what two names of one file have in common; None of a file that may be written twice."""
    try:
        status = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None
