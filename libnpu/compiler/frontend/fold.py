"""Fold: canonical nodes of constants become constants; nodes that nothing reads disappear."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.compiler.frontend.rewriting import Rewriter
from libnpu.compiler.hollow import hollow, is_hollow
from libnpu.compiler.ir import Value
from libnpu.compiler.products import matmul
from libnpu.compiler.reference import run_node

if TYPE_CHECKING:
    from libnpu.compiler.ir import Graph, Node


def fold(graph: Graph) -> Graph:
    """Return `graph` with nodes of constants evaluated; one that makes a graph output becomes a copy of its value."""
    edit = Rewriter(graph)
    for node in edit.nodes():
        if any(v is not None and v.const is None for v in node.inputs):
            continue
        made = node.outputs[0]
        if not edit.is_output(made):
            edit.replace(made, _evaluated(node, made.name))
            edit.remove(node)
        elif node.op != "Elementwise" or node.attrs["expr"] != ("in", 0):
            edit.set_inputs(node, [_evaluated(node, f"{made.name}.value")])
            node.op, node.attrs = "Elementwise", {"expr": ("in", 0)}
    return edit.done()


def _evaluated(node: Node, name: str) -> Value:
    made = node.outputs[0]
    if any(value is not None and is_hollow(value.const) for value in node.inputs):
        return Value(name, made.shape, made.dtype, hollow(made.shape, made.dtype))
    array = run_node(node, [None if value is None else value.const for value in node.inputs], matmul)
    return Value(name, made.shape, made.dtype, array)


def remove_dead(graph: Graph) -> Graph:
    """Return `graph` without the nodes that no output depends on; inputs stay."""
    edit = Rewriter(graph)
    for node in reversed(list(edit.nodes())):
        if not any(edit.users(value) or edit.is_output(value) for value in node.outputs):
            edit.remove(node)
    return edit.done()
