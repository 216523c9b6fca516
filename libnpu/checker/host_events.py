"""What the host does with memory itself: in calls, by arrays, by addresses as far as that is seen, and with its caches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from libnpu.checker import rules
from libnpu.checker.arrays import WatchedArray, site_of_array
from libnpu.checker.comparison import Comparison
from libnpu.checker.guarded import EVIDENCE
from libnpu.checker.shadow import Access
from libnpu.checker.steps import HOST, Act, Step, join
from libnpu.runtime.host_pages import address_of
from libnpu.runtime.host_threads import HOST as THREADS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from libnpu.checker.guarded import Pages
    from libnpu.runtime.buffer import Buffer
    from libnpu.runtime.job import Job

ANNOTATION = "the host's access, by an annotation of the program"


class HostEvents(Comparison):
    """Is told of the accesses of the host."""

    def __init__(self, *, lint: bool = False, guard: Pages | None = None) -> None:
        super().__init__(lint=lint, guard=guard)
        self._reached: Step | None = None  # the marker before the host function that was called last
        self._begun: list[Step] = []  # the markers before host functions that have begun since the host's last act

    def accessed(self, buffer: Buffer, offset: int, size: int, *, write: bool, what: str) -> None:
        """As Observer."""
        step = self._function_step if THREADS.in_function else None
        self._accessed(buffer, offset, size, write, self._act(buffer.context, what), step)  # type: ignore[arg-type]

    def annotated(self, buffer: Buffer, offset: int, size: int, *, write: bool) -> None:
        """As Observer."""
        act = self._act(buffer.context, "store" if write else "load")  # type: ignore[arg-type]
        step = self._function_step if THREADS.in_function else None
        self._accessed(buffer, offset, size, write, replace(act, evidence=ANNOTATION), step, is_seen=True)

    def array_of(self, buffer: Buffer, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """As Observer."""
        base = address_of(buffer.program_view)

        def tell(address: int, size: int, write: bool) -> None:
            with THREADS.lock:
                if (buffer.is_live or THREADS.in_function) and buffer.context in self._watched:
                    what = "store to an array" if write else "look at an array"
                    act = self._act(buffer.context, what, site_of_array())
                    step = self._function_step if THREADS.in_function else None
                    if step is None:
                        self._is_told()
                    self._accessed(buffer, address - base, size, write, act, step, is_seen=True)

        return WatchedArray.over(array, tell)

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
            self._begun.append(step)

    # ---- inside ----

    def _is_told(self) -> None:
        """Threads tell each other what they know, by means that are not seen: what the host does next may come behind whatever a host
        function does that has begun. A call that it was in by then does not.
        """
        if self._begun:
            self._untold = self._clock if self._untold is None else self._untold
            clock = dict(self._clock)
            for step in self._begun:
                assert step.clock is not None
                join(clock, {**step.clock, step.actor: step.epoch + 1})
            self._begun.clear()
            self._learn(clock)

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
        clock, untold, access = self._clock, self._untold, Access(HOST, self._clock[HOST], write, act)
        if step is not None and step.clock is not None:  # what a host function does belongs to its stream
            clock, untold = {**step.clock, step.actor: step.epoch}, step.untold
            act = replace(act, stream=step.act.stream, order=step.act.order, job=step.act.job, is_function=True)
            access = Access(step.actor, step.epoch + 1, write, act)
        self._look_for_telling(allocation, offset, offset + size, access, untold)
        self._touch(allocation, offset, offset + size, access, clock)
        if allocation.cache is not None and (is_seen or allocation.is_host):  # device memory: by an array alone
            if write:
                allocation.cache.store(offset, offset + size, access)
            else:
                self._report_all(allocation.cache.look(offset, offset + size, access, clock))
