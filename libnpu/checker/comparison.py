"""What jobs touch, compared with what they have no order with.

Jobs are looked at when the program was told that they have ended, or at the end: by then the device has said which bytes
they read and wrote. What they must come behind has ended before them, and is looked at before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import npu_abi
from npu_abi import C

from libnpu.checker import rules
from libnpu.checker.program import Program
from libnpu.checker.shadow import Access
from libnpu.checker.shared import Shared
from libnpu.checker.steps import HOST, Act, Step, join
from libnpu.errors import NpuError
from libnpu.runtime.records import read_records
from libnpu.syscalls import Request

if TYPE_CHECKING:
    from libnpu.checker.allocations import Allocation
    from libnpu.checker.guarded import Pages
    from libnpu.checker.histories import ContextWatch
    from libnpu.checker.shadow import Clock
    from libnpu.checker.sources import Source
    from libnpu.runtime.job import Job

RECORD = npu_abi.dtype("npu_access_record")


class Comparison(Program):
    """Looks at jobs and accesses."""

    def __init__(self, *, lint: bool = False, guard: Pages | None = None) -> None:
        super().__init__(lint=lint, guard=guard)
        self._waiting: Act | None = None  # the wait that is under way
        # by actor: an event, the step of its record, and the step of the record that took its place before anybody waited
        self._overwritten_records: dict[int, list[tuple[object, Step, Step]]] = {}
        self._shared = Shared()

    def _come_behind(self, steps: list[Step]) -> None:
        """The host was told that steps have ended."""
        self._look_at(steps)
        clock = dict(self._clock)
        for step in steps:
            assert step.clock is not None
            join(clock, step.clock)
            join(clock, {step.actor: step.epoch})
            if self._untold is not None:
                join(self._untold, step.clock if step.untold is None else step.untold)
                join(self._untold, {step.actor: step.epoch})
        self._learn(clock)

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
                for source in watched.sources.pop((step.actor, step.epoch), ()):
                    if source.has_changed:
                        self._overwritten(watched, step, source)
                for address, size, write in watched.runs.pop((step.actor, step.epoch), ()):
                    allocation = watched.allocations.find(address, step.act.order)
                    if allocation is not None:
                        start = address - allocation.address
                        access = Access(step.actor, step.epoch, write, step.act)
                        self._look_for_telling(allocation, start, start + size, access, step.untold)
                        self._touch(allocation, start, start + size, access, clock)
                        self._touch_behind_cache(allocation, start, min(start + size, allocation.size), access, clock)
                watched.pending.pop(step, None)
        for watched in contexts:
            first = next(iter(watched.pending), None)
            order = first.act.order if first is not None else self._next_order()
            for allocation in watched.allocations.forget_gone(order):
                self._report_rest(allocation)

    def _resolve(self, step: Step) -> None:
        """Find the jobs that give the signals that had none."""
        for signal in step.signals:
            if signal.job is not None:
                self._add_before(step, signal.job)
        step.signals.clear()
        if step.is_behind_others:
            step.befores += self._shared.ended(step.act.order)

    def _add_before(self, step: Step, job: Job) -> None:
        before = self._step_of(job)
        if before is not None:
            step.befores.append(before)

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

    def _look_for_telling(
        self, allocation: Allocation, start: int, end: int, access: Access, untold: Clock | None
    ) -> None:
        """Note that an access that is about to be put in is in order with one of a host function only by what that may have told. `untold`:
        as of a Step, of whoever makes it.
        """
        if untold is not None:
            self.relies_on_telling |= any(
                old.act.is_function and (old.write or access.write) and not old.is_before(untold)
                for _, _, state in allocation.shadow.parts(min(start, allocation.size), min(end, allocation.size))
                for old in state.accesses
            )

    def _touch(self, allocation: Allocation, start: int, end: int, access: Access, clock: Clock) -> None:
        size = allocation.size
        if end > size:
            self._report(rules.out_of_bounds(allocation, max(start, size), end, access.act))
            end = size
        if start >= end:
            return
        if not access.write and (not allocation.is_shown or allocation.is_untouched):
            missing = allocation.shadow.unwritten(start, end)
            allocation.unwritten += [(access.act, low, high) for low, high in missing]
        if access.act.is_free:  # what is in flight was not looked at: the states stay, for that
            conflicts, allocation.free = allocation.shadow.conflicts(start, end, access, clock), access
        else:
            conflicts = allocation.shadow.touch(start, end, access, clock, self._floor())
            if allocation.free is not None:
                conflicts.append((allocation.free, start, end))
        for old, low, high in conflicts:
            if old.act.is_allocation:
                follows = any(
                    use.is_before(clock) for use, *_ in allocation.unordered
                )  # what would order that one orders this
                if not follows and (access.actor != HOST or not access.act.is_free):  # a free by the host is no use
                    allocation.unordered.append((access, low, high))
                continue
            if allocation.is_shared and access.act.is_free and old.act.context != access.act.context:
                continue  # the memory lives as long as anybody has it
            found = rules.conflict(allocation, low, high, old, access)
            if found is not None:
                self._report(found)
                self._look_for_overwritten(*sorted((old, access), key=lambda each: each.act.order))
                if allocation.unwritten:  # the write that was missing comes in no order: that is the fault
                    allocation.unwritten = [read for read in allocation.unwritten if read[0] is not old.act]
                making = allocation.making
                if making is not None and making.is_before(clock) and not access.act.is_free:
                    allocation.unordered = [use for use in allocation.unordered if use[0].act is not old.act]

    def _floor(self) -> Clock:
        """Return what all accesses that were not looked at yet come behind: what the host knew when the oldest was enqueued."""
        oldest = (next(iter(watched.pending)).known for watched in self._watched.values() if watched.pending)
        return min(oldest, key=lambda known: known[HOST], default=self._clock)

    def _touch_behind_cache(self, allocation: Allocation, start: int, end: int, access: Access, clock: Clock) -> None:
        """A job touches memory that mappings may end, and caches hold."""
        for low, high, unmap in allocation.unmaps:
            if max(low, start) < min(high, end) and not unmap.is_before(clock):
                self._report(rules.unmapped(allocation, max(low, start), min(high, end), access, unmap))
        if self._lint is not None and self._waiting is not None and allocation.is_host and access.act.is_launch:
            self._lint.carried(rules.responsibility(allocation, start, end, access.act, self._waiting))
        if allocation.cache is not None and start < end and not access.act.is_free:
            by_job = allocation.cache.written_by_job if access.write else allocation.cache.read_by_job
            self._report_all(by_job(start, end, access, clock))

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

    def _look_for_overwritten(self, first: Access, second: Access) -> None:
        """Report a record of an event behind the first of two accesses in no order that another record took the place of, if
        that was before the second one.
        """
        for _, old, new in self._overwritten_records.get(first.actor, ()):
            if old.epoch > first.epoch and new.act.order < second.act.order:
                self._report(rules.event_overwritten(old.act, new.act, first.act))

    def _report_rest(self, allocation: Allocation) -> None:
        """Report what nothing else that was found explains."""
        for use, low, high in allocation.unordered:
            self._report(rules.not_made_yet(allocation, low, high, use))
        for act, low, high in allocation.unwritten:
            self._report(rules.unwritten(allocation, low, high, act))
