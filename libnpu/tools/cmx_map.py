"""The CMX map of a blob: which buffer lives where, from which task to which. Drawn from what the compiler left in .npu.debug."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from libnpu.blob import BlobError
from libnpu.blob.stays import Stay, stays
from libnpu.tools.console import ToolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libnpu.blob import BlobImage

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def letter(index: int) -> str:
    """Return the letter of the buffer at `index` of the list that is drawn; they repeat after 62."""
    return _LETTERS[index % len(_LETTERS)]


def placements(image: BlobImage) -> list[Stay]:
    """Return the buffers in CMX in order of their first task. Raises ToolError when .npu.debug has no such map."""
    try:
        return stays(image)
    except BlobError as error:
        raise ToolError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Step:
    """From task `task` on, `live_bytes` of CMX hold something that is still used, in `buffers` buffers."""

    task: int
    live_bytes: int
    buffers: int


def live_bytes(found: Sequence[Stay]) -> list[Step]:
    """Return how much of one tile's CMX is live over time, a step per change."""
    changes: dict[int, tuple[int, int]] = {}
    for p in found:
        for task, sign in ((p.first, 1), (p.last + 1, -1)):
            size, buffers = changes.get(task, (0, 0))
            changes[task] = size + sign * p.size_bytes, buffers + sign
    steps, size, buffers = [], 0, 0
    for task, (more, count) in sorted(changes.items()):
        size, buffers = size + more, buffers + count
        if (more, count) != (0, 0):
            steps.append(Step(task, size, buffers))
    return steps


def draw(found: Sequence[Stay], cmx_bytes: int, columns: int = 96, rows: int = 24) -> list[str]:
    """Return the map as text: addresses down, tasks across, a letter per buffer, `.` for free, the largest share wins."""
    if not found or not cmx_bytes:
        return []
    end = max(p.last for p in found) + 1
    columns = min(columns, end)
    cell_bytes, cell_tasks = -(-cmx_bytes // rows), end / columns
    lines = []
    for row in range(rows):
        low, high = row * cell_bytes, (row + 1) * cell_bytes
        here = [(i, p) for i, p in enumerate(found) if p.offset < high and p.offset + p.size_bytes > low]
        cells = []
        for column in range(columns):
            first, last = column * cell_tasks, (column + 1) * cell_tasks
            shares = [
                (
                    (min(p.offset + p.size_bytes, high) - max(p.offset, low))
                    * (min(p.last + 1, last) - max(p.first, first)),
                    letter(i),
                )
                for i, p in here
                if p.first < last and p.last + 1 > first
            ]
            cells.append(max(shares)[1] if shares else ".")
        lines.append(f"{low:#09x} {''.join(cells)}")
    lines.append(f"{'':9} task 0{'':{max(columns - 12 - len(str(end)), 0)}} to {end - 1}")
    return lines
