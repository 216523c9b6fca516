"""What the back end says when a graph cannot become tasks."""

from __future__ import annotations


class CompileError(ValueError):
    """A graph that does not fit the device: names the operation, the bytes that it needs and the bytes that there are."""


def does_not_fit(operation: str, what: str, needed_bytes: int, available_bytes: int) -> CompileError:
    """Return the error for an operation whose smallest tile leaves CMX."""
    return CompileError(f"{operation}: {what} needs {needed_bytes} bytes of CMX, there are {available_bytes}")
