"""The fence heap of a context: 64-bit cells in one buffer object, each of which only ever grows.

A stream has a cell and its jobs signal the numbers of their operations there, in order. A notify uses a cell for each
pair of a record and a wait. A cell that is used again goes on from its last value, so a wait for an old value is never
undone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.buffer_object import BufferObject

if TYPE_CHECKING:
    from collections.abc import Iterable

    from libnpu.runtime.job import Job
    from libnpu.syscalls import Node

CELL_BYTES = 8
MAX_CELLS = 16384  # chosen: 254 queues and many pairs of notifies in flight


class Cell:
    """One fence. `last` is the highest value that somebody was told to signal."""

    __slots__ = ("last", "offset")

    def __init__(self, offset: int, last: int) -> None:
        self.offset = offset
        self.last = last


@dataclass(slots=True, eq=False)
class Signal:
    """A value of a cell that somebody will write: `job`, None while it is not known who, or when the host will.

    `what` says it for people, for instance in the report of a deadlock.
    """

    cell: Cell
    value: int
    what: str
    job: Job | None = None

    @property
    def over(self) -> bool:
        """Whether the host knows that nobody has to wait for it any more."""
        return self.job is not None and self.job.done


class FenceHeap:
    """Cells by their offset from `va`, the fence_heap_va of every command buffer of the context."""

    def __init__(self, node: Node) -> None:
        self._bo = BufferObject(node, MAX_CELLS * CELL_BYTES, C.NPU_BO_MAPPABLE)
        assert self._bo.view is not None
        self._bo.view[:] = bytes(len(self._bo.view))
        self._free: list[Cell] = []
        self._made = 0
        self._dropped: deque[Signal] = deque()  # by owners that were collected as garbage
        self.va: int = self._bo.va
        self.handle: int = self._bo.handle

    @property
    def in_use(self) -> int:
        """How many cells somebody has."""
        self._collect()
        return self._made - len(self._free)

    def alloc(self) -> Cell:
        """Return a cell that nobody uses. Raises OUT_OF_RESOURCES when all are in use."""
        if self._dropped:
            self._collect()
        if self._free:
            return self._free.pop()
        if self._made == MAX_CELLS:
            raise NpuError(C.NPU_ERROR_OUT_OF_RESOURCES, f"all {MAX_CELLS} fences of the context are in use")
        self._made += 1
        return Cell((self._made - 1) * CELL_BYTES, 0)

    def release(self, cell: Cell) -> None:
        """Give a cell back; no job that signals it is left."""
        self._free.append(cell)

    def release_after(self, signal: Signal) -> None:
        """Give the cell of a signal back when its job has written it, or will not any more."""
        assert signal.job is not None
        if signal.job.done:
            self.release(signal.cell)
        else:
            signal.job.ends.append(lambda _: self.release(signal.cell))

    def drop(self, signals: Iterable[Signal]) -> None:
        """As `release_after`, later: for finalisers, which may come at any time and in any thread."""
        self._dropped.extend(signals)

    def _collect(self) -> None:
        while self._dropped:
            self.release_after(self._dropped.popleft())

    def value(self, cell: Cell) -> int:
        """Return what is in the cell's memory now."""
        assert self._bo.view is not None
        return int.from_bytes(self._bo.view[cell.offset : cell.offset + CELL_BYTES], "little")

    def write(self, cell: Cell, value: int) -> None:
        """Signal from the host. Whoever waits on the device looks again when a doorbell rings."""
        assert self._bo.view is not None
        self._bo.view[cell.offset : cell.offset + CELL_BYTES] = value.to_bytes(CELL_BYTES, "little")

    def free(self) -> None:
        """Give the memory back, with the context."""
        self._bo.free()
