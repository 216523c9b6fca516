"""A time that no schedule of a graph can undercut, whatever its tiles, its order and its use of CMX; and what sets it.

The largest of five: the matrix engines' work (`engine.py`) and the SHAVEs' work, each with what has to come before all of it and
behind, the bytes that have to cross to and from DDR (inputs, outputs and constants once each), the longest chain of layers, each
at the width of the whole device, and what has to come behind a layer, or behind pixels, as CMX cannot hold all weights ahead
(`late_weights.py`, `late_pixels.py`). `chains.py` says what a chain is.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import TYPE_CHECKING

from libnpu.compiler.program import Engine
from libnpu.compiler.quality.chains import chains_of, is_for_all, needs_all
from libnpu.compiler.quality.late_pixels import late_pixels_ps
from libnpu.compiler.quality.late_weights import late_weights_ps
from libnpu.compiler.quality.reach import reads_all
from libnpu.compiler.quality.work import Work, ddr_ps, node_work

if TYPE_CHECKING:
    from npu_model.profile import Profile

    from libnpu.compiler.ir import Graph, Node, Value
    from libnpu.compiler.quality.chains import Chain

_VIEWS = ("Reshape", "Transpose", "Slice")
_TAKES_PART = ("Slice", "Gather")


@dataclass(slots=True, frozen=True)
class LowerBound:
    """The least time by resource ("DPU", "SHAVE", "DDR", "critical path", "late weights"), in picoseconds, and what it was taken from."""

    ps: dict[str, int]
    macs: int
    ddr_bytes: int

    @property
    def bound_ps(self) -> int:
        """The largest of them."""
        return max(self.ps.values())

    @property
    def binding(self) -> str:
        """The resource that sets it; of equals the first."""
        return max(self.ps, key=lambda name: self.ps[name])


def lower_bound(graph: Graph, profile: Profile, tiles: int) -> LowerBound:
    """Return the lower bound of `graph` on `tiles` tiles of `profile`."""
    works = [node_work(graph, node, profile, tiles) for node in graph.nodes]
    units = {Engine.DPU: tiles, Engine.SHAVE: tiles * profile.shaves_per_tile}
    memory_ps = profile.ddr.latency_ns * 1000  # of the first load, and of the last store
    chains = chains_of(graph, works, units, memory_ps)
    heads, tails = _heads(graph, works, chains, memory_ps), _tails(graph, works, memory_ps)
    engines = {engine: _engine_ps(engine, count, works, heads, tails) for engine, count in units.items()}
    ddr_bytes = _ddr_bytes(graph)
    found = {
        "DPU": engines[Engine.DPU],
        "SHAVE": engines[Engine.SHAVE],
        "DDR": memory_ps + ddr_ps(profile, ddr_bytes),
        "critical path": max((chain.end_ps for chain in chains.values()), default=0.0) + memory_ps,
        "late weights": max(
            late_weights_ps(graph, works, units, profile, tiles), late_pixels_ps(graph, profile, tiles)
        ),
    }
    return LowerBound({name: ceil(ps) for name, ps in found.items()}, sum(w.macs for w in works), ddr_bytes)


def _ddr_bytes(graph: Graph) -> int:
    """Return the bytes of outputs, and of inputs and constants as far as their readers must have them."""
    readers: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in dict.fromkeys(node.inputs):
            if value is not None:
                readers.setdefault(value, []).append(node)

    def taken(value: Value) -> int:
        whole, parts = value.nbytes, 0
        if value in outputs:
            return whole
        for node in readers.get(value, ()):
            if node.op in _VIEWS:
                parts += taken(node.outputs[0])
            elif node.op in _TAKES_PART and node.inputs[0] is value:
                parts += prod(node.outputs[0].shape) * value.dtype.itemsize
            else:
                return whole
        return min(whole, parts)

    outputs = set(graph.outputs)
    constants = [value for value in readers if value.const is not None]
    return sum(map(taken, dict.fromkeys([*graph.inputs, *constants]))) + sum(value.nbytes for value in outputs)


def _engine_ps(engine: Engine, count: int, works: list[Work], heads: list[float], tails: list[float]) -> float:
    """Return the work of an engine of `count` units, with what comes before all of it and what comes behind."""
    own = [index for index, work in enumerate(works) if work.engine == engine]
    if not own:
        return 0.0
    busy_ps = sum(works[index].work_ps + works[index].start_ps / count for index in own)
    return min(heads[index] for index in own) + busy_ps + min(tails[index] for index in own)


def _heads(graph: Graph, works: list[Work], chains: dict[Value, Chain], memory_ps: float) -> list[float]:
    """Return for each node a time before which it cannot begin: an element of what all its work takes has to be there, or all of it."""
    first: dict[Value, float] = {}
    heads = []
    for node, work in zip(graph.nodes, works, strict=True):
        made = [(index, value) for index, value in enumerate(node.inputs) if value is not None and value in first]
        waits = [
            chains[value].end_ps if needs_all(node, index) else first[value]
            for index, value in made
            if is_for_all(node, index)
        ]
        if node.op == "Concat" and len(made) == len(node.inputs):
            waits = [min(first[value] for _, value in made)]
        heads.append(max(waits, default=memory_ps))
        first.update(dict.fromkeys(node.outputs, heads[-1] + work.start_ps))
    return heads


def _tails(graph: Graph, works: list[Work], memory_ps: float) -> list[float]:
    """Return for each node what comes at least when all of it is done: others take its last elements, or they are stored."""
    behind: dict[Value, float] = dict.fromkeys(graph.outputs, memory_ps)
    tails = []
    for node, work in zip(reversed(graph.nodes), reversed(works), strict=True):
        tails.append(max((behind.get(value, 0.0) for value in node.outputs), default=0.0))
        for index, value in enumerate(node.inputs):
            if value is not None and reads_all(node, value):
                own_ps = work.start_ps + (work.work_ps if needs_all(node, index) else 0.0)
                behind[value] = max(behind.get(value, 0.0), own_ps + tails[-1])
    return tails[::-1]
