"""Device memory, pinned and registered memory, mappings."""

from __future__ import annotations

import ctypes
import mmap
import re
import resource
from pathlib import Path

import numpy as np
from npu_abi import C

import libnpu
from tests.coverage.expect import blob, expect, open_device

PAGE = 4096


def stale_stream(device: libnpu.Device) -> libnpu.Stream:
    stream = device.create_stream()
    stream.close()
    return stream


def allocations() -> None:
    device = open_device()
    context = device.primary
    free, total = device.memory_info()
    assert free <= total
    for alloc in (context.alloc, context.alloc_async):
        memory = alloc(64)
        assert memory.read()[0] == 0xFF
        memory.free()
        memory.free()  # twice is allowed
        with expect("INVALID_SIZE"):
            alloc(0)
        with expect("OUT_OF_DEVICE_MEMORY"):
            alloc(total + 1)
    stale = stale_stream(device)
    with expect("STALE_HANDLE"):
        context.alloc_async(64, stale)
    memory = context.alloc(64)
    with expect("WRONG_CONTEXT"):
        memory.free_async(device.create_context().create_stream())
    memory.free_async()
    with expect("STALE_HANDLE"):
        memory.free_async()
    device.close()


def addresses() -> None:
    device = open_device()
    context = device.primary
    memory = context.alloc(PAGE)
    found = context.find(memory.device_address + 8)
    assert found is not None
    assert (found.buffer, found.offset) == (memory, 8)
    memory.free()
    with expect("STALE_HANDLE"):
        context.find(memory.device_address)
    device.close()


def pinned() -> None:
    device = open_device()
    context = device.primary
    _, total = device.memory_info()
    memory = context.alloc_host(PAGE, int(C.NPU_HOST_WRITE_COMBINED))
    assert memory.array[0] == 0xFF
    memory.free()
    with expect("INVALID_SIZE"):
        context.alloc_host(0)
    with expect("INVALID_VALUE"):
        context.alloc_host(64, 4)
    with expect("NOT_SUPPORTED"):
        context.alloc_host(64, int(C.NPU_HOST_UNCACHED))
    with expect("OUT_OF_DEVICE_MEMORY"):
        context.alloc_host(total + 1)
    memory = context.alloc_host(PAGE)
    for maintain in (memory.flush, memory.invalidate):
        maintain(8, 64)
        with expect("OUT_OF_RANGE"):
            maintain(8, PAGE)
        with expect("INVALID_SIZE"):
            maintain(8, 0)
    for annotate in (memory.annotate_read, memory.annotate_write):
        annotate(8, 64)
        with expect("OUT_OF_RANGE"):
            annotate(8, PAGE)
        with expect("INVALID_SIZE"):
            annotate(8, 0)
    device.close()


def private_pages(count: int) -> mmap.mmap:
    return mmap.mmap(-1, count * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def registered() -> None:
    device = open_device()
    context = device.primary
    memory = np.frombuffer(private_pages(4), np.uint8)
    memory[5] = 7
    pinned = context.register(memory[: 2 * PAGE])
    assert memory[5] == 7
    with expect("ALREADY_REGISTERED"):
        context.register(memory[PAGE : 3 * PAGE])
    with expect("MISALIGNED"):
        context.register(memory[2 * PAGE + 8 : 3 * PAGE + 8])
    with expect("INVALID_SIZE"):
        context.register(memory.ctypes.data + 2 * PAGE, 0)
    with expect("INVALID_VALUE"):
        context.register(bytes(PAGE))
    with expect("BAD_ADDRESS"):
        context.register(PAGE, PAGE)
    libc = ctypes.CDLL(None)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 4)
    fixed = libc.mmap(0x2_0000_0000, PAGE, 3, 0x100022, -1, 0)  # private, anonymous, there or not at all
    assert fixed == 0x2_0000_0000
    with expect("OUT_OF_RESOURCES"):
        context.register(fixed, PAGE, sva=True)  # where the device has its own addresses
    huge = private_pages(32768)  # 128 MiB
    with expect("OUT_OF_DEVICE_MEMORY"):
        context.register(huge)
    pinned.unregister()
    assert memory[5] == 7
    with expect("NOT_REGISTERED"):
        pinned.unregister()
    device.close()


def mappings() -> None:
    device = open_device()
    memory = device.alloc(PAGE)
    mapping = memory.map(int(C.NPU_FROM_DEVICE), 64, 64)
    assert mapping.view[0] == 0xFF
    mapping.unmap()
    with expect("STALE_HANDLE"):
        mapping.unmap()
    with expect("INVALID_SIZE"):
        memory.map(size=0)
    with expect("OUT_OF_RANGE"):
        memory.map(size=PAGE + 1)
    with expect("INVALID_VALUE"):
        memory.map(3)
    memory.free()
    with expect("STALE_HANDLE"):
        memory.map()
    device.close()


def in_flight() -> None:
    device = open_device("strict")
    context = device.primary
    kernel = context.load(blob("long"))["long"]
    x, y = (context.alloc(1 << 18) for _ in range(2))
    mapping = y.map()
    kernel.launch(None, x, y)
    with expect("IN_USE"):
        x.free()
    with expect("IN_USE"):
        mapping.unmap()
    context.synchronize()
    pages = np.frombuffer(private_pages(64), np.uint8)
    host, registered = context.alloc_host(1 << 18), context.register(pages)
    kernel.launch(None, host, registered)
    with expect("IN_USE"):
        host.free()
    with expect("IN_USE"):
        registered.unregister()
    context.synchronize()
    registered.unregister()
    device.close()


def no_host_memory() -> None:
    device = open_device("cuda")
    context, stream = device.primary, device.create_stream()
    memory, data, pages = context.alloc(16 << 20), np.ones(16 << 20, np.uint8), private_pages(4096)  # 16 MiB each
    used = re.search(r"VmSize:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert used
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, ((int(used[1]) << 10) + (8 << 20), limits[1]))
    try:
        with expect("OUT_OF_HOST_MEMORY"):
            stream.copy(memory, data)  # what is staged
        with expect("OUT_OF_HOST_MEMORY"):
            context.register(pages)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    stream.copy(memory, data)
    stream.synchronize()
    assert (memory.read() == 1).all()
    context.register(pages).unregister()
    device.close()


allocations()
addresses()
pinned()
registered()
mappings()
in_flight()
no_host_memory()
