"""The checker's eyes and its order of events: told by the runtime what the program does, by the device what it touches.

Jobs are looked at when the program was told that they have ended, or at the end: by then the device has said which bytes
they read and wrote. What they must come behind has ended before them, and is looked at before.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import npu_abi
from npu_abi import C

from libnpu.checker import rules
from libnpu.checker.allocations import Allocation
from libnpu.checker.arrays import WatchedArray, site_of_array
from libnpu.checker.blobs import faults
from libnpu.checker.caches import Cache
from libnpu.checker.findings import Findings
from libnpu.checker.guarded import EVIDENCE, Guarded
from libnpu.checker.histories import ContextWatch, StreamHistory
from libnpu.checker.lint import Lint
from libnpu.checker.refusals import Refusals, rule_of
from libnpu.checker.report import records, text
from libnpu.checker.shadow import Access, Shadow, State
from libnpu.checker.shared import Shared
from libnpu.checker.sources import Source, rows_of
from libnpu.checker.steps import HOST, Act, Step, join
from libnpu.checker.witness import kind_of
from libnpu.errors import NpuError
from libnpu.runtime.buffer import Buffer
from libnpu.runtime.command_list import Batch
from libnpu.runtime.copy_operations import Copy, Free
from libnpu.runtime.dependencies import links
from libnpu.runtime.graph_parts import Part
from libnpu.runtime.guard import public
from libnpu.runtime.host_pages import address_of
from libnpu.runtime.host_threads import HOST as THREADS
from libnpu.runtime.ipc import ImportedBuffer
from libnpu.runtime.job import Job
from libnpu.runtime.observer import Observer
from libnpu.runtime.operation import FenceWait
from libnpu.runtime.records import read_records
from libnpu.runtime.site import line_of
from libnpu.runtime.stream import Stream
from libnpu.syscalls import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray

    from libnpu.blob import BlobImage
    from libnpu.checker.findings import Finding
    from libnpu.checker.guarded import Pages
    from libnpu.checker.shadow import Clock
    from libnpu.runtime.context import Context
    from libnpu.runtime.ipc_event import IpcEvent
    from libnpu.runtime.operation import Operation
    from libnpu.syscalls import Node

POISON = 0xFF
ANNOTATION = "the host's access, by an annotation of the program"
NOT_REPLAYED = "\nno witnesses: a block of a program is not run again; npu check replays a program, and its marker a test of pytest\n"
RECORD = npu_abi.dtype("npu_access_record")


class Ending:
    """The end of the check of a context, as a public call of it."""

    def __init__(self, context: Context) -> None:
        self.guard = context.guard
        self._context = context

    @public
    def end(self, checker: Checker) -> None:
        """End it."""
        checker.ends(self._context)


def operation_of(job: Job) -> Operation:
    """Return what a job does; of a launch of a graph, what its node does."""
    node = job.operation.alone if isinstance(job.operation, Part) else None
    return node.operation if node is not None else job.operation


def _is_upload(operation: Operation) -> bool:
    """Return whether an operation copies pinned memory to the device's."""
    target, source = operation.buffers if isinstance(operation, Copy) else (None, None)
    device = C.NPU_MEMORY_DEVICE
    return target is not None and source is not None and target.kind == device and source.kind != device


class Checker(Observer):
    """Watches contexts and collects `findings`."""

    poisons = True  # destinations in pinned memory, from the enqueuing on

    def __init__(self, *, lint: bool = False, leaks: bool = False, guard: Pages | None = None) -> None:
        self.findings = Findings()
        self._lint = Lint() if lint else None
        self._leaks = leaks
        self._guarded = Guarded(guard) if guard is not None else None
        self._reached: Step | None = None  # the marker before the host function that was called last
        self.on_finding: Callable[[dict[str, Any]], None] | None = None  # is told of each one that is new, as a record
        self._refusals = Refusals()
        self._freed: dict[int, Act] = {}  # by address, what gave the memory there back last
        self._made: WeakKeyDictionary[Any, tuple[str, Act]] = WeakKeyDictionary()  # streams and events
        self._waiting: Act | None = None  # the wait that is under way
        self._watched: dict[Context, ContextWatch] = {}
        self._clock: Clock = {HOST: 0}  # the host's
        self._function = threading.local()  # `step`: the marker before the host function that the thread runs
        self._orders = 0
        self._memories = 0
        # by actor: an event, the step of its record, and the step of the record that took its place before anybody waited
        self._overwritten_records: dict[int, list[tuple[object, Step, Step]]] = {}
        self._shared = Shared()
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
            watched.allocations.add(self._new_memory(buffer, act, shadow))  # of its caches nothing is known

    def finish(self) -> None:
        """Look at what is left, and watch no more."""
        self._report_all(self._refusals.ignored(at_end=True))
        for context in [*self._watched]:
            Ending(context).end(self)
        if self._lint is not None:
            self._report_all(self._lint.findings())
            self._lint = None

    def records(self) -> list[dict[str, Any]]:
        """Return what was found, as `npu check --json` has it."""
        return records(self.findings)

    def text(self) -> str:
        """Return what was found, for people; "" for nothing."""
        found = self.records()
        return text(found) + (NOT_REPLAYED if any(map(kind_of, found)) else "")

    def called(self) -> None:
        """As Observer."""
        self._see_faults()
        if self._refusals:
            self._report_all(self._refusals.ignored())

    def refused(self, node: Node, name: str, error: NpuError) -> None:
        """As Observer."""
        context = next((context for context in self._watched if context.node is node), None)
        if context is None:
            return
        act = self._act(context, name)
        if isinstance(act.site, int) and not name.startswith("npu_"):
            return  # inside of a call of C's, which answers by itself
        rule = rule_of(name, error)
        if rule is not None:
            self._refusals.add(error, rules.refused(rule, act, self._freed.get(error.gone), error.message))
        elif error.result == C.NPU_ERROR_BARRIER_DEADLOCK and isinstance(error.job, Job):
            blocked = dict.fromkeys([error.job, *(head for _, head in links(error.job) if head is not None)])
            acts = [step.act for step in map(self._step_of, blocked) if step is not None]
            self._report(rules.deadlock(acts, act, error.message))

    def created(self, context: Context, thing: object, what: str) -> None:
        """As Observer."""
        self._made[thing] = what, self._act(context, f"making of {what}")

    def loaded(self, context: Context, image: BlobImage) -> None:
        """As Observer."""
        self._report_all(faults(image, context.profile, self._act(context, "load")))

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
        if target.kind != C.NPU_MEMORY_DEVICE and target.is_snooped and not watched.context.jobs_using(target.handle):
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
        )
        step = Step(watched, history.actor, job.number, act, dict(self._clock), history.behind)
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
            if step is not None and job.error is not None and job.error.result != C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR:
                self._report(rules.lost_error(step.act, str(job.error)))

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

    def _come_behind(self, steps: list[Step]) -> None:
        """The host was told that steps have ended."""
        self._look_at(steps)
        clock = dict(self._clock)
        for step in steps:
            assert step.clock is not None
            join(clock, step.clock)
            join(clock, {step.actor: step.epoch})
        self._learn(clock)

    def exported(self, thing: Buffer | IpcEvent, handle: bytes) -> None:
        """As Observer."""
        self._share(thing, handle)

    def opened(self, thing: Buffer | IpcEvent, handle: bytes) -> None:
        """As Observer."""
        self._share(thing, handle)

    def _share(self, thing: Buffer | IpcEvent, handle: bytes) -> None:
        """Take what is known of the thing that a handle of the device means."""
        key = thing.context.device, handle  # type: ignore[attr-defined]
        if not isinstance(thing, Buffer):
            self._shared.records[thing] = self._shared.events.setdefault(key, self._shared.records_of(thing))
        elif (allocation := self._allocation_of(thing)) is not None:
            allocation.shadow = self._shared.memory.setdefault(key, allocation.shadow)
            allocation.is_shared = True

    def signalled(self, event: IpcEvent, number: int, job: Job) -> None:
        """As Observer."""
        step = self._step_of(job)
        if step is not None:
            self._shared.records_of(event).add(number, step)

    def passed(self, event: IpcEvent, number: int, by: Job | Stream | None) -> None:
        """As Observer."""
        record = self._shared.record(event, number)
        records = [record] if record is not None else self._shared.ended(self._next_order())
        if by is None:
            self._see_faults()
            self._come_behind(records)
        elif isinstance(by, Stream):
            self._history(self._watched[by.context], by).behind += records
        elif (step := self._step_of(by)) is not None and step.clock is None:
            step.is_behind_others = record is None
            step.befores += records

    def accessed(self, buffer: Buffer, offset: int, size: int, *, write: bool, what: str) -> None:
        """As Observer."""
        step = self._function_step if THREADS.in_function else None
        self._accessed(buffer, offset, size, write, self._act(buffer.context, what), step)  # type: ignore[arg-type]

    def annotated(self, buffer: Buffer, offset: int, size: int, *, write: bool) -> None:
        """As Observer."""
        act = self._act(buffer.context, "store" if write else "load")  # type: ignore[arg-type]
        step = self._function_step if THREADS.in_function else None
        self._accessed(buffer, offset, size, write, replace(act, evidence=ANNOTATION), step, is_seen=True)

    def _see_faults(self) -> None:
        """Take note of what guarded pages have stopped."""
        for buffer, offset, fault, site in self._guarded.take() if self._guarded is not None else ():
            act = self._act(buffer.context, "store" if fault.write else "load", site)  # type: ignore[arg-type]
            step = self._reached if fault.in_function else None
            self._accessed(buffer, offset, 1, fault.write, replace(act, evidence=EVIDENCE), step, is_seen=True)

    def _accessed(
        self, buffer: Buffer, offset: int, size: int, write: bool, act: Act, step: Step | None, *, is_seen: bool = False
    ) -> None:
        """The host has accessed memory, in a host function behind `step` if there is one. `is_seen`: by a load or store of its own."""
        watched = self._watched[buffer.context]  # type: ignore[index]
        order = act.order if step is None else step.act.order  # what its stream frees behind it is still there
        allocation = watched.allocations.find(buffer.device_address, order)
        if allocation is None or not size:
            return
        if self._lint is not None:
            self._lint.touched(act)
        clock, access = self._clock, Access(HOST, self._clock[HOST], write, act)
        if step is not None and step.clock is not None:  # what a host function does belongs to its stream
            clock = {**step.clock, step.actor: step.epoch}
            act = replace(act, stream=step.act.stream, job=step.act.job, is_function=True)
            access = Access(step.actor, step.epoch + 1, write, act)
        self._touch(allocation, offset, offset + size, access, clock)
        if allocation.cache is not None and (is_seen or allocation.is_host):  # device memory: by an array alone
            if write:
                allocation.cache.store(offset, offset + size, access)
            else:
                self._report_all(allocation.cache.look(offset, offset + size, access, clock))

    def maintained(self, buffer: Buffer, offset: int, size: int, what: str, made: str | None) -> None:
        """As Observer."""
        watched = self._watched[buffer.context]  # type: ignore[index]
        act = self._act(watched.context, what)
        allocation = watched.allocations.find(buffer.device_address, act.order)
        if allocation is None:
            return
        access = Access(HOST, self._clock[HOST], False, act)
        if allocation.cache is not None:
            maintain = allocation.cache.flush if what == "flush" else allocation.cache.invalidate
            maintain(offset, offset + size, access, self._clock)
        if made == ("FROM_DEVICE" if what == "flush" else "TO_DEVICE"):
            self._report(rules.direction_mismatch(allocation, offset, offset + size, act, made))

    def unmapped(self, buffer: Buffer, offset: int, size: int) -> None:
        """As Observer."""
        watched = self._watched[buffer.context]  # type: ignore[index]
        act = self._act(watched.context, "unmap")
        allocation = watched.allocations.find(buffer.device_address, act.order)
        if allocation is not None:
            unmap = Access(HOST, self._clock[HOST], True, act)
            for old, low, high in allocation.shadow.conflicts(offset, offset + size, unmap, self._clock):
                self._report(rules.unmapped(allocation, low, high, old, unmap))
            # what is to be looked at may use it
            allocation.unmaps = [*allocation.unmaps, (offset, offset + size, unmap)] if watched.pending else []

    def reached(self, job: Job) -> None:
        """As Observer."""
        step = self._step_of(job)
        self._see_faults()
        self._function.step = self._reached = step
        if step is not None:
            self._look_at([step])
            assert step.clock is not None
            # threads tell each other what they know, by means that are not seen: the host knows it from now on
            clock = dict(self._clock)
            join(clock, {**step.clock, step.actor: step.epoch + 1})
            self._learn(clock)

    def array_of(self, buffer: Buffer, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """As Observer."""
        base = address_of(buffer.program_view)

        def tell(address: int, size: int, write: bool) -> None:
            with THREADS.lock:
                if (buffer.is_live or THREADS.in_function) and buffer.context in self._watched:
                    what = "store to an array" if write else "look at an array"
                    act = self._act(buffer.context, what, site_of_array())
                    step = self._function_step if THREADS.in_function else None
                    self._accessed(buffer, address - base, size, write, act, step, is_seen=True)

        return WatchedArray.over(array, tell)

    def pages_of(self, view: memoryview) -> memoryview:
        """As Observer."""
        return view if self._guarded is None else self._guarded.pages_of(view)

    def shown(self, buffer: Buffer) -> None:
        """As Observer."""
        allocation = self._allocation_of(buffer)
        if allocation is not None:
            allocation.is_shown = True

    def allocated(self, buffer: Buffer) -> None:
        """As Observer."""
        context = buffer.context
        watched = self._watched[context]  # type: ignore[index]
        act = self._act(watched.context, f"allocation of {buffer.size} bytes")
        is_host = buffer.kind != C.NPU_MEMORY_DEVICE
        made = self._new_memory(buffer, act, Shadow(buffer.size), is_host=is_host)
        made.is_shown |= isinstance(buffer, ImportedBuffer)
        if not buffer.is_snooped:
            made.cache = Cache(made)
        watched.allocations.add(made)
        if self._guarded is not None:
            self._guarded.allocated(buffer)

    def freed(self, buffer: Buffer, job: Job | None) -> None:
        """As Observer."""
        watched = self._watched[buffer.context]  # type: ignore[index]
        self._see_faults()
        if self._guarded is not None:
            self._guarded.freed(buffer)
        step = self._step_of(job) if job is not None else None
        if step is not None:
            self._freed[buffer.device_address] = self._freed[buffer.host_address] = step.act
            found = watched.allocations.remove(buffer.device_address, step.act)
            if found is not None:
                watched.runs.setdefault((step.actor, step.epoch), []).append((found.address, found.size, True))
            return
        act = replace(self._act(watched.context, f"free of {buffer.size} bytes"), is_free=True)
        self._freed[buffer.device_address] = self._freed[buffer.host_address] = act
        found = watched.allocations.remove(buffer.device_address, act)
        if found is not None:
            self._touch(found, 0, found.size, Access(HOST, self._clock[HOST], True, act), self._clock)

    def ends(self, context: Context) -> None:
        """As Observer: what has not ended by now is looked at as far as it came."""
        watched = self._watched[context]
        if context.is_alive and context.node.is_usable:
            context.finish_all()  # what was never waited for
        self._see_faults()
        if self._guarded is not None:
            self._guarded.ends(context)
        for stream in context.streams:
            self.closed(stream)
        if self._leaks:
            self._report_leaks(watched)
        del self._watched[context]
        self._look_at([*watched.pending])
        for allocation in (*watched.allocations.forget_gone(self._next_order()), *watched.allocations.live):
            self._report_unwritten(allocation)
        context.observer = None
        if context.node.is_usable:
            context.node.try_ioctl(Request(C.NPU_IOCTL_EMU_WATCH, "npu_emu_watch", "EMU_WATCH"))

    def _report_leaks(self, watched: ContextWatch) -> None:
        context = watched.context
        for allocation in watched.allocations.live:
            if allocation.made.site:
                self._report(rules.leak(f"memory of {allocation.size} bytes", allocation.made))
        for thing in (*context.streams, *context.events, *context.notifies):
            if thing in self._made and not (isinstance(thing, Stream) and context.is_default(thing)):
                self._report(rules.leak(*self._made[thing]))

    def memory(self) -> list[Allocation]:
        """Return what the watched contexts have allocated, by address."""
        return [allocation for watched in self._watched.values() for allocation in watched.allocations.live]

    # ---- inside ----

    @property
    def _function_step(self) -> Step | None:
        """The marker before the host function that the calling thread runs, or has run last."""
        return getattr(self._function, "step", None)

    def _learn(self, clock: Clock) -> None:
        """The host knows more."""
        self._clock = clock
        if self._guarded is not None:
            self._guarded.known(clock)

    def _allocation_of(self, buffer: Buffer) -> Allocation | None:
        watched = self._watched[buffer.context]  # type: ignore[index]
        return watched.allocations.find(buffer.device_address, self._next_order())

    def _next_order(self) -> int:
        self._orders += 1
        return self._orders

    def _new_memory(self, buffer: Buffer, made: Act, shadow: Shadow, *, is_host: bool = False) -> Allocation:
        """Return a new allocation."""
        self._memories += 1
        return Allocation(buffer.device_address, made, shadow, self._memories, is_host=is_host)

    def _act(self, context: Context, what: str, site: str | int | None = None) -> Act:
        """Return an act of the host. A host function that is not the program's own code is where it was enqueued."""
        if site is None:
            place = context.device.call_site()
            site = place if isinstance(place, (str, int)) else line_of(place)
        if site == "" and THREADS.in_function and self._function_step is not None:
            site = self._function_step.act.site
        return Act(what, "", site, self._next_order(), context.node.now_ps, context=context.number)

    def _history(self, watched: ContextWatch, stream: Stream) -> StreamHistory:
        found = watched.streams.get(stream)
        if found is None:
            self._actors += 1
            name = "the default stream" if watched.context.is_default(stream) else f"stream {stream.id}"
            if watched.context.number > 1:
                name += f" of context {watched.context.number}"
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

    def _look_at(self, steps: list[Step]) -> None:
        """Work out the clocks of steps and what they must come behind, and compare what they touch."""
        contexts: dict[ContextWatch, None] = {}
        for last in steps:
            if last.clock is not None:
                continue
            for step in last.ancestors(self._resolve):
                clock, watched = step.set_clock(), step.owner
                if watched not in contexts:
                    contexts[watched] = None
                    self._fetch(watched)
                watched.pending.pop(step, None)
                for source in watched.sources.pop((step.actor, step.epoch), ()):
                    if source.has_changed:
                        self._overwritten(watched, step, source)
                for address, size, write in watched.runs.pop((step.actor, step.epoch), ()):
                    allocation = watched.allocations.find(address, step.act.order)
                    if allocation is not None:
                        start = address - allocation.address
                        access = Access(step.actor, step.epoch, write, step.act)
                        self._touch(allocation, start, start + size, access, clock)
                        self._touch_behind_cache(allocation, start, min(start + size, allocation.size), access, clock)
        for watched in contexts:
            first = next(iter(watched.pending), None)
            order = first.act.order if first is not None else self._next_order()
            for allocation in watched.allocations.forget_gone(order):
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

    def _resolve(self, step: Step) -> None:
        """Find the jobs that give the signals that had none."""
        for signal in step.signals:
            if signal.job is not None:
                self._add_before(step, signal.job)
        step.signals.clear()
        if step.is_behind_others:
            step.befores += self._shared.ended(step.act.order)

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
            if allocation.is_shared and access.act.is_free and old.act.context != access.act.context:
                continue  # the memory lives as long as anybody has it
            found = rules.conflict(allocation, low, high, old, access)
            if found is not None:
                self._report(found)
                self._look_for_overwritten(*sorted((old, access), key=lambda each: each.act.order))
                if allocation.unwritten:  # the write that was missing comes in no order: that is the fault
                    allocation.unwritten = [read for read in allocation.unwritten if read[0] is not old.act]

    def _touch_behind_cache(self, allocation: Allocation, start: int, end: int, access: Access, clock: Clock) -> None:
        """A job touches memory that mappings may end, and caches hold."""
        for low, high, unmap in allocation.unmaps:
            if max(low, start) < min(high, end) and not unmap.is_before(clock):
                self._report(rules.unmapped(allocation, max(low, start), min(high, end), access, unmap))
        if self._waiting is not None and allocation.is_host and access.act.is_launch:
            self._report(rules.responsibility(allocation, start, end, access.act, self._waiting))
        if allocation.cache is not None and start < end and not access.act.is_free:
            by_job = allocation.cache.written_by_job if access.write else allocation.cache.read_by_job
            self._report_all(by_job(start, end, access, clock))

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

    def _report_all(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._report(finding)

    def _report(self, finding: Finding) -> None:
        if self.findings.add(finding) is finding and self.on_finding is not None:
            self.on_finding(records([finding])[0])
