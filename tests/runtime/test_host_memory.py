"""Pinned memory, memory of the program that is registered, and mappings of device memory."""

from __future__ import annotations

import ctypes
import io
import mmap
import struct
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from npu_abi import C

import libnpu

PAGE = 4096
MIB = 1 << 20


@pytest.fixture
def unit():
    with libnpu.open("unit") as opened:
        yield opened


def refused(result):
    return pytest.raises(libnpu.NpuError, match=f"NPU_ERROR_{result}:")


def program_memory(pages):
    """Private memory of the program, filled with 0, 1, 2, ..."""
    memory = mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(memory, np.uint8)
    array[:] = np.arange(pages * PAGE) % 251
    return array


def content(pages):
    return (np.arange(pages * PAGE) % 251).astype(np.uint8)


# ---- pinned -----------------------------------------------------------------------------------------------------


def test_pinned_memory_is_page_aligned_poison_until_written(unit):
    memory = unit.alloc_host(5000)
    assert memory.address % PAGE == 0
    assert memory.size == len(memory) == len(memory.view) == 5000
    assert set(memory.array.tolist()) == {0xFF}
    memory.array[7] = 1
    assert ctypes.c_ubyte.from_address(memory.address + 7).value == 1
    assert memory.read_bytes(6, 3) == b"\xff\x01\xff"


def test_views_of_pinned_memory_are_the_memory_itself(unit):
    memory = unit.alloc_host(64)
    memory.view[:4] = b"abcd"
    assert memory.array[:4].tolist() == [97, 98, 99, 100]
    for shared in (np.from_dlpack(memory), np.asarray(memory)):
        assert shared.ctypes.data == memory.address
    for shared in (np.from_dlpack(memory[8:16]), np.asarray(memory[8:16])):
        assert (shared.ctypes.data, shared.size) == (memory.address + 8, 8)
    assert memory.__dlpack_device__() == (1, 0)
    assert bytes(memory.__buffer__(0)[:4]) == b"abcd"
    if sys.version_info >= (3, 12):
        assert bytes(memoryview(memory)[:4]) == b"abcd"
    else:  # docs/host-api.md
        with pytest.raises(TypeError):
            memoryview(memory)


def test_a_view_of_pinned_memory_goes_wherever_a_buffer_does_until_the_free(unit):
    memory = unit.alloc_host(64)
    assert io.BytesIO(b"from a file").readinto(memory.view) == 11
    struct.pack_into("<I", memory.view, 60, 7)
    assert bytes(memory.view[:11]) == b"from a file"
    assert memory.read(np.uint32)[-1] == 7
    taken = memory.view
    memory.free()
    for use in (
        lambda: memory.view,
        lambda: memory.__buffer__(0),
        lambda: np.asarray(memory),
        lambda: np.from_dlpack(memory),
    ):
        with refused("STALE_HANDLE"):
            use()
    assert bytes(taken[:4]) == b"from"


def test_cache_policies(unit):
    assert unit.alloc_host(8, C.NPU_HOST_WRITE_COMBINED).flags == C.NPU_HOST_WRITE_COMBINED
    with pytest.raises(libnpu.Unsupported, match="NPU_HOST_UNCACHED"):
        unit.alloc_host(8, C.NPU_HOST_UNCACHED)
    assert unit.alloc_host(8, C.NPU_HOST_NON_COHERENT).flags == C.NPU_HOST_NON_COHERENT
    with refused("INVALID_VALUE"):
        unit.alloc_host(8, 4)


def test_sizes_of_pinned_memory(unit):
    with refused("INVALID_SIZE"):
        unit.alloc_host(0)
    with refused("OUT_OF_DEVICE_MEMORY"):
        unit.alloc_host(1 << 40)


def test_pinned_memory_is_taken_from_the_device_and_given_back(unit):
    unit.alloc(1).free()
    before, _ = unit.memory_info()
    memory = unit.alloc_host(3 * PAGE)
    assert before - unit.memory_info()[0] == 3 * PAGE
    memory.free()
    memory.free()
    assert unit.memory_info()[0] == before


def test_an_array_of_freed_pinned_memory_can_be_read_and_the_object_is_stale(unit):
    memory = unit.alloc_host(PAGE)
    array = memory.array
    array[:] = 3
    memory.free()
    assert array[5] == 3
    others = [unit.alloc_host(PAGE) for _ in range(4)]
    for other in others:
        other.array[:] = 4
    assert array[5] == 3  # the pages are nobody's while the array lives
    for use in (lambda: memory.array, lambda: memory.view, lambda: memory.address, lambda: memory.handle):
        with refused("STALE_HANDLE"):
            use()


def test_arrays_outlive_their_device():
    with libnpu.open("unit") as device:
        array = device.alloc_host(PAGE).array
        array[:] = 3
    assert array[5] == 3


def test_kernels_take_pinned_and_registered_memory(device, blob_bytes):
    model, stream = device.load(blob_bytes()), device.create_stream()
    pinned, registered = device.alloc_host(2 * PAGE), device.register(program_memory(2))
    pinned.array[:] = np.arange(2 * PAGE) % 199
    stream.launch(model, {"x": pinned[PAGE : PAGE + 1024]}, {"y": registered[1024:2048]})
    stream.synchronize()
    expected = content(2)
    expected[1024:2048] = np.arange(PAGE, PAGE + 1024) % 199
    assert registered.array.tolist() == expected.tolist()
    model[model.name].launch(stream, registered[1024:2048], pinned[:1024])
    stream.synchronize()
    assert pinned.array[:1024].tolist() == expected[1024:2048].tolist()


def test_flush_and_invalidate_take_a_range_of_the_memory(unit):
    memory = unit.alloc_host(5000)
    before_ps = unit.now_ps
    memory.flush(100, 64)
    memory.invalidate()
    assert unit.now_ps > before_ps
    for offset, size in ((0, 5001), (5000, 1), (-1, 2)):
        with refused("OUT_OF_RANGE"):
            memory.flush(offset, size)
    with refused("INVALID_SIZE"):
        memory.invalidate(0, 0)
    memory.free()
    with refused("STALE_HANDLE"):
        memory.flush()


# ---- registered -------------------------------------------------------------------------------------------------


def test_registered_memory_keeps_its_content_and_the_device_sees_it(unit):
    array = program_memory(4)
    with unit.register(array[PAGE : 3 * PAGE]) as registered:
        assert registered.address == array.ctypes.data + PAGE
        assert array.tolist() == content(4).tolist()
        stream, memory = unit.create_stream(), unit.alloc(2 * PAGE)
        stream.copy(memory, registered)
        stream.fill(registered[:8], 7)
        stream.synchronize()
        assert memory.read().tolist() == content(4)[PAGE : 3 * PAGE].tolist()
        assert array[PAGE - 1 : PAGE + 9].tolist() == [79, 7, 7, 7, 7, 7, 7, 7, 7, 88]
        array[2 * PAGE] = 99
        assert registered.read_bytes(PAGE, 1) == b"\x63"
    expected = content(4)
    expected[PAGE : PAGE + 8], expected[2 * PAGE] = 7, 99
    assert array.tolist() == expected.tolist()


def test_memory_is_registered_by_address_too(unit):
    array = program_memory(1)
    registered = unit.register(array.ctypes.data, PAGE)
    unit.copy(unit.alloc(PAGE), array)  # the program's array is pinned memory now
    registered.unregister()
    assert array.tolist() == content(1).tolist()
    assert unit.memory_info()[0] < unit.memory_info()[1]


def test_unregistered_memory_is_the_programs_own(unit):
    array, before = program_memory(2), unit.memory_info()[0]
    registered = unit.register(array)
    registered.unregister()
    assert unit.memory_info()[0] >= before
    array[0] = 5
    with refused("NOT_REGISTERED"):
        registered.unregister()
    unit.register(array).unregister()
    assert array[0] == 5


def test_what_cannot_be_registered(unit):
    array = program_memory(4)
    address = array.ctypes.data
    pinned = unit.alloc_host(PAGE)
    shared = mmap.mmap(-1, PAGE)
    holes = mmap.mmap(-1, 4 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    libc = ctypes.CDLL(None)
    middle = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(holes)) + PAGE)
    assert libc.mprotect(middle, ctypes.c_size_t(PAGE), mmap.PROT_READ) == 0
    unit.register(array[2 * PAGE :])
    for result, memory, size in (
        ("MISALIGNED", address + 1, PAGE),
        ("MISALIGNED", address, PAGE - 1),
        ("INVALID_SIZE", address, 0),
        ("INVALID_SIZE", address, None),
        ("INVALID_SIZE", address, -PAGE),
        ("OUT_OF_RANGE", array, 5 * PAGE),
        ("INVALID_VALUE", bytes(PAGE), None),
        ("INVALID_VALUE", "text", None),
        ("ALREADY_REGISTERED", array, None),
        ("ALREADY_REGISTERED", address + 3 * PAGE, PAGE),
        ("ALREADY_REGISTERED", pinned.array, None),
        ("BAD_ADDRESS", 0, PAGE),
        ("BAD_ADDRESS", (1 << 64) - PAGE, 2 * PAGE),
        ("BAD_ADDRESS", shared, None),
        ("BAD_ADDRESS", holes, None),
    ):
        with refused(result):
            unit.register(memory, size)
    assert array.tolist() == content(4).tolist()


def test_pinned_memory_of_another_device_is_registered_already(unit):
    with libnpu.open("unit") as other, refused("ALREADY_REGISTERED"):
        unit.register(other.alloc_host(PAGE).array)


def test_the_stack_in_use_cannot_be_registered(unit):
    with open("/proc/self/stat") as stat:
        start = int(stat.read().rpartition(")")[2].split()[25])  # where the main thread's stack began
    with refused("BAD_ADDRESS"):
        unit.register(start // PAGE * PAGE - PAGE, PAGE)


def test_registered_memory_in_use_stays_registered(unit):
    registered = unit.register(program_memory(2))
    stream = unit.create_stream()
    stream.copy(unit.alloc(MIB), unit.alloc(MIB))
    stream.copy(registered[:PAGE], registered[PAGE:])
    with refused("IN_USE"):
        registered.unregister()
    with pytest.raises(libnpu.Unsupported):
        registered.free_async(stream)
    stream.synchronize()
    registered.unregister()


@pytest.mark.parametrize("end", ["close", "reset", "destroy"])
def test_the_end_of_a_context_gives_registered_memory_back(end):
    array = program_memory(2)
    with libnpu.open("unit") as device:
        context = device.create_context() if end == "destroy" else device.primary
        registered, stream = context.register(array), context.create_stream()
        stream.fill(registered[:16], 9)
        stream.synchronize()
        if end == "destroy":
            with refused("IN_USE"):
                context.destroy()
            context.destroy(force=True)
        else:
            getattr(device, end)()
        with refused("NOT_REGISTERED"):
            registered.unregister()
    expected = content(2)
    expected[:16] = 9
    assert array.tolist() == expected.tolist()
    array[:] = 1


def test_a_fault_of_the_context_does_not_take_registered_memory_along(device, blob_bytes):
    array, (x, y) = program_memory(1), (device.alloc(1024), device.alloc(1024))
    device.register(array)
    device.default_stream.launch(device.load(blob_bytes(addend=1 << 40)), {"x": x}, {"y": y})
    with pytest.raises(libnpu.NpuError):
        device.synchronize()
    device.reset()
    assert array.tolist() == content(1).tolist()
    device.register(array)


def test_memory_that_the_program_unmapped_while_it_was_registered_is_left_alone(unit):
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = libc.mmap(None, 3 * PAGE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    ctypes.memset(address, 5, 3 * PAGE)
    registered = unit.register(address, 3 * PAGE)
    assert libc.munmap(address + PAGE, PAGE) == 0
    registered.unregister()
    assert ctypes.string_at(address, 2) == ctypes.string_at(address + 2 * PAGE, 2) == b"\x05\x05"
    with open("/proc/self/maps") as maps:
        spans = [tuple(int(part, 16) for part in line.split()[0].split("-")) for line in maps]
    assert not any(low <= address + PAGE < high for low, high in spans)
    libc.munmap(address, PAGE)
    libc.munmap(address + 2 * PAGE, PAGE)


def test_a_process_may_end_with_registered_memory():
    program = """
        import mmap, libnpu
        memory = mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory[:3] = b"abc"
        device = libnpu.open("unit")
        device.register(memory)
        device.alloc_host(4096)
        print(memory[:3])
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "b'abc'\n", "")


# ---- mappings ---------------------------------------------------------------------------------------------------


def test_a_mapping_shows_device_memory_in_place(unit):
    memory = unit.alloc(100)
    memory.write(bytes(range(100)))
    with memory.map(C.NPU_BIDIRECTIONAL, 10, 20) as mapping:
        assert mapping.array.tolist() == list(range(10, 30))
        mapping.array[0] = 99
        assert memory.read_bytes(10, 2) == b"\x63\x0b"
        unit.default_stream.fill(memory, 1)
        assert mapping.array[5] == 15
        unit.synchronize()
        assert mapping.array[5] == 1
        mapping.invalidate()
        mapping.flush(4, 16)
    with refused("STALE_HANDLE"):
        mapping.unmap()


def test_misuse_of_mappings(unit):
    memory = unit.alloc(100)
    for result, arguments in (
        ("INVALID_VALUE", (3,)),
        ("OUT_OF_RANGE", (C.NPU_TO_DEVICE, 50, 51)),
        ("OUT_OF_RANGE", (C.NPU_TO_DEVICE, -1)),
        ("INVALID_SIZE", (C.NPU_TO_DEVICE, 50, 0)),
    ):
        with refused(result):
            memory.map(*arguments)
    reading = memory.map(C.NPU_FROM_DEVICE)
    with pytest.raises(ValueError, match="read-only"):
        reading.array[0] = 1
    with refused("OUT_OF_RANGE"):
        reading.invalidate(90, 11)
    unit.default_stream.fill(memory, 1)
    with refused("IN_USE"):
        reading.unmap()
    unit.synchronize()
    memory.free()
    for use in (reading.unmap, reading.flush, lambda: reading.array, lambda: reading.address):
        with refused("STALE_HANDLE"):
            use()


def test_a_mapped_array_is_device_memory_to_copies(unit):
    memory, other = unit.alloc(100), unit.alloc(100)
    mapping = memory.map()
    array = mapping.array
    array[:] = 6
    assert unit.default_stream.copy(other, array) is not None  # a DMA job
    unit.synchronize()
    assert set(other.read().tolist()) == {6}


# ---- by address -------------------------------------------------------------------------------------------------


def test_find_tells_what_an_address_is(unit):
    context = unit.primary
    memory, pinned, registered = unit.alloc(100), unit.alloc_host(100), unit.register(program_memory(1))
    for buffer, address, kind in (
        (memory, memory.device_address, C.NPU_MEMORY_DEVICE),
        (pinned, pinned.address, C.NPU_MEMORY_HOST),
        (registered, registered.address, C.NPU_MEMORY_REGISTERED),
        (pinned, pinned.device_address, C.NPU_MEMORY_DEVICE),
    ):
        for offset in (0, buffer.size - 1):
            found = context.find(address + offset)
            assert (found.buffer, found.kind, found.offset, found.base) == (buffer, kind, offset, address)
        assert context.find(address + buffer.size) is None
    assert context.find(12345) is None
    host = memory.map(C.NPU_BIDIRECTIONAL, 50).address
    assert context.find(host).kind == C.NPU_MEMORY_MAPPED
    assert context.find(host).offset == 50
    assert context.find(host - 1) is None


def test_find_knows_freed_memory_until_its_addresses_are_used_again(unit, alloc_again):
    context = unit.primary
    memory, pinned = unit.alloc(100), unit.alloc_host(100)
    device_address, host_address = memory.device_address, pinned.address
    memory.free()
    pinned.free()
    for address in (device_address, host_address + 99):
        with refused("STALE_HANDLE"):
            context.find(address)
    again = alloc_again(unit, memory)
    assert context.find(device_address).buffer is again


def test_an_array_that_is_registered_in_part_is_pageable_memory(unit):
    array, memory = program_memory(3), unit.alloc(3 * PAGE)
    unit.register(array[PAGE : 2 * PAGE])
    stream = unit.create_stream()
    assert stream.copy(memory, array[PAGE:], 2 * PAGE) is None
    assert stream.copy(memory, array) is None
    assert memory.read().tolist() == content(3).tolist()
    assert stream.copy(memory, array[PAGE : 2 * PAGE]) is not None


def test_a_device_without_values_keeps_what_the_program_has_in_registered_memory():
    array = program_memory(2)
    with libnpu.open("unit", compute=False) as device:
        registered, pinned = device.register(array), device.alloc_host(PAGE)
        pinned.array[:] = 5
        device.copy(registered[:PAGE], pinned)  # takes its time and moves no bytes
        registered.write(b"\x09", 7)
        assert registered.read_bytes(6, 3) == b"\x06\x09\x08"
    expected = content(2)
    expected[7] = 9
    assert array.tolist() == expected.tolist()


def test_memory_of_the_programs_heap_can_be_registered_and_freed_afterwards():
    program = """
        import ctypes, libnpu
        libc = ctypes.CDLL(None)
        libc.aligned_alloc.restype, libc.aligned_alloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t] * 2
        libc.free.argtypes = [ctypes.c_void_p]
        device = libnpu.open("unit")
        blocks = [libc.aligned_alloc(4096, 8192) for _ in range(20)]
        for number, block in enumerate(blocks):
            ctypes.memset(block, number, 8192)
        pinned = [device.register(block, 8192) for block in blocks]
        device.primary.fill(pinned[3][:4], 99)
        for registered in pinned:
            registered.unregister()
        print(*[ctypes.string_at(block, 8)[2:6].hex() for block in blocks[2:5]])
        for block in blocks:
            libc.free(block)
        libc.malloc_trim(0)
        print(len([bytes(5000) for _ in range(1000)]))
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "02020202 63630303 04040404\n1000\n", "")
