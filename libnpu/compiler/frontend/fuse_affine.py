"""Fuse scale and shift: batch-norm, bias and constant factors after a convolution or matrix product join its weights."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.compiler.frontend.rewriting import Rewriter
from libnpu.compiler.ir import Expr, Graph, Node, Value

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHANNEL_AXIS = {"Conv": -3, "MatMul": -1}


def fuse_affine(graph: Graph) -> Graph:
    """Return `graph` with `y · scale + shift` fused into the Conv or MatMul that alone makes y, computed in float64."""
    edit = Rewriter(graph)
    for node in edit.nodes():
        if node.op == "MatMul":
            _absorb_operand_scale(edit, node)
        if node.op in CHANNEL_AXIS:
            while _absorb_user(edit, node):
                pass
        if node.op == "MatMul":
            _settle_scale(edit, node)
        if node.op in CHANNEL_AXIS:
            _negate_subtrahend(edit, node)
    return edit.done()


def _absorb_user(edit: Rewriter, node: Node) -> bool:
    output = node.outputs[0]
    user = edit.only_user(output)
    if user is None or user.op != "Elementwise" or node.attrs["act"] is not None:
        return False
    if user.outputs[0].shape != output.shape or user.outputs[0].dtype != output.dtype:
        return False
    found = _linear(user.attrs["expr"], user, output, node.op)
    if found is None or not _apply(edit, node, *found):
        return False
    node.layers += [layer for layer in user.layers if layer not in node.layers]
    result = user.outputs[0]
    edit.remove(user)
    edit.set_output(node, result)
    return True


def _negate_subtrahend(edit: Rewriter, node: Node) -> None:
    """a - b @ w = a + b @ -w, bit for bit: the matrix engine has sums of two tensors. Weights that others read too are copied where they are few."""
    output, weights = node.outputs[0], node.inputs[1]
    user = edit.only_user(output)
    assert weights is not None
    if user is None or user.attrs.get("expr") not in (("sub", ("in", 0), ("in", 1)), ("sub", ("in", 1), ("in", 0))):
        return
    minuend, subtrahend = (user.inputs[part[1]] for part in user.attrs["expr"][1:])
    if subtrahend is not output or minuend is None or minuend.const is not None or minuend.shape != output.shape:
        return
    is_small = prod(weights.shape) <= prod(output.shape) or edit.only_user(weights) is node
    if node.attrs["act"] is not None or weights.const is None or not is_small:
        return
    if _apply(edit, node, np.array([-1.0]), np.zeros(1)):
        user.attrs["expr"] = ("add", *user.attrs["expr"][1:])


def _linear(expr: Expr, user: Node, x: Value, op: str) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return (scale, shift) with expr = x · scale + shift; None if it is not of that form."""
    if expr[0] == "in":
        value = user.inputs[expr[1]]
        assert value is not None
        if value is x:
            return np.ones(1), np.zeros(1)
        vector = _per_channel(value, len(x.shape), op)
        return None if vector is None else (np.zeros(1), vector)
    if expr[0] == "const":
        return (np.zeros(1), np.array([expr[1]], np.float64)) if isinstance(expr[1], float) else None
    if expr[0] not in ("add", "sub", "mul", "div", "neg"):
        return None
    parts = [_linear(operand, user, x, op) for operand in expr[1:]]
    if any(part is None for part in parts):
        return None
    (scale, shift), *rest = [part for part in parts if part is not None]
    if expr[0] == "neg":
        return -scale, -shift
    other_scale, other_shift = rest[0]
    match expr[0]:
        case "add":
            return scale + other_scale, shift + other_shift
        case "sub":
            return scale - other_scale, shift - other_shift
        case "mul" if not np.any(other_scale):
            return scale * other_shift, shift * other_shift
        case "mul" if not np.any(scale):
            return shift * other_scale, shift * other_shift
        case "div" if not np.any(other_scale) and np.all(other_shift):
            return scale / other_shift, shift / other_shift
    return None


def _per_channel(value: Value, rank: int, op: str) -> NDArray[Any] | None:
    """Return a constant that differs only from channel to channel as a vector in float64."""
    if value.const is None or value.const.dtype.kind != "f":
        return None
    vector = vector_along(value.const, rank, CHANNEL_AXIS[op])
    return None if vector is None else vector.astype(np.float64)


def vector_along(array: NDArray[Any], rank: int, axis: int) -> NDArray[Any] | None:
    """Return an array that is broadcast to `rank` axes as a vector if it differs only along `axis`, counted from the last: one element or all."""
    shape = (1,) * (rank - array.ndim) + array.shape
    if array.ndim > rank or any(dim != 1 for at, dim in enumerate(shape) if at != rank + axis):
        return None
    return array.reshape(-1)


def _apply(edit: Rewriter, node: Node, scale: NDArray[Any], shift: NDArray[Any]) -> bool:
    """Fuse into weights, scale and bias; False, and nothing happens, when that is not possible or not finite."""
    weights, bias = node.inputs[1], node.inputs[2]
    assert weights is not None
    channels = weights.shape[0] if node.op == "Conv" else weights.shape[-1]
    old = np.zeros(channels) if bias is None or bias.const is None else bias.const.astype(np.float64)
    shifted = (old * scale + shift).astype(weights.dtype)
    if not np.all(np.isfinite(shifted)) or (weights.const is None and not np.all(scale == scale[0])):
        return False
    if weights.const is None:
        node.attrs["scale"] *= float(scale[0])
    elif np.any(scale != 1):
        factor = scale.reshape(-1, 1, 1, 1) if node.op == "Conv" else scale
        scaled = _product(weights.const, factor)
        if not np.all(np.isfinite(scaled)):
            return False
        edit.set_input(node, 1, Value(weights.name, scaled.shape, scaled.dtype, scaled))
    name = bias.name if bias is not None else f"{node.name}.bias"
    edit.set_input(node, 2, Value(name, shifted.shape, shifted.dtype, shifted) if np.any(shifted) else None)
    return True


def _product(weights: NDArray[Any], factor: NDArray[Any]) -> NDArray[Any]:
    """Return float64 products rounded to the weights' type; NumPy converts piece by piece, without arrays in float64."""
    if weights.dtype.kind != "f":  # bfloat16 is not NumPy's own
        wide: NDArray[Any] = weights.astype(np.float64) * factor
        return wide.astype(weights.dtype)
    product: NDArray[Any] = np.empty_like(weights)
    with np.errstate(over="ignore"):  # the caller looks for infinities
        np.multiply(weights, factor, out=product, dtype=np.float64, casting="same_kind")
    return product


def _absorb_operand_scale(edit: Rewriter, node: Node) -> None:
    """(a · c) @ b = c · (a @ b): a constant factor of an operand becomes the product's."""
    for index in (0, 1):
        value = node.inputs[index]
        maker = edit.maker(value)
        if value is None or maker is None or maker.op != "Elementwise" or edit.only_user(value) is not node:
            continue
        if len(maker.inputs) != 1 or sum(other is value for other in node.inputs) != 1:
            continue
        source = maker.inputs[0]
        assert source is not None
        found = _linear(maker.attrs["expr"], maker, source, "MatMul")
        if found is None or np.any(found[1]) or found[0].size != 1 or source.dtype != value.dtype:
            continue
        node.attrs["scale"] *= float(found[0][0])
        node.layers = [*maker.layers, *node.layers]
        edit.set_input(node, index, source)
        edit.remove(maker)


def _settle_scale(edit: Rewriter, node: Node) -> None:
    """Constant weights take the scale of the product."""
    weights = node.inputs[1]
    assert weights is not None
    if weights.const is None or node.attrs["scale"] == 1.0:
        return
    scaled = _product(weights.const, np.array(node.attrs["scale"], np.float64))
    edit.set_input(node, 1, Value(weights.name, scaled.shape, scaled.dtype, scaled))
    node.attrs["scale"] = 1.0
