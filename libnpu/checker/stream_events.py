"""What the program has streams do, and what it is told of that: jobs, what they wait for, and waits of the host."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from npu_abi import C

from libnpu.checker import rules
from libnpu.checker.host_events import HostEvents
from libnpu.checker.sources import Source, rows_of
from libnpu.checker.steps import HOST, Act, Step
from libnpu.runtime.command_list import Batch
from libnpu.runtime.copy_operations import Copy, Free
from libnpu.runtime.graph_parts import Part
from libnpu.runtime.host_functions import Gate
from libnpu.runtime.ipc_event import IpcEvent
from libnpu.runtime.operation import FenceWait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libnpu.checker.guarded import Pages
    from libnpu.checker.histories import ContextWatch
    from libnpu.runtime.buffer import Buffer
    from libnpu.runtime.job import Job
    from libnpu.runtime.operation import Operation
    from libnpu.runtime.stream import Stream

POISON = 0xFF


def operation_of(job: Job) -> Operation:
    """Return what a job does; of a launch of a graph, what its node does."""
    node = job.operation.alone if isinstance(job.operation, Part) else None
    return node.operation if node is not None else job.operation


def _is_upload(operation: Operation) -> bool:
    """Return whether an operation copies pinned memory to the device's."""
    target, source = operation.buffers if isinstance(operation, Copy) else (None, None)
    device = C.NPU_MEMORY_DEVICE
    return target is not None and source is not None and target.kind == device and source.kind != device


class StreamEvents(HostEvents):
    """Is told of jobs of streams and of events."""

    poisons = True  # destinations in pinned memory, from the enqueuing on

    def __init__(self, *, lint: bool = False, guard: Pages | None = None) -> None:
        super().__init__(lint=lint, guard=guard)
        self._heeded: set[tuple[object, Step]] = set()  # records that somebody waited for
        # the last reset of an event, behind the record that it took back
        self._resets: WeakKeyDictionary[object, tuple[Step | None, Act]] = WeakKeyDictionary()

    def prepared(self, job: Job) -> None:
        """As Observer."""
        watched, operation = self._watched[job.stream.context], operation_of(job)
        history = self._history(watched, job.stream)
        for copy in operation.operations if isinstance(operation, Batch) else (operation,):
            if isinstance(copy, Copy) and copy.buffers[1].kind != C.NPU_MEMORY_DEVICE:
                sources = watched.sources.setdefault((history.actor, job.number), [])
                sources.append(Source(copy.buffers[1], copy.source))
                if self._lint is not None:
                    self._lint.reads(copy.buffers[1], sources[-1].digest)
                if not copy.buffers[1].is_snooped:
                    self._check_flushed(watched, job, sources[-1])
        if not (isinstance(operation, Copy) and self.poisons):
            return
        target = operation.buffers[0]
        if target.kind != C.NPU_MEMORY_DEVICE and target.is_snooped and not self._may_be_read(watched, target):
            for memory in rows_of(target.program_view, target, operation.target):
                memory[:] = bytes([POISON]) * len(memory)

    def enqueued(self, job: Job) -> None:
        """As Observer."""
        watched = self._watched[job.stream.context]
        history = self._history(watched, job.stream)
        what, is_free = operation_of(job).name, isinstance(job.operation, Free)
        node = job.operation.alone if isinstance(job.operation, Part) else None
        captured = node.site if node is not None else ""
        is_launch = operation_of(job).kind in ("kernel", "model")
        act = Act(
            what,
            history.name,
            job.site,
            self._next_order(),
            job.enqueue_ps,
            is_free,
            captured,
            is_launch,
            job.name,
            context=job.stream.context.number,
            is_upload=_is_upload(operation_of(job)),
            real_ns=time.monotonic_ns(),
        )
        untold = dict(self._untold) if self._untold is not None else None
        step = Step(watched, history.actor, job.number, act, dict(self._clock), history.behind, untold=untold)
        history.behind = []
        if history.last is not None:
            step.befores.append(history.last)
        own = (job.operation.signal,) if isinstance(job.operation, FenceWait) else ()
        for signal in (*job.signals, *own):
            if signal.job is None:
                step.signals.append(signal)
            else:
                self._add_before(step, signal.job)
        for other in self._implicit(watched, job.stream):
            step.befores.append(other)
        self._see_faults()
        if self._guarded is not None:
            self._guarded.enqueued(job, operation_of(job), history.actor)
        history.steps[job.number] = history.last = step
        watched.pending[step] = None
        self._clock = {**self._clock, HOST: self._clock[HOST] + 1}
        if self._lint is not None:
            self._lint.enqueued(step)

    def submitted(self, job: Job, job_id: int, from_ps: int) -> None:
        """As Observer."""
        watched = self._watched[job.stream.context]
        actor = self._history(watched, job.stream).actor
        watched.jobs.setdefault(job_id, []).append((from_ps, actor, job.number))

    def ordered(self, stream: Stream, job: Job) -> None:
        """As Observer."""
        step = self._step_of(job)
        if step is not None:
            self._history(self._watched[stream.context], stream).behind.append(step)

    def recorded(self, event: object, before: Job | None, job: Job) -> None:
        """As Observer."""
        old, new = self._step_of(before) if before is not None else None, self._step_of(job)
        if old is not None and new is not None and (event, old) not in self._heeded:
            self._overwritten_records.setdefault(old.actor, []).append((event, old, new))

    def waited(self, event: object, job: Job | None, stream: Stream | None, *, asks: bool = False) -> None:
        """As Observer."""
        if job is None:
            self._waits_for_nothing(event, stream, asks=asks)
        elif (step := self._step_of(job)) is not None:
            self._heeded.add((event, step))

    def reset(self, event: object, job: Job) -> None:
        """As Observer."""
        self._resets[event] = self._step_of(job), self._act(job.stream.context, "reset of an event")

    def known(self, stream: Stream, number: int, *, waited: bool, whole: bool) -> None:
        """As Observer."""
        watched = self._watched[stream.context]
        history = watched.streams.get(stream)
        if history is None:
            return
        self._see_faults()
        last, steps = history.last, []
        if whole:
            steps += history.behind  # what is over: the stream has no command for it
        if last is not None and (step := history.steps.get(number) or last).epoch <= number:
            steps.append(step)
        if not steps:
            return  # nothing of the stream was enqueued since the check began up to this number
        is_new = any(self._clock.get(step.actor, -1) < step.epoch for step in steps)
        if self._lint is not None and (waited or is_new):
            act = self._act(watched.context, "wait")
            self._waiting = act if waited else None
            if waited:
                self._lint.waited(act, is_new=is_new)
            else:
                self._lint.told(act)
        self._come_behind(steps)
        self._waiting = None
        history.forget(number)

    def closed(self, stream: Stream) -> None:
        """As Observer."""
        for job in stream.untold:
            step = self._step_of(job)
            if step is not None and job.error is not None and job.error.result != C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR:
                self._report(rules.lost_error(step.act, str(job.error)))

    # ---- inside ----

    def _waits_for_nothing(self, event: object, stream: Stream | None, *, asks: bool) -> None:
        """Report that a stream or the host (None) waits for an event without a record, or asks for the end of work by it. A record
        whose work the host knows to have ended was not taken back too early.
        """
        context = event.context  # type: ignore[attr-defined]
        who = self._history(self._watched[context], stream).name if stream is not None else "the host"
        act = self._act(context, "query of an event" if asks else "wait for an event")
        record, reset = self._resets.get(self._known_as(event), (None, None))
        if reset is not None and record is not None and self._clock.get(record.actor, -1) < record.epoch:
            self._report(rules.early_reset(record.act, reset, act, who, asks=asks))
        elif not asks:
            by_others = isinstance(event, IpcEvent) and event.was_recorded
            self._report(rules.wait_unrecorded(act, who, reset, by_others=by_others))

    def _may_be_read(self, watched: ContextWatch, memory: Buffer) -> bool:
        """Return whether something that was enqueued uses pinned memory, or has evidence in its bytes, or may look at it: a host function."""
        sources = (source for several in watched.sources.values() for source in several)
        jobs = (job for context in self._watched for stream in context.streams for job in stream.jobs)
        return (
            any(source.buffer is memory for source in sources)
            or any(isinstance(job.operation, Gate) for job in jobs)
            or bool(watched.context.jobs_using(memory.handle))
        )

    def _known_as(self, event: object) -> object:
        """Return what stands for an event, whoever has it."""
        return event

    def _check_flushed(self, watched: ContextWatch, job: Job, source: Source) -> None:
        """Report that the program has stored to what a copy reads, and not flushed it, without having been seen."""
        buffer, rows = source.buffer, source.rows
        act = Act(
            job.operation.name, self._history(watched, job.stream).name, job.site, self._next_order(), job.enqueue_ps
        )
        allocation = watched.allocations.find(buffer.device_address, act.order)
        if allocation is None or allocation.cache is None or watched.context.jobs_using(buffer.handle):
            return
        start = rows.start - buffer.device_address
        end = start + rows.extent
        if not allocation.cache.is_known(start, end) and not source.is_flushed:
            self._report(rules.unflushed(allocation, start, end, act))

    def _implicit(self, watched: ContextWatch, stream: Stream) -> Iterator[Step]:
        """What a job of a blocking stream comes behind by the rules of a legacy default stream, ended or not."""
        context = watched.context
        if not (context.semantics.legacy_default_stream and stream.blocking):
            return
        for other, history in watched.streams.items():
            among = context.is_default(stream) or context.is_default(other)
            if other is not stream and other.blocking and among:
                yield from filter(None, (history.last, *history.behind))
