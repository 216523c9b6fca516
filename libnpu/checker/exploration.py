"""All results of a program: it runs under schedules, and those that a search makes, until no other result is to be expected.

The search begins with the order of the program's calls. Each run says which accesses are in conflict and in no order; for each such
pair the one that came first is held back until the other has been, up to a number of operations that are held at once. Everything
else commutes: an order of operations that does not change the order of a pair in conflict changes no byte. So a run in which all pairs
are as in one before leads nowhere new.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from libnpu.checker.witness import IN_ORDER, Run, end_of
from libnpu.runtime.hold import Held, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMED = ("timed", "eager", "lazy", "newest-first")
SEEDS_RANK = 1000  # behind all that holds operations
Holds = frozenset[Held]


@dataclass
class Result:
    """A final result, and the runs that had it: schedules in the order of the search."""

    run: Run
    schedules: list[str] = field(default_factory=list)
    shortest: str = (
        ""  # the one that says the most in the fewest words: a named one, else the fewest operations held, else a seed
    )


@dataclass
class Exploration:
    """What came out: distinct results in the order in which they were found, and whether the search came to its end."""

    results: list[Result] = field(default_factory=list)
    runs: int = 0
    is_complete: bool = False
    jobs: dict[str, str] = field(default_factory=dict)  # operation -> what it is and where it was enqueued
    is_loose: bool = False  # host functions and the host are in conflict: the order of the two is the machine's, unless the schedule holds

    def add(self, schedule: str, run: Run) -> None:
        """Note a run."""
        self.runs += 1
        self.jobs = run.record.get("jobs", {}) | self.jobs
        known = next((result for result in self.results if _outcome(result.run) == _outcome(run)), None)
        if known is None:
            self.results.append(known := Result(run))
        known.schedules.append(schedule)
        self.is_loose |= any(
            one["is_function"] and not two["job"]
            for pair in run.record.get("pairs", ())
            for one, two in (pair, pair[::-1])
        )

    def choose(self) -> None:
        """Choose the schedule of each result that shows it."""
        for result in self.results:
            result.shortest = min(
                result.schedules, key=lambda name: (self.is_loose and not name.startswith(IN_ORDER), _length(name))
            )


def explore(replay: Callable[[str], Run], *, holds: int = 2, seeds: int = 8, runs: int = 100) -> Exploration:
    """Run a program under the named schedules, those of a search with at most `holds` operations held, and `seeds` seeds; `runs` in all."""
    found = Exploration()
    for name in NAMED[:runs]:
        found.add(name, replay(name))
    found.is_complete = _search(found, replay, holds, runs)
    for seed in range(min(seeds, runs - found.runs)):
        found.add(f"seed:{seed}", replay(f"seed:{seed}"))
    found.choose()
    return found


def _search(found: Exploration, replay: Callable[[str], Run], most: int, runs: int) -> bool:
    """Run it in all orders that are worth it. False when `runs` is reached before, or a run has more pairs than are recorded."""
    waiting: list[Holds] = [frozenset()]
    known = {IN_ORDER}
    traces, is_cut = set(), False
    for held in waiting:  # which grows, by the number of operations held
        if found.runs >= runs:
            return False
        schedule = _text(held)
        run = replay(schedule)
        found.add(schedule, run)
        is_cut |= run.record.get("cut", False)
        trace = _trace(run)
        if run.problem or trace in traces:
            continue
        traces.add(trace)
        for swap in _swaps(run):
            other = frozenset(old for old in held if old.name != swap.name) | {swap}
            if len(other) <= most and _text(other) not in known:
                known.add(_text(other))
                waiting.append(other)
    return not is_cut


def _trace(run: Run) -> frozenset[tuple[str, str]]:
    """Return the pairs in conflict, each in the order in which they came."""
    return frozenset((first["place"], second["place"]) for first, second in _ordered(run))


def _swaps(run: Run) -> Iterator[Held]:
    """Yield what to hold, and for what, so that a pair comes the other way round. The host cannot be held: what is held for an act of
    the host is let go when the program enqueues the next operation.
    """
    for first, second in _ordered(run):
        until = end_of(second) if second["job"] else second["behind"]
        if first["job"] and until != first["job"]:
            yield Held(first["job"], until, before=until is not None and not second["job"])


def _ordered(run: Run) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the pairs in conflict as they came."""
    places = {place: number for number, place in enumerate(run.record.get("order", ()))}
    for one, two in run.record.get("pairs", ()):
        if one["place"] in places and two["place"] in places:
            first, second = sorted((one, two), key=lambda act: places[act["place"]])
            yield first, second


def _text(held: Holds) -> str:
    return IN_ORDER + text_of(sorted(held))


def _outcome(run: Run) -> tuple[object, ...]:
    return run.status, run.printed, run.record.get("outputs"), run.problem


def _length(schedule: str) -> tuple[int, int]:
    kind, _, held = schedule.partition(":")
    if kind in NAMED:
        return 0, NAMED.index(kind)
    return 1 + held.count(",") if kind == "hold" else SEEDS_RANK, len(schedule)
