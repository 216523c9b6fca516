"""A time before which the weights of a product with a whole image cannot all have come from DDR, as its pixels are not there yet.

The weights of a pixel are multiplied when an element of it is there, which layers before have made out of more pixels of theirs.
As long as few pixels have an element, the weights of all others, and of what takes the product's result, are still to be used:
what CMX does not hold of them has yet to come. What so many pixels need at least is counted whichever they are. Of their rows and
columns alone, the least that their windows reach; together, as if of each column so many rows were taken as in a staircase: to
move the pixels of a column together, and the columns by their height, only lets windows overlap more.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from npu_model import dtypes
from npu_model.dtypes import code_of_numpy

from libnpu.compiler.quality.reach import CONVOLUTIONS, POOLINGS, PRODUCTS, Line, axes, constant_weights, weight_bytes
from libnpu.compiler.quality.work import PS_PER_SECOND, ddr_ps

if TYPE_CHECKING:
    from npu_model.profile import Profile
    from numpy.typing import NDArray

    from libnpu.compiler.ir import Graph, Node, Value

_MOST_PIXELS = 256  # of an image; chosen: more than any product of a whole one has


class _Cone(NamedTuple):
    """What of a value an element of each pixel is made of: so many channels of the rows and columns of its own, by those of the pixel."""

    channels: int
    rows: Line
    columns: Line


def late_pixels_ps(graph: Graph, profile: Profile, tiles: int) -> float:
    """Return the bound in picoseconds; 0 where no product with a whole image has weights that CMX does not hold."""
    best = 0.0
    cmx_bytes = profile.cmx.workspace_bytes * tiles
    makers = {value: node for node in graph.nodes for value in node.outputs}
    for node in graph.nodes:
        weights = constant_weights(node)
        image = _image(node, makers) if weights is not None and weight_bytes(weights, node) > cmx_bytes else None
        if weights is None or image is None:
            continue
        pixels = prod(image.shape[2:])
        work_ps = _least_work_ps(graph, image, profile, tiles)
        behind = _behind(graph, node) - cmx_bytes
        for there, ps in enumerate(work_ps[1:]):  # when one pixel more has its first element
            late = weight_bytes(weights, node) * (pixels - there) // pixels + behind
            best = max(best, ps + ddr_ps(profile, max(late, 0)))
    return best


def _image(node: Node, makers: dict[Value, Node]) -> Value | None:
    """Return the image [1, C, H, W] of which each element meets as many weights of a product; None when it takes none."""
    value, weights = node.inputs[0], node.inputs[1]
    assert value is not None and weights is not None
    if node.op in PRODUCTS:
        if prod(weights.shape[:-1]) != prod(value.shape):
            return None
        while value in makers and makers[value].op in ("Reshape", "Transpose") and value.shape[0] == 1:
            source = makers[value].inputs[0]
            assert source is not None
            if makers[value].op == "Transpose" and len(source.shape) == 4 and source.shape[0] == 1:
                return source
            value = source
    elif any(node.attrs["pads"]) or node.attrs["group"] != 1 or tuple(weights.shape[1:]) != tuple(value.shape[1:]):
        return None
    fits = len(value.shape) == 4 and value.shape[0] == 1 and 1 < prod(value.shape[2:]) <= _MOST_PIXELS
    return value if fits else None


def _behind(graph: Graph, product: Node) -> int:
    """Return the bytes of weights that are multiplied with what a product, all of whose elements take all pixels, has made."""
    found, made = 0, set(product.outputs)
    for node in graph.nodes:
        if any(value in made for value in node.inputs):
            made.update(node.outputs)
            weights = constant_weights(node)
            found += weight_bytes(weights, node) if weights is not None and node.inputs[0] in made else 0
    return found


def _least_work_ps(graph: Graph, image: Value, profile: Profile, tiles: int) -> list[float]:
    """Return for each number of pixels of an image what all DPUs multiply at least until so many have an element."""
    height, width = image.shape[2:]
    rows, columns = (Line(np.arange(n), np.arange(n) + 1) for n in (height, width))
    cones = {image: _Cone(1, rows, columns)}
    costs = np.zeros((height + 1, width + 1))  # of one row more in each of so many columns
    for node in reversed(graph.nodes):
        cone = cones.get(node.outputs[0])
        source = node.inputs[0] if node.inputs else None
        if cone is None or source is None:
            continue
        if node.op == "Elementwise":
            for value in node.inputs:
                if value is not None and value.const is None and value.shape == node.outputs[0].shape:
                    _widen(cones, value, cone)
        elif node.op in (*CONVOLUTIONS, *POOLINGS):
            y, x = axes(node)
            mixes = node.op in CONVOLUTIONS and node.attrs["group"] == 1
            channels = source.shape[1] if mixes else cone.channels if node.op in POOLINGS else 1
            _widen(cones, source, _Cone(channels, y.behind(cone.rows), x.behind(cone.columns)))
            if mixes:
                reached = (
                    np.array(_least(line, axis.live_taps())) for line, axis in ((cone.rows, y), (cone.columns, x))
                )
                more_rows, all_columns = np.diff(next(reached), prepend=0), next(reached)
                code = dtypes.name(code_of_numpy(source.dtype))
                a_second = profile.dpu.macs_per_cycle[code] * profile.dpu.clock_hz * tiles
                costs += np.outer(more_rows, all_columns) * (cone.channels * source.shape[1] * PS_PER_SECOND / a_second)
    return _staircases(costs)


def _widen(cones: dict[Value, _Cone], value: Value, cone: _Cone) -> None:
    """Note what is needed of a value; of two readers, the one that needs more: either is true."""
    known = cones.get(value)
    if known is None or _size(cone) > _size(known):
        cones[value] = cone


def _size(cone: _Cone) -> int:
    return cone.channels * prod(int((line.high - line.low).sum()) for line in (cone.rows, cone.columns))


def _least(line: Line, live: NDArray[np.int64]) -> list[int]:
    """Return for 0, 1, ... places what those that they reach count at least, each place reached as `live` says, whichever places they are."""
    sums = np.concatenate(([0], np.cumsum(live)))
    found, last = [0], sums[line.high] - sums[line.low]  # of so many places of which that is the last
    while len(found) <= len(line.low):
        found.append(int(last.min()))
        longer = np.full(len(last), np.iinfo(np.int64).max)
        for place in range(len(found) - 1, len(last)):  # what it reaches beyond the one before
            before = slice(len(found) - 2, place)
            more = sums[line.high[place]] - sums[np.maximum(line.low[place], line.high[before])]
            longer[place] = (last[before] + more).min()
        last = longer
    return found


def _staircases(costs: NDArray[np.float64]) -> list[float]:
    """Return for each number of places in a grid the least cost of a staircase of so many, of which [h, k] is that of row h in k columns."""
    height, width = (n - 1 for n in costs.shape)
    best = np.full((width + 1, height * width + 1), np.inf)  # by columns of the last row, and places
    best[width, 0] = 0.0
    for row in range(1, height + 1):
        lower = np.minimum.accumulate(best[::-1])[::-1]  # no row has more columns than the one before
        best = np.full_like(best, np.inf)
        for k in range(width + 1):
            best[k, k:] = lower[k, : best.shape[1] - k] + costs[row, k]
    found: list[float] = best.min(axis=0).tolist()
    return found
