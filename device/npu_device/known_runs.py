"""Invocations that have run before, where there are no values: the same program with the same arguments costs the same.

What a program costs then depends on the program, on what it loads, and on where its accesses are: in CMX, or at which place in an access
of DDR. A program that loads nothing but arguments, and does nothing else with the address of its argument block, has all that from the
block and the place of the block in an access. That its other accesses are allowed holds as long as its context, the number of its tiles
and the translations stay the same.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, TypeAlias

from npu_model.shave_machine import Machine
from npu_model.shave_pointers import argument_bytes

if TYPE_CHECKING:
    from npu_device.cmx import AddressSpace

KEPT = 1 << 10  # chosen: some kilobytes each; a large model has some hundred
KEPT_PROGRAMS = 1 << 8

Key: TypeAlias = tuple[bytes, bytes, int, int, int, int]


class KnownRuns:
    """Machines that have halted, least recently used dropped. `access_bytes`: of DDR."""

    def __init__(self, access_bytes: int) -> None:
        self._access_bytes = access_bytes
        self._machines: OrderedDict[Key, Machine] = OrderedDict()
        self._arguments: dict[bytes, int | None] = {}  # by program

    def key(self, text: bytes, args_va: int, space: AddressSpace) -> Key | None:
        """Return all that the cost of an invocation depends on; None where that cannot be said."""
        known = self._arguments
        if text not in known:
            if len(known) >= KEPT_PROGRAMS:
                known.clear()
            known[text] = argument_bytes(text)
        size = known[text]
        if size is None:
            return None
        block = space.translated(args_va, size) if size else b""
        if block is None:
            return None
        return text, bytes(block), args_va % self._access_bytes, space.ssid, space.era, len(space.tiles)

    def get(self, key: Key | None) -> Machine | None:
        """Return the machine at the end of an earlier invocation."""
        if key is None:
            return None
        machine = self._machines.get(key)
        if machine is not None:
            self._machines.move_to_end(key)
        return machine

    def keep(self, key: Key | None, machine: Machine) -> None:
        """Keep a machine; only one that has halted without another engine's help is the same every time."""
        if key is None or machine.suspension is not None or machine.starts:
            return
        self._machines[key] = machine
        if len(self._machines) > KEPT:
            self._machines.popitem(last=False)
