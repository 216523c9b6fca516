"""Buffer objects: each flag, each misuse, mappings."""

from __future__ import annotations

import errno

import numpy as np
import pytest
from npu_abi import C
from npu_device import Device
from npu_driver import Kernel


def create(process, **fields):
    return process.call(C.NPU_IOCTL_BO_CREATE, "npu_bo_create", **fields)


def test_size_is_rounded_up_to_pages(process):
    ret, arg, _ = create(process, size=4097, flags=0)
    assert (ret, arg.size, arg.handle) == (0, 8192, 1)


@pytest.mark.parametrize(
    ("flags", "low", "high"),
    [
        (0, 0x1_0000_0000, 0x40_0000_0000),
        (C.NPU_BO_DMA_MEM, 0x1_0000_0000, 0x40_0000_0000),
        (C.NPU_BO_SHAVE_MEM, 0x8000_0000, 0x1_0000_0000),
        (C.NPU_BO_SHAVE_MEM | C.NPU_BO_WC | C.NPU_BO_READ_ONLY, 0x8000_0000, 0x1_0000_0000),
    ],
)
def test_flags_choose_the_address_range(process, flags, low, high):
    _, va = process.bo(4096, flags)
    assert low <= va < high


@pytest.mark.parametrize("flags", [0x40, 0x80000000, C.NPU_BO_CACHE_MASK, C.NPU_BO_UNCACHED])
def test_bad_flags_are_einval(process, flags):
    assert create(process, size=4096, flags=flags)[0] == -errno.EINVAL


def test_size_zero_is_einval(process):
    assert create(process, size=0, flags=0)[0] == -errno.EINVAL


def test_output_fields_must_be_zero(process):
    assert create(process, size=1, flags=0, handle=1)[0] == -errno.EINVAL


def test_low_range_exhausted_is_enospc(process_type):
    kernel = Kernel(Device("npu-37xx"))  # 4 GiB of memory, 2 GiB of low addresses
    process = process_type(kernel)
    free = kernel.memory.free_bytes
    assert create(process, size=2 << 30, flags=C.NPU_BO_SHAVE_MEM)[0] == -errno.ENOSPC
    assert kernel.memory.free_bytes == free


def test_memory_exhausted_is_enomem_and_changes_nothing(process, kernel):
    free = kernel.memory.free_bytes
    assert create(process, size=free + 4096, flags=0)[0] == -errno.ENOMEM
    assert kernel.memory.free_bytes == free
    assert process.bo()[0] == 1


@pytest.mark.parametrize("less_bytes", [0, 4096, 31 * 65536])
def test_memory_without_room_for_page_tables_is_enomem_at_once_with_the_caller_s_size(process, kernel, less_bytes):
    size = kernel.memory.free_bytes - less_bytes
    free, used = kernel.memory.free_bytes, kernel.device.dram.used_bytes
    kernel.device.dram.alloc = None  # is not even asked
    assert create(process, size=size, flags=0)[0] == -errno.ENOMEM
    assert f"{size} bytes asked, {free} bytes of device memory free, 2097152 needed for page tables" in kernel.log[-1]
    assert (kernel.memory.free_bytes, kernel.device.dram.used_bytes) == (free, used)


def test_the_largest_object_fits_beside_its_page_tables(process_type):
    kernel = Kernel(Device("unit", compute=False))
    process = process_type(kernel)
    free = kernel.memory.free_bytes
    slabs = 32 * 65536  # 511 tables of 2 MiB and the two above; the first slab holds 15 of them, each other 16
    assert create(process, size=free - slabs + 4096, flags=0)[0] == -errno.ENOMEM
    assert create(process, size=free - slabs, flags=0)[0] == 0
    assert kernel.memory.free_bytes == 0


def test_quarantine_ends_before_a_create_fails_for_want_of_page_tables(process_type):
    kernel = Kernel(Device("unit", compute=False))
    process, neighbour = process_type(kernel), process_type(kernel)
    size, slabs = 509 << 21, 31 * 65536  # 509 full leaf tables and two above them: 15 + 31 * 16
    assert create(neighbour, size=kernel.memory.free_bytes - size - slabs, flags=0)[0] == 0
    for _ in range(3):  # elsewhere it would take a table more
        ret, arg, _ = create(process, size=size, flags=0)
        assert (ret, arg.npu_va, kernel.memory.free_bytes) == (0, 0x1_0000_0000, 0)
        free(process, arg.handle)


def test_host_memory_exhausted_is_enobufs_and_changes_nothing(process, kernel, monkeypatch):
    def refuse(size_bytes, heap):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    free = kernel.memory.free_bytes
    with monkeypatch.context() as patch:
        patch.setattr(kernel.device.dram, "alloc", refuse)
        assert create(process, size=1 << 20, flags=0)[0] == -errno.ENOBUFS
    assert kernel.memory.free_bytes == free
    assert process.bo()[0] == 1


@pytest.mark.parametrize("size", [1 << 63, (1 << 64) - 1])
def test_absurd_sizes_are_enomem(process, size):
    assert create(process, size=size, flags=0)[0] == -errno.ENOMEM


def test_fresh_memory_is_poison(process):
    handle, _ = process.bo(8192)
    assert bytes(process.map(handle)) == b"\xff" * 8192


def test_info_tells_what_create_made(process):
    handle, va = process.bo(5000, C.NPU_BO_MAPPABLE | C.NPU_BO_WC)
    _, info, _ = process.call(C.NPU_IOCTL_BO_INFO, "npu_bo_info", handle=handle)
    assert (info.npu_va, info.size, info.flags) == (va, 8192, C.NPU_BO_MAPPABLE | C.NPU_BO_WC)
    assert info.mmap_offset != 0


def test_objects_without_mappable_have_no_mmap_offset(process):
    handle, _ = process.bo(4096, 0)
    assert process.call(C.NPU_IOCTL_BO_INFO, "npu_bo_info", handle=handle)[1].mmap_offset == 0


def test_two_mappings_show_the_same_memory(process):
    handle, _ = process.bo()
    first, second = process.map(handle), process.map(handle)
    first[10] = 42
    assert second[10] == 42


def test_bad_mappings_are_einval(process):
    handle, _ = process.bo(4096)
    _, info, _ = process.call(C.NPU_IOCTL_BO_INFO, "npu_bo_info", handle=handle)
    for offset, length in ((0, 4096), (info.mmap_offset + 4096, 4096), (info.mmap_offset, 4097), (info.mmap_offset, 0)):
        assert process.call(C.NPU_SYS_MMAP, "npu_mmap", offset=offset, length=length)[0] == -errno.EINVAL


def test_mapping_a_freed_object_is_einval(process):
    handle, _ = process.bo(4096)
    _, info, _ = process.call(C.NPU_IOCTL_BO_INFO, "npu_bo_info", handle=handle)
    process.call(C.NPU_IOCTL_BO_FREE, "npu_bo_free", handle=handle)
    assert process.call(C.NPU_SYS_MMAP, "npu_mmap", offset=info.mmap_offset, length=4096)[0] == -errno.EINVAL


def test_memory_that_the_cpu_still_looks_at_is_not_given_to_another_object(process):
    handle, _ = process.bo()
    array = np.frombuffer(process.map(handle), np.uint8)
    array[:] = 1
    process.call(C.NPU_IOCTL_BO_FREE, "npu_bo_free", handle=handle)
    other, _ = process.bo()
    process.map(other)[:] = b"\2" * 4096
    assert array.tolist() == [1] * 4096


def test_memory_of_a_freed_object_comes_back_with_its_last_mapping(process, kernel):
    handle, _ = process.bo(1 << 20)
    view = process.map(handle)[100:]
    free = kernel.memory.free_bytes
    process.call(C.NPU_IOCTL_BO_FREE, "npu_bo_free", handle=handle)
    assert kernel.memory.free_bytes == free
    del view
    process.bo()
    assert kernel.memory.free_bytes == free + (1 << 20) - 4096


def test_free_twice_is_enoent(process):
    handle, _ = process.bo()
    assert process.call(C.NPU_IOCTL_BO_FREE, "npu_bo_free", handle=handle)[0] == 0
    assert process.call(C.NPU_IOCTL_BO_FREE, "npu_bo_free", handle=handle)[0] == -errno.ENOENT


def test_handles_are_not_used_again(process):
    handle, _ = process.bo()
    process.call(C.NPU_IOCTL_BO_FREE, "npu_bo_free", handle=handle)
    assert process.bo()[0] == handle + 1


def test_sync_of_a_snooped_object_succeeds(process):
    handle, _ = process.bo(8192)
    assert process.call(C.NPU_IOCTL_BO_SYNC, "npu_bo_sync", handle=handle, direction=2, offset=4096, size=4096)[0] == 0


def test_sync_takes_time_for_every_line_of_a_cached_object_and_none_for_a_write_combined_one(process):
    process = type(process)(Kernel(Device("npu-37xx")))
    cached, _ = process.bo(8192)
    combined, _ = process.bo(8192, C.NPU_BO_WC)

    def cost_ps(handle, offset, size):
        before_ps = process.now_ps
        sync = {"handle": handle, "direction": 0, "offset": offset, "size": size}
        assert process.call(C.NPU_IOCTL_BO_SYNC, "npu_bo_sync", **sync)[0] == 0
        return process.now_ps - before_ps

    call_ps = 400_000
    assert cost_ps(cached, 0, 64) == call_ps + 4_000
    assert cost_ps(cached, 60, 8) == call_ps + 8_000  # parts of two lines
    assert cost_ps(cached, 0, 8192) == call_ps + 128 * 4_000
    assert cost_ps(combined, 0, 8192) == call_ps


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"handle": 9}, errno.ENOENT),
        ({"handle": 1, "direction": 3}, errno.EINVAL),
        ({"handle": 1, "flags": 1}, errno.EINVAL),
        ({"handle": 1, "offset": 4096}, errno.EINVAL),
        ({"handle": 1, "offset": 8, "size": 4089}, errno.EINVAL),
        ({"handle": 1, "offset": 8, "size": (1 << 64) - 4}, errno.EINVAL),
    ],
)
def test_bad_syncs(process, fields, code):
    process.bo(4096)
    assert process.call(C.NPU_IOCTL_BO_SYNC, "npu_bo_sync", **fields)[0] == -code


# ---- the address of a freed object


def free(process, handle):
    assert process.call(C.NPU_IOCTL_BO_FREE, "npu_bo_free", handle=handle)[0] == 0


@pytest.mark.parametrize("flags", [0, C.NPU_BO_SHAVE_MEM])
def test_a_freed_address_is_used_again_when_64_objects_were_freed_behind_it(process, flags):
    handle, first = process.bo(4096, flags)
    free(process, handle)
    for _ in range(64):
        handle, va = process.bo(4096, flags)
        assert va != first
        free(process, handle)
    assert process.bo(4096, flags)[1] == first


def test_the_memory_of_a_freed_object_is_free_at_once(process, kernel):
    handle, _ = process.bo(1 << 20)
    free(process, handle)
    left = kernel.memory.free_bytes
    for _ in range(200):
        handle, _ = process.bo(1 << 20)
        free(process, handle)
    assert left - kernel.memory.free_bytes <= 65536  # at most one more slab of page tables


def test_a_failed_create_changes_no_address(process, kernel):
    before, during = process.bo()[1], kernel.memory.free_bytes + 4096
    assert create(process, size=during, flags=0)[0] == -errno.ENOMEM
    assert process.bo()[1] == before + 8192


def test_low_addresses_in_quarantine_are_given_back_before_a_create_fails(process_type):
    process = process_type(Kernel(Device("npu-37xx", compute=False)))  # 2 GiB of low addresses
    for _ in range(2):
        ret, arg, _ = create(process, size=480 << 20, flags=C.NPU_BO_SHAVE_MEM)
        assert ret == 0
        free(process, arg.handle)
    ret, arg, _ = create(process, size=2000 << 20, flags=C.NPU_BO_SHAVE_MEM)
    assert (ret, arg.npu_va) == (0, 0x8000_0000)


def test_neighbours_have_a_quarantine_each(process, another):
    neighbour = another()
    handle, first = process.bo()
    free(process, handle)
    assert neighbour.bo()[1] == first
    assert process.bo()[1] != first
