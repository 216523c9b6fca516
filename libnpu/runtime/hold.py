"""The schedule `hold`: jobs run one at a time, each alone and as soon as it can, but for some that are named and held back.

`hold:1.3@2.1,1.4@-3.1,1.5` says: operation 3 of stream 1 runs when operation 1 of stream 2 has ended, operation 4 when operation 1 of
stream 3 is enqueued, before that runs, and operation 5 when the program waits or asks for it. A stream has its `id`, and counts from 1 what is enqueued in it, other than waits for events, which
are jobs or not by what has ended; a context other than the device's first stands before it: 2.1.3. What is held is let go earlier
when something that the program waits for needs it, or the operation that it is held for comes behind it; so every such text is a legal order of every program,
and says the same each time.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from libnpu.at_end import at_end
from libnpu.runtime import observer
from libnpu.runtime.dispatchers import Lazy, UntilIdle
from libnpu.runtime.host_functions import Trigger
from libnpu.runtime.host_threads import HOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from libnpu.runtime.context import Context
    from libnpu.runtime.job import Job
    from libnpu.runtime.stream import Stream


ENQUEUED: dict[str, dict[str, int]] = {}  # by the list of a schedule: what `missing` takes, of this process
STREAMS = 8  # that are listed of those that there are


class Held(NamedTuple):
    """An operation by its name, and the one that it is held for, None for the program's need; `before`: only for its enqueuing."""

    name: str
    until: str | None = None
    before: bool = False

    @property
    def text(self) -> str:
        """The item of the list."""
        return self.name if self.until is None else f"{self.name}@{'-' if self.before else ''}{self.until}"


def parse(text: str) -> tuple[Held, ...]:
    """Read what follows "hold:". Raises ValueError."""
    found = [_item(item) for item in text.split(",")] if text else []
    if len({held.name for held in found}) < len(found) or any(held.name == held.until for held in found):
        raise ValueError(text)
    return tuple(found)


def text_of(holds: Iterable[Held]) -> str:
    """Return what `parse` reads."""
    return ",".join(held.text for held in holds)


def _item(item: str) -> Held:
    name, at, until = item.partition("@")
    return Held(_name(name), _name(until.removeprefix("-")) if at else None, until.startswith("-"))


def _name(text: str) -> str:
    numbers = text.split(".")
    if len(numbers) not in (2, 3) or not all(part.isascii() and part.isdecimal() and int(part) for part in numbers):
        raise ValueError(text)
    return ".".join(str(int(part)) for part in numbers)


def missing(text: str, enqueued: Mapping[str, int]) -> str:
    """Say which operations of the list `text` there never were, and which there were; "" for none. `enqueued`: how many in each stream."""
    names = {name for held in parse(text) for name in (held.name, held.until) if name is not None}
    gone = [name for name in names if int(name.rpartition(".")[2]) > enqueued.get(name.rpartition(".")[0], 0)]
    if not gone:
        return ""
    there = [
        f"{stream}.1" + (f" to {stream}.{count}" if count > 1 else "") for stream, count in sorted(enqueued.items())
    ]
    others = ", and more" if len(there) > STREAMS else ""
    known = f"there is {', '.join(there[:STREAMS])}{others}" if there else "none was enqueued"
    return f"schedule 'hold:{text}': there never was an operation {' or '.join(sorted(gone))}; {known}"


def take_missing(text: str) -> str:
    """Say what `missing` does of a list that devices of this process have had, once."""
    return missing(text, ENQUEUED.pop(text)) if text in ENQUEUED else ""


def say_missing(text: str) -> None:
    """Say on stderr when the process ends what of a list there never was, unless somebody watches, who does."""

    def say() -> None:
        if observer.current is None and ENQUEUED.get(text) and (problem := take_missing(text)):
            print(f"libnpu: {problem}", file=sys.stderr)

    if text not in ENQUEUED:
        ENQUEUED[text] = {}
        at_end(say)


class Hold(Lazy):
    """Runs jobs one by one in the order in which they were enqueued, those that are named later."""

    runs_alone = True

    def __init__(self, context: Context, holds: Iterable[Held]) -> None:
        super().__init__(context)
        self._run_device = UntilIdle(context)
        self._enqueued = ENQUEUED.get(text_of(holds), {})
        self._late = {held.name: held for held in holds}
        self._named: dict[str, Job | None] = {held.until: None for held in holds if held.until is not None}

    def submit(self, job: Job) -> None:
        """Run what can run by now."""
        self._held[job] = None
        if job.position:
            self._enqueued[job.name.rpartition(".")[0]] = job.position
        if job.name in self._named:
            self._named[job.name] = job
        if any(id(signal) in self._awaited for signal in job.written):
            self.need(job)
        else:
            self._go_on()

    def need(self, job: Job) -> None:
        """Let go what `job` comes behind, and what that is held for, and run what can run. What then still waits, waits for a host
        function or another thread: it is handed over.
        """
        wanted = [*self._needed(job)]
        for before in wanted:  # which grows
            held = self._late.get(before.name)
            if held is not None and (other := self._target(held)) is not None:
                wanted += self._needed(other) - {*wanted}
            elif held is not None:
                del self._late[before.name]
        self._go_on()
        for before in self._needed(job):  # held for each other
            self._late.pop(before.name, None)
        self._go_on()
        self.hand_over(job)

    def let_go(self, job: Job) -> None:
        """As Dispatcher."""
        self.need(job)

    def function_enqueued(self) -> None:
        """Let it run, if it can."""
        HOST.wait_for_functions(self._context.node)
        self._go_on()

    def _go_on(self) -> None:
        self._forget_submitted()
        while (ready := self._next()) is not None:
            observer = self._context.observer
            if observer is not None:
                observer.begins(ready)
            if not self._submit(ready):
                return
            self._run_device()
            if observer is not None and self._has_ended(ready):
                observer.ended(ready)
            if isinstance(ready.operation, Trigger):
                HOST.wait_for_functions(self._context.node)
            self._forget_submitted()

    def _next(self) -> Job | None:
        """Return the first job that can run, in the order in which they were enqueued."""
        waiting: set[Stream] = set()  # whose first held job cannot
        for job in self._held:
            if job.stream not in waiting:
                if self._is_ready(job) and not self._is_late(job):
                    return job
                waiting.add(job.stream)
        return None

    def _is_ready(self, job: Job) -> bool:
        """Whether nothing that it comes behind has still to end."""
        for before in job.stream.jobs:
            if before is job:
                break
            if not self._has_ended(before):
                return False
        return self._has_all(job)

    def _is_late(self, job: Job) -> bool:
        held = self._late.get(job.name)
        if held is None:
            return False
        other = self._target(held)
        return other is None or not (held.before or self._has_ended(other) or job in self._needed(other))

    def _target(self, held: Held) -> Job | None:
        """Return what an operation is held for, None for nothing or for what has not been enqueued."""
        return self._named[held.until] if held.until is not None else None
