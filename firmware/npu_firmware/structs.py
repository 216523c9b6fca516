"""Structures out of loaded bytes, as copies: nothing that the firmware keeps refers to a buffer."""

from __future__ import annotations

from typing import Any

from npu_abi import ffi, new, sizeof


def read(struct: str, data: bytes | bytearray, offset: int = 0) -> Any:
    """Return a copy of `struct STRUCT` at byte `offset` of `data`, which must hold all of it."""
    size = sizeof(struct)
    if offset < 0 or offset + size > len(data):
        raise ValueError(f"struct {struct} ({size} bytes) at offset {offset} leaves {len(data)} bytes")
    found = new(struct)
    ffi.memmove(found, data[offset : offset + size], size)
    return found
