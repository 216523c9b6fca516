"""The kernel's DMA API, by Linux's names: memory of the kernel for devices, as drivers get and give it.

`kmalloc` gives cached kernel memory; a `Pointer` is where in it. `dma_map_single` and `dma_map_page` lend a part of it to the
device, at an address of the device, in one direction; `dma_unmap_*` ends that, and between the two `dma_sync_*` moves the
ownership back and forth. Before the device uses a range, what the CPU has written is cleaned (TO_DEVICE, BIDIRECTIONAL); before
the CPU uses it, lines are dropped that the device may have written (FROM_DEVICE, BIDIRECTIONAL). Where the board snoops
(module parameter `coherent`) neither does anything. A TO_DEVICE mapping is read-only to the device. `dma_alloc_coherent` gives
memory that both see at all times. What drivers do wrong, `dma_debug.py` reports.

Follows Documentation/core-api/dma-api.rst and dma-api-howto.rst of Linux. Mappings are of whole pages, as an IOMMU has them.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from npu_abi import C

from npu_driver.cpu_cache import policy_of
from npu_driver.dma_debug import DmaDebug
from npu_driver.error import KernelError
from npu_driver.memory import PAGE

if TYPE_CHECKING:
    from npu_driver.cpu_cache import CpuCaches
    from npu_driver.file import Context
    from npu_driver.kernel import Kernel
    from npu_driver.memory import Memory
    from npu_driver.mmu import AddressSpace
    from npu_driver.va import VaRange

KERNEL_HEAP = 0
DMA_MAPPING_ERROR = (1 << 64) - 1


class DmaDirection(IntEnum):
    """enum dma_data_direction of Linux."""

    BIDIRECTIONAL = 0
    TO_DEVICE = 1
    FROM_DEVICE = 2
    NONE = 3


class Kmem:
    """An allocation of the kernel: pages at `pa`. `policy` is how the CPU maps them, of enum npu_bo_flag."""

    __slots__ = ("caches", "memory", "pa", "policy", "size")

    def __init__(self, memory: Memory, caches: CpuCaches, size: int, policy: int) -> None:
        pages = -(-size // PAGE)
        self.memory = memory
        self.caches = caches
        self.pa, _ = memory.alloc_zeroed(pages)
        self.size = pages * PAGE
        self.policy = policy

    @property
    def is_shadowed(self) -> bool:
        """Whether the CPU sees its own copy."""
        return self.policy in (C.NPU_BO_NON_SNOOPED, C.NPU_BO_WC)

    @property
    def view(self) -> memoryview:
        """All of it, as the CPU sees it."""
        shadow = self.caches.shadow(self.pa, self.policy, KERNEL_HEAP)
        return self.memory.view(self.pa if shadow is None else shadow.view_pa, self.size)


@dataclass(frozen=True, slots=True)
class Pointer:
    """A pointer of the kernel: `offset` bytes behind the start of an allocation."""

    memory: Kmem
    offset: int = 0

    def __add__(self, count: int) -> Pointer:
        return Pointer(self.memory, self.offset + count)

    def bytes(self, size: int) -> memoryview:
        """Return `size` bytes from here on, as the CPU sees them, writable. EFAULT when they leave the allocation."""
        if self.offset < 0 or size < 0 or self.offset + size > self.memory.size:
            raise KernelError(
                errno.EFAULT, f"{size} bytes at {self.offset} of kernel memory of {self.memory.size} bytes"
            )
        return self.memory.view[self.offset : self.offset + size]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of kernel memory, struct page of Linux."""

    memory: Kmem
    index: int


@dataclass(frozen=True, slots=True)
class Mapping:
    """What the device has at `address`: `size` bytes at `offset` of kernel memory."""

    address: int
    memory: Kmem
    offset: int
    size: int
    direction: DmaDirection


class DmaDevice:
    """A device as the DMA API knows it: the translation of an SSID, and where addresses are free in it."""

    def __init__(self, kernel: Kernel, ssid: int, space: AddressSpace, addresses: VaRange) -> None:
        self._kernel = kernel
        self._ssid = ssid
        self.memory = kernel.memory
        self.space = space
        self.addresses = addresses
        self.mappings: dict[int, Mapping] = {}
        self._debug = DmaDebug(kernel.note)

    @property
    def caches(self) -> CpuCaches:
        """The host's."""
        return self._kernel.caches

    @property
    def coherent(self) -> bool:
        """Whether the device snoops them."""
        return bool(self._kernel.params.coherent and self._kernel.firmware.coherent_dma)

    @property
    def debug(self) -> DmaDebug | None:
        """The account of mappings, None when the module parameter dma_debug is 0."""
        return self._debug if self._kernel.params.dma_debug else None

    def close(self) -> None:
        """Report what was not given back."""
        if self.debug is not None:
            self.debug.device_released()

    # ---- for the functions below ----

    def map(self, memory: Kmem, offset: int, size: int, *, read_only: bool, snooped: bool) -> int:
        """Map pages around a range and return its device address. ENOSPC, ENOMEM."""
        first, end = offset // PAGE, -(-(offset + size) // PAGE)
        va = self.addresses.alloc(end - first)
        try:
            self.space.map(va, memory.pa + first * PAGE, end - first, read_only=read_only, snooped=snooped)
        except KernelError:
            self.addresses.cancel(va)
            raise
        return va + offset % PAGE

    def unmap(self, address: int, size: int) -> None:
        """Undo `map`."""
        va = address & -PAGE
        self.space.unmap(va, -(-(address + size - va) // PAGE))
        if self._ssid == C.NPU_SSID_GLOBAL:
            self._kernel.mmu.invalidate(self._ssid)
        else:
            self._kernel.mmu.unmapped(self._ssid)
        self.addresses.free(va)

    def to_device(self, memory: Kmem, offset: int, size: int, direction: DmaDirection) -> None:
        """Hand a range of cached memory over to the device."""
        if memory.policy == C.NPU_BO_NON_SNOOPED:
            drops = direction is DmaDirection.FROM_DEVICE
            self.caches.sync(memory.pa, C.NPU_SYNC_FROM_DEVICE if drops else C.NPU_SYNC_TO_DEVICE, offset, size)

    def to_cpu(self, memory: Kmem, offset: int, size: int, direction: DmaDirection) -> None:
        """Take a range of cached memory back from the device."""
        if memory.policy == C.NPU_BO_NON_SNOOPED and direction is not DmaDirection.TO_DEVICE:
            self.caches.sync(memory.pa, C.NPU_SYNC_FROM_DEVICE, offset, size)


def device_of(kernel: Kernel, context: Context) -> DmaDevice:
    """Return the device as a context's jobs see it, for who lends them kernel memory."""
    return DmaDevice(kernel, context.ssid, context.space, context.ranges[False])


# ---- memory of the kernel -----------------------------------------------------------------------------


def kmalloc(dev: DmaDevice, size: int) -> Pointer:
    """Return zeroed kernel memory of whole pages, cached. ENOMEM."""
    return Pointer(Kmem(dev.memory, dev.caches, size, policy_of(0, coherent=dev.coherent)))


def kfree(pointer: Pointer) -> None:
    """Give kernel memory back."""
    pointer.memory.memory.free(pointer.memory.pa)


def virt_to_page(pointer: Pointer) -> Page:
    """Return the page that a pointer points into."""
    return Page(pointer.memory, pointer.offset // PAGE)


def set_memory_cached(dev: DmaDevice, pointer: Pointer) -> None:
    """Let the CPU map an allocation write-back cached, as `kmalloc` gave it."""
    _set_policy(pointer.memory, policy_of(0, coherent=dev.coherent))


def set_memory_uncached(dev: DmaDevice, pointer: Pointer) -> None:
    """Let the CPU map an allocation uncached: its dirty lines are cleaned before."""
    _set_policy(pointer.memory, int(C.NPU_BO_UNCACHED))


def set_memory_wc(dev: DmaDevice, pointer: Pointer) -> None:
    """Let the CPU map an allocation write-combined: its dirty lines are cleaned before."""
    _set_policy(pointer.memory, int(C.NPU_BO_WC))


def _set_policy(memory: Kmem, policy: int) -> None:
    memory.caches.sync(memory.pa, C.NPU_SYNC_BIDIRECTIONAL, 0, memory.size)
    memory.policy = policy
    if policy == C.NPU_BO_NON_SNOOPED:
        memory.caches.sync(memory.pa, C.NPU_SYNC_FROM_DEVICE, 0, memory.size)


# ---- coherent memory ----------------------------------------------------------------------------------


def dma_alloc_coherent(dev: DmaDevice, size: int) -> tuple[Pointer, int]:
    """Return zeroed memory that CPU and device see alike, and its device address. ENOMEM, ENOSPC."""
    memory = Kmem(dev.memory, dev.caches, size, int(C.NPU_BO_CACHED if dev.coherent else C.NPU_BO_UNCACHED))
    try:
        address = dev.map(memory, 0, memory.size, read_only=False, snooped=dev.coherent)
    except KernelError:
        dev.memory.free(memory.pa)
        raise
    dev.mappings[address] = Mapping(address, memory, 0, size, DmaDirection.BIDIRECTIONAL)
    if dev.debug is not None:
        dev.debug.mapped("coherent", dev.mappings[address])
    return Pointer(memory), address


def dma_free_coherent(dev: DmaDevice, size: int, pointer: Pointer, address: int) -> None:
    """Give back what `dma_alloc_coherent` returned."""
    if dev.debug is not None:
        dev.debug.unmapping("coherent", address, size, DmaDirection.BIDIRECTIONAL)
    if dev.mappings.pop(address, None) is not None:
        dev.unmap(address, pointer.memory.size)
        dev.memory.free(pointer.memory.pa)


# ---- streaming mappings -------------------------------------------------------------------------------


def dma_map_single(dev: DmaDevice, pointer: Pointer, size: int, direction: DmaDirection) -> int:
    """Lend `size` bytes of kernel memory to the device and return their device address, or one for which
    `dma_mapping_error` is true. EINVAL for direction NONE, no bytes, and bytes outside of the allocation.
    """
    return _map(dev, "single", pointer, size, direction)


def dma_map_page(dev: DmaDevice, page: Page, offset: int, size: int, direction: DmaDirection) -> int:
    """As `dma_map_single`, of a page and an offset from its start."""
    return _map(dev, "page", Pointer(page.memory, page.index * PAGE + offset), size, direction)


def dma_mapping_error(dev: DmaDevice, address: int) -> bool:
    """Whether the mapping failed; to be asked after every mapping."""
    if dev.debug is not None:
        dev.debug.error_checked(address)
    return address == DMA_MAPPING_ERROR


def dma_unmap_single(dev: DmaDevice, address: int, size: int, direction: DmaDirection) -> None:
    """Take back what `dma_map_single` lent; the CPU may read what the device wrote."""
    _unmap(dev, "single", address, size, direction)


def dma_unmap_page(dev: DmaDevice, address: int, size: int, direction: DmaDirection) -> None:
    """Take back what `dma_map_page` lent."""
    _unmap(dev, "page", address, size, direction)


def dma_sync_single_for_cpu(dev: DmaDevice, address: int, size: int, direction: DmaDirection) -> None:
    """Let the CPU use a lent range, or a part of one, for a while."""
    _sync(dev, address, size, direction, for_cpu=True)


def dma_sync_single_for_device(dev: DmaDevice, address: int, size: int, direction: DmaDirection) -> None:
    """Hand a range that the CPU has used back to the device."""
    _sync(dev, address, size, direction, for_cpu=False)


def _sync(dev: DmaDevice, address: int, size: int, direction: DmaDirection, *, for_cpu: bool) -> None:
    if dev.debug is not None:
        dev.debug.syncing(address, size, direction, for_cpu=for_cpu)
    if (found := _find(dev, address, size)) is not None:
        hand_over = dev.to_cpu if for_cpu else dev.to_device
        hand_over(found.memory, found.offset + address - found.address, size, direction)
        if dev.debug is not None:
            dev.debug.synced(found.address, for_cpu=for_cpu)


def _find(dev: DmaDevice, address: int, size: int) -> Mapping | None:
    return next(
        (m for m in dev.mappings.values() if m.address <= address and address + size <= m.address + m.size), None
    )


def _map(dev: DmaDevice, kind: str, pointer: Pointer, size: int, direction: DmaDirection) -> int:
    if direction not in (DmaDirection.BIDIRECTIONAL, DmaDirection.TO_DEVICE, DmaDirection.FROM_DEVICE):
        raise KernelError(errno.EINVAL, f"dma_map_{kind} with direction {DmaDirection(direction).name}")
    memory, offset = pointer.memory, pointer.offset
    if size <= 0 or offset < 0 or offset + size > memory.size:
        raise KernelError(errno.EINVAL, f"dma_map_{kind} of {size} bytes at {offset} of {memory.size} bytes")
    read_only = direction is DmaDirection.TO_DEVICE
    try:
        address = dev.map(memory, offset, size, read_only=read_only, snooped=not memory.policy)
    except KernelError:
        return DMA_MAPPING_ERROR
    dev.to_device(memory, offset, size, direction)
    dev.mappings[address] = mapping = Mapping(address, memory, offset, size, direction)
    if dev.debug is not None:
        dev.debug.mapped(kind, mapping)
    return address


def _unmap(dev: DmaDevice, kind: str, address: int, size: int, direction: DmaDirection) -> None:
    if dev.debug is not None:
        dev.debug.unmapping(kind, address, size, direction)
    mapping = dev.mappings.pop(address, None)
    if mapping is not None:
        dev.unmap(address, mapping.size)
        dev.to_cpu(mapping.memory, mapping.offset, min(size, mapping.size), direction)
