"""asyncio: `await stream`, `await event`, `await job`, with virtual time alone.

A task that waits gives its loop a future for a job. While other tasks are ready they run, and enqueue more. When every
task waits, the loop's turn comes:

1. The device runs until the first of the awaited jobs has ended, the calling thread blocked as in any other wait.
2. The futures of the jobs that have ended by then get their results, in the order of the ends, equal ends in the order
   of the awaits; their tasks go on at that time, each taking note of its job with an ordinary wait.
3. The next turn comes when all tasks wait again.

No clock of the machine and no thread has a say, so the same program always runs the same way. What tasks wait for besides
the device (timers, I/O) is not waited for: it is in no order with virtual time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from libnpu.errors import Unsupported
from libnpu.runtime.guard import public
from libnpu.runtime.host_participants import Target
from libnpu.runtime.host_threads import HOST

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

    from libnpu.runtime.event import Event
    from libnpu.runtime.guard import Guard
    from libnpu.runtime.job import Job
    from libnpu.runtime.stream_waits import StreamWaits
    from libnpu.syscalls import Machine

PATIENCE = 1000  # chosen: turns after which tasks that are always ready, without end, no longer hold the device up


class Await:
    """A turn's call of the device."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard

    @public
    def first(self, jobs: list[Job]) -> dict[Job, int]:
        """Run the device until one of `jobs`, of one machine, has ended. Return those that have, and when the host learns
        of it; none when nothing is left that could end them.
        """
        for job in jobs:
            if not job.done:
                job.stream.context.dispatcher.need(job)
        found = {job: job.end_ps for job in jobs if job.done}
        if found:
            return found
        targets = {job: Target(job.stream.context.node, job.bo.handle, job) for job in jobs if job.bo is not None}
        HOST.wait_for_first(self.guard.node, list(targets.values()))
        return {job: target.done_ps for job, target in targets.items() if target.done_ps is not None}


class Waits:
    """What the tasks of a loop wait for, in the order of their awaits."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        if not hasattr(loop, "_ready"):
            raise Unsupported(f"await on {type(loop).__name__}: the loop does not tell when all its tasks wait")
        self._loop = loop
        self._waiting: list[tuple[Job, Future[None]]] = []
        self._is_scheduled = False
        self._postponed = 0

    def add(self, job: Job) -> Future[None]:
        """Return a future that is done when `job` has ended, or cannot."""
        future: Future[None] = self._loop.create_future()
        self._waiting.append((job, future))
        self._schedule()
        return future

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Run the device if all tasks wait."""
        self._is_scheduled = False
        self._waiting = [(job, future) for job, future in self._waiting if not future.done()]  # others were cancelled
        if not self._waiting:
            return
        # What a loop is about to run is no part of its public face; CPython's loops have had this deque since 3.4.
        if self._loop._ready and self._postponed < PATIENCE:
            self._postponed += 1
        else:
            self._postponed = 0
            self._advance()
        self._schedule()

    def _advance(self) -> None:
        """Let the first jobs end. When nothing is left that could end any, the first wait has to say why."""
        machines: dict[Machine, list[Job]] = {}
        for job, _ in self._waiting:
            machines.setdefault(job.stream.context.node.machine, []).append(job)
        ended: dict[Job, int] = {}
        for jobs in machines.values():
            context = jobs[0].stream.context
            lost = [job for job in jobs if not job.stream.context.node.is_usable]
            ended = dict.fromkeys(lost, 0) if lost else Await(context.guard).first(jobs)
            if ended:
                break
        if not ended:
            ended = {self._waiting[0][0]: 0}
        done = [(ended[job], number, future) for number, (job, future) in enumerate(self._waiting) if job in ended]
        for _, _, future in sorted(done, key=lambda entry: entry[:2]):
            future.set_result(None)


_LOOPS: WeakKeyDictionary[AbstractEventLoop, Waits] = WeakKeyDictionary()


async def _end_of(job: Job) -> None:
    if not job.done:
        loop = asyncio.get_running_loop()
        if loop not in _LOOPS:
            _LOOPS[loop] = Waits(loop)
        await _LOOPS[loop].add(job)


async def wait_job(job: Job) -> None:
    """Wait for a job; raises its error."""
    await _end_of(job)
    job.stream.wait(job)


async def wait_event(event: Event) -> None:
    """Wait for what an event has recorded as of now; raises as `Event.synchronize`."""
    job = event.recorded()
    if job is None or job.done:
        event.synchronize()
    else:
        await wait_job(job)


async def wait_stream(stream: StreamWaits) -> None:
    """Wait for what was enqueued so far; raises as `Stream.synchronize`."""
    job = stream.last_job
    if job is None or stream.capturing is not None:
        stream.synchronize()
    else:
        await _end_of(job)
        stream.synchronize_to(job)
