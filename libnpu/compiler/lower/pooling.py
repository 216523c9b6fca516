"""One pooling window over a whole image as two steps: of the engine's blocks of 16 pixels it would fill one pixel.

The first step pools parts of the image, as many as fill blocks, with zeros behind its last rows and columns; the second one
pools the parts. Means of floats lie between them in float32, and make up for the zeros.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from npu_abi import C
from npu_model.dpu_walk import BLOCK_PIXELS

from libnpu.compiler.lower.dpu_ops import Window, task_cycles
from libnpu.compiler.lower.invariant import MAX_FIELD, ppe_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libnpu.compiler.lower.builder import Builder
    from libnpu.compiler.lower.dpu_ops import Job

_SLACK = 1.06  # of the work that more parts may take: they are more bands of rows; chosen


def in_two_steps(builder: Builder, job: Job) -> tuple[Job, Job] | None:
    """Return two jobs that pool what `job` does; None where that is no single window, or the engine is not faster by them."""
    rows, columns = image = job.act.shape[1:3]
    is_whole = (job.y.kernel, job.x.kernel) == image and not (job.y.pad or job.x.pad) and prod(job.out.shape[1:3]) == 1
    is_mean = job.op == C.NPU_DPU_AVGPOOL
    if not is_whole or not (is_mean or job.op == C.NPU_DPU_MAXPOOL) or (is_mean and job.act.dtype.kind != "f"):
        return None
    dtype = np.dtype(np.float32) if is_mean else job.act.dtype
    kernels = _kernels(rows, columns, dtype.itemsize // job.act.dtype.itemsize)
    if kernels is None:
        return None
    ky, kx = kernels
    parts, channels = (-(-rows // ky), -(-columns // kx)), job.act.shape[3]
    between = builder.storage(f"{job.node.name}.parts", (job.act.shape[0], *parts, channels), dtype)
    fields, last = ppe_fields(None), job.fields
    if is_mean:
        fields["flags"] = C.NPU_DPU_FLAG_COUNT_PAD
        last = last | {"ppe_scale": last["ppe_scale"] * ky * kx * prod(parts) / prod(image)}
    first = replace(job, out=between, y=Window(ky, ky), x=Window(kx, kx), fields=fields, follower=None, tail=None)
    second = replace(job, head=None, act=between, y=Window(parts[0]), x=Window(parts[1]), fields=last)
    two = task_cycles(builder, first, [(parts[0], channels)])[0] + task_cycles(builder, second, [(1, channels)])[0]
    if max(image) <= MAX_FIELD and task_cycles(builder, job, [(1, channels)])[0] <= two:
        return None
    return first, second


@lru_cache(maxsize=256)
def _kernels(rows: int, columns: int, wider: int) -> tuple[int, int] | None:
    """Return the rows and columns of a part: of parts that take about the least work those that are most rows of them.

    Elements of parts are `wider` times as large as those of the image.
    """

    def work(kernel: tuple[int, int]) -> int:
        y, x = -(-rows // kernel[0]), -(-columns // kernel[1])
        blocks = -(-y // BLOCK_PIXELS) * -(-x // BLOCK_PIXELS)
        return BLOCK_PIXELS**2 * (blocks * prod(kernel) + y * x * wider)

    found = [(y, x) for y in _sizes(rows) for x in _sizes(columns) if 1 < y * x < rows * columns]
    least = min(map(work, found), default=0)
    return min(
        (kernel for kernel in found if work(kernel) <= least * _SLACK),
        key=lambda kernel: (kernel[0], work(kernel)),
        default=None,
    )


def _sizes(count: int) -> Iterator[int]:
    """Yield the kernels along an axis that make few parts of it, or whole blocks of parts."""
    for parts in (1, 2, 3, *range(BLOCK_PIXELS, min(count, MAX_FIELD) + 1, BLOCK_PIXELS)):
        if parts <= count and -(-count // parts) <= MAX_FIELD:
            yield -(-count // parts)
