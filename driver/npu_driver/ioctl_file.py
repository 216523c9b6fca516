"""Handlers: open, close, poll, and the device as a whole."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from npu_driver.error import KernelError
from npu_driver.ioctl_job import FOR_EVER, wait

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
    while True:
        if context.unwaited:
            first_ps = min(job.done_ps for job in context.unwaited.values())
            if first_ps > max(kernel.now_ps, arg.deadline_ps):
                break
            kernel.now_ps = max(kernel.now_ps, first_ps)
            arg.ready_jobs = sum(job.done_ps <= kernel.now_ps for job in context.unwaited.values())
            return 1, []
        if not context.jobs or not wait(kernel, context, _Any(context), arg.deadline_ps):
            break
    kernel.now_ps = max(kernel.now_ps, arg.deadline_ps if arg.deadline_ps < FOR_EVER else 0)
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
    """Reset the device; all jobs in flight, of every file, end as ABORTED. EIO when it does not boot again."""
    kernel.recover()
    return 0, []


def state_dump(kernel: Kernel, context: Context, arg: Any, segments: list[bytes]) -> tuple[int, list[Any]]:
    """Log the firmware's state: queues, heads of their rings, jobs, and the barriers that those wait for."""
    kernel.dump_state()
    return 0, []
