"""The program that is watched: its contexts and streams, what its host knows, its acts; and what was found in it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from libnpu.checker.findings import Findings
from libnpu.checker.guarded import Guarded
from libnpu.checker.histories import ContextWatch, StreamHistory
from libnpu.checker.lint import Lint
from libnpu.checker.report import records
from libnpu.checker.steps import HOST, Act, Step
from libnpu.runtime.host_threads import HOST as THREADS
from libnpu.runtime.observer import Observer
from libnpu.runtime.site import line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from libnpu.checker.allocations import Allocation
    from libnpu.checker.findings import Finding
    from libnpu.checker.guarded import Pages
    from libnpu.checker.shadow import Clock
    from libnpu.runtime.buffer import Buffer
    from libnpu.runtime.context import Context
    from libnpu.runtime.job import Job
    from libnpu.runtime.stream import Stream


class Program(Observer):
    """What all that watches has in common. `lint`: look for what costs time, too; `guard`: who guards pages of the program."""

    def __init__(self, *, lint: bool = False, guard: Pages | None = None) -> None:
        self.findings = Findings()
        self.on_finding: Callable[[dict[str, Any]], None] | None = None  # is told of each one that is new, as a record
        self._lint = Lint() if lint else None
        self._guarded = Guarded(guard) if guard is not None else None
        self._watched: dict[Context, ContextWatch] = {}
        self._clock: Clock = {HOST: 0}  # the host's
        self._untold: Clock | None = None  # the part of it that no host function may have told; None while it is all
        self.relies_on_telling = (
            False  # a host function, and what the host does behind it, are right only if the one has told the other
        )
        self._function = threading.local()  # `step`: the marker before the host function that the thread runs
        self._orders = 0
        self._actors = HOST

    @property
    def _function_step(self) -> Step | None:
        """The marker before the host function that the calling thread runs, or has run last."""
        return getattr(self._function, "step", None)

    def _act(self, context: Context, what: str, site: str | int | None = None) -> Act:
        """Return an act of the host. A host function that is not the program's own code is where it was enqueued."""
        if site is None:
            place = context.device.call_site()
            site = place if isinstance(place, (str, int)) else line_of(place)
        if site == "" and THREADS.in_function and self._function_step is not None:
            site = self._function_step.act.site
        now_ps, real_ns = context.node.now_ps, time.monotonic_ns()
        return Act(what, "", site, self._next_order(), now_ps, context=context.number, real_ns=real_ns)

    def _point(self, history: StreamHistory, watched: ContextWatch, act: Act) -> Step:
        """Return a new point in the order of a stream, behind what was enqueued by now, for which there is no command."""
        last = history.point
        if last is None:
            self._actors += 1
        actor, epoch = (last.actor, last.epoch + 1) if last is not None else (self._actors, 1)
        befores = [step for step in (history.last, last) if step is not None]
        history.point = Step(watched, actor, epoch, act, dict(self._clock), befores)
        history.behind.append(history.point)
        return history.point

    def _next_order(self) -> int:
        self._orders += 1
        return self._orders

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

    def _allocation_of(self, buffer: Buffer) -> Allocation | None:
        watched = self._watched[buffer.context]  # type: ignore[index]
        return watched.allocations.find(buffer.device_address, self._next_order())

    def _learn(self, clock: Clock) -> None:
        """The host knows more."""
        self._clock = clock
        if self._guarded is not None:
            self._guarded.known(clock)

    # ---- what was found ----

    def records(self) -> list[dict[str, Any]]:
        """Return what was found, as `npu check --json` has it."""
        return records(self.findings)

    def _report(self, finding: Finding) -> None:
        if self.findings.add(finding) is finding and self.on_finding is not None:
            self.on_finding(records([finding])[0])

    def _report_all(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._report(finding)
