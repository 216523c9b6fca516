"""Copies and fills, at once and in stream order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import libnpu
from tests.coverage.expect import expect, open_device

INPUT = np.arange(64, dtype=np.uint8)
Copy = Callable[..., object]


def rows(copy_2d: Copy) -> Copy:
    """Return a copy of two rows of half the size in the form of a copy."""

    def copy(dst: Any, src: Any, size: int = 64) -> object:
        return copy_2d(dst, size // 2, src, size // 2, size // 2, 2)

    return copy


def copies(device: libnpu.Device, copy: Copy, in_order: bool) -> None:
    context = device.primary
    memory, elsewhere, freed = context.alloc(4096), device.create_context().alloc(64), context.alloc(64)
    freed.free()
    output = np.zeros(64, np.uint8)
    copy(memory.at(0, 64), INPUT)
    copy(memory.at(64, 64), memory.at(0, 64))
    copy(output, memory.at(64, 64))
    assert (output == INPUT).all()
    with expect("INVALID_VALUE"):
        copy(bytes(64), memory.at(0, 64))  # the destination cannot be written
    with expect("OUT_OF_RANGE"):
        copy(memory.at(0, 63), INPUT, 64)
    with expect("STALE_HANDLE"):
        copy(freed, INPUT)
    with expect("OVERLAP"):
        copy(memory.at(0, 64), memory.at(16, 64))
    with expect("WRONG_CONTEXT"):
        copy(elsewhere, INPUT)
    if in_order:
        with expect("NOT_SUPPORTED"):
            copy(output, INPUT)
    else:
        output[:] = 0
        copy(output, INPUT)
        assert (output == INPUT).all()


def fills(device: libnpu.Device, fill: Copy) -> None:
    context = device.primary
    memory, elsewhere, freed = context.alloc(4096), device.create_context().alloc(64), context.alloc(64)
    freed.free()
    fill(memory.at(1, 63), 0x121)
    context.synchronize()
    assert memory.read()[0] == 0xFF
    assert memory.read()[63] == 0x21
    with expect("STALE_HANDLE"):
        fill(freed, 1)
    with expect("WRONG_CONTEXT"):
        fill(elsewhere, 1)


def all_ways() -> None:
    device = open_device()
    context, stream = device.primary, device.create_stream()
    copies(device, context.copy, in_order=False)
    copies(device, rows(context.copy_2d), in_order=False)
    copies(device, stream.copy, in_order=True)
    copies(device, rows(stream.copy_2d), in_order=True)
    fills(device, context.fill)
    fills(device, stream.fill)
    memory = context.alloc(4096)
    for copy_2d in (context.copy_2d, stream.copy_2d):
        with expect("INVALID_SIZE"):
            copy_2d(memory, 15, INPUT, 16, 16, 4)
    stream.close()
    with expect("STALE_HANDLE"):
        stream.copy(memory, INPUT)
    with expect("STALE_HANDLE"):
        stream.copy_2d(memory, 16, INPUT, 16, 16, 4)
    with expect("STALE_HANDLE"):
        stream.fill(memory, 1)
    device.close()


def peers() -> None:
    device, other = open_device(), open_device()
    context = device.primary
    here, there, freed = context.alloc(64), other.alloc(64), context.alloc(64)
    freed.free()
    context.copy(here, INPUT)
    context.copy_peer(there, here)
    assert (there.read() == INPUT).all()
    with expect("OUT_OF_RANGE"):
        context.copy_peer(there.at(0, 32), here)
    with expect("STALE_HANDLE"):
        context.copy_peer(there, freed)
    with expect("OVERLAP"):
        context.copy_peer(here.at(0, 32), here.at(16, 32))
    device.close()
    other.close()


def strict() -> None:
    device = open_device("strict")
    memory, stream = device.alloc(64), device.create_stream()
    with expect("NOT_PERMITTED"):
        stream.copy(memory, INPUT)
    with expect("NOT_PERMITTED"):
        stream.copy_2d(memory, 16, INPUT, 16, 16, 4)
    device.primary.copy(memory, INPUT)
    device.close()


all_ways()
peers()
strict()
