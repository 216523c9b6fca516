"""A time before which the weights of later layers cannot all have come from DDR, because CMX is too small to hold them ahead.

When the last element of a layer is there, whichever that is, all layers that have work left which takes it still need the
weights of that work. CMX holds no more of them by then than its size; what is left comes afterwards. The layer itself is not
there before engines have done it and all that each of its elements, and each of theirs, is made of. Nothing of this knows
tiles or order: what depends on an element are rows, columns and channels of the layers behind it, by their windows.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from libnpu.compiler.quality.reach import (
    CONVOLUTIONS,
    POOLINGS,
    PRODUCTS,
    Line,
    axes,
    constant_weights,
    reads_all,
    weight_bytes,
)
from libnpu.compiler.quality.work import ddr_ps

if TYPE_CHECKING:
    from npu_model.profile import Profile

    from libnpu.compiler.ir import Graph, Node, Value
    from libnpu.compiler.program import Engine
    from libnpu.compiler.quality.work import Work

_CUTS = 8  # layers that are looked at, the most promising first; chosen: a bound that fewer give is as true


class _Reach(NamedTuple):
    """What of a value depends on any one element of the cut: so many channels of a box of an image.

    Without lines the value is a matrix, and at least one row of it depends on the element.
    """

    channels: int
    rows: Line | None = None
    columns: Line | None = None


def late_weights_ps(graph: Graph, works: list[Work], units: dict[Engine, int], profile: Profile, tiles: int) -> float:
    """Return the bound in picoseconds; 0 when all weights fit in CMX at once."""
    weights = {node: w for node in graph.nodes if (w := constant_weights(node)) is not None}
    cmx_bytes = profile.cmx.workspace_bytes * tiles
    left = sum(weight_bytes(value, node) for node, value in weights.items())
    if left <= cmx_bytes:
        return 0.0
    work_of = dict(zip(graph.nodes, works, strict=True))
    done = dict.fromkeys(units, 0.0)
    hopes: list[tuple[float, int]] = []
    for index, (node, work) in enumerate(zip(graph.nodes, works, strict=True)):
        if work.engine is not None:
            done[work.engine] += work.work_ps + work.start_ps / units[work.engine]
        left -= weight_bytes(weights[node], node) if node in weights else 0
        if node.op in CONVOLUTIONS and left > cmx_bytes:
            hopes.append((max(done.values()) + ddr_ps(profile, left - cmx_bytes), index))
    best = 0.0
    for hope_ps, index in sorted(hopes, reverse=True)[:_CUTS]:
        if hope_ps > best:
            sums = dict.fromkeys(units, 0.0)
            for node in _whole_makers(graph, index):
                work = work_of[node]
                if work.engine is not None:
                    sums[work.engine] += work.work_ps + work.start_ps / units[work.engine]
            late = _late_bytes(graph, index, weights) - cmx_bytes
            best = max(best, max(sums.values()) + ddr_ps(profile, max(late, 0)))
    return best


def _whole_makers(graph: Graph, last: int) -> list[Node]:
    """Return the nodes all of whose elements have to be there before all of node `last` is: that node, and what it needs whole."""
    needed, found = {graph.nodes[last]}, []
    makers = {value: node for node in graph.nodes[: last + 1] for value in node.outputs}
    for node in reversed(graph.nodes[: last + 1]):
        if node in needed:
            found.append(node)
            needed |= {makers[v] for v in node.inputs if v is not None and v in makers and reads_all(node, v)}
    return found


def _late_bytes(graph: Graph, cut: int, weights: dict[Node, Value]) -> int:
    """Return the bytes of weights that are needed when the last element of node `cut` is there, whichever that is."""
    out = graph.nodes[cut].outputs[0]
    rows, columns = (Line(np.arange(n), np.arange(n) + 1) for n in out.shape[2:])
    reached: dict[Value, _Reach] = {out: _Reach(1, rows, columns)}
    needed: dict[Value, int] = {}
    for node in graph.nodes[cut + 1 :]:
        operands = [(value, reached[value]) for value in node.inputs if value is not None and value in reached]
        if not operands:
            continue
        if node in weights and node.inputs[0] in reached:
            value = weights[node]
            needed[value] = max(needed.get(value, 0), _used_bytes(node, operands[0][1]))
        found = _follow(node, operands)
        if found is not None:
            reached[node.outputs[0]] = found
    return sum(needed.values())


def _used_bytes(node: Node, reach: _Reach) -> int:
    """Return the bytes of a node's weights that meet what is reached of its input."""
    value, source = node.inputs[1], node.inputs[0]
    assert value is not None and source is not None
    size = weight_bytes(value, node)
    if node.op in PRODUCTS:
        return size if reach.rows is None else 0
    if reach.rows is None or reach.columns is None:
        return 0
    y, x = axes(node)
    taps = y.taps(reach.rows) * x.taps(reach.columns)
    return size * reach.channels * taps // (source.shape[1] * y.kernel * x.kernel)


def _follow(node: Node, operands: list[tuple[Value, _Reach]]) -> _Reach | None:
    """Return what of a node's result depends on the element, by what of its operands does; None when nothing is sure to."""
    out, (value, reach) = node.outputs[0], operands[0]
    if node.op in PRODUCTS:
        is_row = value is node.inputs[0] and reach.rows is None
        return _Reach(out.shape[-1]) if is_row else None
    if node.op in ("Reshape", "Reduce"):
        return _collapsed(node, value, reach)
    if reach.rows is None or reach.columns is None:
        same = node.op in ("Elementwise", "Softmax") and value.shape == out.shape
        return reach if same else None
    if node.op in (*CONVOLUTIONS, *POOLINGS):
        y, x = axes(node)
        rows, columns = y.follow(reach.rows), x.follow(reach.columns)
        if rows is None or columns is None or value is not node.inputs[0]:
            return None
        channels = reach.channels
        if node.op in CONVOLUTIONS and not node.attrs["group"] == value.shape[1] == out.shape[1]:
            all_in = reach.channels == value.shape[1]
            channels = out.shape[1] if all_in else out.shape[1] // node.attrs["group"]
        return _Reach(channels, rows, columns)
    if node.op == "Elementwise":
        return max((_spread(r, v, out) for v, r in operands), key=_elements)
    if node.op == "Concat" and node.attrs["axis"] == 1:
        return _beside([one for _, one in operands])
    return None


def _collapsed(node: Node, value: Value, reach: _Reach) -> _Reach | None:
    """Return the reach behind a change of shape, or a reduction of all pixels: all of an image, or one pixel of it."""
    out = node.outputs[0]
    one = Line(np.zeros(1, np.int64), np.ones(1, np.int64))
    if reach.rows is None:
        if len(out.shape) == 4 and out.shape[1:] == (value.shape[-1], 1, 1):
            return _Reach(out.shape[1], one, one)
        return reach if node.op == "Reshape" and out.shape[-1:] == value.shape[-1:] else None
    if len(value.shape) != 4 or reach.channels != value.shape[1]:
        return None
    if node.op == "Reduce":
        if node.attrs["axes"] != [2, 3]:
            return None
    elif _elements(reach) < prod(value.shape[1:]):
        return None
    if len(out.shape) == 4:
        return _Reach(out.shape[1], one, one) if out.shape[2:] == (1, 1) else None
    return _Reach(out.shape[-1]) if out.shape[-1] == prod(out.shape[1:]) else None


def _spread(reach: _Reach, value: Value, out: Value) -> _Reach:
    """Return the reach of an operand that is repeated to the shape of the result."""

    def along(axis: int, line: Line | None) -> Line | None:
        if line is None or len(value.shape) != len(out.shape) or value.shape[axis] == out.shape[axis]:
            return line
        return Line(np.zeros_like(line.low), np.full_like(line.low, out.shape[axis]))

    return _Reach(reach.channels, along(2, reach.rows), along(3, reach.columns))


def _elements(reach: _Reach) -> int:
    return reach.channels * prod(int((line.high - line.low).min()) for line in (reach.rows, reach.columns) if line)


def _beside(parts: list[_Reach]) -> _Reach:
    """Return the reach of operands side by side along the channels: where all are reached, or that of the largest one."""
    lines = [
        Line(np.maximum.reduce([line.low for line in each]), np.minimum.reduce([line.high for line in each]))
        for each in ([p.rows for p in parts if p.rows], [p.columns for p in parts if p.columns])
    ]
    common = _Reach(sum(part.channels for part in parts), *lines)
    return common if all(bool((line.high > line.low).all()) for line in lines) else max(parts, key=_elements)
