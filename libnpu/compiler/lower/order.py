"""The order of a graph's nodes: what makes little of a large value that has waited for it comes as soon as it can.

Until then the value would take room in CMX. Else nodes stay in the order of the model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from libnpu.compiler.ir import Graph, Node, Value


def shrinking_first(graph: Graph, least_bytes: int, least_nodes: int) -> Graph:
    """Return `graph` with each node that frees `least_bytes` or more than it makes, of a value that nothing else has read for
    `least_nodes`, right behind what it takes.
    """
    places = {node: place for place, node in enumerate(graph.nodes)}
    made = {value: place for node, place in places.items() for value in node.outputs}
    readers: dict[Value, list[int]] = {}
    for node, place in places.items():
        for value in {v for v in node.inputs if v is not None and v.const is None}:
            readers.setdefault(value, []).append(place)
    kept = set(graph.outputs) | set(graph.inputs)
    moved: dict[int, list[Node]] = {}
    for node, place in places.items():
        inputs = [v for v in dict.fromkeys(node.inputs) if v is not None and v.const is None]
        behind = max((made.get(value, -1) for value in inputs), default=-1)
        freed = sum(
            value.nbytes
            for value in inputs
            if value not in kept
            and max((p for p in readers[value] if p != place), default=behind) <= place - least_nodes
        )
        if 0 <= behind < place - least_nodes and freed - sum(value.nbytes for value in node.outputs) >= least_bytes:
            moved.setdefault(behind, []).append(node)
    early = {node for nodes in moved.values() for node in nodes}
    nodes = [
        each
        for place, node in enumerate(graph.nodes)
        for each in ([] if node in early else [node]) + moved.get(place, [])
    ]
    return replace(graph, nodes=nodes) if early else graph
