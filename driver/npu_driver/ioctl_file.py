"""Handlers: open, close, poll, and the device as a whole."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from npu_abi import C

from npu_driver import clock
from npu_driver.error import KernelError
from npu_driver.ioctl_job import wait
from npu_driver.state_dump import describe

if TYPE_CHECKING:
    from npu_driver.file import Context
    from npu_driver.kernel import Kernel


def sys_open(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Return a file descriptor. EMFILE; ENODEV and EIO from the boot."""
    return kernel.open(), []


def sys_close(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """End the file: its jobs are waited for or aborted, everything that it owned is freed."""
    kernel.close(context)
    return 0, []


def sys_poll(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Wait until a job of this file has finished that BO_WAIT has not returned.

    Returns 1, or 0 when the deadline passes.
    """
    if arg.ready_jobs:
        raise KernelError(errno.EINVAL, "ready_jobs is an output and must be zero")
    deadline_ps = clock.deadline(arg.deadline_ps)
    while True:
        if context.unwaited:
            first_ps = min(job.done_ps for job in context.unwaited.values())
            if first_ps > max(kernel.now_ps, deadline_ps):
                break
            kernel.now_ps = max(kernel.now_ps, first_ps)
            arg.ready_jobs = sum(job.done_ps <= kernel.now_ps for job in context.unwaited.values())
            return 1, []
        if not context.jobs or not wait(kernel, context, _Any(context), deadline_ps):
            break
    kernel.now_ps = max(kernel.now_ps, deadline_ps if deadline_ps < clock.FOR_EVER else 0)
    return 0, []


class _Any:
    """Finished as soon as one job of a context is."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def finished(self) -> bool:
        return bool(self._context.unwaited)


def recover(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Reset the device, or its engines (enum npu_recover_kind). EINVAL for another kind, EPERM for who may not, EIO when it does not boot
    again, EOPNOTSUPP when the module parameter disable_recovery is 1.
    """
    if arg.kind not in (C.NPU_RECOVER_FULL, C.NPU_RECOVER_ENGINE):
        raise KernelError(errno.EINVAL, f"unknown kind of recovery {arg.kind}")
    if not kernel.current.privileged:
        raise KernelError(errno.EPERM, f"user {kernel.current.uid} may not reset the device")
    if kernel.params.disable_recovery:
        raise KernelError(errno.EOPNOTSUPP, "the module parameter disable_recovery is 1")
    if arg.kind == C.NPU_RECOVER_FULL:
        kernel.recovery.full("asked for", warm=True)
    else:
        kernel.recovery.engine("asked for", hung=False)
    kernel.now_ps = max(kernel.now_ps, kernel.device.now_ps)
    return 0, []


def state_dump(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Write what driver and firmware know as text, and log it; buffer_bytes 0 tells how many bytes it has. EINVAL when the output field is not
    zero; errors of the firmware are part of the text. Of a text that does not fit as much is written as does.
    """
    if arg.used_bytes:
        raise KernelError(errno.EINVAL, "used_bytes is an output and must be zero")
    lines = describe(kernel)
    for line in lines:
        kernel.note(line)
    data = "".join(f"{line}\n" for line in lines).encode()
    if not arg.buffer_bytes:
        arg.used_bytes = len(data)
        return 0, [b""]
    data = data[: arg.buffer_bytes]
    arg.used_bytes = len(data)
    return 0, [data]
