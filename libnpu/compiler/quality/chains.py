"""Chains of layers, each at the width of the whole device, that no schedule can shorten.

Along a chain a layer may start on the first tiles of the one before, so that their engines work side by side, but not where every
element of its result takes all elements of its operand: what comes before has ended then. It waits for no operand that only a part
of its work takes. A layer that takes a slice waits for what the slice is made of, no more: a step of a recurrence takes the rows
that one step of the layer below has made. Other layers are taken as a whole, as they are without tiles: a slice of what a convolution
makes, or of the columns of a product, waits for all of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from libnpu.compiler.program import Engine
from libnpu.compiler.quality.work import Work

if TYPE_CHECKING:
    from libnpu.compiler.ir import Graph, Node, Value

_DEEPEST = 64  # layers through which a part is followed; chosen
_Box = dict[int, tuple[int, int]]  # axis -> elements [first, behind the last); other axes whole


@dataclass(slots=True, frozen=True)
class Chain:
    """The end of a chain of layers: all before `base_ps` has ended; since then engines have worked for `sums_ps`."""

    base_ps: float
    end_ps: float
    sums_ps: dict[Engine, float] = field(default_factory=dict)


class _Parts:
    """Chains that end with a part of a value, from those that end with whole ones."""

    def __init__(
        self, graph: Graph, works: list[Work], units: dict[Engine, int], chains: dict[Value, Chain], loaded: Chain
    ) -> None:
        self._made = {
            value: (node, work) for node, work in zip(graph.nodes, works, strict=True) for value in node.outputs
        }
        self._units, self._chains, self._loaded = units, chains, loaded
        self._found: dict[tuple[Value, tuple[tuple[int, tuple[int, int]], ...]], Chain] = {}

    def chain(self, value: Value, box: _Box, depth: int = 0) -> Chain:
        """Return the chain that ends with a part of `value`: that of the whole where it is not clear of what the part is made."""
        box = {axis: part for axis, part in box.items() if part != (0, value.shape[axis])}
        key = value, tuple(sorted(box.items()))
        if key not in self._found:
            self._found[key] = self._chain(value, box, depth + 1)
        return self._found[key]

    def _chain(self, value: Value, box: _Box, depth: int) -> Chain:
        if value not in self._made:
            return self._loaded
        node, work = self._made[value]
        if not box and node.op != "Slice":
            return self._chains[value]
        taken = self._taken(node, box) if depth < _DEEPEST else None
        if taken is None:
            source = node.inputs[0] if node.op == "Slice" else value
            assert source is not None
            return self._chains.get(source, self._loaded)
        if node.op == "Concat":
            return _beside([self.chain(*one, depth) for one in taken])
        share = prod((b - a) / value.shape[axis] for axis, (a, b) in box.items())
        part = Work(work.engine, work.work_ps * share, work.start_ps)
        found = []
        for operand, own in taken:
            waits = needs_all(node, node.inputs.index(operand))
            found.append(_follow(self.chain(operand, own, depth), part, self._units, waits))
        return max(found, key=lambda one: one.end_ps)

    def _taken(self, node: Node, box: _Box) -> list[tuple[Value, _Box]] | None:
        """Return the operands of which a part of the result of `node` is made, each with the part of it; None where that is not clear."""
        computed = [value for value in node.inputs if value is not None and value.const is None]
        source = computed[0] if computed else None
        if source is None:
            return None
        rank = len(node.outputs[0].shape)
        match node.op:
            case "Slice" if set(node.attrs["steps"]) == {1}:
                starts, stops = node.attrs["starts"], node.attrs["stops"]
                whole = {axis: (start, stop) for axis, (start, stop) in enumerate(zip(starts, stops, strict=True))}
                return [(source, whole | {axis: (starts[axis] + a, starts[axis] + b) for axis, (a, b) in box.items()})]
            case "Gather" if source is node.inputs[0]:
                return _gathered(node, source, box)
            case "Transpose":
                return [(source, {node.attrs["perm"][axis]: part for axis, part in box.items()})]
            case "Concat":
                return self._pieces(node, box)
            case "Reshape":
                moved = _reshaped(box, node.outputs[0].shape, source.shape)
                return None if moved is None else [(source, moved)]
            case "Elementwise":
                return [(value, _broadcast(box, value, rank)) for value in computed]
            case "MatMul" | "MatMulInteger" if source is node.inputs[0] and len(source.shape) == rank:
                rows = {axis: part for axis, part in box.items() if axis != rank - 1}
                return [(source, rows), *((value, {}) for value in computed[1:])] if rows else None
            case _:
                return None

    def _pieces(self, node: Node, box: _Box) -> list[tuple[Value, _Box]]:
        """Return the operands of a Concat that lie in a part of its result, each with its part of that."""
        axis, at = node.attrs["axis"], 0
        low, high = box.get(axis, (0, node.outputs[0].shape[axis]))
        found = []
        for value in node.inputs:
            assert value is not None
            size = value.shape[axis]
            first, behind = max(low - at, 0), min(high - at, size)
            if first < behind:
                found.append((value, {**box, axis: (first, behind)}))
            at += size
        return found


def _gathered(node: Node, source: Value, box: _Box) -> list[tuple[Value, _Box]] | None:
    """Return what a part of the result of a Gather is made of when its rows, by constant indices, lie side by side."""
    axis, index = node.attrs["axis"], node.inputs[1]
    if index is None or index.const is None or index.const.ndim != 1:
        return None
    rows = index.const[slice(*box.get(axis, (0, index.const.size)))]
    rows = np.unique(np.where(rows < 0, rows + source.shape[axis], rows))
    if rows[-1] - rows[0] + 1 != len(rows):
        return None
    return [(source, {**box, axis: (int(rows[0]), int(rows[-1]) + 1)})]


def _broadcast(box: _Box, value: Value, rank: int) -> _Box:
    """Return the part of an operand that a part of a result of `rank` axes takes."""
    extra = rank - len(value.shape)
    return {axis - extra: part for axis, part in box.items() if axis >= extra and value.shape[axis - extra] > 1}


def _reshaped(box: _Box, shape: tuple[int, ...], source: tuple[int, ...]) -> _Box | None:
    """Return the part of a value of shape `source` that a part of the same elements under `shape` is, where it has an axis for each that is cut."""
    found: _Box = {}
    for axis, part in box.items():
        inside = prod(shape[axis + 1 :])
        places = [k for k, n in enumerate(source) if n == shape[axis] and prod(source[k + 1 :]) == inside]
        if not places:
            return None
        found[places[0]] = part
    return found


def chains_of(graph: Graph, works: list[Work], units: dict[Engine, int], memory_ps: float) -> dict[Value, Chain]:
    """Return for each value the longest chain of layers that ends with it."""
    chains: dict[Value, Chain] = {}
    parts = _Parts(graph, works, units, chains, Chain(memory_ps, memory_ps))
    for node, work in zip(graph.nodes, works, strict=True):
        found = loaded = Chain(memory_ps, memory_ps)
        made = [(index, chains[value]) for index, value in enumerate(node.inputs) if value in chains]
        if not made:
            found = _follow(loaded, work, units, True)
        elif node.op == "Concat":
            found = _beside([chains.get(value, loaded) for value in node.inputs if value is not None])
        elif node.op == "Slice":
            found = parts.chain(node.outputs[0], {})
        else:
            for index, before in made:
                if before.base_ps > memory_ps and not is_for_all(node, index):
                    before = Chain(memory_ps, before.end_ps)
                own = _follow(before, work, units, needs_all(node, index))
                found = max(found, own, key=lambda chain: chain.end_ps)
        chains.update(dict.fromkeys(node.outputs, found))
    return chains


def _follow(before: Chain, work: Work, units: dict[Engine, int], waits: bool) -> Chain:
    """Return the chain that a layer prolongs; `waits`: for the end of it."""
    if work.engine is None:
        return Chain(before.end_ps, before.end_ps) if waits else before
    if waits:  # each unit that works starts up
        end_ps = before.end_ps + work.start_ps + work.work_ps
        return Chain(before.end_ps, end_ps, {work.engine: work.work_ps + work.start_ps / units[work.engine]})
    base, sums = before.base_ps, dict(before.sums_ps)
    sums[work.engine] = sums.get(work.engine, 0.0) + work.work_ps + work.start_ps / units[work.engine]
    return Chain(base, max(before.end_ps + work.start_ps, base + max(sums.values())), sums)


def _beside(parts: list[Chain]) -> Chain:
    """Return the chain of parts side by side: others may work on the first of them when that is there."""
    first = min(parts, key=lambda chain: (chain.base_ps, -chain.end_ps))
    return Chain(first.base_ps, max(chain.end_ps for chain in parts), first.sums_ps)


def is_for_all(node: Node, index: int) -> bool:
    """Whether all work of a node takes its operand `index`: of attention queries do, and keys that are one part; scores are made without values."""
    match node.op:
        case "Concat":
            return False
        case "FlashSDPA" | "IncrementalSDPA":
            return index == 0 or (index == 1 and bool(node.attrs["parts"] == 1))
        case _:
            return True


def needs_all(node: Node, index: int) -> bool:
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
