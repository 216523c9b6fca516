"""Pages that are guarded while jobs use them: what a program of C loads and stores there meanwhile (npu check --guard).

What a job is enqueued to write is closed, what it is enqueued to read can be read, until the program was told of its end. The first
access to a page that this stops is known, with its place; the page is open from then on. Whether the access is a mistake is not said here:
it is an access of the host as others are, and what the job touches is what the device says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from npu_abi import C

from libnpu.checker.symbols import line_of, place_of
from libnpu.runtime.command_list import Batch
from libnpu.runtime.copy_operations import Copy
from libnpu.runtime.host_functions import Gate
from libnpu.runtime.host_memory import Mapping
from libnpu.runtime.host_pages import PAGE_BYTES, alias

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libnpu.checker.shadow import Clock
    from libnpu.runtime.buffer import Buffer
    from libnpu.runtime.job import Job
    from libnpu.runtime.operation import Operation

EVIDENCE = "the host's access, which a guarded page has stopped"


class Fault(NamedTuple):
    """An access that a guarded page has stopped: its first byte, and the code addresses of who made it, innermost first."""

    address: int
    write: bool
    in_function: bool  # of the host
    sites: tuple[int, ...]


class Pages(Protocol):
    """Who guards pages of the process."""

    def guard(self, key: int, address: int, size: int, *, readable: bool) -> bool:
        """Guard the pages of a range; False when that is not possible."""

    def give_up(self, key: int) -> None:
        """Guard a range no more."""

    def take(self) -> list[Fault]:
        """Return what was stopped since the last time, oldest first."""


@dataclass(slots=True, eq=False)
class Range:
    """A part of a buffer that a job uses, [offset, offset + size), by the number that `Pages` knows."""

    key: int
    actor: int
    epoch: int
    buffer: Buffer
    offset: int
    size: int


class Use(NamedTuple):
    """What a job is enqueued to do with a part of a buffer."""

    buffer: Buffer
    offset: int
    size: int
    readable: bool


class Guarded:
    """The ranges of jobs in flight."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._buffers: dict[tuple[object, int], Buffer] = {}  # by context and handle
        self._ranges: dict[int, Range] = {}  # by key
        self._keys = 0
        self._functions: list[Job] = []  # of the host, that may not have returned
        self._places: dict[tuple[int, ...], str] = {}  # of accesses, by their code addresses

    @staticmethod
    def pages_of(view: memoryview) -> memoryview:
        """Return memory at addresses of its own, which can be guarded while the library and the device use it."""
        return alias(view)

    def allocated(self, buffer: Buffer) -> None:
        """The program has new memory."""
        self._buffers[buffer.context, buffer.handle] = buffer

    def freed(self, buffer: Buffer) -> None:
        """The program gives memory back."""
        self._buffers.pop((buffer.context, buffer.handle), None)
        self._give_up([held for held in self._ranges.values() if held.buffer is buffer])

    def ends(self, context: object) -> None:
        """A context ends."""
        for buffer in [buffer for (owner, _), buffer in self._buffers.items() if owner is context]:
            self.freed(buffer)

    def enqueued(self, job: Job, operation: Operation, actor: int) -> None:
        """A job of an actor is enqueued: guard the memory that the program has by address."""
        if isinstance(operation, Gate):
            self._functions.append(job)
        for buffer, offset, size, readable in self._uses(job, operation):
            mapped = buffer.mappings if buffer.kind == C.NPU_MEMORY_DEVICE else [_whole(buffer)]
            for low, high in ((max(offset, m.offset), min(offset + size, m.offset + m.size)) for m in mapped):
                if low < high and self._pages.guard(
                    self._keys, buffer.host_address + low, high - low, readable=readable
                ):
                    self._ranges[self._keys] = Range(self._keys, actor, job.number, buffer, low, high - low)
                    self._keys += 1

    def known(self, clock: Clock) -> None:
        """The host knows what `clock` covers: guard it no more, unless a host function may still run, which does not know it."""
        self._functions = [job for job in self._functions if not job.done]
        if self._functions:
            return
        self._give_up([held for held in self._ranges.values() if clock.get(held.actor, -1) >= held.epoch])

    def take(self) -> Iterator[tuple[Buffer, int, Fault, str]]:
        """Yield what was stopped since the last time: the memory, an offset in it, the access and its "file:line"."""
        for fault in self._pages.take():
            buffer = self._buffer_at(fault.address)
            if buffer is not None and 0 <= fault.address - buffer.host_address < buffer.size:
                yield buffer, fault.address - buffer.host_address, fault, self._place_of(fault.sites)

    def _uses(self, job: Job, operation: Operation) -> Iterator[Use]:
        """Yield what a job is known to use; of all but copies that is whole buffers."""
        copied: set[Buffer] = set()
        for part in operation.operations if isinstance(operation, Batch) else (operation,):
            if isinstance(part, Copy):
                copied.update(part.buffers)
                for buffer, rows, readable in zip(part.buffers, (part.target, part.source), (False, True), strict=True):
                    yield Use(buffer, rows.start - buffer.device_address, rows.extent, readable)
        for handle in memoryview(job.segment).cast("I"):
            found = self._buffers.get((job.stream.context, handle))
            if found is not None and found not in copied:
                yield Use(found, 0, found.size, readable=False)

    def _buffer_at(self, address: int) -> Buffer | None:
        for held in self._ranges.values():
            start = held.buffer.host_address + held.offset
            if start // PAGE_BYTES * PAGE_BYTES <= address < -(-(start + held.size) // PAGE_BYTES) * PAGE_BYTES:
                return held.buffer
        return None

    def _place_of(self, sites: tuple[int, ...]) -> str:
        """Return the innermost place that the program's debug information knows, else where the access was made."""
        if sites not in self._places:
            lines = (line_of(site + (number == 0)) for number, site in enumerate(sites))
            self._places[sites] = next(filter(None, lines), None) or place_of(sites[0] + 1) if sites else ""
        return self._places[sites]

    def _give_up(self, ranges: list[Range]) -> None:
        for held in ranges:
            self._pages.give_up(held.key)
            del self._ranges[held.key]


def _whole(buffer: Buffer) -> Mapping:
    return Mapping(buffer, 0, buffer.size, int(C.NPU_BIDIRECTIONAL))
