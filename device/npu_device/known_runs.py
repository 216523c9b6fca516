"""Invocations that have run before, where there are no values: the same program with the same arguments costs the same.

What a program costs then depends on the program, on what it loads, and on where its accesses are: in CMX, or at which place in an access
of DDR. A program that loads nothing but arguments, and does nothing else with the address of its argument block, has all that from the
block and the place of the block in an access; where an argument that it takes for an address alone points into CMX, it has it from there being
an address in CMX: what it touches from there on has to be in CMX as well. That its other accesses are allowed holds as long as its
context, the number of its tiles and the translations stay the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from npu_model.shave_faults import ShaveFault
from npu_model.shave_free import freed, pointer_of
from npu_model.shave_machine import Machine
from npu_model.shave_pointers import WORD, address_words, argument_bytes

from npu_device.cmx import BASE, END
from npu_device.faults import MemoryFault

if TYPE_CHECKING:
    from npu_model.profile import Profile
    from npu_model.shave_decode import ProgramCache
    from npu_model.shave_memory import Runs

    from npu_device.cmx import AddressSpace
    from npu_device.dram import Bytes

KEPT = 1 << 10  # chosen: some kilobytes each; a large model has some hundred
KEPT_PROGRAMS = 1 << 8

Key: TypeAlias = tuple[bytes, bytes, int, int, int, int]
Span: TypeAlias = tuple[int, int, int, bool]  # number of a pointer, offset from it, bytes, written


class Invocation(NamedTuple):
    """All that the cost of an invocation depends on: `key`, and that what is touched through `pointers` is in CMX."""

    key: Key
    args_va: int
    pointers: tuple[int, ...]


class Known(NamedTuple):
    """A machine that has halted, and what it touches through pointers into CMX."""

    machine: Machine
    spans: list[Span]


class _FreeMemory:
    """Memory of a run with free pointers: the argument block, anywhere else anything goes."""

    def __init__(self, block: bytes, va: int) -> None:
        self._block, self._va = np.frombuffer(block, np.uint8), va

    def view(self, addr: int, nbytes: int, write: bool) -> Bytes:
        return self._block[addr - self._va :][:nbytes]

    def check(self, addr: int, nbytes: int, write: bool) -> None:
        pass


class KnownRuns:
    """Machines that have halted, least recently used dropped."""

    def __init__(self, profile: Profile, programs: ProgramCache) -> None:
        self._access_bytes = profile.memory_system.dram.access_bytes
        self._shave = profile.shave
        self._programs = programs
        self._known: OrderedDict[Key, Known] = OrderedDict()
        self._arguments: dict[bytes, int | None] = {}  # by program
        self._words: dict[tuple[bytes, tuple[int, ...]], list[int]] = {}  # that are addresses alone, by those in CMX

    def invocation(self, text: bytes, args_va: int, space: AddressSpace) -> Invocation | None:
        """Return what the cost of an invocation depends on; None where that cannot be said."""
        if text not in self._arguments:
            if len(self._arguments) >= KEPT_PROGRAMS:
                self._arguments.clear()
                self._words.clear()
            self._arguments[text] = argument_bytes(text)
        size = self._arguments[text]
        if size is None:
            return None
        view = space.translated(args_va, size) if size else np.empty(0, np.uint8)
        if view is None:
            return None
        block = view.tobytes()
        values = memoryview(block)[: size // WORD * WORD].cast("Q")
        candidates = tuple(WORD * number for number, value in enumerate(values) if BASE <= value < END)
        words = self._words.get((text, candidates))
        if words is None:
            if len(self._words) >= KEPT:
                self._words.clear()
            words = self._words[text, candidates] = sorted(address_words(text, frozenset(candidates)))
        block, pointers = freed(block, words)
        key = text, block, args_va % self._access_bytes, space.ssid, space.era, len(space.tiles)
        return Invocation(key, args_va, pointers)

    def get(self, invocation: Invocation | None, space: AddressSpace) -> Machine | None:
        """Return the machine at the end of an earlier invocation, if this one's accesses are allowed."""
        if invocation is None:
            return None
        known = self._known.get(invocation.key)
        if known is None or not _allowed(known.spans, invocation.pointers, space):
            return None
        self._known.move_to_end(invocation.key)
        return known.machine

    def keep(self, invocation: Invocation | None, machine: Machine) -> None:
        """Keep a machine; only one that has halted without another engine's help is the same every time, wherever its pointers are."""
        if invocation is None or machine.suspension is not None or machine.starts:
            return
        try:
            spans = self._spans(invocation)
        except ShaveFault:  # of the watchdog: apart, accesses do not continue those through another pointer
            return
        self._known[invocation.key] = Known(machine, spans)
        if len(self._known) > KEPT:
            self._known.popitem(last=False)

    def _spans(self, invocation: Invocation) -> list[Span]:
        if not invocation.pointers:
            return []
        text, block, *_ = invocation.key
        machine = Machine(invocation.args_va, _FreeMemory(block, invocation.args_va), self._shave, False)
        machine.run(self._programs.rows(text))
        return [*_spans(machine.reads.runs, False), *_spans(machine.writes.runs, True)]


def _spans(boxes: Sequence[Runs], write: bool) -> list[Span]:
    """Return for each pointer what reaches from its first byte to its last."""
    ends: dict[int, tuple[int, int]] = {}
    for base, width, dims in boxes:
        number, low = pointer_of(base)
        high = low + width + sum((count - 1) * stride for count, stride in dims)
        before = ends.get(number, (low, high))
        ends[number] = min(low, before[0]), max(high, before[1])
    return [(number - 1, low, high - low, write) for number, (low, high) in ends.items() if number]


def _allowed(spans: Sequence[Span], pointers: Sequence[int], space: AddressSpace) -> bool:
    for number, offset, nbytes, write in spans:
        start = pointers[number] + offset
        if not BASE <= start < END:
            return False
        try:
            space.check(start, nbytes, write)
        except MemoryFault:
            return False
    return True
