"""Block ends: images at the ends of a graph get a blocked layout (`libnpu.compiler.layouts`). Inside nothing changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.compiler.frontend.builder import Builder
from libnpu.compiler.frontend.rewriting import copy_graph
from libnpu.compiler.ir import Value

if TYPE_CHECKING:
    from libnpu.compiler.ir import Graph
    from libnpu.compiler.layouts import Blocked

_RANK = 4


def block_ends(graph: Graph, layout: Blocked | None) -> Graph:
    """Return `graph` with its inputs and outputs of four axes in `layout`; they keep their names."""
    if layout is None:
        return graph
    graph, before, after = copy_graph(graph), Builder(), Builder()
    for builder in (before, after):
        for value in (*graph.inputs, *(v for node in graph.nodes for v in node.outputs)):
            builder.unique(value.name)
    for number, image in enumerate(graph.inputs):
        if len(image.shape) == _RANK:
            graph.inputs[number] = _unblocked(before, image, layout)
    for number, image in enumerate(graph.outputs):
        if len(image.shape) == _RANK:
            graph.outputs[number] = _blocked(after, image, layout)
    graph.nodes = [*before.nodes, *graph.nodes, *after.nodes]
    return graph


def _unblocked(build: Builder, image: Value, layout: Blocked) -> Value:
    """Make `image` of a new input, which has its name; return that."""
    given = Value(image.name, layout.shape(image.shape, image.dtype), image.dtype)
    build.layer = image.name = build.unique(f"{image.name}.{_RANK}d")
    n, blocks, h, columns, block = given.shape
    whole = build.reshape(build.transpose(given, (0, 1, 4, 2, 3)), (n, blocks * block, h, columns))
    build.slice(whole, {1: (0, image.shape[1], 1), 3: (0, image.shape[3], 1)})
    build.nodes[-1].outputs = [image]
    return given


def _blocked(build: Builder, image: Value, layout: Blocked) -> Value:
    """Make a new output of `image`, which gives it its name; return that."""
    n, blocks, h, columns, block = layout.shape(image.shape, image.dtype)
    name = image.name
    build.layer = image.name = build.unique(f"{name}.{_RANK}d")
    more = [(0, 0), (0, blocks * block - image.shape[1]), (0, 0), (0, columns - image.shape[3])]
    whole = build.emit("Pad", [image], {"pads": more, "value": 0.0}, shape=None)
    made = build.transpose(build.reshape(whole, (n, blocks, block, h, columns)), (0, 1, 3, 4, 2))
    made.name = name
    return made
