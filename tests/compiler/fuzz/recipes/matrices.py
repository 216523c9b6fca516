"""Recipes of matrix products, and of the recurrent operators."""

from __future__ import annotations

import numpy as np

from tests.compiler.fuzz.draw import FLOATS
from tests.compiler.fuzz.recipes.table import BYTES, ENGINE, F32, I32, I64, recipe


def matrices(g, dtypes, constant=None, other=None):
    """Return two operands of a product, with dimensions before them that broadcast."""
    a = g.operand(dtypes, lambda x: x.ndim >= 1 and 0 not in x.shape, g.shape(g.whole(1, 4)))
    shape = g.known(a).shape
    before = (
        tuple(1 if g.chance(0.3) else size for size in shape[g.whole(0, len(shape) - 2) : -2]) if len(shape) > 2 else ()
    )
    columns = () if g.chance(0.1) else (g.choice((1, 2, 3, 8, 17)),)
    b_shape = (*(before if columns else ()), shape[-1], *columns)
    b = g.operand([g.known(a).dtype] if other is None else other, shape=b_shape, constant=constant)
    return a, b


@recipe("MatMul")
def matmul(g, op):
    g.add(op, matrices(g, g.dtypes(op, among=(*ENGINE, *FLOATS))), {})


@recipe("Gemm")
def gemm(g, op):
    a = g.operand(g.dtypes(op, among=ENGINE), lambda x: x.ndim == 2 and 0 not in x.shape, g.shape(2))
    attrs = {name: g.whole(0, 1) for name in ("transA", "transB")} | {
        name: g.number(0.2, 2) for name in ("alpha", "beta") if g.chance(0.4)
    }
    rows, depth = g.known(a).shape[:: -1 if attrs["transA"] else 1]
    columns = g.choice((1, 3, 8, 17))
    b = g.like(a, (columns, depth) if attrs["transB"] else (depth, columns))
    c = (
        []
        if g.opset >= 11 and g.chance(0.3)
        else [g.like(a, g.choice(((columns,), (rows, columns), (1, columns), (rows, 1), ())))]
    )
    g.add(op, [a, b, *c], attrs)


@recipe("FusedMatMul", "TransposeMatMul")
def fused_matmul(g, op):
    before, rows, depth, columns = g.shape(g.whole(0, 2), 3), g.whole(1, 5), g.choice((1, 3, 8)), g.choice((1, 3, 17))
    attrs = {name: g.whole(0, 1) for name in ("transA", "transB")} | {"alpha": g.number(0.2, 2)}
    a = g.operand([F32], shape=(*before, *((depth, rows) if attrs["transA"] else (rows, depth))))
    b = g.like(a, (*before, *((columns, depth) if attrs["transB"] else (depth, columns))))
    g.add(op, [a, b], attrs, domain="com.microsoft")


@recipe("FusedGemm")
def fused_gemm(g, op):
    a = g.operand([F32], lambda x: x.ndim == 2 and 0 not in x.shape, g.shape(2))
    columns = g.choice((1, 3, 8, 17))
    name = g.choice(("Relu", "Sigmoid", "Tanh", "LeakyRelu"))
    attrs = {"activation": name, "alpha": g.number(0.2, 2)} | (
        {"activation_alpha": 0.25} if name == "LeakyRelu" else {}
    )
    b, c = g.like(a, (g.known(a).shape[1], columns)), g.like(a, (columns,))
    g.add(op, [a, b, c], attrs, domain="com.microsoft")


@recipe("MatMulNBits")
def matmul_of_few_bits(g, op):
    """Weights that float16 holds: no bound sees how they are rounded inside of the node."""
    depth, columns, block, bits = (
        g.choice((16, 24, 40, 64)),
        g.choice((1, 3, 8, 17)),
        g.choice((16, 32)),
        g.choice((4, 4, 8)),
    )
    blocks, each = -(-depth // block), 8 // bits
    a = g.operand([F32], shape=(*g.shape(g.whole(0, 2), 5), g.whole(1, 5), depth), low=-3, high=3)
    packed = g.array(BYTES[0], (columns, blocks, block // each), 0, 255)
    scales = np.exp2(g.array(I32, (columns, blocks), -6, -2)).astype(F32)
    zeros = [g.new(g.array(BYTES[0], (columns, -(-blocks // each)), 0, 255), True)] if g.chance(0.5) else []
    attrs = {"K": depth, "N": columns, "block_size": block, "bits": bits}
    g.add(op, [a, g.new(packed, True), g.new(scales, True), *zeros], attrs, domain="com.microsoft")


@recipe("GatherBlockQuantized")
def rows_of_few_bits(g, op):
    """Numbers that float16 holds, as above."""
    rows, width = g.whole(1, 9), g.choice((16, 24, 40))
    table = g.array(BYTES[0], (rows, width // 2), 0, 255)
    scales = np.exp2(g.array(I32, (rows, -(-width // 16)), -6, -2)).astype(F32)
    indices = g.operand([I64, I32], low=-rows, high=rows - 1)
    attrs = {"bits": 4, "block_size": 16}
    g.add(op, [g.new(table, True), indices, g.new(scales, True)], attrs, domain="com.microsoft")


@recipe("Einsum")
def einsum(g, op):
    equation = g.choice(
        (
            "ij,jk->ik",
            "bij,bjk->bik",
            "ij,ij->",
            "ij->ji",
            "ii->i",
            "bhid,bhjd->bhij",
            "ij,j->i",
            "i,j->ij",
            "...ij,...jk->...ik",
        )
    )
    sizes = {label: g.choice((1, 2, 3, 5, 8)) for label in "abcdefghijklmnop"}
    sides = equation.split("->")[0].replace("...", "b").split(",")
    dtype = g.choice(g.dtypes(op, among=ENGINE))
    g.add(op, [g.operand([dtype], shape=tuple(sizes[c] for c in side)) for side in sides], {"equation": equation})


@recipe("RNN", "GRU", "LSTM")
def recurrent(g, op):
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    x = g.operand(
        g.dtypes(op, among=(F32,)), lambda a: a.ndim == 3 and 0 not in a.shape and a.shape[0] <= 5, g.shape(3, 5)
    )
    steps, batch, inputs = g.known(x).shape
    direction, hidden = g.choice(("forward", "reverse", "bidirectional")), g.choice((1, 3, 8))
    count = 2 if direction == "bidirectional" else 1
    w, r = (g.new(g.array(F32, (count, gates * hidden, size), -1, 1), True) for size in (inputs, hidden))
    bias = g.new(g.array(F32, (count, 2 * gates * hidden)), True) if g.chance(0.6) else ""
    lengths = g.new(g.array(I32, (batch,), 1, steps)) if g.chance(0.3) else ""
    states = [
        g.new(g.array(F32, (count, batch, hidden), -1, 1)) if g.chance(0.5) else ""
        for _ in range(2 if op == "LSTM" else 1)
    ]
    attrs = {"hidden_size": hidden, "direction": direction}
    if op == "GRU":
        attrs["linear_before_reset"] = g.whole(0, 1)
    peephole = [g.new(g.array(F32, (count, 3 * hidden), -1, 1), True)] if op == "LSTM" and g.chance(0.3) else []
    g.add(op, [x, w, r, bias, lengths, *states, *peephole], attrs, 3 if op == "LSTM" else 2)
