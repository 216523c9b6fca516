"""What can go wrong, as Python sees it: one exception class for results of enum npu_result, two for limits.

errno and job status become a result here and nowhere else; `NpuError` carries what else is known.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from npu_abi import C, name_of
from npu_abi import enum as abi_enum

if TYPE_CHECKING:
    from collections.abc import Sequence

Result: type[IntEnum] = abi_enum("npu_result")

_BY_ERRNO = {
    errno.EINVAL: C.NPU_ERROR_INVALID_VALUE,
    errno.ENOTTY: C.NPU_ERROR_NOT_SUPPORTED,
    errno.ENOENT: C.NPU_ERROR_INVALID_HANDLE,
    errno.EBADF: C.NPU_ERROR_STALE_HANDLE,
    errno.EFAULT: C.NPU_ERROR_BAD_ADDRESS,
    errno.EBUSY: C.NPU_ERROR_OUT_OF_RESOURCES,
    errno.EPERM: C.NPU_ERROR_NOT_PERMITTED,
    errno.EMFILE: C.NPU_ERROR_OUT_OF_RESOURCES,
    errno.EAGAIN: C.NPU_ERROR_OUT_OF_RESOURCES,
    errno.ENOSPC: C.NPU_ERROR_OUT_OF_DEVICE_MEMORY,
    errno.ENOMEM: C.NPU_ERROR_OUT_OF_DEVICE_MEMORY,
    errno.ENOBUFS: C.NPU_ERROR_OUT_OF_HOST_MEMORY,  # the machine that simulates the device has no more
    errno.EOWNERDEAD: C.NPU_ERROR_INVALID_HANDLE,
    errno.EALREADY: C.NPU_ERROR_INVALID_VALUE,
    errno.ETIMEDOUT: C.NPU_ERROR_DEVICE_LOST,  # the firmware does not answer; of a wait it is NPU_TIMEOUT (stream.py)
    errno.EBADMSG: C.NPU_ERROR_DEVICE_LOST,  # the firmware answers something else
    errno.EDEADLK: C.NPU_ERROR_BARRIER_DEADLOCK,
    errno.EBADFD: C.NPU_ERROR_DEVICE_LOST,
    errno.ENODEV: C.NPU_ERROR_DEVICE_LOST,
    errno.EIO: C.NPU_ERROR_DEVICE_LOST,
}
_BY_JOB_STATUS = {
    C.NPU_JOB_PARSING_ERR: C.NPU_ERROR_INVALID_BLOB,
    C.NPU_JOB_PREEMPTED: C.NPU_ERROR_PREEMPTED,
    C.NPU_JOB_CTX_VIOLATION: C.NPU_ERROR_DEVICE_PAGE_FAULT,
    C.NPU_JOB_DEADLOCK: C.NPU_ERROR_BARRIER_DEADLOCK,
    C.NPU_JOB_BARRIER_UNDERFLOW: C.NPU_ERROR_BARRIER_UNDERFLOW,
    C.NPU_JOB_SHAVE_FAULT: C.NPU_ERROR_KERNEL_FAULT,
}


_BY_ABORT_REASON = {
    C.NPU_ABORT_HUNG: C.NPU_ERROR_WATCHDOG_TIMEOUT,
    C.NPU_ABORT_RESET: C.NPU_ERROR_DEVICE_LOST,
    C.NPU_ABORT_NOT_REPORTED: C.NPU_ERROR_DEVICE_LOST,
    C.NPU_ABORT_UNPLUGGED: C.NPU_ERROR_DEVICE_LOST,
}


@dataclass(frozen=True, slots=True)
class Asked:
    """Bytes [start, end) that a call has asked for of memory that has `size`: of a buffer of the runtime, from byte `offset` of it on, or
    of the program's own memory (None).
    """

    start: int
    end: int
    size: int
    buffer: object = None
    offset: int = 0

    @property
    def outside(self) -> int:
        """How many of them the memory does not have; 0 for a range that is wrong in another way."""
        length, most = (
            max(0, self.end - self.start),
            max(0, -self.start) + max(0, max(self.start, self.end) - self.size),
        )
        return min(length, most) if length else most


class NpuError(Exception):
    """A call or a job that failed.

    `result` is of enum npu_result. `errno` is the driver's, 0 when it was not asked. Of a failed job: `job_id`,
    `job_status` (enum npu_job_status), `error_detail`, `error_info` (struct npu_jsm_job_done) `task`, the name of the
    task when it is known, `job`, the launch, `operation`, its name, and `enqueue_site`, where it was enqueued: "file:line",
    or a code address when C did. `gone`: address of memory that was given back, and is used. `asked`:
    the range of a call that leaves its memory.
    """

    def __init__(
        self,
        result: int,
        message: str,
        *,
        errno: int = 0,
        job_id: int = 0,
        job_status: int = 0,
        error_detail: int = 0,
        error_info: int = 0,
        task: str | None = None,
        job: object = None,
        operation: str | None = None,
        enqueue_site: str | int | None = None,
        gone: int = 0,
        asked: Asked | None = None,
    ) -> None:
        super().__init__(f"{name_of('npu_result', result)}: {message}")
        self.result = result
        self.message = message
        self.errno = errno
        self.job_id = job_id
        self.job_status = job_status
        self.error_detail = error_detail
        self.error_info = error_info
        self.task = task
        self.job = job
        self.operation = operation
        self.enqueue_site = enqueue_site
        self.gone = gone
        self.asked = asked


class Unsupported(NpuError):
    """Something that this software does not do, by design; the message names it. `layers`: the nodes of a model that it speaks of,
    where the message has only what became of them.
    """

    layers: Sequence[str] = ()

    def __init__(self, message: str) -> None:
        super().__init__(C.NPU_ERROR_NOT_SUPPORTED, message)


class Unimplemented(NpuError):
    """Something that this software does not do yet; the message names it. `layers`: as of Unsupported."""

    layers: Sequence[str] = ()

    def __init__(self, message: str) -> None:
        super().__init__(C.NPU_ERROR_UNIMPLEMENTED, message)


def errno_error(code: int, what: str, log: Sequence[str] = ()) -> NpuError:
    """Return the NpuError of driver answer -`code` to call `what`; the last line of the kernel's `log` with its name says why: what the driver
    did about it may stand behind.
    """
    result = _BY_ERRNO.get(code, C.NPU_ERROR_INTERNAL)
    name = errno.errorcode.get(code, str(code))
    last = log[-1] if log else ""
    if f"{name}: " not in last:
        last = next((line for line in reversed(log) if f"{name}: " in line), "")
    why = last.partition(f"{name}: ")[2]
    message = f"{what}: {why or os.strerror(code)} ({name})"
    return Unimplemented(message) if code == errno.EOPNOTSUPP else NpuError(result, message, errno=code)


def job_result(status: int, detail: int = 0) -> int:
    """Return the enum npu_result of a finished job's enum npu_job_status and error_detail."""
    if status == C.NPU_JOB_SUCCESS:
        return int(C.NPU_SUCCESS)
    if status == C.NPU_JOB_SHAVE_FAULT and detail >> 32 == C.NPU_SHAVE_FAULT_NEEDS_VALUES:
        return int(C.NPU_ERROR_NOT_SUPPORTED)
    if status == C.NPU_JOB_ABORTED:
        return int(_BY_ABORT_REASON.get(detail, C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR))
    if status == C.NPU_JOB_PROCESSING_ERR:
        return int(C.NPU_ERROR_DMA_FAULT if detail == C.NPU_ENGINE_DMA else C.NPU_ERROR_INVALID_BLOB)
    return _BY_JOB_STATUS.get(status, int(C.NPU_ERROR_INTERNAL))
