"""Where the commands print: tables on stdout, progress on a terminal's stderr, JSON. rich is loaded on first use."""

from __future__ import annotations

import json
import math
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

PS_PER_S = 10**12
PIPE_WIDTH = 120  # columns when stdout is no terminal


class ToolError(ValueError):
    """Something that a command was asked for and cannot do; its text is the message on stderr."""


class UsageError(ToolError):
    """A command line that cannot be meant, as one that does not parse: the exit status is 2."""


class NotDone(ToolError):
    """What a command was asked to examine could not be examined at all: the exit status is 2, that of a finding 1."""


class CheckFailed(ToolError):
    """A check that was asked for found something; the report, with the details, has been printed."""


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Show `what` with a spinner while the body runs, when stderr is a terminal; nothing otherwise."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> None:
    """Print a table; the first `left` columns are aligned left, the others right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        title_style="bold",
    )
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table, "")


def json_text(value: Any) -> str:
    """Return `value` as indented JSON with a newline at the end. JSON has no infinity and no NaN: they are null."""
    return json.dumps(_finite(value), indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(member) for member in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_json(value: Any) -> None:
    """Print `value` as indented JSON."""
    print(json_text(value), end="")


def format_time(ps: float) -> str:
    """Return picoseconds with the unit that leaves 1 to 999: `1.234 ms`."""
    for unit, size in (("s", 10**12), ("ms", 10**9), ("µs", 10**6), ("ns", 10**3)):
        if abs(ps) >= size:
            return f"{ps / size:.3f} {unit}"
    return f"{ps:.0f} ps"


def format_bytes(count: float) -> str:
    """Return bytes with a binary unit: `1.5 MiB`."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"


def format_count(count: float, unit: str) -> str:
    """Return a number with a decimal prefix to its unit: `4.09 GMAC`."""
    for prefix, size in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.2f} {prefix}{unit}"
    return f"{count:.0f} {unit}"
