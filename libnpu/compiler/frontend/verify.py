"""Verifier: what must hold between any two stages. A failure is a bug of the stage before, so it asserts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from libnpu.compiler.frontend.expr import IllTyped, kind_of, leaves
from libnpu.compiler.frontend.infer import ShapeMismatch, infer_shape
from libnpu.compiler.ir import OPS

if TYPE_CHECKING:
    from libnpu.compiler.ir import Graph, Node, Value

_SAME_TYPE = frozenset({"MaxPool", "Gather", "Reshape", "Transpose", "Slice", "Concat", "Expand", "Pad"})
_CONST_OPERANDS = {"Conv": (1, 2), "MatMul": (2,), "ConvInteger": (1,)}


def verify(graph: Graph, stage: str) -> Graph:
    """Return `graph`; raises AssertionError naming the stage and the node.

    Checked: operators and attributes are those of `OPS`; each value is defined once and before its use; names are
    unique, but an output may share an input's; shapes follow from the operands; types fit; constants have the shape and type that their value says.
    """
    defined: set[Value] = set()
    names: set[str] = set()

    def define(value: Value, where: str) -> None:
        assert value not in defined, f"after {stage}: {where} defines {value.name} again"
        assert value.name not in names, f"after {stage}: {where}: two values are named {value.name}"
        defined.add(value)
        names.add(value.name)

    for value in graph.inputs:
        define(value, "the graph")
    names -= {value.name for value in graph.outputs}  # an output may be a copy of an input, by its name
    node_names: set[str] = set()
    for node in graph.nodes:
        where = f"after {stage}: node {node.name} ({node.op})"
        assert node.name not in node_names, f"{where}: name is taken"
        node_names.add(node.name)
        for operand in node.inputs:
            if operand is not None and operand.const is not None:
                _constant(operand, where)
            elif operand is not None:
                assert operand in defined, f"{where} reads {operand.name}, which nothing before it defines"
        _node(node, where)
        for value in node.outputs:
            assert value.const is None, f"{where}: its output {value.name} is a constant"
            define(value, where)
    for value in graph.outputs:
        assert value in defined, f"after {stage}: output {value.name} is not defined"
    return graph


def _constant(value: Value, where: str) -> None:
    assert value.const is not None
    assert value.const.shape == value.shape, f"{where}: constant {value.name} is {value.const.shape}, not {value.shape}"
    assert value.const.dtype == value.dtype, f"{where}: constant {value.name} is {value.const.dtype}, not {value.dtype}"


def _node(node: Node, where: str) -> None:
    assert node.op in OPS, f"{where}: no canonical operator"
    assert set(node.attrs) == set(OPS[node.op]), f"{where}: attributes {sorted(node.attrs)}"
    assert len(node.outputs) == 1, f"{where}: {len(node.outputs)} outputs"
    for index in _CONST_OPERANDS.get(node.op, ()):
        operand = node.inputs[index]
        assert operand is None or operand.const is not None, f"{where}: operand {index} must be a constant"
    present = [value for value in node.inputs if value is not None]
    output = node.outputs[0]
    try:
        shape = infer_shape(node.op, [value.shape for value in present], node.attrs)
    except ShapeMismatch as error:
        raise AssertionError(f"{where}: {error}") from error
    if shape is not None:
        assert shape == output.shape, f"{where}: output {output.name} is {output.shape}, expected {shape}"
    elif node.op == "Reshape":
        assert np.prod(output.shape) == np.prod(present[0].shape), f"{where}: {present[0].shape} to {output.shape}"
    else:
        shape = (1,) * (len(output.shape) - len(present[0].shape)) + present[0].shape
        fits = len(shape) == len(output.shape) and all(n in (1, m) for n, m in zip(shape, output.shape, strict=True))
        assert fits, f"{where}: {present[0].shape}"
    if node.op in _SAME_TYPE:
        assert output.dtype == present[0].dtype, f"{where}: {present[0].dtype} becomes {output.dtype}"
    if node.op == "Concat":
        assert len({value.dtype for value in present}) == 1, f"{where}: operands of several types"
    if node.op == "Elementwise":
        _expression(node, where)


def _expression(node: Node, where: str) -> None:
    expr, output = node.attrs["expr"], node.outputs[0]
    used = set(leaves(expr))
    assert used == set(range(len(node.inputs))), f"{where}: expression reads inputs {sorted(used)}"
    kinds = ["i" if value is not None and value.dtype.kind in "iub" else "f" for value in node.inputs]
    try:
        kind = kind_of(expr, kinds)
    except IllTyped as error:
        raise AssertionError(f"{where}: {error}") from error
    expected = "i" if output.dtype.kind in "iub" else "f"
    assert kind == expected, f"{where}: expression is {kind}, output {output.dtype}"
