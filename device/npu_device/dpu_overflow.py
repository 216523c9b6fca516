"""Results of a DPU task that left fp16's range.

They are looked at once they are rounded. When none is infinite, which is the rule, that is all. Otherwise the task is
computed a second time with float32 results, which tell values that were finite before from those that were not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from npu_model import casts, dtypes

from npu_device import dpu_compute
from npu_device.dpu_work import Work
from npu_device.scratch import Scratch


def overflows(work: Work, results: dpu_compute.Results, view: dpu_compute.View, numerics: str, scratch: Scratch) -> int:
    """Return how many of a DPU task's `results` were finite before they became fp16 infinities.

    The other arguments are those that the results were computed from.
    """
    if work.invariant.out_dtype != dtypes.F16 or not any(casts.f16_infinities(bits) for _, bits in results):
        return 0
    record, variants = work.records
    wide = record.copy()
    wide["out_dtype"] = dtypes.F32
    wide["out_stride_x"] = 4 * int(wide["out_z"])
    wide["out_stride_y"] = int(wide["out_stride_x"]) * int(wide["out_x"])

    def read_only(
        address: int, shape: tuple[int, ...], strides: tuple[int, ...], kind: np.dtype[Any], write: bool
    ) -> dpu_compute.Array:
        return np.empty(shape, kind) if write else view(address, shape, strides, kind, False)

    values = dpu_compute.compute(Work.decode(wide, variants), read_only, numerics, "auto", scratch)
    return sum(casts.f16_overflows(bits.view(np.float32)) for _, bits in values)
