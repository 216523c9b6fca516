"""What happened, in what order it had to: the jobs of streams and what the host did, with a vector clock each.

Actor 0 is the host: all threads of the program, which it orders itself by means that are not seen here. Each stream is
an actor whose epochs are the numbers of its jobs; what is done in its order without a job is one more, whose epochs count that. A job comes behind its predecessor in the stream, behind what it waits
for, and behind what the host had done, and had been told, when it enqueued it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from libnpu.checker.histories import ContextWatch
    from libnpu.checker.shadow import Clock
    from libnpu.runtime.fences import Signal

HOST = 0


@dataclass(frozen=True, slots=True, eq=False)
class Act:
    """An operation or a call, for reports. `order` counts what the program did; `captured` is where a node of a graph was; `job` what the
    schedule `hold` calls an operation, or the trigger of a host function, whose `is_function` it is.
    """

    what: str
    stream: str  # "" for the host
    site: str | int
    order: int
    time_ps: int
    is_free: bool = False
    is_allocation: bool = field(default=False, kw_only=True)  # in stream order
    captured: str | int = ""
    is_launch: bool = False  # of a kernel or a model
    is_upload: bool = field(default=False, kw_only=True)  # a copy of pinned memory to the device's
    job: str = ""
    is_function: bool = False
    context: int = 1  # its number on the device
    evidence: str = ""  # by which it is known, "" when it was seen as such
    real_ns: int = 0  # when, on the machine's clock: of processes that share memory

    @property
    def who(self) -> str:
        """What it was and where, for people."""
        if self.is_function:
            return f"the host function in {self.stream}, in its {self.what},"
        return f"{self.what} in {self.stream}" if self.stream else f"the host, in its {self.what},"


@dataclass(slots=True, eq=False)
class Step:
    """A job. `befores` are the steps that it must come behind, besides what `known`, the host's clock, covers. `clock` is
    worked out when the accesses of the job are known; it does not cover the step itself.
    """

    owner: ContextWatch
    actor: int
    epoch: int
    act: Act
    known: Clock
    befores: list[Step] = field(default_factory=list)
    signals: list[Signal] = field(default_factory=list)  # that it waits for, and that had no job yet
    clock: Clock | None = None
    untold: Clock | None = None  # the part of both that no host function may have told; None when that is all
    is_behind_others: bool = False  # comes behind a record of another process

    def ancestors(self, resolve: Callable[[Step], None]) -> Iterator[Step]:
        """Yield the steps before this one, and then this one, that have no clock yet, each behind those that it must come
        behind. `resolve` completes the `befores` of a step.
        """
        resolve(self)
        stack = [(self, iter(self.befores))]
        entered = {self}
        while stack:
            step, befores = stack[-1]
            for before in befores:
                if before.clock is None and before not in entered:
                    entered.add(before)
                    resolve(before)
                    stack.append((before, iter(before.befores)))
                    break
            else:
                stack.pop()
                if step.clock is None:
                    yield step

    def set_clock(self) -> Clock:
        """Work out the clock; all `befores` have one."""
        clock = dict(self.known)
        for before in self.befores:
            assert before.clock is not None
            join(clock, before.clock)
            clock[before.actor] = max(clock.get(before.actor, -1), before.epoch)
            if self.untold is not None:
                join(self.untold, before.clock if before.untold is None else before.untold)
                join(self.untold, {before.actor: before.epoch})
        self.clock = clock
        self.befores.clear()
        return clock


def join(clock: Clock, other: Clock) -> None:
    """Let `clock` cover what `other` does."""
    for actor, epoch in other.items():
        if clock.get(actor, -1) < epoch:
            clock[actor] = epoch
