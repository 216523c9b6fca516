"""Recognise: operators that the source spells out in smaller ones. Runs on fused expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.compiler.frontend.rewriting import Rewriter

if TYPE_CHECKING:
    from libnpu.compiler.frontend.infer import Shape
    from libnpu.compiler.ir import Graph, Node, Value

_EXPONENTIALS = (("exp", ("in", 0)), ("exp", ("sub", ("in", 0), ("in", 1))))


def recognise_softmax(graph: Graph) -> Graph:
    """Return `graph` with exp(x - m) / sum(exp(x - m)) as Softmax(x), for any m that is one number along the axis."""
    edit = Rewriter(graph)
    for node in edit.nodes():
        if node.op == "Elementwise" and node.attrs["expr"] == ("div", ("in", 0), ("in", 1)):
            _softmax(edit, node)
    return edit.done()


def _softmax(edit: Rewriter, node: Node) -> None:
    powers, total = node.inputs
    assert powers is not None and total is not None
    exponential, reduction = edit.maker(powers), edit.maker(total)
    chain = [node]
    if reduction is not None and reduction.op == "Reshape":
        chain.append(reduction)
        reduction = edit.maker(reduction.inputs[0])
    if exponential is None or exponential.op != "Elementwise" or exponential.attrs["expr"] not in _EXPONENTIALS:
        return
    if reduction is None or reduction.op != "Reduce" or reduction.inputs[0] is not powers:
        return
    if reduction.attrs["kind"] != "sum" or len(reduction.attrs["axes"]) != 1:
        return
    axis = reduction.attrs["axes"][0]
    x, *shift = exponential.inputs
    assert x is not None
    if x.shape != powers.shape or node.outputs[0].shape != powers.shape or x.dtype != node.outputs[0].dtype:
        return
    reduced = tuple(1 if index == axis else dim for index, dim in enumerate(x.shape))
    if _aligned(total, x) != reduced or any(_aligned(value, x)[axis] != 1 for value in shift if value is not None):
        return
    layers = [layer for part in (exponential, reduction, *reversed(chain)) for layer in part.layers]
    node.layers = list(dict.fromkeys(layers))
    node.op, node.attrs = "Softmax", {"axis": axis, "log": False}
    edit.set_inputs(node, [x])


def _aligned(value: Value, x: Value) -> Shape:
    """Return the shape of `value` with the leading axes that broadcasting to `x` adds."""
    return (1,) * (len(x.shape) - len(value.shape)) + value.shape
