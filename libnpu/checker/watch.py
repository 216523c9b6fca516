"""The checker: told by the runtime what the program does, by the device what it touches.

Each kind of event has a module: jobs of streams (stream_events), accesses of the host (host_events), memory that comes and goes
(memory_events), what several contexts have (shared_events). What they know in common is in program, what they compare in
comparison. Here is what is about whole contexts, and calls that are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from npu_abi import C

from libnpu.checker import rules
from libnpu.checker.blobs import faults
from libnpu.checker.histories import ContextWatch
from libnpu.checker.memory_events import MemoryEvents
from libnpu.checker.refusals import Refusals, rule_of
from libnpu.checker.report import text
from libnpu.checker.shadow import Access, Shadow, State
from libnpu.checker.shared_events import SharedEvents
from libnpu.checker.steps import HOST, Act
from libnpu.checker.witness import kind_of
from libnpu.runtime.buffer import Buffer
from libnpu.runtime.dependencies import links
from libnpu.runtime.guard import public
from libnpu.runtime.host_threads import HOST as THREADS
from libnpu.runtime.job import Job
from libnpu.runtime.stream import Stream
from libnpu.syscalls import Request

if TYPE_CHECKING:
    from typing import Any

    from libnpu.blob import BlobImage
    from libnpu.checker.allocations import Allocation
    from libnpu.checker.findings import Finding
    from libnpu.checker.guarded import Pages
    from libnpu.errors import Asked, NpuError
    from libnpu.runtime.context import Context
    from libnpu.syscalls import Node

NOT_REPLAYED = "\nno witnesses: a block of a program is not run again; npu check replays a program, and its marker a test of pytest\n"


class Ending:
    """The end of the check of a context, as a public call of it."""

    def __init__(self, context: Context) -> None:
        self.guard = context.guard
        self._context = context

    @public
    def end(self, checker: Checker) -> None:
        """End it."""
        checker.ends(self._context)


class Checker(SharedEvents, MemoryEvents):
    """Watches contexts and collects `findings`."""

    def __init__(self, *, lint: bool = False, leaks: bool = False, guard: Pages | None = None) -> None:
        super().__init__(lint=lint, guard=guard)
        self._leaks = leaks
        self._refusals = Refusals()
        self._made: WeakKeyDictionary[Any, tuple[str, Act]] = WeakKeyDictionary()  # streams and events

    def attach(self, context: Context) -> None:
        """As Observer. Raises Unsupported on a device that computes no values."""
        watch = Request(C.NPU_IOCTL_EMU_WATCH, "npu_emu_watch", "EMU_WATCH")
        watch.arg.enable = 1
        context.node.ioctl(watch)
        context.observer = self
        watched = self._watched[context] = ContextWatch(context)
        for buffer in context.device_memory:
            act = self._act(context, "memory from before the check", site="")
            shadow = Shadow(buffer.size, State(True, (Access(HOST, 0, True, act),)))
            watched.allocations.add(self._new_memory(buffer, act, shadow))  # of its caches nothing is known

    def finish(self) -> None:
        """Look at what is left, and watch no more."""
        self._report_all(self._refusals.ignored(at_end=True))
        for context in [*self._watched]:
            Ending(context).end(self)
        if self._lint is not None:
            self._report_all(self._lint.findings())
            self._lint = None

    def text(self) -> str:
        """Return what was found, for people; "" for nothing."""
        found = self.records()
        return text(found) + (NOT_REPLAYED if any(map(kind_of, found)) else "")

    def called(self) -> None:
        """As Observer."""
        self._see_faults()
        if self._refusals:
            self._report_all(self._refusals.ignored())
        me = THREADS.known()
        if me is None or not me.depth:
            self._is_told()

    def refused(self, node: Node, name: str, error: NpuError) -> None:
        """As Observer."""
        context = next((context for context in self._watched if context.node is node), None)
        if context is None:
            return
        act = self._act(context, name)
        if isinstance(act.site, int) and not name.startswith("npu_"):
            return  # inside of a call of C's, which answers by itself
        rule = rule_of(name, error)
        if rule == "OOB" and error.asked is not None:
            self._refusals.add(error, self._outside(act, error.asked, error.message))
        elif rule is not None:
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
            self._report_rest(allocation)
        context.observer = None
        if context.node.is_usable:
            context.node.try_ioctl(Request(C.NPU_IOCTL_EMU_WATCH, "npu_emu_watch", "EMU_WATCH"))

    def memory(self) -> list[Allocation]:
        """Return what the watched contexts have allocated, by address."""
        return [allocation for watched in self._watched.values() for allocation in watched.allocations.live]

    # ---- inside ----

    def _outside(self, call: Act, asked: Asked, error: str) -> Finding:
        """Return that a call has asked for bytes that its memory does not have."""
        buffer, allocation = asked.buffer, None
        if isinstance(buffer, Buffer) and buffer.context in self._watched:
            allocation = self._allocation_of(buffer)
        return rules.refused_range(call, asked, allocation, error)

    def _report_leaks(self, watched: ContextWatch) -> None:
        context = watched.context
        for allocation in watched.allocations.live:
            if allocation.made.site:
                self._report(rules.leak(f"memory of {allocation.size} bytes", allocation.made))
        for thing in (*context.streams, *context.events, *context.notifies):
            if thing in self._made and not (isinstance(thing, Stream) and context.is_default(thing)):
                self._report(rules.leak(*self._made[thing]))
