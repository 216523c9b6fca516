"""What a run of a program does under a schedule that runs one operation after the other: in what order, what is in the bytes that
two accesses are about, what comes to the host, and which accesses are in conflict and in no order.

It is a checker whose findings nobody asks for. It poisons nothing: the program sees what it would see without it.
"""

from __future__ import annotations

import contextlib
import io
from base64 import b64encode
from typing import TYPE_CHECKING, Any
from weakref import ref
from zlib import crc32

from npu_abi import C

from libnpu.checker.sources import rows_of
from libnpu.checker.steps import HOST
from libnpu.checker.stream_events import operation_of
from libnpu.checker.symbols import place_of
from libnpu.checker.watch import Checker
from libnpu.checker.witness import HOST as HOST_NAME
from libnpu.checker.witness import Run, end_of
from libnpu.runtime import observer
from libnpu.runtime.copy_operations import Copy
from libnpu.runtime.schedule import schedule_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from libnpu.checker.allocations import Allocation
    from libnpu.checker.shadow import Access, Clock
    from libnpu.checker.steps import Act
    from libnpu.runtime.buffer import Buffer
    from libnpu.runtime.context import Context
    from libnpu.runtime.job import Job
    from libnpu.runtime.schedule import Schedule
    from libnpu.runtime.stream import Stream

SHOWN_BYTES = 1 << 20  # of a range, that are kept; the digest is of all
MAX_PAIRS = 500
MAX_ACCESSES = 5000  # of an allocation: pairs are looked for among the first ones


class Watch:
    """Bytes that two acts of a finding are about, and what was in them: `seen` has (whose moment, "before" or "after", digest, bytes)
    in order. Acts of the host are "host", and theirs is before each access, as is that of an act of a host function, which ends with it.
    """

    def __init__(self, wanted: dict[str, Any]) -> None:
        self.acts: list[dict[str, Any]] = wanted["acts"]
        self.memory: int = wanted["memory"]
        self.start, self.end = wanted["bytes"]
        self.buffer: ref[Buffer] | None = None
        self.seen: list[tuple[str, str, int, str]] = []

    def note(self, whose: str, moment: str) -> None:
        """Write down what is there now, if the memory still is."""
        buffer = self.buffer() if self.buffer is not None else None
        if buffer is not None and buffer.is_live:
            view = buffer.view if buffer.is_snooped else buffer.map_memory()
            content = bytes(view[self.start : self.end])
            self.seen.append((whose, moment, crc32(content), b64encode(content[:SHOWN_BYTES]).decode()))

    def act_of(self, job: Job) -> str:
        """Return which of the acts is a job, by the name of its moments, or a host function that ends with it; "" for none."""
        buffer = self.buffer() if self.buffer is not None else None
        if buffer is None or job.stream.context.device is not buffer.context.device:  # type: ignore[attr-defined]
            return ""
        return next((act["job"] for act in self.acts if "job" in act and end_of(act) == job.name), "")

    def is_by(self, act: Act, start: int, end: int) -> bool:
        """Whether an access of the host, or of a host function, to [start, end) is one of the acts."""
        site = place_of(act.site) if isinstance(act.site, int) else act.site
        its = (act.what, site, act.job)
        among = any((own["what"], own["site"], own.get("job", "")) == its for own in self.acts)
        return among and max(start, self.start) < min(end, self.end)


class Recorder(Checker):
    """Records a run. `watches` are of `witness.watch_of`. `schedule` is put in the place of the contexts' own."""

    poisons = False

    def __init__(self, watches: Sequence[dict[str, Any]] = (), schedule: Schedule | None = None) -> None:
        super().__init__()
        self.watches = [Watch(wanted) for wanted in watches]
        self.order: list[str] = []  # operations by name and accesses of the host by number, as they came
        self.outputs: list[int] = []  # digests of what came to the host
        self._schedule = schedule
        self._host: dict[Act, str] = {}  # acts of the host -> their names
        self._behind: dict[str, str] = {}  # act of the host -> the operation that was enqueued next
        self._unfollowed: list[str] = []
        self._copies: dict[Stream, list[tuple[Job, Copy]]] = {}  # to the host, of whose end it was not told
        self._accesses: dict[Allocation, list[tuple[int, int, Access, Clock]]] = {}
        self._jobs: dict[str, Act] = {}

    def record(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        return {
            "order": self.order,
            "outputs": self.outputs,
            "seen": [watch.seen for watch in self.watches],
            "pairs": (pairs := self._pairs()),
            "cut": len(pairs) == MAX_PAIRS or any(len(found) == MAX_ACCESSES for found in self._accesses.values()),
            "jobs": {name: _shown(act) for name, act in self._jobs.items()},
        }

    # ---- what the runtime tells ----

    def attach(self, context: Context) -> None:
        """As Checker."""
        if self._schedule is not None:
            self._schedule.apply(context.node)
            context.dispatcher = self._schedule.dispatcher(context)
        super().attach(context)

    def begins(self, job: Job) -> None:
        """As Observer."""
        for watch in self.watches:
            if watch.act_of(job) == job.name:
                watch.note(job.name, "before")

    def ended(self, job: Job) -> None:
        """As Observer."""
        if job.name:
            self.order.append(job.name)
        for watch in self.watches:
            if name := watch.act_of(job):
                watch.note(name, "after")

    def enqueued(self, job: Job) -> None:
        """As Checker."""
        super().enqueued(job)
        step = self._step_of(job)
        if step is not None and job.name:
            self._jobs[job.name] = step.act
            self._behind.update((name, job.name) for name in self._unfollowed)
            self._unfollowed.clear()
        operation = operation_of(job)
        if isinstance(operation, Copy) and operation.buffers[0].kind != C.NPU_MEMORY_DEVICE:
            self._copies.setdefault(job.stream, []).append((job, operation))

    def known(self, stream: Stream, number: int, *, waited: bool, whole: bool) -> None:
        """As Checker."""
        super().known(stream, number, waited=waited, whole=whole)
        self._take_copies(stream, number)

    def closed(self, stream: Stream) -> None:
        """As Checker."""
        super().closed(stream)
        self._copies.pop(stream, None)

    def allocated(self, buffer: Buffer) -> None:
        """As Checker."""
        super().allocated(buffer)
        for watch in self.watches:
            if watch.memory == self._memories:
                watch.buffer = ref(buffer)

    def accessed(self, buffer: Buffer, offset: int, size: int, *, write: bool, what: str) -> None:
        """As Checker."""
        super().accessed(buffer, offset, size, write=write, what=what)
        if not write and buffer.is_live:
            self.outputs.append(crc32(buffer.view[offset : offset + size]))

    # ---- inside ----

    def _is_told(self) -> None:
        """Not as Checker: what the host does from now on may have come before the function, unless it was told of its end."""

    def _take_copies(self, stream: Stream, number: int) -> None:
        """Note what the copies up to `number` have brought."""
        copies = self._copies.get(stream, [])
        while copies and copies[0][0].number <= number:
            _, operation = copies.pop(0)
            target, digest = operation.buffers[0], 0
            if target.is_live:
                for row in rows_of(target.program_view, target, operation.target):
                    digest = crc32(row, digest)
                self.outputs.append(digest)

    def _touch(self, allocation: Allocation, start: int, end: int, access: Access, clock: Clock) -> None:
        """As Checker; an access of the host, or of a host function, is about to come."""
        super()._touch(allocation, start, end, access, clock)
        act = access.act
        if access.actor == HOST or act.is_function:
            name = self._host[act] = f"host {len(self._host) + 1}"
            self.order.append(name)
            self._unfollowed.append(name)
            for watch in self.watches:
                if watch.memory == allocation.number and watch.is_by(act, start, end):
                    watch.note(act.job or HOST_NAME, "before")
        found = self._accesses.setdefault(allocation, [])
        if len(found) < MAX_ACCESSES:
            found.append((start, end, access, clock))

    def _pairs(self) -> list[list[dict[str, Any]]]:
        """Return the accesses that are in conflict and in no order, two by two. `place` is what the order calls an act, `behind` what was
        enqueued next, for acts of the host.
        """
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for accesses in self._accesses.values():
            for late, (start, end, access, clock) in enumerate(accesses):
                for low, high, earlier, _ in accesses[:late]:
                    apart = earlier.actor == access.actor or not (earlier.write or access.write)
                    if apart or max(start, low) >= min(end, high) or earlier.is_before(clock):
                        continue
                    pair = [self._act_of(each.act) for each in (earlier, access)]
                    found.setdefault((pair[0]["place"], pair[1]["place"]), pair)
                    if len(found) == MAX_PAIRS:
                        return [*found.values()]
        return [*found.values()]

    def _act_of(self, act: Act) -> dict[str, Any]:
        place = self._host.get(act) or act.job
        return {"place": place, "job": act.job, "is_function": act.is_function, "behind": self._behind.get(place)}


def _shown(act: Act) -> str:
    site = place_of(act.site) if isinstance(act.site, int) else act.site
    return f"{act.who}, at {site}" if site else act.who


def replays_of(program: Callable[[], object]) -> Callable[[str, Sequence[dict[str, Any]]], Run]:
    """Return what `witness.add_witnesses` takes, for a function of this process that opens the devices that it uses. What it prints, and
    raises, is kept.
    """

    def replay(schedule: str, watches: Sequence[dict[str, Any]]) -> Run:
        recorder = Recorder(watches, schedule_of(schedule))
        outer, observer.current = observer.current, recorder
        status, out = 0, io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                program()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # pytest's are no Exceptions
            status = 1
            out.write(f"{type(error).__name__}: {error}")
        finally:
            observer.current = outer
            recorder.finish()
        return Run(status, out.getvalue(), recorder.record())

    return replay
