"""Multiplications of source nodes, which the report compares with those of the NPU's matrix engine."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from libnpu.compiler.partition.survey import SourceNode, Survey

# Convolutions -> the operand with the weights [output channels, channels of a group, kernel...].
CONVOLUTIONS = {"Conv": 1, "ConvInteger": 1, "DeformConv": 1, "FusedConv": 1, "QLinearConv": 3}
# Operators that multiply what the last axis of their first operand has, or the one before if `transA` says so.
PRODUCTS = frozenset(
    ("MatMul", "MatMulInteger", "MatMulNBits", "QLinearMatMul", "Gemm", "FusedMatMul", "TransposeMatMul", "FusedGemm", "QGemm",
     "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "LinearRegressor")
)  # fmt: skip
# Operators with products inside that nobody counts here.
UNCOUNTED = frozenset(
    ("Attention", "ConvTranspose", "DynamicQuantizeLSTM", "Einsum", "FlexAttention", "GRU", "GroupQueryAttention", "If", "LSTM", "LinearAttention", "Loop",
     "MultiHeadAttention", "QAttention", "RNN", "Scan")
)  # fmt: skip


def macs_of(survey: Survey, node: SourceNode) -> int | None:
    """Return the multiplications of a node, None when nobody knows them: of an open shape, a graph inside, or a model's function."""
    op, inputs = node.proto.op_type, list(node.proto.input)
    if op in UNCOUNTED or (node.proto.domain, op) in {(f.domain, f.name) for f in survey.model.functions}:
        return None
    if op not in CONVOLUTIONS and op not in PRODUCTS:
        return 0
    weights = survey.types.get(inputs[CONVOLUTIONS.get(op, 0)])
    made = survey.types.get(node.outputs[0])
    if weights is None or made is None or not weights.is_static or not made.is_static:
        return None
    assert weights.shape is not None and made.shape is not None
    if op in CONVOLUTIONS:
        return prod(made.shape) * prod(weights.shape[1:])
    transposed = any(item.name == "transA" and item.i for item in node.proto.attribute)
    return prod(made.shape) * weights.shape[-2 if transposed else -1]
