"""Questions that one asks of a trace: how busy engines were, which of them together, and how long each layer took.

Analysis is over a span of time, usually one job's. The slices are libnpu.trace's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from libnpu.trace.slices import ENGINES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from libnpu.trace.slices import Slice


@dataclass(frozen=True, slots=True)
class Usage:
    """How long an engine was at work in a span; `units` of them, so that 100 % is `units * span_ps`."""

    name: str
    units: int
    tasks: int
    busy_ps: int
    utilisation: float  # 0 to 1


@dataclass(frozen=True, slots=True)
class LayerUsage:
    """Engine time of one layer; `first_ps` and `last_ps` bound it."""

    name: str
    busy_ps: dict[str, int]  # by engine
    first_ps: int
    last_ps: int


def usage(slices: Iterable[Slice], span_ps: int, units: dict[str, int]) -> list[Usage]:
    """Return the usage of each engine over `span_ps`. `units` says how many of each the job could use."""
    busy = dict.fromkeys(ENGINES, 0)
    count = dict.fromkeys(ENGINES, 0)
    tracks: dict[str, set[str]] = {name: set() for name in ENGINES}
    for s in slices:
        busy[s.engine] += s.end_ps - s.start_ps
        count[s.engine] += 1
        tracks[s.engine].add(s.track)
    found = []
    for name in ENGINES:
        n = max(units.get(name, 0), len(tracks[name]))
        found.append(Usage(name, n, count[name], busy[name], busy[name] / (n * span_ps) if n and span_ps else 0.0))
    return found


def overlap(slices: Iterable[Slice], start_ps: int, end_ps: int) -> dict[frozenset[str], int]:
    """Return how long exactly these engines were busy together, by set of engines, over [start_ps, end_ps).

    An engine is busy when any of its units is. The empty set is the time in which nothing ran; the values add up to the span.
    """
    edges = []
    for s in slices:
        first, past = max(s.start_ps, start_ps), min(s.end_ps, end_ps)
        if first < past:
            edges += [(first, 1, s.engine), (past, -1, s.engine)]
    edges.sort()
    active: dict[str, int] = {}
    found: dict[frozenset[str], int] = {}
    now = start_ps
    for time_ps, change, engine in [*edges, (end_ps, 0, "")]:
        if time_ps > now:
            together = frozenset(name for name, count in active.items() if count)
            found[together] = found.get(together, 0) + time_ps - now
            now = time_ps
        if change:
            active[engine] = active.get(engine, 0) + change
    return found


def overlap_by_count(together: dict[frozenset[str], int]) -> list[float]:
    """Return the share of time with 0, 1, 2 and 3 engines busy; adds up to 1."""
    span = sum(together.values()) or 1
    return [sum(ps for names, ps in together.items() if len(names) == n) / span for n in range(len(ENGINES) + 1)]


def layers(slices: Iterable[Slice]) -> list[LayerUsage]:
    """Return the engine time of every layer, in order of their first task."""
    found: dict[str, LayerUsage] = {}
    for s in slices:
        known = found.get(s.layer)
        if known is None:
            found[s.layer] = LayerUsage(s.layer, {s.engine: s.end_ps - s.start_ps}, s.start_ps, s.end_ps)
        else:
            known.busy_ps[s.engine] = known.busy_ps.get(s.engine, 0) + s.end_ps - s.start_ps
            found[s.layer] = LayerUsage(
                s.layer, known.busy_ps, min(known.first_ps, s.start_ps), max(known.last_ps, s.end_ps)
            )
    return sorted(found.values(), key=lambda layer: (layer.first_ps, layer.name))


def span(slices: Sequence[Slice]) -> tuple[int, int]:
    """Return the first start and the last end; (0, 0) of nothing."""
    if not slices:
        return 0, 0
    return min(s.start_ps for s in slices), max(s.end_ps for s in slices)
