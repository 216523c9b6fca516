"""The kernel's DMA API: who sees what, what the device may do, and what the account of mappings reports."""

from __future__ import annotations

import errno

import npu_abi
import pytest
from npu_abi import C
from npu_device import Device
from npu_driver import Kernel
from npu_driver.dma import (
    DMA_MAPPING_ERROR,
    DmaDirection,
    device_of,
    dma_alloc_coherent,
    dma_free_coherent,
    dma_map_page,
    dma_map_single,
    dma_mapping_error,
    dma_sync_single_for_cpu,
    dma_sync_single_for_device,
    dma_unmap_page,
    dma_unmap_single,
    kfree,
    kmalloc,
    set_memory_cached,
    set_memory_uncached,
    set_memory_wc,
    virt_to_page,
)
from npu_driver.error import KernelError
from npu_driver.params import parse

from tests.driver.conftest import Process, command

TO, FROM, BOTH = DmaDirection.TO_DEVICE, DmaDirection.FROM_DEVICE, DmaDirection.BIDIRECTIONAL


class Machine:
    """A process, and the device of its context as a kernel driver has it."""

    def __init__(self, parameters: str = "coherent=0") -> None:
        self.kernel = Kernel(Device("unit"), params=parse(parameters))
        self.process = Process(self.kernel)
        (context,) = self.kernel.contexts.values()
        self.dev = device_of(self.kernel, context)
        self._commands = self.process.bo(4096, C.NPU_BO_MAPPABLE)
        self._queue = self.process.queue()
        self._target, self._target_va = self.process.bo(4096, C.NPU_BO_MAPPABLE)

    def _run(self, *commands, descriptors=b""):
        handle, va = self._commands
        body = b"".join(npu_abi.pack(one) for one in commands)
        header = npu_abi.new(
            "npu_cmd_buffer_header", cmd_buffer_size=64 + len(body), cmd_offset=64, api_version=C.NPU_CMD_API_VERSION,
            descriptor_heap_va=va + 1024,
        )  # fmt: skip
        memory = self._memory(handle)
        memory[: 64 + len(body)] = npu_abi.pack(header) + body
        memory[1024 : 1024 + len(descriptors)] = descriptors
        assert self.process.submit(self._queue, handle, self._target) == 0
        ret, wait = self.process.wait(handle)
        assert ret == 0
        return wait

    def _memory(self, handle):
        """Memory past the CPU's caches."""
        _, info, _ = self.process.call(C.NPU_IOCTL_BO_INFO, "npu_bo_info", handle=handle)
        flags = C.NPU_MMAP_POLICY | (C.NPU_BO_UNCACHED if info.flags & C.NPU_BO_NON_SNOOPED else 0)
        ret, _, (view,) = self.process.call(
            C.NPU_SYS_MMAP, "npu_mmap", offset=info.mmap_offset, length=info.size, flags=flags
        )
        assert ret == 0
        return view

    def writes(self, address, size, byte):
        """Let the device fill a range: struct npu_bo_wait of the job."""
        fill = command("npu_cmd_fill", C.NPU_CMD_MEMORY_FILL, start_va=address, size=size, pattern=byte * 0x01010101)
        return self._run(fill)

    def reads(self, address, size):
        """What the device reads."""
        descriptor = npu_abi.new(
            "npu_dma_descriptor", src=address, dst=self._target_va, length=size, src_width=size, dst_width=size,
            num_planes=1,
        )  # fmt: skip
        copy = command("npu_cmd_copy", C.NPU_CMD_COPY, desc_offset=0, desc_count=1)
        wait = self._run(copy, descriptors=npu_abi.pack(descriptor))
        assert wait.job_status == C.NPU_JOB_SUCCESS
        return bytes(self._memory(self._target)[:size])


@pytest.fixture
def machine():
    return Machine()


def reports(dev):
    """Reported mistakes without what is in brackets, and the file that made them."""
    assert all(report.site.split(":")[0] == __file__ for report in dev.debug.reports)
    return [report.text.split(" [")[0].removeprefix("device driver ") for report in dev.debug.reports]


def lend(machine, direction, content=b"", size=64):
    pointer = kmalloc(machine.dev, 4096)
    pointer.bytes(len(content))[:] = content
    address = dma_map_single(machine.dev, pointer, size, direction)
    assert not dma_mapping_error(machine.dev, address)
    return pointer, address


@pytest.mark.parametrize(
    "parameters", ["coherent=0", "coherent=1", "coherent=0 evict=evict", "coherent=0 evict=seed:3"]
)
def test_what_the_cpu_wrote_before_dma_map_single_reaches_the_device_and_back(parameters):
    machine = Machine(parameters)
    pointer, address = lend(machine, BOTH, b"cpu says")
    assert machine.reads(address, 8) == b"cpu says"
    assert machine.writes(address, 4, 0x41).job_status == C.NPU_JOB_SUCCESS
    dma_unmap_single(machine.dev, address, 64, BOTH)
    assert bytes(pointer.bytes(8)) == b"AAAAsays"
    assert machine.dev.debug.reports == []


def test_a_device_write_to_a_to_device_mapping_faults(machine):
    _, address = lend(machine, TO, b"read me")
    assert machine.reads(address, 7) == b"read me"
    wait = machine.writes(address, 4, 0x41)
    assert (wait.job_status, wait.error_detail) == (C.NPU_JOB_CTX_VIOLATION, address)


def test_dma_map_page_maps_an_offset_of_a_page_and_unmap_ends_it(machine):
    pointer = kmalloc(machine.dev, 3 * 4096)
    page = virt_to_page(pointer + 5000)
    assert page.index == 1
    (pointer + 4096 + 16).bytes(4)[:] = b"page"
    address = dma_map_page(machine.dev, page, 16, 4, TO)
    assert not dma_mapping_error(machine.dev, address)
    assert machine.reads(address, 4) == b"page"
    dma_unmap_page(machine.dev, address, 4, TO)
    wait = machine.writes(address, 4, 0x41)
    assert (wait.job_status, wait.error_detail) == (C.NPU_JOB_CTX_VIOLATION, address)
    assert machine.dev.debug.reports == []


def test_ownership_goes_back_and_forth_with_sync(machine):
    pointer, address = lend(machine, BOTH, b"one")
    dma_sync_single_for_cpu(machine.dev, address, 64, BOTH)
    pointer.bytes(3)[:] = b"two"
    assert machine.reads(address, 3) == b"one"  # not handed over yet
    dma_sync_single_for_device(machine.dev, address, 64, BOTH)
    assert machine.reads(address, 3) == b"two"
    machine.writes(address, 4, 0x42)
    assert bytes(pointer.bytes(3)) == b"two"  # nor back
    dma_sync_single_for_cpu(machine.dev, address, 64, BOTH)
    assert bytes(pointer.bytes(4)) == b"BBBB"
    dma_unmap_single(machine.dev, address, 64, BOTH)
    assert machine.dev.debug.reports == []


@pytest.mark.parametrize("parameters", ["coherent=0", "coherent=1"])
def test_coherent_memory_needs_no_sync(parameters):
    machine = Machine(parameters)
    pointer, address = dma_alloc_coherent(machine.dev, 100)
    pointer.bytes(4)[:] = b"here"
    assert machine.reads(address, 4) == b"here"
    machine.writes(address, 4, 0x43)
    assert bytes(pointer.bytes(4)) == b"CCCC"
    free = machine.kernel.memory.free_bytes
    dma_free_coherent(machine.dev, 100, pointer, address)
    assert machine.kernel.memory.free_bytes == free + 4096
    assert machine.dev.debug.reports == []


def test_memory_that_becomes_uncached_is_cleaned_and_shared_from_then_on(machine):
    pointer = kmalloc(machine.dev, 4096)
    address = dma_map_single(machine.dev, pointer, 4096, BOTH)
    pointer.bytes(4)[:] = b"dirt"
    set_memory_uncached(machine.dev, pointer)
    assert machine.reads(address, 4) == b"dirt"
    pointer.bytes(4)[:] = b"past"
    assert machine.reads(address, 4) == b"past"
    set_memory_cached(machine.dev, pointer)
    pointer.bytes(4)[:] = b"hide"
    assert machine.reads(address, 4) == b"past"


def test_pages_that_become_uncached_with_dirty_lines_lose_what_is_written_then():
    machine = Machine("coherent=0 evict=evict bugs=skip_sync")
    pointer = kmalloc(machine.dev, 4096)
    address = dma_map_single(machine.dev, pointer, 4096, BOTH)
    pointer.bytes(4)[:] = b"dirt"
    set_memory_uncached(machine.dev, pointer)
    pointer.bytes(4)[:] = b"past"
    assert machine.reads(address, 4) == b"past"
    assert machine.reads(address, 4) == b"dirt"  # the end of the first job evicted the line


def test_write_combined_kernel_memory_waits_for_the_barrier_of_a_submit(machine):
    pointer = kmalloc(machine.dev, 4096)
    address = dma_map_single(machine.dev, pointer, 4096, BOTH)
    set_memory_wc(machine.dev, pointer)
    pointer.bytes(4)[:] = b"wait"
    assert machine.reads(address, 4) == b"wait"


def test_a_mapping_without_addresses_is_an_error_that_is_asked_for(machine):
    pointer = kmalloc(machine.dev, 4096)
    machine.dev.addresses = type(machine.dev.addresses)(0x1000, 0x2000)
    assert dma_map_single(machine.dev, pointer, 64, TO) == DMA_MAPPING_ERROR
    assert dma_mapping_error(machine.dev, DMA_MAPPING_ERROR)


def test_direction_none_and_ranges_outside_are_refused(machine):
    pointer = kmalloc(machine.dev, 4096)
    for bad, size, direction in ((pointer, 64, DmaDirection.NONE), (pointer + 4090, 7, TO), (pointer, 0, TO)):
        with pytest.raises(KernelError) as error:
            dma_map_single(machine.dev, bad, size, direction)
        assert error.value.code == errno.EINVAL
    kfree(pointer)


# ---- what the account reports


def test_wrong_ends_of_mappings_are_reported(machine):
    dev = machine.dev
    dma_unmap_single(dev, 0x1234000, 64, TO)
    for unmap, size, direction in (
        (dma_unmap_single, 32, TO), (dma_unmap_page, 64, TO), (dma_unmap_single, 64, FROM),
    ):  # fmt: skip
        _, address = lend(machine, TO)
        unmap(dev, address, size, direction)
    address = dma_map_single(dev, kmalloc(dev, 4096), 64, TO)
    dma_unmap_single(dev, address, 64, TO)
    assert reports(dev) == [
        "tries to free DMA memory it has not allocated",
        "frees DMA memory with different size",
        "frees DMA memory with wrong function",
        "frees DMA memory with different direction",
        "failed to check map error",
    ]
    assert "[map size=64 bytes] [unmap size=32 bytes]" in dev.debug.reports[1].text
    assert "[mapped as single] [unmapped as page]" in dev.debug.reports[2].text
    assert "[mapped with DMA_TO_DEVICE] [unmapped with DMA_FROM_DEVICE]" in dev.debug.reports[3].text
    assert [line for line in machine.kernel.log if "DMA-API: device driver failed to check map error" in line]


def test_wrong_synchronisations_are_reported(machine):
    dev = machine.dev
    dma_sync_single_for_cpu(dev, 0x1234000, 64, TO)
    _, address = lend(machine, TO)
    dma_sync_single_for_device(dev, address + 32, 64, TO)
    dma_sync_single_for_device(dev, address, 64, FROM)
    dma_sync_single_for_cpu(dev, address, 64, TO)
    _, address = lend(machine, FROM)
    dma_sync_single_for_device(dev, address, 64, FROM)
    assert reports(dev) == [
        "tries to sync DMA memory it has not allocated",
        "syncs DMA memory outside allocated range",
        "syncs DMA memory with different direction",
        "syncs device read-only DMA memory for cpu",
        "syncs device write-only DMA memory to device",
    ]


def test_two_mappings_in_one_line_are_reported_unless_the_device_only_reads(machine):
    dev = machine.dev
    pointer = kmalloc(dev, 4096)
    dma_map_single(dev, pointer, 32, TO)
    dma_map_single(dev, pointer + 32, 32, TO)
    dma_map_single(dev, pointer + 128, 64, FROM)
    assert reports(dev) == []
    dma_map_single(dev, pointer + 160, 64, FROM)
    assert reports(dev) == ["cacheline tracking EEXIST, overlapping mappings aren't supported"]
    assert dev.debug.reports[0].line == 2


@pytest.mark.parametrize(("parameters", "direction"), [("coherent=0", FROM), ("coherent=0", BOTH), ("coherent=1", TO)])
def test_a_cpu_that_writes_what_the_device_owns_is_reported(parameters, direction):
    machine = Machine(parameters)
    pointer, address = lend(machine, direction, size=256)
    pointer.bytes(256)[130] = 1
    dma_unmap_single(machine.dev, address, 256, direction)
    assert reports(machine.dev) == ["cpu touching an active dma mapped cacheline"]
    assert machine.dev.debug.reports[0].line == 2


def test_leaks_are_reported_when_the_device_is_let_go(machine):
    lend(machine, TO)
    dma_alloc_coherent(machine.dev, 64)
    machine.dev.close()
    (report,) = machine.dev.debug.reports
    assert "pending DMA allocations while released from device [count=2]" in report.text
    assert f"[mapped as single] at {__file__}" in report.text


def test_without_dma_debug_nothing_is_kept():
    assert Machine("dma_debug=0").dev.debug is None
