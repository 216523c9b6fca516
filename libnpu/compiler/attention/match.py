"""Finds attention in a canonical graph: MatMul, what is done to its scores, Softmax along the keys, MatMul with the values.

    scores = MatMul(q, k^T)                     # [..., M, S]
    scores = any expressions of them            # masks, biases, a soft cap
    weights = Softmax(scores, the last axis)
    weights = where(row, 0, weights)            # optional: rows that are masked as a whole
    result = MatMul(weights, v)

Nothing else may read what lies between. Keys and values are traced back through the repetition of heads (Reshape of Expand of
Reshape) and through the concatenation with a cache along S, whose parts are read where they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from libnpu.compiler.frontend.expr import operator_count, substitute
from libnpu.compiler.frontend.infer import ShapeMismatch, broadcast
from libnpu.compiler.ir import Expr, Node, Value

if TYPE_CHECKING:
    from libnpu.compiler.frontend.rewriting import Rewriter

MAX_MASKS = 3  # operands of the scores' expression; chosen: their addresses fit the kernels' registers
MAX_OPERATORS = 16  # of that expression: bounds its vector registers
FLOATS = (np.dtype(np.float16), np.dtype(np.float32))


@dataclass(slots=True, frozen=True, eq=False)
class Match:
    """An attention: its operands, and the nodes that it is spelled in, first to last."""

    query: Value
    keys: list[
        Value
    ]  # as the source has them: [..., S_i, D], heads not repeated; `key_nodes` make those that no node makes yet
    values: list[Value]
    scale: float
    expr: Expr
    masks: list[Value]
    product: Node  # of queries and keys
    between: list[Node]  # expressions of scores
    softmax: Node
    weighted: Node | None  # an expression of the softmax that empties rows
    result: Node
    new_nodes: list[Node] = field(default_factory=list)

    @property
    def nodes(self) -> list[Node]:
        """All nodes that one operator replaces."""
        middle = [] if self.weighted is None else [self.weighted]
        return [self.product, *self.between, self.softmax, *middle, self.result]


def find_attention(edit: Rewriter) -> list[Match]:
    """Return every attention of the graph that `edit` holds."""
    return [match for node in edit.nodes() if node.op == "Softmax" and (match := _match(edit, node)) is not None]


def _match(edit: Rewriter, softmax: Node) -> Match | None:
    scores = softmax.inputs[0]
    assert scores is not None
    if softmax.attrs["log"] or softmax.attrs["axis"] != len(scores.shape) - 1:
        return None
    weighted, result = _behind(edit, softmax)
    if result is None:
        return None
    found = _before(edit, scores)
    if found is None:
        return None
    product, between, expr, masks = found
    query, turned, value = product.inputs[0], product.inputs[1], result.inputs[1]
    assert query is not None and turned is not None and value is not None
    batch = query.shape[:-2]
    if any(v.const is not None or v.dtype not in FLOATS or v.dtype != query.dtype for v in (query, turned, value)):
        return None
    if product.outputs[0].shape[:-2] != batch or result.outputs[0].shape[:-2] != batch:
        return None
    if len(masks) > MAX_MASKS or operator_count(expr) > MAX_OPERATORS:
        return None
    new: list[Node] = []
    keys = _sources(edit, _turned(edit, turned, product, new), batch, product, new)
    values = _sources(edit, value, batch, result, new)
    if [part.shape[-2] for part in keys] != [part.shape[-2] for part in values]:
        new = []
        keys, values = [_turned(edit, turned, product, new)], [value]
    if any(part.shape[:-2] != batch and not _shares_heads(part.shape, batch) for part in (*keys, *values)):
        return None
    scale = float(product.attrs["scale"])
    return Match(query, keys, values, scale, expr, masks, product, between, softmax, weighted, result, new)


def _shares_heads(shape: tuple[int, ...], batch: tuple[int, ...]) -> bool:
    return len(shape) - 2 == len(batch) > 0 and shape[:-3] == batch[:-1] and batch[-1] % shape[-3] == 0


def _is_product(node: Node | None) -> bool:
    """Whether a node is a plain product of two values."""
    return node is not None and node.op == "MatMul" and node.inputs[2] is None and node.attrs["act"] is None


def _behind(edit: Rewriter, softmax: Node) -> tuple[Node | None, Node | None]:
    """Return (what empties rows of the weights, their product with the values), each None without one."""
    weights, weighted = softmax.outputs[0], None
    node = edit.only_user(weights)
    if node is not None and node.op == "Elementwise":
        if node.outputs[0].shape != weights.shape or not _empties_rows(node, weights):
            return None, None
        weighted, weights = node, node.outputs[0]
        node = edit.only_user(weights)
    if node is None or not _is_product(node) or node.inputs[0] is not weights or node.inputs[1] is weights:
        return None, None
    return (weighted, node) if node.attrs["scale"] == 1.0 else (None, None)


def _empties_rows(node: Node, weights: Value) -> bool:
    """Whether an expression is `weights`, or 0 for whole rows: the product with the values then is 0 for these rows as well."""
    match node.attrs["expr"]:
        case ("where", ("in", i), ("const", 0.0), ("in", j)):
            rows, other = node.inputs[i], node.inputs[j]
            assert rows is not None
            return other is weights and rows.shape[-1:] in ((), (1,))
        case ("where", ("is_nan", ("in", i)), ("const", 0.0), ("in", j)):
            return node.inputs[i] is node.inputs[j] is weights
    return False


def _before(edit: Rewriter, scores: Value) -> tuple[Node, list[Node], Expr, list[Value]] | None:
    """Return (product of queries and keys, expressions behind it, these as one of the product, its other operands)."""
    between: list[Node] = []
    expr: Expr = ("in", 0)
    masks: list[Value] = []
    value = scores
    while True:
        node = edit.maker(value)
        if node is None or edit.only_user(value) is None:
            return None
        if _is_product(node):
            return node, between, expr, masks
        if node.op != "Elementwise" or len(between) > MAX_OPERATORS:
            return None
        before = [v for v in node.inputs if v is not None and _leads_to_product(edit, v, value)]
        if len(before) != 1:
            return None
        places: list[Expr] = []
        for operand in node.inputs:
            assert operand is not None
            if operand is before[0]:
                places.append(("in", 0))
                continue
            if operand not in masks:
                masks.append(operand)
            places.append(("in", 1 + masks.index(operand)))
        inner = substitute(node.attrs["expr"], lambda index, places=places: places[index])  # type: ignore[misc]
        expr = substitute(expr, lambda index, inner=inner: inner if index == 0 else ("in", index))  # type: ignore[misc]
        between.insert(0, node)
        value = before[0]


def _leads_to_product(edit: Rewriter, value: Value, result: Value) -> bool:
    """Whether `value` is a matrix product of the shape of `result`, perhaps behind expressions of it that have no other reader."""
    for _ in range(MAX_OPERATORS):
        node = edit.maker(value)
        if node is None or edit.only_user(value) is None or value.shape != result.shape or value.dtype not in FLOATS:
            return False
        if _is_product(node):
            return True
        if node.op != "Elementwise":
            return False
        value = next((v for v in node.inputs if v is not None and v.shape == result.shape and edit.maker(v)), result)
        if value is result:
            return False
    return False


def _turned(edit: Rewriter, columns: Value, product: Node, new: list[Node]) -> Value:
    """Return the keys [..., S, D] of [..., D, S]: what a transposition was made of, or a view by one more, added to `new`."""
    rank = len(columns.shape)
    perm = [*range(rank - 2), rank - 1, rank - 2]
    maker, source = edit.maker(columns), columns
    if maker is not None and maker.op == "Transpose":
        assert maker.inputs[0] is not None
        source, perm = maker.inputs[0], [maker.attrs["perm"][axis] for axis in perm]
    if perm == list(range(rank)):
        return source
    shape = tuple(source.shape[axis] for axis in perm)
    value = Value(f"{product.name}.keys", shape, source.dtype)
    new.append(Node("Transpose", f"{product.name}.keys", [source], [value], {"perm": perm}, list(product.layers)))
    return value


def _sources(edit: Rewriter, value: Value, batch: tuple[int, ...], node: Node, new: list[Node]) -> list[Value]:
    """Return the parts of keys or values, from a cache and new ones, without the repetition of heads."""
    value = _unrepeated(edit, value, batch, node, new)
    maker = edit.maker(value)
    if maker is None or maker.op != "Concat" or maker.attrs["axis"] != len(value.shape) - 2:
        return [value]
    parts = [part for part in maker.inputs if part is not None]
    return parts if all(part.const is None for part in parts) else [value]


def _unrepeated(edit: Rewriter, value: Value, batch: tuple[int, ...], node: Node, new: list[Node]) -> Value:
    """Return the heads [..., G, S, D] that Reshape(Expand([..., G, 1, S, D])) repeats; `value` itself when it does not."""
    reshape = edit.maker(value)
    expand = edit.maker(reshape.inputs[0]) if reshape is not None and reshape.op == "Reshape" else None
    if expand is None or expand.op != "Expand":
        return value
    source, wide = expand.inputs[0], expand.outputs[0]
    assert source is not None
    heads = wide.shape[:-3] if len(wide.shape) == len(value.shape) + 1 else ()
    repeated = (*heads, 1, *value.shape[-2:])
    if not heads or wide.shape[-2:] != value.shape[-2:] or prod(wide.shape[-4:-2]) != value.shape[-3]:
        return value
    try:
        if source.shape != repeated or broadcast([source.shape, wide.shape]) != wide.shape:
            return value
    except ShapeMismatch:
        return value
    inner = edit.maker(source)
    shape = (*heads, *value.shape[-2:])
    if inner is not None and inner.op == "Reshape" and inner.inputs[0] is not None and inner.inputs[0].shape == shape:
        return inner.inputs[0]
    name = f"{node.name}.heads"
    made = Value(name, shape, source.dtype)
    new.append(Node("Reshape", name, [source], [made], {}, list(node.layers)))
    return made
