"""From an exception to a result of npu.h: the one place where the two meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from npu_abi import C

from libnpu.blob.image import BlobError
from libnpu.capi.refusal import Refusal
from libnpu.errors import Unimplemented, Unsupported


@dataclass(frozen=True, slots=True)
class Report:
    """What a call answers."""

    result: int
    message: str
    job: Any = None  # the operation of an earlier call that failed
    job_id: int = 0


def result_of(error: Exception) -> Report | None:
    """Return what C is told about `error`, None when it is a defect of the library."""
    message = str(error)
    match error:
        case Refusal():
            return Report(error.result, message)
        case BlobError():
            return Report(C.NPU_ERROR_INVALID_BLOB, message)
        case Unsupported():
            return Report(C.NPU_ERROR_NOT_SUPPORTED, message)
        case Unimplemented():
            return Report(C.NPU_ERROR_UNIMPLEMENTED, message)
        case MemoryError():
            return Report(C.NPU_ERROR_OUT_OF_HOST_MEMORY, message or "not enough host memory")
        case _:
            return None
