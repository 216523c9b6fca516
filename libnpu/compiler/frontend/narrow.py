"""Precision "int8" of a plan: which values are int8 inside. Scales are not known, so that only sizes, tasks and times are right.

1. Weights of Conv and of MatMul are int8, and so is what these read beside them. A MatMul of two computed operands stays float16.
2. A value is int8 when all its readers want it so: such products, and carriers (pooling, movement, sums and products of two tensors,
   which the matrix engine does) whose own result is int8.
3. What such a product makes is int8 or, for any other reader, float16. Everything else is as under "fp16".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from libnpu.compiler.ir import Expr, Graph, Node, Value

INT8 = np.dtype(np.int8)
_CARRIERS = frozenset({"MaxPool", "AvgPool", "Reshape", "Transpose", "Slice", "Concat", "Expand", "Pad"})
_PRODUCTS = frozenset({"Conv", "MatMul"})


def is_narrow_product(node: Node) -> bool:
    """Whether a node multiplies with constant weights."""
    return node.op in _PRODUCTS and node.inputs[1] is not None and node.inputs[1].const is not None


def is_carrier(node: Node) -> bool:
    """Whether a node can have int8 operands and an int8 result."""
    if node.op != "Elementwise":
        return node.op in _CARRIERS
    expr = node.attrs["expr"]
    expr = expr[1] if expr[0] == "relu" else expr
    two = expr[0] in ("add", "mul") and all(part[0] == "in" for part in expr[1:])
    return two and len(node.inputs) == 2 and all(v is not None and v.const is None for v in node.inputs)


def narrow_values(graph: Graph) -> set[Value]:
    """Return the values that are int8, as the module's docstring says."""
    readers: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None:
                readers.setdefault(value, []).append(node)
    found: set[Value] = set()
    for node in reversed(graph.nodes):
        value = node.outputs[0]
        makes = is_narrow_product(node) or is_carrier(node) or node.op == "Elementwise"
        if not makes or value.dtype.kind != "f" or value in graph.outputs or value not in readers:
            continue
        if all(_wants(reader, value, found) for reader in readers[value]):
            found.add(value)
    return found


def _wants(reader: Node, value: Value, found: set[Value]) -> bool:
    if is_narrow_product(reader):
        return value is reader.inputs[0]
    return is_carrier(reader) and reader.outputs[0] in found


def quantised(expr: Expr) -> Expr:
    """Return a float expression with the operations that bring its result to int8; the factor stands for the scale."""
    return ("cast_i32", ("round", ("mul", expr, ("const", 127.0))))
