"""Room for what is enqueued as several jobs, all or none of them: it is made before the first is enqueued."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.time import FOR_EVER_PS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libnpu.runtime.context import Context
    from libnpu.runtime.job import Job
    from libnpu.runtime.stream import Stream

QUEUE_JOBS = int(C.NPU_JOBQ_SLOTS) - 1  # that a ring takes, besides the one that runs
CONTEXT_JOBS = 256  # ids of a context's jobs in flight


def make_room(context: Context, needed: Mapping[Stream, int]) -> None:
    """Wait until the streams' queues take so many more jobs each, by a stream. More than a queue takes at all: until
    it is empty.

    Raises OUT_OF_RESOURCES when the oldest job in the way cannot end. A schedule that holds jobs back needs no room.
    """
    if context.dispatcher.holds_back:
        return
    while (oldest := _in_the_way(context, needed)) is not None:
        if oldest.stream.finish(oldest, FOR_EVER_PS) is None:
            raise queue_is_full(oldest)


def queue_is_full(oldest: Job) -> NpuError:
    """Return the error of a call that cannot enqueue because `oldest` cannot end."""
    full = f"the queue is full, and {oldest.operation.name!r}{oldest.where} cannot end"
    return NpuError(C.NPU_ERROR_OUT_OF_RESOURCES, full, errno=errno.EBUSY)


def _in_the_way(context: Context, needed: Mapping[Stream, int]) -> Job | None:
    """Return the job that must end first, None when there is room."""
    for stream, count in needed.items():
        most = max(QUEUE_JOBS - count, 0)
        if len(stream.jobs) > most and not (stream.drained() or len(stream.jobs) <= most):
            return stream.jobs[0]
    waits = sum(len(stream.jobs) for stream in context.waiting_streams)
    most = max(CONTEXT_JOBS - waits - sum(needed.values()), 0)
    if sum(len(stream.jobs) for stream in context.streams) <= most:
        return None
    busy = [stream for stream in context.streams if not stream.drained()]
    if sum(len(stream.jobs) for stream in busy) <= most:
        return None
    return context.oldest_submitted() or busy[0].jobs[0]
