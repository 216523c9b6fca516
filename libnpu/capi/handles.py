"""Handles: 64-bit numbers that C holds as opaque pointers. They are looked up, never followed.

A handle is `generation << 32 | kind << 24 | index`, index from 1. Destroying an object raises the generation of its slot, so an old handle is
recognised even when the slot has a new object.
"""

from __future__ import annotations

import enum

from libnpu.capi.refusal import Refusal

MAX_HANDLES = (1 << 24) - 1


class Kind(enum.IntEnum):
    """What a handle stands for."""

    STREAM = 1
    BLOB = 2
    KERNEL = 3


class HandleTable:
    """All handles of a process. Slots are reused, the last freed first."""

    def __init__(self) -> None:
        self._entries: dict[int, object] = {}  # by handle, live ones only
        self._generations: list[int] = []  # by slot, of its last handle
        self._free: list[int] = []  # slots

    def __len__(self) -> int:
        return len(self._entries)

    def insert(self, kind: Kind, entry: object) -> int:
        """Return a new handle for `entry`. Raises OUT_OF_RESOURCES when all are in use."""
        if not self._free:
            if len(self._generations) >= MAX_HANDLES:
                raise Refusal("NPU_ERROR_OUT_OF_RESOURCES", f"all {MAX_HANDLES} handles are in use")
            self._free.append(len(self._generations))
            self._generations.append(0)
        slot = self._free.pop()
        generation = self._generations[slot] = self._generations[slot] % 0xFFFFFFFF + 1
        handle = generation << 32 | kind << 24 | (slot + 1)
        self._entries[handle] = entry
        return handle

    def get(self, kind: Kind, handle: int) -> object:
        """Return the object behind `handle`. Raises STALE_HANDLE when it is gone, INVALID_HANDLE when there never was such a handle."""
        if handle in self._entries and _kind_of(handle) == kind:
            return self._entries[handle]
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
        self.get(kind, handle)
        del self._entries[handle]
        self._free.append(_slot_of(handle))

    def clear(self) -> None:
        """Forget every handle."""
        self._free += map(_slot_of, self._entries)
        self._entries.clear()


def _kind_of(handle: int) -> int:
    return handle >> 24 & 0xFF


def _slot_of(handle: int) -> int:
    return (handle & 0xFFFFFF) - 1
