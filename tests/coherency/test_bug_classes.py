"""Mistakes with caches: each gives the bytes that are written out here under the schedule that shows it, and the program without the mistake is right
under all.
"""

from __future__ import annotations

import numpy as np
import pytest
from npu_abi import C

from libnpu.runtime.buffer_object import BufferObject
from libnpu.syscalls import Request
from tests.coherency.conftest import cached, device_sees, device_writes

A64, B64, ZEROS = b"A" * 64, b"B" * 64, bytes(64)


# ---- B1: the device reads before the CPU's lines are cleaned


def test_without_a_flush_the_device_sees_old_bytes(load):
    device = load(evict="lazy")
    memory = cached(device, 128)
    memory.array[:64] = ord("A")
    assert device_sees(device, memory) == ZEROS + ZEROS


def test_with_a_flush_the_device_sees_new_bytes(load, schedule):
    device = load(evict=schedule)
    memory = cached(device, 128)
    memory.array[:64] = ord("A")
    memory.flush()
    assert device_sees(device, memory) == A64 + ZEROS


def test_a_seeded_eviction_shows_the_device_some_of_the_lines(load):
    device = load(evict="seed:1")
    memory = cached(device, 128)
    memory.array[:] = ord("A")
    assert device_sees(device, memory) == A64 + ZEROS  # one line, the first, was evicted at the doorbell


# ---- B2: the CPU has a line that the device has written since


def test_without_an_invalidate_the_cpu_reads_old_bytes(load, schedule):
    device = load(evict=schedule)
    memory = cached(device, 128)
    device_writes(device, memory[:64], A64)
    assert bytes(memory.view) == ZEROS + ZEROS


def test_with_an_invalidate_the_cpu_reads_new_bytes(load, schedule):
    device = load(evict=schedule)
    memory = cached(device, 128)
    device_writes(device, memory[:64], A64)
    memory.invalidate()
    assert bytes(memory.view) == A64 + ZEROS


# ---- B3: a line is dirty while the device writes its memory


def test_a_dirty_line_overwrites_what_the_device_wrote(load):
    device = load(evict="evict")
    memory = cached(device, 128)
    memory.array[:64] = ord("x")  # a memset of the target, as careful programmers do it
    device_writes(device, memory, A64 + B64)
    memory.invalidate()
    assert bytes(memory.view) == b"x" * 64 + B64


def test_a_line_that_was_cleaned_before_cannot(load, schedule):
    device = load(evict=schedule)
    memory = cached(device, 128)
    memory.array[:64] = ord("x")
    memory.flush()
    device_writes(device, memory, A64 + B64)
    memory.invalidate()
    assert bytes(memory.view) == A64 + B64


# ---- B4: CPU and device use the same line


def test_a_flush_of_a_shared_line_destroys_the_devices_bytes(load):
    device = load(evict="lazy")
    memory = cached(device, 64)
    memory.array[0] = ord("c")
    device_writes(device, memory[8:16], b"deviceds")
    memory.flush(0, 1)
    memory.invalidate()
    assert bytes(memory.view) == b"c" + bytes(63)


def test_an_invalidate_of_a_shared_line_destroys_the_cpus_byte(load):
    device = load(evict="lazy")
    memory = cached(device, 64)
    memory.array[0] = ord("c")
    device_writes(device, memory[8:16], b"deviceds")
    memory.invalidate()
    assert bytes(memory.view) == bytes(8) + b"deviceds" + bytes(48)


def test_an_invalidate_of_a_part_cleans_the_dirty_line_that_it_shares(load):
    device = load(evict="lazy")
    memory = cached(device, 64)
    memory.array[0] = ord("c")
    device_writes(device, memory[8:16], b"deviceds")
    memory.invalidate(8, 8)
    assert bytes(memory.view) == b"c" + bytes(63)


def test_lines_of_their_own_keep_both(load, schedule):
    device = load(evict=schedule)
    memory = cached(device, 128)
    memory.array[0] = ord("c")
    device_writes(device, memory[64:72], b"deviceds")
    memory.flush(0, 1)
    memory.invalidate(64, 8)
    assert bytes(memory.view) == b"c" + bytes(63) + b"deviceds" + bytes(56)


# ---- B5: invalidated only before the device has written


def test_an_early_invalidate_is_of_no_use(load, schedule):
    device = load(evict=schedule)
    memory = cached(device, 64)
    memory.invalidate()
    device_writes(device, memory, A64)
    assert bytes(memory.view) == ZEROS


# ---- B6: stores still wait in write-combining buffers when the doorbell rings


def combined(device):
    memory = device.alloc_host(512, C.NPU_HOST_WRITE_COMBINED)
    memory.array[:] = np.arange(512) % 251  # no byte is poison: full lines
    memory.flush()
    return memory


def test_without_a_barrier_the_last_four_lines_are_missing(load):
    device = load(bugs="skip_wmb")
    memory = combined(device)
    before = bytes(memory.view)
    memory.array[0:512:64] = 255  # eight lines, none of them full
    after = bytes(memory.view)
    assert after[:256] != before[:256]
    assert device_sees(device, memory) == after[:256] + before[256:]


def test_with_a_barrier_all_lines_arrive(load, schedule):
    device = load(evict=schedule)
    memory = combined(device)
    memory.array[0:512:64] = 255
    assert device_sees(device, memory) == bytes(memory.view)


def test_a_doorbell_that_drains_buffers_hides_the_missing_barrier(load):
    device = load(bugs="skip_wmb", wc_drain_on_uc=1)
    memory = combined(device)
    memory.array[0:512:64] = 255
    assert device_sees(device, memory) == bytes(memory.view)


def test_full_lines_do_not_wait_for_a_barrier(load):
    device = load(bugs="skip_wmb")
    memory = combined(device)
    memory.array[128:192] = 255
    assert device_sees(device, memory) == bytes(memory.view)


def test_bytes_of_the_device_in_a_line_that_waits_survive(load, schedule):
    device = load(evict=schedule)
    memory = combined(device)
    expected = bytearray(memory.view)
    memory.array[0] = 255
    device_writes(device, memory[8:16], b"deviceds")
    expected[0], expected[8:16] = 255, b"deviceds"
    assert bytes(memory.view) == bytes(expected)
    assert device_sees(device, memory) == bytes(expected)


# ---- B7: the same memory by two mappings with different policies


def aliases(device):
    """A buffer object, its cached mapping, and an uncached one."""
    flags = C.NPU_BO_MAPPABLE | C.NPU_BO_NON_SNOOPED
    bo = BufferObject(device.node, 4096, flags, program=True)
    return bo, bo.view, bo.map(program=False)


def test_an_old_dirty_line_overwrites_what_another_mapping_wrote(load):
    device = load(evict="evict", allow_uncached=1)
    _, through_cache, past_cache = aliases(device)
    through_cache[:64] = b"o" * 64
    past_cache[:64] = b"n" * 64
    device.copy(device.alloc(64), device.to_device(np.zeros(64, np.uint8)))  # some job ends
    assert bytes(past_cache[:64]) == b"o" * 64


@pytest.mark.parametrize("early", [False, True])
def test_a_line_that_was_cleaned_before_the_other_mapping_writes_does_not(load, schedule, early):
    device = load(evict=schedule, allow_uncached=1)
    bo, through_cache, past_cache = aliases(device)
    if early:
        through_cache[:64] = b"o" * 64
        synchronise(device, bo, C.NPU_SYNC_TO_DEVICE)
    past_cache[:64] = b"n" * 64
    device.copy(device.alloc(64), device.to_device(np.zeros(64, np.uint8)))
    assert bytes(past_cache[:64]) == b"n" * 64
    synchronise(device, bo, C.NPU_SYNC_FROM_DEVICE)
    assert bytes(through_cache[:64]) == b"n" * 64


def synchronise(device, bo, direction):
    request = Request(C.NPU_IOCTL_BO_SYNC, "npu_bo_sync")
    request.arg.handle, request.arg.direction, request.arg.size = bo.handle, direction, bo.size
    device.node.ioctl(request)


# ---- B8: maintenance of a part


def test_a_flush_that_ends_early_loses_the_tail(load):
    device = load(evict="lazy")
    memory = cached(device, 128)
    memory.array[:100] = ord("A")
    memory.flush(0, 64)
    assert device_sees(device, memory) == A64 + ZEROS


def test_a_flush_is_of_whole_lines(load, schedule):
    device = load(evict=schedule)
    memory = cached(device, 128)
    memory.array[:100] = ord("A")
    memory.flush(10, 55)  # ends with the first byte of the second line
    assert device_sees(device, memory) == b"A" * 100 + bytes(28)


# ---- B9: cleaned lines, and no barrier before the doorbell


def test_a_cleaned_line_is_on_its_way_until_a_barrier(load):
    device = load(bugs="skip_wmb")
    memory = device.alloc_host(64, C.NPU_HOST_NON_COHERENT)
    memory.array[:] = ord("A")
    memory.flush()
    assert device_sees(device, memory) == b"\xff" * 64
    assert device_sees(device, memory) == A64  # the end of the job was a barrier


# ---- B10: uncached memory needs nothing


def test_uncached_memory_is_always_right(load, schedule):
    device = load(evict=schedule, allow_uncached=1, bugs="skip_wmb,skip_sync")
    memory = device.alloc_host(64, C.NPU_HOST_UNCACHED)
    memory.array[:] = ord("A")
    assert device_sees(device, memory) == A64
    device_writes(device, memory[8:16], b"deviceds")
    assert bytes(memory.view) == b"A" * 8 + b"deviceds" + b"A" * 48


# ---- B11: the device keeps a translation of memory that is gone


def reuse(device):
    """Free a page while the CPU still looks at it, and get its address again, which others have to be freed for: the old page
    and the new buffer.
    """
    first = device.alloc(4096)
    device.primary.fill(first, 0)
    address, old = first.device_address, first.view
    first.free()
    second = device.alloc(4096)
    for _ in range(64):
        assert second.device_address != address
        second.free()
        second = device.alloc(4096)
    assert second.device_address == address
    device.primary.fill(second, 7)
    return old, second


def test_without_tlb_invalidation_the_device_writes_the_old_page(load):
    old, second = reuse(load(bugs="skip_tlbi"))
    assert (bytes(old[:4]), bytes(second.view[:4])) == (b"\7\7\7\7", b"\xff\xff\xff\xff")


def test_with_tlb_invalidation_the_device_writes_the_new_page(load, schedule):
    old, second = reuse(load(evict=schedule))
    assert (bytes(old[:4]), bytes(second.view[:4])) == (b"\0\0\0\0", b"\7\7\7\7")


# ---- the driver that forgets maintenance


def test_skip_sync_ignores_what_the_program_does_right(load):
    device = load(bugs="skip_sync")
    memory = device.alloc_host(64, C.NPU_HOST_NON_COHERENT)
    memory.array[:] = ord("A")
    memory.flush()
    assert device_sees(device, memory) == b"\xff" * 64
    device_writes(device, memory, B64)
    memory.invalidate()
    assert bytes(memory.view) == A64
