"""Fuse chains of element-by-element nodes into one node with one expression, which the vector engine reads once.

A sum of two computed tensors of one shape (a residual connection) stays a node of its own, with at most an activation,
because the matrix engine adds tensors faster than the vector engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.compiler.frontend.expr import leaves, operator_count, rewrite, substitute
from libnpu.compiler.frontend.fuse_activation import activation_of
from libnpu.compiler.frontend.rewriting import Rewriter

if TYPE_CHECKING:
    from libnpu.compiler.ir import Expr, Graph, Node, Value

MAX_INPUTS = 8  # chosen: operands that fit into CMX beside the result with useful tiles
MAX_OPERATORS = 16  # chosen: bounds the vector registers that an expression needs


def fuse_elementwise(graph: Graph) -> Graph:
    """Return `graph` with each Elementwise node merged into its only reader, within the limits above."""
    edit = Rewriter(graph)
    for node in edit.nodes():
        if node.op == "Elementwise":
            while any(_absorb(edit, node, value) for value in list(node.inputs) if value is not None):
                pass
    return edit.done()


def is_residual(edit: Rewriter, node: Node) -> bool:
    """True for an addition, perhaps activated, of two computed tensors of one shape."""
    expr = node.attrs["expr"]
    if expr[0] != "add" and len(expr) > 1 and isinstance(expr[1], tuple):
        inner = ("in", 0) if expr[1] == ("add", ("in", 0), ("in", 1)) else None
        if inner is None or activation_of((expr[0], inner, *expr[2:])) is None:
            return False
    elif expr != ("add", ("in", 0), ("in", 1)):
        return False
    return all(
        value is not None and value.const is None and value.shape == node.outputs[0].shape for value in node.inputs
    )


def _engine_made(edit: Rewriter, value: Value) -> bool:
    """True unless `value` comes from an expression that could merge into its reader."""
    maker = edit.maker(value)
    return maker is None or maker.op != "Elementwise" or edit.only_user(value) is None or is_residual(edit, maker)


def _absorb(edit: Rewriter, node: Node, value: Value) -> bool:
    maker = edit.maker(value)
    if maker is None or maker.op != "Elementwise" or edit.only_user(value) is not node:
        return False
    if value.shape != node.outputs[0].shape or not _passes_unrounded(value):
        return False
    if is_residual(edit, maker) and not _only_activates(node):
        return False
    if is_residual(edit, node) and all(_engine_made(edit, other) for other in node.inputs if other is not None):
        return False
    inputs: list[Value | None] = []
    for other in (*maker.inputs, *node.inputs):
        if other is not value and other not in inputs:
            inputs.append(other)
    place = node.inputs.index(value)

    def of_maker(index: int) -> Expr:
        return ("in", inputs.index(maker.inputs[index]))

    inner = substitute(maker.attrs["expr"], of_maker)

    def of_node(index: int) -> Expr:
        return inner if index == place else ("in", inputs.index(node.inputs[index]))

    merged = rewrite(substitute(node.attrs["expr"], of_node))
    if (
        len(inputs) > MAX_INPUTS
        or operator_count(merged) > MAX_OPERATORS
        or set(leaves(merged)) != set(range(len(inputs)))
    ):
        return False
    node.attrs["expr"] = merged
    node.layers = maker.layers + [layer for layer in node.layers if layer not in maker.layers]
    edit.remove(maker)
    edit.set_inputs(node, inputs)
    return True


def _passes_unrounded(value: Value) -> bool:
    """True when the value holds all that an expression computes, up to rounding: no narrow integers."""
    return value.dtype.kind not in "iu" or value.dtype.itemsize >= 4


def _only_activates(node: Node) -> bool:
    return len(node.inputs) == 1 and activation_of(node.attrs["expr"]) is not None
