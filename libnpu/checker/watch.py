"""The checker's eyes and its order of events: told by the runtime what the program does, by the device what it touches.

Jobs are looked at when the program was told that they have ended, or at the end: by then the device has said which bytes
they read and wrote. What they must come behind has ended before them, and is looked at before.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING
from zlib import crc32

import npu_abi
from npu_abi import C

from libnpu.checker import rules
from libnpu.checker.allocations import Allocation, Allocations
from libnpu.checker.arrays import WatchedArray, site_of_array
from libnpu.checker.findings import Findings
from libnpu.checker.report import records, text
from libnpu.checker.shadow import Access, Shadow, State
from libnpu.checker.steps import HOST, Act, Step, join
from libnpu.errors import NpuError
from libnpu.runtime.command_list import Batch
from libnpu.runtime.copy_operations import Copy, Free
from libnpu.runtime.graph_parts import Part
from libnpu.runtime.guard import public
from libnpu.runtime.host_threads import HOST as THREADS
from libnpu.runtime.ipc import ImportedBuffer
from libnpu.runtime.observer import Observer
from libnpu.runtime.operation import FenceWait
from libnpu.runtime.records import read_records
from libnpu.runtime.site import line_of
from libnpu.syscalls import Request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray

    from libnpu.checker.findings import Finding
    from libnpu.checker.shadow import Clock
    from libnpu.runtime.buffer import Buffer
    from libnpu.runtime.context import Context
    from libnpu.runtime.job import Job
    from libnpu.runtime.operation import Operation
    from libnpu.runtime.stream import Stream
    from libnpu.runtime.transfers import Rows

POISON = 0xFF
RECORD = npu_abi.dtype("npu_access_record")
Run = tuple[int, int, bool]  # first address, bytes, whether it writes


class Ending:
    """The end of the check of a context, as a public call of it."""

    def __init__(self, context: Context) -> None:
        self.guard = context.guard
        self._context = context

    @public
    def end(self, checker: Checker) -> None:
        """End it."""
        checker.ends(self._context)


class StreamHistory:
    """The jobs of a stream."""

    def __init__(self, actor: int, name: str, stream: Stream) -> None:
        self.actor = actor
        self.name = name
        self.stream = stream
        self.steps: dict[int, Step] = {}  # by number
        self.last: Step | None = None
        self.behind: list[Step] = []  # what the next job comes behind besides


class Source:
    """Pinned memory that a copy reads, and what was in it when the copy was enqueued."""

    def __init__(self, buffer: Buffer, rows: Rows) -> None:
        self.buffer = buffer
        self.rows = rows
        self._digest = self._now()

    @property
    def has_changed(self) -> bool:
        """Whether the bytes are others by now."""
        return self.buffer.is_live and self._digest != self._now()

    def _now(self) -> int:
        digest = 0
        for memory in rows_of(self.buffer, self.rows):
            digest = crc32(memory, digest)
        return digest


def rows_of(buffer: Buffer, rows: Rows) -> Iterator[memoryview]:
    """Yield rows of device addresses of a buffer as the program sees them."""
    offset = rows.start - buffer.device_address
    for row in range(rows.height):
        start = offset + row * rows.pitch
        yield buffer.program_view[start : start + rows.width]


def _operation_of(job: Job) -> Operation:
    """Return what a job does; of a launch of a graph, what its node does."""
    node = job.operation.alone if isinstance(job.operation, Part) else None
    return node.operation if node is not None else job.operation


class ContextWatch:
    """What is known of a context."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.allocations = Allocations()
        self.streams: dict[Stream, StreamHistory] = {}
        self.jobs: dict[int, list[tuple[int, int, int]]] = {}  # job id -> (since when, actor, number), oldest first
        self.runs: dict[
            tuple[int, int], list[Run]
        ] = {}  # (actor, number) -> what it touched, as far as the device said
        self.pending: dict[Step, None] = {}  # jobs that were not looked at yet
        self.sources: dict[tuple[int, int], list[Source]] = {}  # (actor, number) -> pinned memory that its copies read


class Checker(Observer):
    """Watches contexts and collects `findings`."""

    def __init__(self, *, lint: bool = False, leaks: bool = False) -> None:
        self.findings = Findings()
        self._lint, self._leaks = lint, leaks
        self._watched: dict[Context, ContextWatch] = {}
        self._clock: Clock = {HOST: 0}  # the host's
        self._function = threading.local()  # `step`: the marker before the host function that the thread runs
        self._orders = 0
        # by actor: an event, the step of its record, and the step of the record that took its place before anybody waited
        self._overwritten_records: dict[int, list[tuple[object, Step, Step]]] = {}
        self._heeded: set[tuple[object, Step]] = set()  # records that somebody waited for
        self._actors = HOST

    # ---- what the runtime tells ----

    def attach(self, context: Context) -> None:
        """As Observer. Raises Unsupported on a device that computes no values."""
        watch = Request(C.NPU_IOCTL_EMU_WATCH, "npu_emu_watch", "EMU_WATCH")
        watch.arg.enable = 1
        context.node.ioctl(watch)
        context.observer = self
        watched = self._watched[context] = ContextWatch(context)
        for buffer in context.device_memory:
            act = self._act(context, "memory from before the check", site="")
            shadow = Shadow(buffer.size, State(Access(HOST, 0, True, act)))
            watched.allocations.add(Allocation(buffer.device_address, act, shadow))

    def finish(self) -> None:
        """Look at what is left, and watch no more."""
        for context in [*self._watched]:
            Ending(context).end(self)

    def records(self) -> list[dict[str, Any]]:
        """Return what was found, as `npu check --json` has it."""
        return records(self.findings)

    def text(self) -> str:
        """Return what was found, for people; "" for nothing."""
        return text(self.records())

    def prepared(self, job: Job) -> None:
        """As Observer."""
        watched, operation = self._watched[job.stream.context], _operation_of(job)
        history = self._history(watched, job.stream)
        for copy in operation.operations if isinstance(operation, Batch) else (operation,):
            if isinstance(copy, Copy) and copy.buffers[1].kind != C.NPU_MEMORY_DEVICE:
                sources = watched.sources.setdefault((history.actor, job.number), [])
                sources.append(Source(copy.buffers[1], copy.source))
        if not isinstance(operation, Copy):
            return
        target = operation.buffers[0]
        if target.kind != C.NPU_MEMORY_DEVICE and not watched.context.jobs_using(target.handle):
            for memory in rows_of(target, operation.target):
                memory[:] = bytes([POISON]) * len(memory)

    def enqueued(self, job: Job) -> None:
        """As Observer."""
        watched = self._watched[job.stream.context]
        history = self._history(watched, job.stream)
        what, is_free = _operation_of(job).name, isinstance(job.operation, Free)
        node = job.operation.alone if isinstance(job.operation, Part) else None
        captured = node.site if node is not None else ""
        act = Act(what, history.name, job.site, self._next_order(), job.enqueue_ps, is_free, captured)
        step = Step(history.actor, job.number, act, dict(self._clock), history.behind)
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
        history.steps[job.number] = history.last = step
        watched.pending[step] = None
        self._clock = {**self._clock, HOST: self._clock[HOST] + 1}

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

    def waited(self, event: object, job: Job | None, stream: Stream | None) -> None:
        """As Observer."""
        context = event.context  # type: ignore[attr-defined]
        if job is None:
            what = f"{self._history(self._watched[context], stream).name}" if stream is not None else "the host"
            act = self._act(context, "wait for an event" if stream is not None else "wait for an event, or query,")
            self._report(rules.wait_unrecorded(act, what))
        elif (step := self._step_of(job)) is not None:
            self._heeded.add((event, step))

    def closed(self, stream: Stream) -> None:
        """As Observer."""
        for job in stream.untold:
            step = self._step_of(job)
            if step is not None and job.error is not None:
                self._report(rules.lost_error(step.act, str(job.error)))

    def known(self, stream: Stream, number: int) -> None:
        """As Observer."""
        watched = self._watched[stream.context]
        history = watched.streams.get(stream)
        if history is None or history.last is None:
            return
        step = history.steps.get(number) or history.last
        if step.epoch > number:
            return  # nothing of the stream was enqueued since the check began up to this number
        self._look_at(watched, [step])
        assert step.clock is not None
        clock = dict(self._clock)
        join(clock, step.clock)
        join(clock, {step.actor: step.epoch})
        self._clock = clock

    def accessed(self, buffer: Buffer, offset: int, size: int, *, write: bool, what: str) -> None:
        """As Observer."""
        self._accessed(buffer, offset, size, write, what, None)

    def _accessed(self, buffer: Buffer, offset: int, size: int, write: bool, what: str, site: str | None) -> None:
        watched = self._watched[buffer.context]  # type: ignore[index]
        act = self._act(watched.context, what, site)
        step = getattr(self._function, "step", None) if THREADS.in_function else None
        order = act.order if step is None else step.act.order  # what its stream frees behind it is still there
        allocation = watched.allocations.find(buffer.device_address, order)
        if allocation is None or not size:
            return
        clock, access = self._clock, Access(HOST, self._clock[HOST], write, act)
        if step is not None and step.clock is not None:  # what a host function does belongs to its stream
            clock = {**step.clock, step.actor: step.epoch}
            access = Access(step.actor, step.epoch + 1, write, replace(act, stream=step.act.stream))
        self._touch(allocation, offset, offset + size, access, clock)

    def reached(self, job: Job) -> None:
        """As Observer."""
        watched, step = self._watched[job.stream.context], self._step_of(job)
        self._function.step = step
        if step is not None:
            self._look_at(watched, [step])
            assert step.clock is not None
            # threads tell each other what they know, by means that are not seen: the host knows it from now on
            self._clock = dict(self._clock)
            join(self._clock, {**step.clock, step.actor: step.epoch + 1})

    def array_of(self, buffer: Buffer, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """As Observer."""
        base = buffer.host_address

        def tell(address: int, size: int, write: bool) -> None:
            with THREADS.lock:
                if (buffer.is_live or THREADS.in_function) and buffer.context in self._watched:
                    what = "store to an array" if write else "look at an array"
                    self._accessed(buffer, address - base, size, write, what, site_of_array())

        return WatchedArray.over(array, tell)

    def shown(self, buffer: Buffer) -> None:
        """As Observer."""
        watched = self._watched[buffer.context]  # type: ignore[index]
        allocation = watched.allocations.find(buffer.device_address, self._next_order())
        if allocation is not None:
            allocation.is_shown = True

    def allocated(self, buffer: Buffer) -> None:
        """As Observer."""
        context = buffer.context
        watched = self._watched[context]  # type: ignore[index]
        act = self._act(watched.context, f"allocation of {buffer.size} bytes")
        is_host = buffer.kind != C.NPU_MEMORY_DEVICE
        made = Allocation(buffer.device_address, act, Shadow(buffer.size), is_host=is_host)
        made.is_shown |= isinstance(buffer, ImportedBuffer)
        watched.allocations.add(made)

    def freed(self, buffer: Buffer, job: Job | None) -> None:
        """As Observer."""
        watched = self._watched[buffer.context]  # type: ignore[index]
        step = self._step_of(job) if job is not None else None
        if step is not None:
            found = watched.allocations.remove(buffer.device_address, step.act)
            if found is not None:
                watched.runs.setdefault((step.actor, step.epoch), []).append((found.address, found.size, True))
            return
        act = replace(self._act(watched.context, f"free of {buffer.size} bytes"), is_free=True)
        found = watched.allocations.remove(buffer.device_address, act)
        if found is not None:
            self._touch(found, 0, found.size, Access(HOST, self._clock[HOST], True, act), self._clock)

    def ends(self, context: Context) -> None:
        """As Observer: what has not ended by now is looked at as far as it came."""
        watched = self._watched[context]
        if context.is_alive and context.node.is_usable:
            context.finish_all()  # what was never waited for
        for stream in context.streams:
            self.closed(stream)
        del self._watched[context]
        self._look_at(watched, [*watched.pending])
        for allocation in (*watched.allocations.forget_gone(self._next_order()), *watched.allocations.live):
            self._report_unwritten(allocation)
        context.observer = None
        if context.node.is_usable:
            context.node.try_ioctl(Request(C.NPU_IOCTL_EMU_WATCH, "npu_emu_watch", "EMU_WATCH"))

    def memory(self) -> list[Allocation]:
        """Return what the watched contexts have allocated, by address."""
        return [allocation for watched in self._watched.values() for allocation in watched.allocations.live]

    # ---- inside ----

    def _next_order(self) -> int:
        self._orders += 1
        return self._orders

    def _act(self, context: Context, what: str, site: str | int | None = None) -> Act:
        """Return an act of the host."""
        if site is None:
            place = context.device.call_site()
            site = place if isinstance(place, (str, int)) else line_of(place)
        return Act(what, "", site, self._next_order(), context.node.now_ps)

    def _history(self, watched: ContextWatch, stream: Stream) -> StreamHistory:
        found = watched.streams.get(stream)
        if found is None:
            self._actors += 1
            default = watched.context.is_default(stream)
            name = "the default stream" if default else f"stream {stream.id}"
            found = watched.streams[stream] = StreamHistory(self._actors, name, stream)
        return found

    def _step_of(self, job: Job) -> Step | None:
        watched = self._watched.get(job.stream.context)
        history = watched.streams.get(job.stream) if watched is not None else None
        return history.steps.get(job.number) if history is not None else None

    def _add_before(self, step: Step, job: Job) -> None:
        before = self._step_of(job)
        if before is not None:
            step.befores.append(before)

    def _implicit(self, watched: ContextWatch, stream: Stream) -> Iterator[Step]:
        """What a job of a blocking stream comes behind by the rules of a legacy default stream, ended or not."""
        context = watched.context
        if not (context.semantics.legacy_default_stream and stream.blocking):
            return
        for other, history in watched.streams.items():
            among = context.is_default(stream) or context.is_default(other)
            if other is not stream and other.blocking and among and history.last is not None:
                yield history.last

    def _look_at(self, watched: ContextWatch, steps: list[Step]) -> None:
        """Work out the clocks of steps and what they must come behind, and compare what they touch."""
        if all(step.clock is not None for step in steps):
            return
        self._fetch(watched)
        for last in steps:
            for step in last.ancestors(self._resolve):
                clock = step.set_clock()
                watched.pending.pop(step, None)
                for source in watched.sources.pop((step.actor, step.epoch), ()):
                    if source.has_changed:
                        self._overwritten(watched, step, source)
                for address, size, write in watched.runs.pop((step.actor, step.epoch), ()):
                    allocation = watched.allocations.find(address, step.act.order)
                    if allocation is not None:
                        start = address - allocation.address
                        self._touch(
                            allocation, start, start + size, Access(step.actor, step.epoch, write, step.act), clock
                        )
        first = next(iter(watched.pending), None)
        for allocation in watched.allocations.forget_gone(first.act.order if first is not None else self._next_order()):
            self._report_unwritten(allocation)

    def _overwritten(self, watched: ContextWatch, step: Step, source: Source) -> None:
        """Report that the program changed what a copy reads, unless somebody who was seen may have, since it was enqueued."""
        allocation = watched.allocations.find(source.buffer.device_address, step.act.order)
        if allocation is None:
            return
        start = source.rows.start - source.buffer.device_address
        end = start + source.rows.extent
        low, high = source.rows.start, source.rows.start + source.rows.extent
        jobs = (run for runs in watched.runs.values() for run in runs)  # that were not looked at yet
        by_job = any(write and address < high and low < address + size for address, size, write in jobs)
        if not by_job and all(write.is_before(step.known) for write in allocation.shadow.writes(start, end)):
            act = Act("store to pinned memory", "", "", step.act.order, step.act.time_ps)
            self._report(rules.overwritten(allocation, start, end, step.act, act))

    def _resolve(self, step: Step) -> None:
        """Find the jobs that give the signals that had none."""
        for signal in step.signals:
            if signal.job is not None:
                self._add_before(step, signal.job)
        step.signals.clear()

    def _fetch(self, watched: ContextWatch) -> None:
        """Take over what the device has noted, by job."""
        request = Request(C.NPU_IOCTL_EMU_ACCESSES, "npu_emu_accesses", "EMU_ACCESSES")
        try:
            records = read_records(watched.context.node, request, RECORD)
        except NpuError:
            if watched.context.node.is_usable:
                raise
            return
        for time_ps, address, run_bytes, stride, count, write, job_id, _ in records.tolist():
            known = watched.jobs.get(job_id, ())
            owner = next((job for job in reversed(known) if job[0] <= time_ps), None)
            if owner is not None:
                runs = watched.runs.setdefault(owner[1:], [])
                runs += [(address + i * stride, run_bytes, bool(write)) for i in range(count)]

    def _touch(self, allocation: Allocation, start: int, end: int, access: Access, clock: Clock) -> None:
        size = allocation.size
        if end > size:
            self._report(rules.out_of_bounds(allocation, max(start, size), end, access.act))
            end = size
        if start >= end:
            return
        if not access.write and not allocation.is_shown:
            missing = allocation.shadow.unwritten(start, end)
            allocation.unwritten += [(access.act, low, high) for low, high in missing]
        if access.act.is_free:  # what is in flight was not looked at: the states stay, for that
            conflicts, allocation.free = allocation.shadow.conflicts(start, end, access, clock), access
        else:
            conflicts = allocation.shadow.touch(start, end, access, clock)
            if allocation.free is not None:
                conflicts.append((allocation.free, start, end))
        for old, low, high in conflicts:
            found = rules.conflict(allocation, low, high, old, access)
            if found is not None:
                self._report(found)
                self._look_for_overwritten(*sorted((old, access), key=lambda each: each.act.order))
                if allocation.unwritten:  # the write that was missing comes in no order: that is the fault
                    allocation.unwritten = [read for read in allocation.unwritten if read[0] is not old.act]

    def _look_for_overwritten(self, first: Access, second: Access) -> None:
        """Report a record of an event behind the first of two accesses in no order that another record took the place of, if
        that was before the second one.
        """
        for _, old, new in self._overwritten_records.get(first.actor, ()):
            if old.epoch > first.epoch and new.act.order < second.act.order:
                self._report(rules.event_overwritten(old.act, new.act, first.act))

    def _report_unwritten(self, allocation: Allocation) -> None:
        for act, low, high in allocation.unwritten:
            self._report(rules.unwritten(allocation, low, high, act))

    def _report(self, finding: Finding) -> None:
        self.findings.add(finding)
