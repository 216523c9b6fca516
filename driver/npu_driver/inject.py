"""Fault injection: which kind of fault can strike at which point, and the points that lie in the driver.

Points of the firmware and the engines are the device's (device_api.py). Nothing here is in the way while no fault is armed: arming puts
wrappers in front of the registers, the memory and the calls, disarming takes them away.
"""

from __future__ import annotations

import errno
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npu_abi import C, codec, name_of
from npu_model.armed import Armed, ArmedFaults

from npu_driver.error import KernelError
from npu_driver.ipc import SLOT_BYTES
from npu_driver.mmu import PAGE, SLAB_PAGES

if TYPE_CHECKING:
    from npu_driver.device_api import BusApi, DramApi
    from npu_driver.kernel import Kernel

ENDS = frozenset((C.NPU_FAULT_FW_CRASH, C.NPU_FAULT_FW_SILENT, C.NPU_FAULT_UNPLUG))
MESSAGES = ENDS | {C.NPU_FAULT_MESSAGE_LOST, C.NPU_FAULT_MESSAGE_TWICE, C.NPU_FAULT_MESSAGE_GARBAGE}
TO_HOST = MESSAGES | {C.NPU_FAULT_IRQ_LOST}
TASKS = ENDS | {C.NPU_FAULT_ENGINE_HANG, C.NPU_FAULT_MMU}
MEMORY = ENDS | {C.NPU_FAULT_NO_MEMORY}

# By point: the kinds that can strike there.
DEVICE_KINDS: dict[int, frozenset[int]] = {
    C.NPU_POINT_BOOT_START: ENDS | {C.NPU_FAULT_IMAGE_BITFLIP},
    C.NPU_POINT_BOOT_DONE: TO_HOST,
    C.NPU_POINT_JOB_TAKE: ENDS,
    C.NPU_POINT_COMMAND: ENDS,
    C.NPU_POINT_TASK_DISPATCH: ENDS,
    C.NPU_POINT_DMA_TASK: TASKS,
    C.NPU_POINT_DPU_TASK: TASKS,
    C.NPU_POINT_SHAVE_TASK: TASKS,
    C.NPU_POINT_BARRIER: ENDS | {C.NPU_FAULT_BARRIER_LOST},
    C.NPU_POINT_JOB_DONE: TO_HOST,
    C.NPU_POINT_MESSAGE_REPLY: TO_HOST,
    C.NPU_POINT_IRQ: ENDS | {C.NPU_FAULT_IRQ_LOST},
}
DRIVER_KINDS: dict[int, frozenset[int]] = {
    C.NPU_POINT_BOOT_IMAGE: frozenset((C.NPU_FAULT_IMAGE_BITFLIP, C.NPU_FAULT_NO_MEMORY)),
    C.NPU_POINT_OPEN: MEMORY,
    C.NPU_POINT_ALLOC: MEMORY,
    C.NPU_POINT_MAP: MEMORY,
    C.NPU_POINT_REGISTER_DB: MESSAGES,
    C.NPU_POINT_RING_WRITE: ENDS | {C.NPU_FAULT_MESSAGE_GARBAGE},
    C.NPU_POINT_DOORBELL: ENDS | {C.NPU_FAULT_MESSAGE_LOST, C.NPU_FAULT_MESSAGE_TWICE},
    C.NPU_POINT_WAIT: ENDS,
    C.NPU_POINT_QUEUE_DESTROY: MESSAGES,
    C.NPU_POINT_SSID_RELEASE: MESSAGES,
    C.NPU_POINT_CLOSE: ENDS,
    C.NPU_POINT_RESET: ENDS,
}
CALLS = {
    "NPU_SYS_OPEN": C.NPU_POINT_OPEN, "NPU_IOCTL_BO_WAIT": C.NPU_POINT_WAIT, "NPU_SYS_CLOSE": C.NPU_POINT_CLOSE
}  # fmt: skip
REQUESTS = {
    C.NPU_JSM_REGISTER_DB: C.NPU_POINT_REGISTER_DB,
    C.NPU_JSM_UNREGISTER_DB: C.NPU_POINT_QUEUE_DESTROY,
    C.NPU_JSM_SSID_RELEASE: C.NPU_POINT_SSID_RELEASE,
}
DOORBELLS = range(
    C.NPU_REG_DOORBELL_BASE,
    C.NPU_REG_DOORBELL_BASE + C.NPU_NUM_DOORBELLS * C.NPU_DOORBELL_STRIDE,
    C.NPU_DOORBELL_STRIDE,
)
_TYPE = codec("npu_ipc_slot", "msg.type")


def lies_in_device(point: int, kind: int) -> bool:
    """Say whether a fault lies in the device, not in the driver. EINVAL for a kind that cannot strike at the point."""
    if kind in DEVICE_KINDS.get(point, ()):
        return True
    if kind in DRIVER_KINDS.get(point, ()):
        return False
    raise KernelError(
        errno.EINVAL, f"{name_of('npu_fault_kind', kind)} cannot strike at {name_of('npu_fault_point', point)}"
    )


class Faults:
    """The faults that are armed in one driver."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._armed = ArmedFaults()

    def arm(self, fault: Armed) -> None:
        """Arm a fault. EINVAL for a kind that cannot strike at the point."""
        kernel = self._kernel
        if lies_in_device(fault.point, fault.kind):
            kernel.device.inject(fault)
            return
        self._armed.add(fault)
        if kernel.faults is None:
            kernel.faults = self
            kernel.registers.bus = _Bus(self, kernel)
            kernel.memory.dram = _Dram(self, kernel.device.dram)
            kernel.rows = {
                request: replace(row, handler=self._before(CALLS[row.name], row.handler)) if row.name in CALLS else row
                for request, row in kernel.rows.items()
            }

    def disarm(self) -> None:
        """Forget all faults."""
        kernel = self._kernel
        kernel.device.disarm()
        self._armed.clear()
        kernel.faults = None
        kernel.registers.bus = kernel.device.bus
        kernel.memory.dram = kernel.device.dram
        kernel.restore_rows()

    def struck(self, point: int, kind: int) -> int:
        """Return how often a fault has struck, since the device is there. EINVAL for a kind that cannot strike at the point."""
        if lies_in_device(point, kind):
            return self._kernel.device.struck(point, kind)
        return self._armed.struck[point, kind]

    def passes(self, point: int) -> Armed | None:
        """Count that a point is passed. What ends firmware or device strikes here, other faults are returned. ENOMEM."""
        struck = self.take(point)
        if struck is None:
            return None
        if struck.kind in ENDS:
            self._kernel.device.strike(struck.kind)
            return None
        if struck.kind == C.NPU_FAULT_NO_MEMORY:
            raise KernelError(errno.ENOMEM, f"injected at {name_of('npu_fault_point', point)}")
        return struck

    def take(self, point: int) -> Armed | None:
        """Count that a point is passed; return the fault that strikes there, if one does."""
        return self._armed.strike(point)

    def image(self, image: bytes) -> bytes:
        """Return a firmware image as it is read."""
        fault = self.passes(C.NPU_POINT_BOOT_IMAGE)
        if fault is None:
            return image
        damaged = bytearray(image)
        damaged[fault.seed // 8 % len(image)] ^= 1 << fault.seed % 8
        return bytes(damaged)

    def _before(self, point: int, handler: Any) -> Any:
        def guarded(kernel: Kernel, context: Any, arg: Any, segments: list[bytes]) -> Any:
            self.passes(point)
            if kernel.removed and point != C.NPU_POINT_CLOSE:
                raise KernelError(errno.ENODEV, "the device is gone")
            return handler(kernel, context, arg, segments)

        return guarded


class _Dram:
    """The device's memory; allocations pass points. Tables are the slabs in the kernel's own heap."""

    def __init__(self, faults: Faults, dram: DramApi) -> None:
        self._faults = faults
        self._dram = dram

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dram, name)

    def alloc(self, size_bytes: int, heap: int) -> int:
        """Allocate. ENOMEM."""
        is_table = not heap and size_bytes == SLAB_PAGES * PAGE
        self._faults.passes(C.NPU_POINT_MAP if is_table else C.NPU_POINT_ALLOC)
        return self._dram.alloc(size_bytes, heap)


class _Bus:
    """The registers; writes that start something pass points."""

    def __init__(self, faults: Faults, kernel: Kernel) -> None:
        self._faults = faults
        self._kernel = kernel
        self._bus: BusApi = kernel.device.bus

    def read32(self, offset: int) -> int:
        """Read."""
        return self._bus.read32(offset)

    def write32(self, offset: int, value: int) -> None:
        """Write, unless a fault strikes."""
        if offset in DOORBELLS:
            self._ring(offset, value)
        elif offset == C.NPU_REG_CPU_IPC_FIFO:
            self._post(offset, value)
        elif offset == C.NPU_REG_IP_RESET:
            self._bus.write32(offset, value)
            fault = self._faults.take(C.NPU_POINT_RESET)
            if fault is not None:  # it strikes the firmware that starts after the reset
                self._kernel.device.inject(Armed(C.NPU_POINT_BOOT_START, fault.kind))
        else:
            self._bus.write32(offset, value)

    def _ring(self, offset: int, value: int) -> None:
        fault = self._faults.passes(C.NPU_POINT_RING_WRITE)
        if fault is not None:
            queue = self._kernel.doorbells[DOORBELLS.index(offset)]
            slot = queue.last_slot()
            slot[:] = random.Random(fault.seed).randbytes(len(slot))
        fault = self._faults.passes(C.NPU_POINT_DOORBELL)
        if fault is None or fault.kind == C.NPU_FAULT_MESSAGE_TWICE:
            self._bus.write32(offset, value)
        if fault is not None and fault.kind == C.NPU_FAULT_MESSAGE_TWICE:
            self._bus.write32(offset, value)

    def _post(self, offset: int, address: int) -> None:
        slot = self._kernel.ipc.slot(address)
        point = REQUESTS.get(_TYPE.unpack(slot)[0])
        fault = self._faults.passes(point) if point is not None else None
        if fault is None:
            self._bus.write32(offset, address)
        elif fault.kind == C.NPU_FAULT_MESSAGE_TWICE:
            self._bus.write32(offset, address)
            self._bus.write32(offset, address)
        elif fault.kind == C.NPU_FAULT_MESSAGE_GARBAGE:
            slot[:] = random.Random(fault.seed).randbytes(SLOT_BYTES)
            self._bus.write32(offset, address)
