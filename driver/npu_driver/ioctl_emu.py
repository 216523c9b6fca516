"""Handlers of the emulator range: what a real device does not have. They cost the host no virtual time."""

from __future__ import annotations

import errno
import struct
from typing import TYPE_CHECKING, Any

from npu_abi import C, sizeof
from npu_model.armed import Armed
from npu_model.memory_cycles import Background
from npu_model.memory_ranges import NPU_CLIENTS

from npu_driver.clock import LAST_PS, NEVER_PS, until
from npu_driver.error import KernelError

if TYPE_CHECKING:
    from npu_driver.file import Context
    from npu_driver.kernel import Kernel

TRACE_RECORD_BYTES = sizeof("npu_trace_record")
OVERFLOW_RECORD_BYTES = sizeof("npu_overflow_record")
ACCESS_RECORD_BYTES = sizeof("npu_access_record")
MAX_ADDRESS = 1 << 40  # of traffic: chosen, more than any memory here, and far within 64 bits
TRAFFIC_LIMITS = {
    "write_permille": (0, 1000),
    "burst_bytes": (1, int(C.NPU_MAX_TRAFFIC_BURST_BYTES)),
    "address": (0, MAX_ADDRESS - 1),
    "span_bytes": (1, MAX_ADDRESS),
}


def trace_read(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Move trace records out, oldest first, as many whole ones as fit; buffer_bytes 0 tells how many bytes wait."""
    kernel.trace += kernel.device.drain_trace()
    return _move_out(kernel.trace, TRACE_RECORD_BYTES, arg)


def overflows(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Move the overflow records of the context's jobs out, as trace_read does."""
    context.overflows += kernel.device.drain_overflows(context.ssid)
    return _move_out(context.overflows, OVERFLOW_RECORD_BYTES, arg)


def watch(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Keep the accesses of the context's jobs, or no more. EINVAL for anything but 0 and 1; EOPNOTSUPP without values."""
    if arg.enable > 1:
        raise KernelError(errno.EINVAL, f"enable {arg.enable}; it is 0 or 1")
    if arg.enable and not kernel.device.computes:
        raise KernelError(errno.EOPNOTSUPP, "the device computes no values: it reads and writes nothing")
    context.accesses.clear()
    kernel.device.watch_accesses(context.ssid, bool(arg.enable))
    return 0, []


def accesses(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Move the access records of the context's jobs out, as trace_read does. EOVERFLOW when there were too many."""
    if not arg.used_bytes:
        fresh = kernel.device.drain_accesses(context.ssid)
        if len(context.accesses) + len(fresh) > C.NPU_MAX_ACCESS_RECORDS * ACCESS_RECORD_BYTES:
            context.accesses.clear()
            raise KernelError(errno.EOVERFLOW, f"more than {C.NPU_MAX_ACCESS_RECORDS} access records between two reads")
        context.accesses += fresh
    return _move_out(context.accesses, ACCESS_RECORD_BYTES, arg)


def _move_out(pending: bytearray, record_bytes: int, arg: Any) -> tuple[int, list[Any]]:
    """Answer a read of `pending` records. EINVAL when the output field is not zero; then nothing is lost."""
    if arg.used_bytes:
        raise KernelError(errno.EINVAL, "used_bytes is an output and must be zero")
    if not arg.buffer_bytes:
        arg.used_bytes = len(pending)
        return 0, [b""]
    size = min(arg.buffer_bytes // record_bytes * record_bytes, len(pending))
    records = bytes(pending[:size])
    del pending[:size]
    arg.used_bytes = size
    return 0, [records]


def set_schedule(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Choose how ready work is ordered from now on. EINVAL for an unknown kind."""
    if arg.kind > C.NPU_SCHEDULE_SEED:
        raise KernelError(errno.EINVAL, f"unknown schedule {arg.kind}")
    kernel.device.set_schedule(arg.kind, arg.seed)
    kernel.watchdog.follow_schedule(arg.kind)
    return 0, []


def counters(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Read the first `count` PMU counters. EINVAL for more than there are."""
    if not 0 < arg.count <= C.NPU_PMU_COUNT:
        raise KernelError(errno.EINVAL, f"{arg.count} counters; there are NPU_PMU_COUNT {C.NPU_PMU_COUNT}")
    return 0, [struct.pack(f"<{arg.count}Q", *kernel.device.counters()[: arg.count])]


def advance(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Move the caller's clock forward to `until_ps`. EINVAL for a time in its past or beyond the clock."""
    if arg.until_ps > LAST_PS:
        raise KernelError(errno.EINVAL, f"{arg.until_ps} ps is beyond the clock")
    if arg.until_ps < kernel.now_ps:
        raise KernelError(errno.EINVAL, f"the clock is at {kernel.now_ps} ps, {arg.until_ps} is in the past")
    kernel.now_ps = arg.until_ps
    return 0, []


def run(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Run the device to its next interrupt, or to `until_ps`; NEVER_PS: until nothing is left to happen.

    EINVAL when an output is not zero.
    """
    if arg.now_ps or arg.next_ps or arg.interrupts or arg.edges:
        raise KernelError(errno.EINVAL, "now_ps, next_ps, interrupts and edges are outputs and must be zero")
    device, until_ps = kernel.device, until(arg.until_ps)
    if until_ps < NEVER_PS:
        arg.interrupts = device.run_until_interrupt(until_ps)
    else:
        while (next_ps := device.next_event_ps()) is not None:
            if device.run_until_interrupt(next_ps):  # not beyond the last event, unlike a time of the caller's
                arg.interrupts = 1
                break
    kernel.after_interrupts()
    next_ps = device.next_event_ps()
    if next_ps is None and not arg.interrupts and kernel.watchdog.sees_a_hang:
        next_ps = kernel.due_ps  # a driver's timer is left to happen
        if next_ps <= until_ps:
            kernel.run_to(next_ps)
            arg.interrupts, next_ps = 1, device.next_event_ps()
    arg.now_ps, arg.next_ps = device.now_ps, NEVER_PS if next_ps is None else next_ps
    arg.edges = device.interrupts % 2**32
    return 0, []


def job(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Tell how the last job of a command buffer stands. ENOENT; EINVAL when an output is not zero."""
    if arg.finished or arg.done_ps or arg.job_status:
        raise KernelError(errno.EINVAL, "finished, done_ps and job_status are outputs and must be zero")
    last = context.object(arg.handle).job
    if last is None:
        arg.finished = 1
    elif last.finished:
        arg.finished, arg.done_ps, arg.job_status = 1, last.done_ps, last.status
    return 0, []


def inject(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Arm a fault, disarm all, or tell how often a fault has struck. EPERM for who may not; EINVAL for another action, an unknown point,
    a kind that cannot strike there, or an output that is not zero.
    """
    if not kernel.current.privileged:
        raise KernelError(errno.EPERM, f"user {kernel.current.uid} may not inject faults")
    if arg.struck:
        raise KernelError(errno.EINVAL, "struck is an output and must be zero")
    if arg.action == C.NPU_INJECT_ARM:
        kernel.injection.arm(Armed(arg.point, arg.kind, arg.after, max(arg.count, 1), arg.seed))
    elif arg.action == C.NPU_INJECT_DISARM:
        kernel.injection.disarm()
    elif arg.action == C.NPU_INJECT_QUERY:
        arg.struck = min(kernel.injection.struck(arg.point, arg.kind), 0xFFFFFFFF)
    else:
        raise KernelError(errno.EINVAL, f"unknown action {arg.action} of fault injection")
    return 0, []


def register(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Read or write a register that the driver itself does not need. EPERM to write, for who may not; EINVAL for any other register, for
    another action, or an output that is not zero.
    """
    own = range(C.NPU_REG_ID_MAGIC, C.NPU_BAR0_SIZE, 4)
    if arg.offset not in own:
        raise KernelError(
            errno.EINVAL, f"register {arg.offset:#x}; multiples of 4 from {own[0]:#x} to {own[-1]:#x} are allowed"
        )
    if arg.action == C.NPU_REGISTER_WRITE:
        if not kernel.current.privileged:
            raise KernelError(errno.EPERM, f"user {kernel.current.uid} may not write registers")
        kernel.device.bus.write32(arg.offset, arg.value)
    elif arg.action == C.NPU_REGISTER_READ:
        if arg.value:
            raise KernelError(errno.EINVAL, "value is an output of READ and must be zero")
        arg.value = kernel.device.bus.read32(arg.offset)
    else:
        raise KernelError(errno.EINVAL, f"unknown action {arg.action} of a register")
    return 0, []


def traffic(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Start or end the traffic of a client. EPERM for who may not; EINVAL for a client that there is not or that has an engine, and for
    numbers beyond their limits.
    """
    if not kernel.current.privileged:
        raise KernelError(errno.EPERM, f"user {kernel.current.uid} may not make traffic")
    for name, (low, high) in TRAFFIC_LIMITS.items():
        if not low <= getattr(arg, name) <= high:
            raise KernelError(errno.EINVAL, f"{name} is {getattr(arg, name)}; {low} to {high} are allowed")
    if arg.span_bytes < arg.burst_bytes:
        raise KernelError(
            errno.EINVAL, f"span_bytes is {arg.span_bytes}; at least burst_bytes, {arg.burst_bytes}, is needed"
        )
    clients = kernel.device.clients
    if arg.client >= len(clients):
        raise KernelError(errno.EINVAL, f"client {arg.client}; the memory path has {len(clients)}")
    name = clients[arg.client].name
    if name in NPU_CLIENTS:
        raise KernelError(errno.EINVAL, f"client {arg.client} is {name}, the device itself")
    limit = kernel.device.profile.memory_system.noc.link_bytes_per_second
    if arg.bytes_per_second > limit:
        raise KernelError(errno.EINVAL, f"{arg.bytes_per_second} bytes per second; its link carries {limit}")
    kernel.device.set_traffic(
        Background(
            name,
            arg.bytes_per_second,
            arg.burst_bytes,
            arg.write_permille / 1000,
            arg.address,
            arg.span_bytes,
            arg.seed,
        )
    )
    return 0, []
