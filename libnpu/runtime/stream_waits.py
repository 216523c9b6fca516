"""Waits for the work of streams, and questions about it."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, cast

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.arguments import instance_of
from libnpu.runtime.dependencies import waits_for
from libnpu.runtime.guard import public
from libnpu.runtime.job import Job
from libnpu.runtime.stream_queue import StreamQueue
from libnpu.runtime.time import FOR_EVER_PS, LAST_PS, timeout_ps

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from libnpu.runtime.stream import Stream

QUERIES = 8  # chosen: under a seed a query takes twice as long each so many times that it finds the same oldest job
MOST_DOUBLINGS = 20  # chosen: with queries of 500 ns it then takes half a second


class StreamWaits(StreamQueue):
    """The part of `Stream` that is about waiting."""

    @public
    def synchronize(self, timeout_ns: float | None = None) -> None:
        """Wait for everything enqueued so far, for `timeout_ns` at most (None, infinity: for ever).

        Raises the first error of that work which was not raised before, or TIMEOUT; INVALID_VALUE for a negative time;
        BARRIER_DEADLOCK when it waits for something that nothing will signal.
        """
        self._synchronize(timeout_ns, waited=True)

    @public
    def synchronize_to(self, job: Job) -> None:
        """As `synchronize`, for what was enqueued up to `job`; INVALID_VALUE for another stream's."""
        self._check_own(job)
        self._check_waitable()
        deadline = self._deadline(None)
        if not job.done:
            self.context.dispatcher.need(job)
        while not job.done:
            self._finish_in_time(self._jobs[0], deadline, None)
        self.note_known(job.number, waited=True)
        self.raise_failed()

    def __await__(self) -> Generator[Any, None, None]:
        """Let the task wait for everything enqueued so far; raises as `synchronize`."""
        from libnpu.runtime.aio import wait_stream  # asyncio takes long to import

        return wait_stream(self).__await__()

    @public
    def wait(self, job: Job, timeout_ns: float | None = None) -> None:
        """Wait for one job of this stream, and raise its error, each time, or TIMEOUT; INVALID_VALUE for another's job."""
        self._check_own(job)
        timeout_ps(timeout_ns)  # raises
        if self.capturing is not None:
            self._check_waitable()
        if not job.done:
            self.context.check()
            deadline = self._deadline(timeout_ns)
            self._await(job, deadline)
            while not job.done:
                self._finish_in_time(self._jobs[0], deadline, timeout_ns)
        self.note_known(job.number, waited=True)
        self._raise_error_of(job)

    @public
    def query(self) -> bool:
        """Return whether all work has finished. Raises the first error of it which was not raised before."""
        self._enter()
        if self._jobs:
            self.context.dispatcher.need(self._jobs[-1])
        self._reap()
        if self._jobs:
            self.asked_in_vain()
        else:
            self.note_known(self._cell.last, whole=True)
        self.raise_failed()
        return not self._jobs

    @public
    def query_job(self, job: Job) -> bool:
        """Return whether one job of this stream has finished. Raises its error, each time; INVALID_VALUE for another's job."""
        self._check_own(job)
        self.context.enter()
        if not job.done:
            self.context.dispatcher.need(job)
            self._reap()
        if job.done:
            self.note_known(job.number)
        else:
            self.asked_in_vain()
        self._raise_error_of(job)
        return job.done

    @property
    @public
    def fence(self) -> int:
        """How many operations of the stream have ended, as the device wrote it to the stream's cell."""
        self.check_open()
        self._node.catch_up()
        return self.context.fences.value(self._cell) - self._first

    # ---- inside ----

    def finish_all(self, deadline_ps: int = FOR_EVER_PS) -> bool:
        """Wait for the work that there is, and keep its errors for the call that asks for them. False when it cannot end, or has
        not by the deadline.
        """
        last = self._cell.last
        if self._jobs:
            self._await(self._jobs[-1], deadline_ps)
        while self._jobs and self._jobs[0].number <= last:
            if not self.finish(self._jobs[0], deadline_ps):
                return False
        self.note_known(last, whole=True)
        return True

    def complete(self) -> None:
        """As `synchronize`, in a call that does more than wait."""
        self._synchronize(None, waited=False)

    def _synchronize(self, timeout_ns: float | None, *, waited: bool) -> None:
        self._check_waitable()
        deadline, last = self._deadline(timeout_ns), self._cell.last
        if self._jobs:
            self._await(self._jobs[-1], deadline)
        while self._jobs and self._jobs[0].number <= last:  # other threads may enqueue more and more
            job = self._jobs[0]
            finished = self.finish(job, deadline)
            if not finished:
                self._raise_unfinished(job, finished, timeout_ns)
        self.note_known(last, waited=waited, whole=True)
        self.raise_failed()

    def asked_in_vain(self) -> None:
        """A query has found the stream's oldest job in flight. Under a seed, which may stretch that a million times, the host takes longer
        to ask again, so that it asks no million times.
        """
        if not self._jobs:
            return
        job = self._jobs[0]
        job.asked += 1
        if self.context.device.schedule.seed is not None:
            self._node.advance(self._api_ps * ((1 << min(job.asked // QUERIES, MOST_DOUBLINGS)) - 1))

    def note_known(self, number: int, *, waited: bool = False, whole: bool = False) -> None:
        """The calling thread learns that the jobs up to `number` have ended; `waited`: by a call that is for that; `whole`: by one that
        is about all of the stream.
        """
        if self.context.observer is not None:
            self.context.observer.known(cast("Stream", self), number, waited=waited, whole=whole)

    def _check_own(self, job: Job) -> None:
        if instance_of(job, Job, "job").stream is not self:
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, "the job is another stream's")

    def _deadline(self, timeout_ns: float | None) -> int:
        """Let the host make a call that waits, and return the time at which it gives up."""
        duration_ps = timeout_ps(timeout_ns)
        self._node.advance(self._api_ps)
        if duration_ps is None:
            return FOR_EVER_PS
        deadline = self._machine.now_ps + duration_ps
        return deadline if deadline <= LAST_PS else FOR_EVER_PS

    def _await(self, job: Job, deadline_ps: int) -> None:
        """Say that `job` and what is before it will be waited for."""
        self.context.dispatcher.need(job)
        if job.submitted and not job.done and job.bo is not None:
            self._node.wait_ahead(job.bo.handle, deadline_ps)

    def _finish_in_time(self, job: Job, deadline_ps: int, timeout_ns: float | None) -> None:
        """Wait for the oldest job. Raises TIMEOUT, BARRIER_DEADLOCK."""
        finished = self.finish(job, deadline_ps)
        if not finished:
            self._raise_unfinished(job, finished, timeout_ns)

    def _raise_unfinished(self, job: Job, finished: bool | None, timeout_ns: float | None) -> None:
        """Raise what `finish` has found."""
        if finished is None:
            raise NpuError(
                C.NPU_ERROR_BARRIER_DEADLOCK,
                f"the device is idle and {job.operation.name!r}{job.where} cannot end: {waits_for(job)}",
                errno=errno.EDEADLK,
                job=job,
                operation=job.operation.name,
                enqueue_site=job.site or None,
            )
        raise NpuError(C.NPU_TIMEOUT, f"{len(self._jobs)} operations have not finished after {timeout_ns} ns")
