"""Nodes of a model's graph, and of the graphs inside of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

if TYPE_CHECKING:
    from collections.abc import Iterator


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield a graph's nodes, each before those inside of it."""
    for node in graph.node:
        yield node
        for inner in _graphs(node):
            yield from all_nodes(inner)


def captured(node: onnx.NodeProto) -> list[str]:
    """Return the values that a node's graphs read from around them."""
    found: list[str] = []
    for graph in _graphs(node):
        own = {info.name for info in (*graph.input, *graph.initializer)}
        for inner in graph.node:
            found += [name for name in (*inner.input, *captured(inner)) if name and name not in own]
            own |= set(inner.output)
        found += [info.name for info in graph.output if info.name not in own]
    return list(dict.fromkeys(found))


def _graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs
