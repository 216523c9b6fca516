"""Fold: canonical nodes of constants become constants; nodes that nothing reads disappear."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.compiler.frontend.rewriting import Rewriter
from libnpu.compiler.ir import Value
from libnpu.compiler.reference import run_node

if TYPE_CHECKING:
    from libnpu.compiler.ir import Graph


def fold(graph: Graph) -> Graph:
    """Return `graph` with nodes of constants evaluated; a node that makes a graph output stays."""
    edit = Rewriter(graph)
    for node in edit.nodes():
        if edit.is_output(node.outputs[0]) or any(v is not None and v.const is None for v in node.inputs):
            continue
        made = node.outputs[0]
        array = run_node(node, [None if value is None else value.const for value in node.inputs])
        edit.replace(made, Value(made.name, made.shape, made.dtype, array))
        edit.remove(node)
    return edit.done()


def remove_dead(graph: Graph) -> Graph:
    """Return `graph` without the nodes that no output depends on; inputs stay."""
    edit = Rewriter(graph)
    for node in reversed(list(edit.nodes())):
        if not any(edit.users(value) or edit.is_output(value) for value in node.outputs):
            edit.remove(node)
    return edit.done()
