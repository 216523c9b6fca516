"""Fuse activations: what the post-processing element of the matrix engine can do joins the Conv or MatMul before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from libnpu.compiler.frontend.rewriting import Rewriter

if TYPE_CHECKING:
    from libnpu.compiler.ir import Expr, Graph


def fuse_activation(graph: Graph) -> Graph:
    """Return `graph` with ReLU, clip and leaky ReLU fused into the Conv or MatMul that alone makes their operand."""
    edit = Rewriter(graph)
    for node in edit.nodes():
        if node.op not in ("Conv", "MatMul") or node.attrs["act"] is not None:
            continue
        output = node.outputs[0]
        user = edit.only_user(output)
        if user is None or user.op != "Elementwise" or len(user.inputs) != 1:
            continue
        act = activation_of(user.attrs["expr"])
        if act is None or user.outputs[0].dtype != output.dtype:
            continue
        node.attrs["act"] = act
        node.layers += [layer for layer in user.layers if layer not in node.layers]
        result = user.outputs[0]
        edit.remove(user)
        edit.set_output(node, result)
    return edit.done()


def activation_of(expr: Expr) -> tuple[Any, ...] | None:
    """Return the `act` attribute that stands for an expression of ("in", 0), None if there is none."""
    match expr:
        case ("relu", ("in", 0)):
            return ("relu",)
        case ("clip", ("in", 0), ("const", low), ("const", high)):
            return ("clip", float(low), float(high))
        case ("leaky_relu", ("in", 0), ("const", slope)):
            return ("leaky_relu", float(slope))
    return None
