"""Handles: 64-bit numbers that C holds as opaque pointers. They are looked up, never followed.

A handle is `generation << 32 | kind << 24 | index`, index from 1. Destroying an object raises the generation of its slot, so an old handle is
recognised even when the slot has a new object.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from libnpu.capi.refusal import Refusal

MAX_HANDLES = (1 << 24) - 1


class Kind(enum.IntEnum):
    """What a handle stands for."""

    STREAM = 1
    BLOB = 2
    KERNEL = 3


@dataclass(slots=True)
class _Slot:
    generation: int
    handle: int  # 0 = free
    entry: object


class HandleTable:
    """All handles of a process. Slots are reused, the last freed first."""

    def __init__(self) -> None:
        self._slots: list[_Slot] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._slots) - len(self._free)

    def insert(self, kind: Kind, entry: object) -> int:
        """Return a new handle for `entry`. Raises OUT_OF_RESOURCES when all are in use."""
        if not self._free:
            if len(self._slots) >= MAX_HANDLES:
                raise Refusal("NPU_ERROR_OUT_OF_RESOURCES", f"all {MAX_HANDLES} handles are in use")
            self._slots.append(_Slot(0, 0, None))
            self._free.append(len(self._slots) - 1)
        index = self._free.pop()
        slot = self._slots[index]
        slot.generation = slot.generation % 0xFFFFFFFF + 1
        slot.handle = slot.generation << 32 | kind << 24 | (index + 1)
        slot.entry = entry
        return slot.handle

    def get(self, kind: Kind, handle: int) -> object:
        """Return the object behind `handle`. Raises STALE_HANDLE when it is gone, INVALID_HANDLE when there never was such a handle."""
        return self._slot(kind, handle).entry

    def remove(self, kind: Kind, handle: int) -> None:
        """Forget `handle`: from now on it is stale. Raises as `get`."""
        slot = self._slot(kind, handle)
        slot.handle, slot.entry = 0, None
        self._free.append((handle & 0xFFFFFF) - 1)

    def clear(self) -> None:
        """Forget every handle."""
        for index, slot in enumerate(self._slots):
            if slot.handle:
                slot.handle, slot.entry = 0, None
                self._free.append(index)

    def _slot(self, kind: Kind, handle: int) -> _Slot:
        index = (handle & 0xFFFFFF) - 1
        if (handle >> 24) & 0xFF != kind or not 0 <= index < len(self._slots):
            raise Refusal("NPU_ERROR_INVALID_HANDLE", f"{handle:#x} is not the handle of a {kind.name.lower()}")
        slot = self._slots[index]
        if slot.handle == handle:
            return slot
        if 0 < handle >> 32 <= slot.generation:
            raise Refusal("NPU_ERROR_STALE_HANDLE", f"{handle:#x} is the handle of a {kind.name.lower()} that is gone")
        raise Refusal("NPU_ERROR_INVALID_HANDLE", f"{handle:#x} is not the handle of a {kind.name.lower()}")
