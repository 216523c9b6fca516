"""Calls that wait for the device. The driver would run the device until they end; here they go on step by step, so that calls
of other processes come in between. What is left when nothing has to be waited for any more is the driver's own call: bytes
and times are those of the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_abi import C, ioctl_request, offsetof
from npu_driver import clock
from npu_driver.clock import FOR_EVER, NEVER_PS
from npu_driver.firmware import STRIDE_PS
from npu_driver.kernel import DRAIN_TIMEOUT_PS

if TYPE_CHECKING:
    from npu_driver.kernel import Kernel

    from libnpu.daemon.connection import Call

BO_WAIT = ioctl_request(C.NPU_IOCTL_BO_WAIT, "npu_bo_wait")
POLL = ioctl_request(C.NPU_SYS_POLL, "npu_poll")
CLOSE = ioctl_request(C.NPU_SYS_CLOSE, None)
RUN = ioctl_request(C.NPU_IOCTL_EMU_RUN, "npu_emu_run")
WAITS = frozenset((BO_WAIT, POLL, CLOSE, RUN))
DEADLINES = {BO_WAIT: offsetof("npu_bo_wait", "deadline_ps"), POLL: offsetof("npu_poll", "deadline_ps")}
HANDLE = offsetof("npu_bo_wait", "handle")
INTERRUPTS, UNTIL = offsetof("npu_emu_run", "interrupts"), offsetof("npu_emu_run", "until_ps")
MUST_BE_ZERO = {BO_WAIT: slice(4, 8), POLL: slice(8, None), CLOSE: slice(0), RUN: slice(8, None)}
EVENTS = 64  # chosen: times at which something happens, of a run until the device is idle, before others are looked at


class Idle(Exception):
    """Nothing is left to happen in the device that could end a wait without deadline."""


def approach(kernel: Kernel, call: Call) -> bool:
    """Run the device towards the position of the call, for a stride; False when the call's own run does the rest."""
    device = kernel.device
    next_ps = device.next_event_ps()
    if next_ps is None or call.position_ps - next_ps <= STRIDE_PS:
        return False
    kernel.run_to(next_ps + STRIDE_PS)
    return True


def begin(call: Call, lag_ps: int) -> None:
    """Look at a call for the first time. `lag_ps`: others have brought the device so far beyond the call's position, and
    its time is not up for that.
    """
    call.begun = True
    request = call.number & 0xFFFFFFFF
    if lag_ps > 0 and (offset := DEADLINES.get(request)) is not None and len(call.arg) == sizeof_of(request):
        deadline = clock.deadline(int.from_bytes(call.arg[offset : offset + 8], "little", signed=True))
        if call.position_ps < deadline < FOR_EVER - lag_ps:
            later = (deadline + lag_ps).to_bytes(8, "little", signed=True)
            call.arg = call.arg[:offset] + later + call.arg[offset + 8 :]


def sizeof_of(request: int) -> int:
    """Return how many bytes of structure a request has."""
    return request >> 16


def advance(kernel: Kernel, call: Call) -> bool:
    """Run the device a step for a call that waits; False when the driver can answer it without waiting.

    Raises Idle when only others could end the wait.
    """
    request = call.number & 0xFFFFFFFF
    context = kernel.files.get(call.number >> 32)
    if request not in WAITS or context is None or len(call.arg) != sizeof_of(request):
        return False
    if any(call.arg[MUST_BE_ZERO[request]]):
        return False  # refused
    device = kernel.device
    if request == RUN:
        return _advance_run(kernel, call)
    kernel.now_ps = call.position_ps
    kernel.run_to(call.position_ps)
    kernel.after_interrupts()
    if request == CLOSE:
        if not context.jobs:
            return False
        call.deadline_ps = call.deadline_ps or device.now_ps + DRAIN_TIMEOUT_PS
        if not kernel.step(call.deadline_ps):
            kernel.abort_jobs(context)
        return bool(context.jobs)
    offset = DEADLINES[request]
    deadline = clock.deadline(int.from_bytes(call.arg[offset : offset + 8], "little", signed=True))
    if request == BO_WAIT:
        bo = context.objects.get(int.from_bytes(call.arg[HANDLE : HANDLE + 4], "little"))
        if bo is None or bo.job is None or bo.job.finished:
            return False
    elif context.unwaited or not context.jobs:
        return False
    if kernel.step(deadline):
        return True
    if deadline >= FOR_EVER and context.lost is None and device.next_event_ps() is None:
        raise Idle
    return False


def _advance_run(kernel: Kernel, call: Call) -> bool:
    until = clock.until(int.from_bytes(call.arg[UNTIL : UNTIL + 8], "little"))
    device = kernel.device
    for _ in range(EVENTS if until == NEVER_PS else 1):
        next_ps = device.next_event_ps()
        if next_ps is None or next_ps > until - STRIDE_PS:
            return False
        if device.run_until_interrupt(next_ps if until == NEVER_PS else next_ps + STRIDE_PS):
            call.arg = call.arg[:UNTIL] + bytes(8) + call.arg[UNTIL + 8 :]  # the driver runs no more
            call.deadline_ps = until
            return False
    return True


def finish_run(call: Call, out: bytes) -> bytes:
    """Return what the driver would have said of a run that has met an interrupt here."""
    if call.number & 0xFFFFFFFF != RUN or not call.deadline_ps:
        return out
    out = out[:UNTIL] + call.deadline_ps.to_bytes(8, "little") + out[UNTIL + 8 :]
    return out[:INTERRUPTS] + (1).to_bytes(4, "little") + out[INTERRUPTS + 4 :]
