"""From an exception to a result of npu.h: the one place where the two meet."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from npu_abi import C

from libnpu.errors import NpuError

_HOST_LIMITS = {
    errno.ENOMEM: C.NPU_ERROR_OUT_OF_HOST_MEMORY,
    errno.EAGAIN: C.NPU_ERROR_OUT_OF_HOST_MEMORY,
    errno.EFBIG: C.NPU_ERROR_OUT_OF_HOST_MEMORY,
    errno.ENOSPC: C.NPU_ERROR_OUT_OF_HOST_MEMORY,
    errno.EMFILE: C.NPU_ERROR_OUT_OF_RESOURCES,
    errno.ENFILE: C.NPU_ERROR_OUT_OF_RESOURCES,
}


@dataclass(frozen=True, slots=True)
class Report:
    """What a call answers. `enqueue_site`, `job_id`: of the operation of an earlier call that failed, 0 when it is this call."""

    result: int
    message: str
    enqueue_site: int = 0
    job_id: int = 0


def result_of(error: Exception) -> Report | None:
    """Return what C is told about `error`, None when it is a defect of the library."""
    match error:
        case NpuError():
            site = error.enqueue_site
            return Report(error.result, error.message, site if isinstance(site, int) else 0, error.job_id)
        case MemoryError():
            return Report(C.NPU_ERROR_OUT_OF_HOST_MEMORY, str(error) or "not enough host memory")
        case OSError(errno=number) if number in _HOST_LIMITS:
            return Report(_HOST_LIMITS[number], str(error))
        case ImportError():
            return Report(C.NPU_ERROR_NOT_INITIALIZED, f"the library's Python environment is damaged: {error}")
        case _:
            return None
