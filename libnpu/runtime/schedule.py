"""Schedules: in which order the work of a program runs. All are legal orders of the same program, so one without missing
synchronisation gives the same bytes under all of them.

- timed: by the model's time, the only one whose times mean something.
- eager: the device runs until it is idle before the enqueuing call returns.
- lazy: jobs are held back; only what a wait or query needs runs, by the order of streams and by fences.
- newest-first: jobs are held back until a wait or query; then, of the streams whose next job is ready, the one
  enqueued last goes first and runs to its end, until what is asked for is done.
- seed:N: tasks take random times, and some jobs begin late, from the seed.

The order within a stream is never touched. A query counts as a need, so that polling ends. What holds jobs back takes
any number: a queue that is full, and cannot get empty, then shows at the wait for what it does not take, and not at the
call that enqueues.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.arguments import shown
from libnpu.runtime.dispatch import Dispatcher
from libnpu.runtime.time import FOR_EVER_PS, NEVER_PS
from libnpu.syscalls import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from libnpu.runtime.context import Context
    from libnpu.runtime.fences import Signal
    from libnpu.runtime.job import Job
    from libnpu.runtime.stream import Stream
    from libnpu.syscalls import Node

MAX_SEED = (1 << 64) - 1


class Eager(Dispatcher):
    """Runs the device until it is idle, and lets the host find everything done."""

    def __init__(self, context: Context) -> None:
        self._node = context.node
        self._interrupt_ps = round(context.profile.host.interrupt_ns * 1000)
        self._run = Request(C.NPU_IOCTL_EMU_RUN, "npu_emu_run", "EMU_RUN")

    def submit(self, job: Job) -> None:
        """Hand a job over and run everything that can run."""
        super().submit(job)
        arg, node = self._run.arg, self._node
        while True:
            arg.until_ps, arg.now_ps, arg.next_ps, arg.interrupts = NEVER_PS, 0, 0, 0
            node.ioctl(self._run)
            if not arg.interrupts:
                break
        node.advance(max(0, arg.now_ps + self._interrupt_ps - node.now_ps))


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

    def discard(self, stream: Stream) -> None:
        """Forget the held jobs of a stream."""
        self._held = {job: None for job in self._held if job.stream is not stream}

    def hand_over(self, job: Job) -> None:
        """Submit a job and all that it depends on, in the order in which they were enqueued."""
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
                    self._awaited.update(id(signal) for signal in before.signals if signal.job is None)
                if before is last:
                    break
        self._forget_submitted()
        full: set[Stream] = set()
        for held in [held for held in self._held if held in needed]:
            if held in self._held and held.stream not in full and not self._submit(held):  # else another thread has
                full.add(held.stream)

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
        return job is job.stream.jobs[0] and all(self._is_given(signal) for signal in job.signals)

    def _is_given(self, signal: Signal) -> bool:
        return signal.over or self._context.fences.value(signal.cell) >= signal.value


KINDS: dict[str, Callable[[Context], Dispatcher]] = {
    "timed": lambda _: Dispatcher(),
    "eager": Eager,
    "lazy": Lazy,
    "newest-first": NewestFirst,
}


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule by its name: one of `KINDS`, or "seed" with a seed."""

    kind: str
    seed: int | None = None

    @property
    def name(self) -> str:
        """The name, as `schedule_of` takes it."""
        return self.kind if self.seed is None else f"seed:{self.seed}"

    def dispatcher(self, context: Context) -> Dispatcher:
        """Return what hands the jobs of a context over."""
        return KINDS.get(self.kind, KINDS["timed"])(context)

    def apply(self, node: Node) -> None:
        """Tell the device how long tasks take."""
        request = Request(C.NPU_IOCTL_EMU_SET_SCHEDULE, "npu_emu_schedule", "EMU_SET_SCHEDULE")
        if self.seed is not None:
            request.arg.kind, request.arg.seed = C.NPU_SCHEDULE_SEED, self.seed
        node.ioctl(request)


TIMED = Schedule("timed")


def schedule_of(name: str | None, seed: int | None = None) -> Schedule:
    """Return the schedule `name` (None: seed:`seed`, or timed without one). Raises INVALID_VALUE."""
    if name is None:
        name = "timed" if seed is None else f"seed:{index(seed)}"
    elif seed is not None:
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"schedule {shown(name)} with a seed beside it")
    if isinstance(name, str) and name in KINDS:
        return TIMED if name == TIMED.kind else Schedule(name)
    kind, _, number = name.partition(":") if isinstance(name, str) else ("", "", "")
    if kind == "seed" and number.isascii() and number.isdecimal() and int(number) <= MAX_SEED:
        return Schedule("seed", int(number))
    known = ", ".join(map(repr, KINDS))
    raise NpuError(
        C.NPU_ERROR_INVALID_VALUE, f"schedule {shown(name)}; there are {known}, 'seed:0' to 'seed:{MAX_SEED}'"
    )
