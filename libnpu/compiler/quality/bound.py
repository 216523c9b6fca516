"""A time that no schedule of a graph can undercut, whatever its tiles, its order and its use of CMX; and what sets it.

The largest of five: the matrix engines' work (`engine.py`) and the SHAVEs' work, each with what has to come before all of it and
behind, the bytes that have to cross to and from DDR (inputs, outputs and constants once each), the longest chain of layers, each
at the width of the whole device, and what has to come behind a layer, or behind pixels, as CMX cannot hold all weights ahead
(`late_weights.py`, `late_pixels.py`). Along a chain
a layer may start on the first tiles of the one before, so that their engines work side by side, but not where every element of
its result takes all elements of its operand: what comes before has ended then. It waits for no operand that only a part of its
work takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, prod
from typing import TYPE_CHECKING

from libnpu.compiler.program import Engine
from libnpu.compiler.quality.late_pixels import late_pixels_ps
from libnpu.compiler.quality.late_weights import late_weights_ps
from libnpu.compiler.quality.reach import reads_all
from libnpu.compiler.quality.work import Work, ddr_ps, node_work

if TYPE_CHECKING:
    from npu_model.profile import Profile

    from libnpu.compiler.ir import Graph, Node, Value

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


@dataclass(slots=True, frozen=True)
class _Chain:
    """The end of a chain of layers: all before `base_ps` has ended; since then engines have worked for `sums_ps`."""

    base_ps: float
    end_ps: float
    sums_ps: dict[Engine, float] = field(default_factory=dict)


def lower_bound(graph: Graph, profile: Profile, tiles: int) -> LowerBound:
    """Return the lower bound of `graph` on `tiles` tiles of `profile`."""
    works = [node_work(graph, node, profile, tiles) for node in graph.nodes]
    units = {Engine.DPU: tiles, Engine.SHAVE: tiles * profile.shaves_per_tile}
    memory_ps = profile.ddr.latency_ns * 1000  # of the first load, and of the last store
    chains = _chains(graph, works, units, memory_ps)
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


def _heads(graph: Graph, works: list[Work], chains: dict[Value, _Chain], memory_ps: float) -> list[float]:
    """Return for each node a time before which it cannot begin: an element of what all its work takes has to be there, or all of it."""
    first: dict[Value, float] = {}
    heads = []
    for node, work in zip(graph.nodes, works, strict=True):
        made = [(index, value) for index, value in enumerate(node.inputs) if value is not None and value in first]
        waits = [
            chains[value].end_ps if _needs_all(node, index) else first[value]
            for index, value in made
            if _is_for_all(node, index)
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
                own_ps = work.start_ps + (work.work_ps if _needs_all(node, index) else 0.0)
                behind[value] = max(behind.get(value, 0.0), own_ps + tails[-1])
    return tails[::-1]


def _chains(graph: Graph, works: list[Work], units: dict[Engine, int], memory_ps: float) -> dict[Value, _Chain]:
    """Return for each value the longest chain of layers that ends with it."""
    chains: dict[Value, _Chain] = {}
    for node, work in zip(graph.nodes, works, strict=True):
        found = loaded = _Chain(memory_ps, memory_ps)
        made = [(index, chains[value]) for index, value in enumerate(node.inputs) if value in chains]
        if not made:
            found = _follow(loaded, work, units, True)
        elif node.op == "Concat":
            found = _beside([chains.get(value, loaded) for value in node.inputs if value is not None])
        else:
            for index, before in made:
                if before.base_ps > memory_ps and not _is_for_all(node, index):
                    before = _Chain(memory_ps, before.end_ps)
                own = _follow(before, work, units, _needs_all(node, index))
                found = max(found, own, key=lambda chain: chain.end_ps)
        chains.update(dict.fromkeys(node.outputs, found))
    return chains


def _follow(before: _Chain, work: Work, units: dict[Engine, int], waits: bool) -> _Chain:
    """Return the chain that a layer prolongs; `waits`: for the end of it."""
    if work.engine is None:
        return _Chain(before.end_ps, before.end_ps) if waits else before
    if waits:  # each unit that works starts up
        end_ps = before.end_ps + work.start_ps + work.work_ps
        return _Chain(before.end_ps, end_ps, {work.engine: work.work_ps + work.start_ps / units[work.engine]})
    base, sums = before.base_ps, dict(before.sums_ps)
    sums[work.engine] = sums.get(work.engine, 0.0) + work.work_ps + work.start_ps / units[work.engine]
    return _Chain(base, max(before.end_ps + work.start_ps, base + max(sums.values())), sums)


def _beside(parts: list[_Chain]) -> _Chain:
    """Return the chain of parts side by side: others may work on the first of them when that is there."""
    first = min(parts, key=lambda chain: (chain.base_ps, -chain.end_ps))
    return _Chain(first.base_ps, max(chain.end_ps for chain in parts), first.sums_ps)


def _is_for_all(node: Node, index: int) -> bool:
    """Whether all work of a node takes its operand `index`: of attention queries do, and keys that are one part; scores are made without values."""
    match node.op:
        case "Concat":
            return False
        case "FlashSDPA" | "IncrementalSDPA":
            return index == 0 or (index == 1 and bool(node.attrs["parts"] == 1))
        case _:
            return True


def _needs_all(node: Node, index: int) -> bool:
    """Whether each element of the node's result takes all elements of its operand `index`."""
    value, out = node.inputs[index], node.outputs[0]
    assert value is not None
    size = prod(value.shape)
    match node.op:
        case "Elementwise":
            return size == 1
        case "Conv" | "ConvInteger":
            return index == 0 and bool(node.attrs["group"] == 1) and prod(out.shape) == out.shape[1]
        case "MatMul" | "MatMulInteger":
            return index < 2 and size == (value.shape[-1] if index == 0 else value.shape[-2])
        case "Reduce":
            return prod(out.shape) == 1
        case "Softmax" | "ArgMax":
            return bool(size == value.shape[node.attrs["axis"]])
        case _:
            return False
