"""Handler: who uses the device and what it did, from the driver's own counts."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from npu_abi import C, new, pack

from npu_driver.error import KernelError

if TYPE_CHECKING:
    from npu_driver.file import Context
    from npu_driver.kernel import Kernel


def get_info(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Write as many whole records of a kind as fit; buffer_bytes 0 tells how many bytes all have. EINVAL for an unknown kind, and when
    the output field is not zero.
    """
    if arg.used_bytes:
        raise KernelError(errno.EINVAL, "used_bytes is an output and must be zero")
    if arg.kind == C.NPU_INFO_CONTEXTS:
        records = [_context(kernel.contexts[ssid]) for ssid in sorted(kernel.contexts)]
    elif arg.kind == C.NPU_INFO_DEVICE:
        context.sweep()
        records = [_device(kernel)]
    else:
        raise KernelError(errno.EINVAL, f"unknown kind of information {arg.kind}")
    if not arg.buffer_bytes:
        arg.used_bytes = sum(map(len, records))
        return 0, [b""]
    data = b"".join(records[: arg.buffer_bytes // len(records[0])])
    arg.used_bytes = len(data)
    return 0, [data]


def _context(context: Context) -> bytes:
    owner = context.owner
    return pack(
        new(
            "npu_context_info",
            ssid=context.ssid,
            pid=owner.pid,
            uid=owner.uid,
            state=C.NPU_CONTEXT_LIVE if context.lost is None else C.NPU_CONTEXT_LOST,
            name=owner.name.encode(),
            memory_bytes=sum(bo.size for bo in context.objects.values()),
            objects=len(context.objects),
            queues=len(context.queues),
            jobs_in_flight=len(context.jobs),
            faults=context.faults,
            jobs_done=context.jobs_done,
            jobs_failed=context.jobs_failed,
            busy_ps=context.busy_ps,
        )
    )


def _device(kernel: Kernel) -> bytes:
    recovery, memory = kernel.recovery, kernel.memory
    return pack(
        new(
            "npu_device_info",
            now_ps=kernel.device.now_ps,
            memory_bytes=memory.capacity_bytes,
            memory_free_bytes=memory.free_bytes,
            jobs_done=kernel.jobs_done,
            jobs_failed=kernel.jobs_failed,
            mmu_faults=kernel.mmu_faults,
            engine_resets=recovery.engine_resets,
            full_resets=recovery.full_resets,
            lost_interrupts=recovery.lost_interrupts,
            contexts=len(kernel.contexts),
            module_loads=kernel.module_loads,
        )
    )
