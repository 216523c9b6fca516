"""Dispatchers of schedules: what runs jobs at once, and what holds them back (`schedule.py`)."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.dispatch import Dispatcher
from libnpu.runtime.time import FOR_EVER_PS, NEVER_PS
from libnpu.syscalls import Request

if TYPE_CHECKING:
    from libnpu.runtime.context import Context
    from libnpu.runtime.fences import Signal
    from libnpu.runtime.job import Job
    from libnpu.runtime.stream import Stream


class UntilIdle:
    """Runs a context's device until it is idle, and lets the host find everything done."""

    def __init__(self, context: Context) -> None:
        self._node = context.node
        self._interrupt_ps = round(context.profile.host.interrupt_ns * 1000)

    def __call__(self) -> None:
        """Run it."""
        node = self._node
        while True:
            run = Request(C.NPU_IOCTL_EMU_RUN, "npu_emu_run", "EMU_RUN")
            run.arg.until_ps = NEVER_PS
            node.ioctl(run)
            if not run.arg.interrupts:
                break
        node.advance(max(0, run.arg.now_ps + self._interrupt_ps - node.now_ps))


class Eager(Dispatcher):
    """Hands a job over and runs everything that can run."""

    def __init__(self, context: Context) -> None:
        self._run = UntilIdle(context)

    def submit(self, job: Job) -> None:
        """Hand a job over and run everything that can run."""
        super().submit(job)
        self._run()


class Lazy(Dispatcher):
    """Holds jobs back until somebody needs them."""

    holds_back = True

    def __init__(self, context: Context) -> None:
        self._context = context
        self._held: dict[Job, None] = {}  # in the order in which they were enqueued
        self._awaited: set[int] = set()  # identities of signals that jobs on the device wait for, and nobody gives yet

    def submit(self, job: Job) -> None:
        """Hold a job back, unless what is on the device waits for it."""
        self._held[job] = None
        if any(id(signal) in self._awaited for signal in job.written):
            self.hand_over(job)

    def need(self, job: Job) -> None:
        """Hand over `job`, what is before it in its stream, and what those wait for."""
        self.hand_over(job)

    def let_go(self, job: Job) -> None:
        """As Dispatcher."""
        self.hand_over(job)

    def discard(self, stream: Stream) -> None:
        """Forget the held jobs of a stream."""
        self._held = {job: None for job in self._held if job.stream is not stream}

    def hand_over(self, job: Job) -> None:
        """Submit a job and all that it depends on, in the order in which they were enqueued."""
        needed = self._needed(job)
        for before in needed:
            self._awaited.update(id(signal) for signal in before.signals if signal.job is None)
        self._forget_submitted()
        full: set[Stream] = set()
        for held in [held for held in self._held if held in needed]:
            if held in self._held and held.stream not in full and not self._submit(held):  # else another thread has
                full.add(held.stream)
            record = held.operation.record
            if held.submitted and record is not None and not (record.submitted or record.done):
                record.stream.context.dispatcher.need(record)

    def _needed(self, job: Job) -> set[Job]:
        """Return what is held of `job` and of all that must end before it."""
        needed: set[Job] = set()
        open_jobs = [job]
        while open_jobs:
            last = open_jobs.pop()
            if last.submitted or last.done or last in needed:
                continue
            for before in last.stream.jobs:
                if not before.submitted and before not in needed:
                    needed.add(before)
                    open_jobs += [signal.job for signal in before.signals if signal.job is not None]
                if before is last:
                    break
        return needed

    def _has_all(self, job: Job) -> bool:
        """Whether all is given that a job waits for, besides its predecessor."""
        record = job.operation.record
        return all(self._is_given(signal) for signal in job.signals) and (record is None or self._has_ended(record))

    def _is_given(self, signal: Signal) -> bool:
        return signal.over or self._context.fences.value(signal.cell) >= signal.value

    @staticmethod
    def _has_ended(job: Job) -> bool:
        """Whether the device has ended a job, of any context; the host may not have been told."""
        if job.done or not job.submitted:
            return job.done
        signal = job.stream.signal_of(job)
        return job.stream.context.fences.value(signal.cell) >= signal.value

    def _forget_submitted(self) -> None:
        """Forget held jobs that a job behind them has taken along, for another thread maybe."""
        gone = [job for job in self._held if job.submitted or job.done]
        for job in gone:
            del self._held[job]

    def _submit(self, job: Job) -> bool:
        """Hand a job over. False when a full queue does not take it: it stays held. When the driver refuses it for
        another reason, it has failed.
        """
        del self._held[job]
        try:
            job.stream.submit(job)
        except NpuError as error:
            if error.errno == errno.EBUSY:
                self._held = {job: None, **self._held}
                return False
            job.stream.refuse(job, error)
        return True


class NewestFirst(Lazy):
    """Runs one job after the other, the newest first."""

    def need(self, job: Job) -> None:
        """Run ready jobs to their ends, the newest first, until `job` is done. What then still waits, waits for a host
        function or another thread: it is handed over, and the caller waits for it.
        """
        while not job.done:
            self._forget_submitted()
            ready = next((held for held in reversed(self._held) if self._is_ready(held)), None)
            if ready is None:
                self.hand_over(job)
                return
            if not self._submit(ready):
                return
            while not ready.done:
                if ready.stream.finish(ready.stream.jobs[0], FOR_EVER_PS) is None:
                    return

    def _is_ready(self, job: Job) -> bool:
        return job is job.stream.jobs[0] and self._has_all(job)
