"""Handles: 64-bit numbers that C holds as opaque pointers. They are looked up, never followed.

A handle is `generation << 32 | kind << 24 | index`, index from 1. Destroying an object raises the generation of its slot, so an old handle is
recognised even when the slot has a new object.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from libnpu.capi.refusal import Refusal

if TYPE_CHECKING:
    from libnpu.runtime import Context

MAX_HANDLES = (1 << 24) - 1


class Kind(enum.IntEnum):
    """What a handle stands for."""

    STREAM = 1
    BLOB = 2
    KERNEL = 3
    CONTEXT = 4
    EVENT = 5
    NOTIFY = 6
    CMDLIST = 7
    GRAPH = 8
    GRAPH_EXEC = 9


class HandleTable:
    """All handles of a process. Slots are reused, the last freed first. An object has one handle of a kind at most."""

    def __init__(self) -> None:
        self._objects: dict[int, tuple[object, Context]] = {}  # by handle, live ones only
        self._handles: dict[tuple[Kind, int], int] = {}  # by kind and id of the object
        self._generations: list[int] = []  # by slot, of its last handle
        self._free: list[int] = []  # slots

    def __len__(self) -> int:
        return len(self._objects)

    def insert(self, kind: Kind, thing: object, context: Context) -> int:
        """Return a new handle for `thing` of `context`. Raises OUT_OF_RESOURCES when all are in use."""
        if not self._free:
            if len(self._generations) >= MAX_HANDLES:
                raise Refusal("NPU_ERROR_OUT_OF_RESOURCES", f"all {MAX_HANDLES} handles are in use")
            self._free.append(len(self._generations))
            self._generations.append(0)
        slot = self._free.pop()
        generation = self._generations[slot] = self._generations[slot] % 0xFFFFFFFF + 1
        handle = generation << 32 | kind << 24 | (slot + 1)
        self._objects[handle] = thing, context
        self._handles[kind, id(thing)] = handle
        return handle

    def find(self, kind: Kind, thing: object) -> int:
        """Return the handle of `thing`, 0 when it has none."""
        return self._handles.get((kind, id(thing)), 0)

    def get(self, kind: Kind, handle: int) -> object:
        """Return the object behind `handle`. Raises STALE_HANDLE when it is gone, INVALID_HANDLE when there never was such a handle."""
        if handle in self._objects and _kind_of(handle) == kind:
            return self._objects[handle][0]
        name = kind.name.lower()
        slot = _slot_of(handle)
        if (
            _kind_of(handle) == kind
            and 0 <= slot < len(self._generations)
            and 0 < handle >> 32 <= self._generations[slot]
        ):
            raise Refusal("NPU_ERROR_STALE_HANDLE", f"{handle:#x} is the handle of a {name} that is gone")
        raise Refusal("NPU_ERROR_INVALID_HANDLE", f"{handle:#x} is not the handle of a {name}")

    def remove(self, kind: Kind, handle: int) -> None:
        """Forget `handle`: from now on it is stale. Raises as `get`."""
        thing = self.get(kind, handle)
        del self._objects[handle], self._handles[kind, id(thing)]
        self._free.append(_slot_of(handle))

    def remove_context(self, context: Context) -> None:
        """Forget everything in `context`."""
        for handle in [handle for handle, (_, of) in self._objects.items() if of is context]:
            self.remove(Kind(_kind_of(handle)), handle)

    def clear(self) -> None:
        """Forget every handle."""
        self._free += map(_slot_of, self._objects)
        self._objects.clear()
        self._handles.clear()


def _kind_of(handle: int) -> int:
    return handle >> 24 & 0xFF


def _slot_of(handle: int) -> int:
    return (handle & 0xFFFFFF) - 1
