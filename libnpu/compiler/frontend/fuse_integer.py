"""Fuse what follows a product of integers into the engine that makes it: a bias of integers, scales, an activation, and the way back to 8 bits.

The bits stay those of the operators: (sum + bias) · scale in float32, to nearest even, plus the zero point, saturated. What asks for
other roundings, as a division by the scale or a bias in float before the way back to integers, stays an operation of its own; so do floats that
become integers in the next one, or that the model gives: these are float32 in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.compiler.frontend.expr import leaves
from libnpu.compiler.frontend.fuse_activation import activation_of
from libnpu.compiler.frontend.fuse_affine import vector_along
from libnpu.compiler.frontend.rewriting import Rewriter
from libnpu.compiler.ir import Ending, Value
from libnpu.compiler.reference import run_expression

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.compiler.ir import Expr, Graph, Node

CHANNEL_AXIS = {"ConvInteger": -3, "MatMulInteger": -1}
_ROUNDED = frozenset({"add", "mul", "div", "cast_f32"})  # operators whose results are exact but for one rounding


def fuse_integer(graph: Graph) -> Graph:
    """Return `graph` with the endings of products of integers in these, where nothing else reads what lies between."""
    edit = Rewriter(graph)
    for node in edit.nodes():
        if node.op in CHANNEL_AXIS and node.attrs["ending"] is None:
            _fuse(edit, node)
    return edit.done()


def _fuse(edit: Rewriter, node: Node) -> None:
    users: list[Node] = []
    offsets = None
    user = _user(edit, node.outputs[0])
    if user is not None and (offsets := _addend(user, node, np.int32)) is not None:
        users.append(user)
        user = _user(edit, user.outputs[0])
    total = users[-1].outputs[0] if users else node.outputs[0]
    found = None if user is None else _scaled(user, total, node)
    if user is None or found is None:
        return
    users.append(user)
    scales, zero, act = found
    biases = None
    if user.outputs[0].dtype.kind == "f":
        then = _user(edit, user.outputs[0])
        if then is not None and (biases := _addend(then, node, np.float32, users[-1].outputs[0])) is not None:
            users.append(then)
            then = _user(edit, then.outputs[0])
        if then is not None and len(then.inputs) == 1 and then.outputs[0].dtype == user.outputs[0].dtype:
            act = activation_of(then.attrs["expr"])
            users += [then] if act is not None else []
    result = users[-1].outputs[0]
    if result.dtype.kind == "f" and (edit.is_output(result) or any(map(_is_whole, edit.users(result)))):
        return
    node.attrs["ending"] = Ending(offsets, scales, biases, zero, act)
    for gone in users:
        node.layers += [layer for layer in gone.layers if layer not in node.layers]
        edit.remove(gone)
    edit.set_output(node, result)


def _is_whole(user: Node) -> bool:
    return user.op == "Elementwise" and user.outputs[0].dtype.kind in "iu"


def _user(edit: Rewriter, value: Value) -> Node | None:
    """Return the element-wise operation that alone reads a value, and keeps its shape."""
    user = edit.only_user(value)
    if user is None or user.op != "Elementwise" or user.outputs[0].shape != value.shape:
        return None
    return user


def _addend(user: Node, node: Node, dtype: Any, x: Value | None = None) -> tuple[Any, ...] | None:
    """Return the numbers of each channel that `user` adds to `x`, by default the product's result; None when it does something else."""
    x = node.outputs[0] if x is None else x
    expr = user.attrs["expr"]
    if expr[0] != "add" or user.outputs[0].dtype != x.dtype:
        return None
    for own, other in ((expr[1], expr[2]), (expr[2], expr[1])):
        if own[0] == "in" and user.inputs[own[1]] is x:
            return _by_channel(_known(other, user), node, dtype)
    return None


def _scaled(user: Node, total: Value, node: Node) -> tuple[tuple[float, ...], int, tuple[Any, ...] | None] | None:
    """Return scales, zero point and activation of `user`, which makes of sums what the product is to give; None when the engine would not do the same."""
    expr, dtype = user.attrs["expr"], user.outputs[0].dtype
    if dtype.kind == "f":
        scales = _factor(expr, user, total, node)
        return None if scales is None or dtype == np.float64 else (scales, 0, None)
    if dtype.name not in ("int8", "uint8") or expr[0] != "cast_i32" or expr[1][0] != "clip":
        return None
    _, moved, least, most = expr[1]
    info = np.iinfo(dtype)
    if moved[0] == "clip" and (_number(least, user), _number(most, user)) == (info.min, info.max):
        _, moved, least, most = moved
    place: Expr = ("const", 0.0)
    if moved[0] == "add":
        rounded = [part for part in moved[1:] if part[0] == "round"]
        if len(rounded) != 1:
            return None
        place = moved[2] if moved[1] is rounded[0] else moved[1]
        moved = rounded[0]
    if moved[0] != "round":
        return None
    scales = _factor(moved[1], user, total, node)
    low, high, zero = (_number(part, user) for part in (least, most, place))
    if scales is None or low is None or high is None or zero is None or zero != int(zero):
        return None
    act = None if low <= info.min and high >= info.max else ("clip", low - zero, high - zero)
    return scales, int(zero), act


def _factor(expr: Expr, user: Node, total: Value, node: Node) -> tuple[float, ...] | None:
    """Return the scales of `expr`, which is the sums times a constant in float32."""
    if expr[0] != "mul":
        return None
    for own, other in ((expr[1], expr[2]), (expr[2], expr[1])):
        if own[0] == "cast_f32" and own[1][0] == "in" and user.inputs[own[1][1]] is total:
            return _by_channel(_known(other, user), node, np.float32)
    return None


def _number(expr: Expr, user: Node) -> float | None:
    array = _known(expr, user)
    return None if array is None or array.size != 1 else float(array.reshape(-1)[0])


def _known(expr: Expr, user: Node) -> NDArray[Any] | None:
    """Return an expression of constants as the vector engine computes it, in float32 or int32; None of another."""
    if not _is_known(expr, user):
        return None
    read = set(leaves(expr))
    operands = [value.const if index in read else None for index, value in enumerate(user.inputs) if value is not None]
    return run_expression(expr, [np.zeros(()) if operand is None else operand for operand in operands])


def _is_known(expr: Expr, user: Node) -> bool:
    if expr[0] == "in":
        value = user.inputs[expr[1]]
        return value is not None and value.const is not None and value.const.dtype.kind in "fiu"
    return expr[0] == "const" or (expr[0] in _ROUNDED and all(_is_known(part, user) for part in expr[1:]))


def _by_channel(array: NDArray[Any] | None, node: Node, dtype: Any) -> tuple[Any, ...] | None:
    """Return constants that differ only by channel of the product's result: one, or one for each."""
    if array is None or array.dtype != dtype or not np.all(np.isfinite(array)):
        return None
    vector = vector_along(array, len(node.outputs[0].shape), CHANNEL_AXIS[node.op])
    return None if vector is None else tuple(vector.tolist())
