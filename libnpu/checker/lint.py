"""What is right and costs time: waits that tell nothing new, waits behind every launch or copy to the device, copies that the host
carries, kernels that move the host's data themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from libnpu.checker import rules
from libnpu.checker.findings import Findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from libnpu.checker.findings import Finding
    from libnpu.checker.steps import Act, Step
    from libnpu.runtime.buffer import Buffer

REPEATS = 8  # chosen: from so many on it is a habit


class Pairs:
    """Waits for one kind of operation that the next work follows without a use of the result: how often, by the sites of both."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str | int, str | int], tuple[int, Act, Act]] = {}
        self.last: tuple[Act, Act] | None = None  # an operation and the last wait, for it, and nobody looked since

    def end(self) -> None:
        """The program enqueues the next work."""
        if self.last is not None:
            operation, wait = self.last
            place = operation.site, wait.site
            self._counts[place] = self._counts.get(place, (0,))[0] + 1, operation, wait
            self.last = None

    def often(self) -> Iterator[tuple[Act, Act, int]]:
        """Yield the last acts of the places where it is a habit, and how often it was."""
        for count, operation, wait in self._counts.values():
            if count >= REPEATS:
                yield operation, wait, count


@dataclass(slots=True)
class Wait:
    """The waits of a site, and how many of them told the host nothing."""

    act: Act
    count: int = 0
    redundant: int = 0


class Lint:
    """Told by the checker, asked at the end."""

    def __init__(self) -> None:
        self._waits: dict[str | int, Wait] = {}  # by site
        self._launches = Pairs()  # waits for one launch alone
        self._uploads = Pairs()  # waits for a copy to the device, behind all else
        self._sources: WeakKeyDictionary[Buffer, int] = WeakKeyDictionary()  # what copies read last
        self._carried = Findings()  # kernels that use the host's memory while the host waits
        self._carriers: dict[Finding, set[Act]] = {}  # and their launches
        self._pageable: dict[str | int, tuple[int, Act]] = {}
        self._fresh: list[Step] = []  # enqueued since the host waited last
        self._copied_ps = -1

    def enqueued(self, step: Step) -> None:
        """The program has enqueued a job."""
        self._launches.end()
        self._uploads.end()
        self._fresh.append(step)

    def reads(self, buffer: Buffer, digest: int) -> None:
        """A copy that is about to be enqueued reads pinned memory. When it has changed, the host has stored there: it had to wait."""
        if self._sources.get(buffer, digest) != digest:
            self._launches.last = self._uploads.last = None
        self._sources[buffer] = digest

    def waited(self, wait: Act, *, is_new: bool) -> None:
        """The program has waited; `is_new`: it was told of an end that it did not know."""
        site = self._waits.setdefault(wait.site, Wait(wait))
        site.count += 1
        site.redundant += not is_new
        if is_new:
            alone = self._fresh[0] if len(self._fresh) == 1 else None
            self._launches.last = (alone.act, wait) if alone is not None and alone.act.is_launch else None
            last = self._fresh[-1].act if self._fresh else None
            self._uploads.last = (last, wait) if last is not None and last.is_upload else None
            self._fresh.clear()

    def told(self, act: Act) -> None:
        """The program was told of an end by a call that does more than wait, or that has to ask."""
        self._waits.setdefault(act.site, Wait(act)).count += 1
        self._fresh.clear()

    def touched(self, act: Act) -> None:
        """The host uses memory: it had to wait."""
        self._launches.last = self._uploads.last = None
        if act.what.startswith("copy ") and act.time_ps != self._copied_ps:  # rows of a copy are carried at one time
            self._copied_ps = act.time_ps
            count = self._pageable.get(act.site, (0, act))[0]
            self._pageable[act.site] = count + 1, act

    def carried(self, found: Finding) -> None:
        """A launch moves bytes of the host's memory itself."""
        self._carriers.setdefault(self._carried.add(found), set()).add(found.acts[0])

    def findings(self) -> Iterator[Finding]:
        """Yield what was seen often enough, and each wait that was never of use."""
        for wait in self._waits.values():
            if wait.redundant == wait.count:
                yield rules.redundant_wait(wait.act, wait.count)
        for launch, act, count in self._launches.often():
            yield rules.serial_launches(launch, act, count)
        for copy, act, count in self._uploads.often():
            yield rules.waits_for_uploads(copy, act, count)
        for found, launches in self._carriers.items():
            found.count = len(launches)
            if found.count >= REPEATS:
                yield found
        for count, copy in self._pageable.values():
            if count >= REPEATS:
                yield rules.pageable_copies(copy, count)
