"""What memory the program has: made, freed, and shown to those whose accesses are not seen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import ref

from npu_abi import C

from libnpu.checker.allocations import Allocation
from libnpu.checker.caches import Cache
from libnpu.checker.host_events import HostEvents
from libnpu.checker.shadow import Access, Shadow, State
from libnpu.checker.steps import HOST, Act
from libnpu.runtime.ipc import ImportedBuffer

if TYPE_CHECKING:
    from libnpu.checker.guarded import Pages
    from libnpu.runtime.buffer import Buffer
    from libnpu.runtime.job import Job
    from libnpu.runtime.stream import Stream


class MemoryEvents(HostEvents):
    """Is told of memory that comes and goes."""

    def __init__(self, *, lint: bool = False, guard: Pages | None = None) -> None:
        super().__init__(lint=lint, guard=guard)
        self._freed: dict[int, Act] = {}  # by address, what gave the memory there back last
        self._memories = 0

    def pages_of(self, view: memoryview) -> memoryview:
        """As Observer."""
        return view if self._guarded is None else self._guarded.pages_of(view)

    def allocated(self, buffer: Buffer) -> None:
        """As Observer."""
        context = buffer.context
        watched = self._watched[context]  # type: ignore[index]
        act = self._act(watched.context, f"allocation of {buffer.size} bytes")
        is_host = buffer.kind != C.NPU_MEMORY_DEVICE
        made = self._new_memory(buffer, act, Shadow(buffer.size), is_host=is_host)
        made.is_shown |= isinstance(buffer, ImportedBuffer)
        is_poison = buffer.kind != C.NPU_MEMORY_REGISTERED and not isinstance(buffer, ImportedBuffer)
        if is_poison and not isinstance(act.site, int):
            made.buffer = ref(buffer)
        if not buffer.is_snooped:
            made.cache = Cache(made)
        watched.allocations.add(made)
        if self._guarded is not None:
            self._guarded.allocated(buffer)

    def allocated_in(self, buffer: Buffer, stream: Stream) -> None:
        """As Observer."""
        watched = self._watched[stream.context]
        made = self._allocation_of(buffer)
        if made is None:
            return
        history = self._history(watched, stream)
        made.made = replace(made.made, stream=history.name, is_allocation=True)
        point = self._point(history, watched, made.made)
        made.making = Access(point.actor, point.epoch, True, made.made)
        made.shadow = Shadow(buffer.size, State(False, (made.making,)))

    def shown(self, buffer: Buffer) -> None:
        """As Observer."""
        allocation = self._allocation_of(buffer)
        if allocation is not None:
            allocation.is_shown = True

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
            access = Access(HOST, self._clock[HOST], True, act)
            self._look_for_telling(found, 0, found.size, access, self._untold)
            self._touch(found, 0, found.size, access, self._clock)

    # ---- inside ----

    def _new_memory(self, buffer: Buffer, made: Act, shadow: Shadow, *, is_host: bool = False) -> Allocation:
        """Return a new allocation."""
        self._memories += 1
        return Allocation(buffer.device_address, made, shadow, self._memories, is_host=is_host)
