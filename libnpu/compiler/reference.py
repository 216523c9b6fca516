"""Reference: runs a canonical graph in NumPy. The oracle for the values of every layer; shares no code with the device.

Sums and products accumulate in float64. Every node's result is rounded once to the type of its output value; inside an
Elementwise expression each operation rounds to float32, as the vector engine does; its store of integers of up to 16 bits saturates. Matrix operators apply scale, bias
and activation to the wide accumulator before that one rounding. The order of additions in a matrix product is BLAS's for the oracle, which is fast, and
that of `products.py` where the result goes into a blob.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from libnpu.compiler.ir import Expr, Graph, Node

    Array = NDArray[Any]
    Product = Callable[[Array, Array], Array]


def run_reference(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return every input, intermediate and output of `graph` by value name.

    `feeds` holds the graph's inputs by name, in their shape and type; raises KeyError or ValueError otherwise.
    """
    values: dict[str, Array] = {}
    for value in graph.inputs:
        array = np.asarray(feeds[value.name])
        if array.shape != value.shape or array.dtype != value.dtype:
            raise ValueError(f"input {value.name}: {array.dtype}{array.shape}, expected {value.dtype}{value.shape}")
        values[value.name] = array
    for node in graph.nodes:
        operands = [
            None if value is None else value.const if value.const is not None else values[value.name]
            for value in node.inputs
        ]
        values[node.outputs[0].name] = run_node(node, operands)
    return values


def run_node(node: Node, operands: Sequence[Array | None], product: Product = np.matmul) -> Array:
    """Return the result of one node for its operands, None for one that is left out. `product` multiplies matrices."""
    output = node.outputs[0]
    with np.errstate(all="ignore"):
        result: Array
        if node.op in _PRODUCTS:
            result = _PRODUCTS[node.op](node, operands, product)
        else:
            result = _OPERATORS[node.op](node, operands)
        if result.dtype != output.dtype:
            if result.dtype.kind == "i" and output.dtype.kind in "iu" and output.dtype.itemsize <= 2:
                result = np.clip(result, np.iinfo(output.dtype).min, np.iinfo(output.dtype).max)
            if output.dtype == np.uint64:
                result = result.astype(np.uint32)  # 32 bits inside
            result = result.astype(output.dtype)
    assert result.shape == output.shape, f"{node.name}: {result.shape}, expected {output.shape}"
    return result


def _wide(array: Array | None) -> Array:
    assert array is not None
    wide: Array = array.astype(np.float64)
    return wide


def _activated(node: Node, x: Array) -> Array:
    match node.attrs["act"]:
        case None:
            return x
        case ("relu",):
            return np.where(x < 0, 0.0, x)
        case ("clip", low, high):
            return np.clip(x, low, high)
        case ("leaky_relu", slope):
            return np.where(x < 0, x * slope, x)
    raise AssertionError(f"{node.name}: activation {node.attrs['act']}")


def _windows(x: Array, node: Node, kernel: Sequence[int], fill: float) -> Array:
    """Return [N, C, Y, X, ky, kx]: for each output pixel the input elements under the kernel."""
    top, left, bottom, right = node.attrs["pads"]
    dilation_y, dilation_x = node.attrs.get("dilations", [1, 1])
    stride_y, stride_x = node.attrs["strides"]
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
    reach = (dilation_y * (kernel[0] - 1) + 1, dilation_x * (kernel[1] - 1) + 1)
    windows = sliding_window_view(padded, reach, axis=(2, 3))
    return windows[:, :, ::stride_y, ::stride_x, ::dilation_y, ::dilation_x]


def _conv(node: Node, operands: Sequence[Array | None], product: Product) -> Array:
    x, weights = _wide(operands[0]), _wide(operands[1])
    group = node.attrs["group"]
    windows = _windows(x, node, weights.shape[2:], 0.0)
    batch, channels, rows, columns = windows.shape[:4]
    each = channels // group
    if each == 1 and len(weights) == group:  # depthwise
        result = np.zeros((batch, channels, rows, columns))
        for i, j in np.ndindex(*weights.shape[2:]):
            result += windows[..., i, j] * weights[:, 0, i, j].reshape(-1, 1, 1)
    else:
        parts = []
        for index in range(group):
            part = windows[:, index * each : (index + 1) * each].transpose(0, 2, 3, 1, 4, 5)
            taps = weights[index * (len(weights) // group) : (index + 1) * (len(weights) // group)]
            parts.append(product(part.reshape(batch * rows * columns, -1), taps.reshape(len(taps), -1).T))
        result = np.concatenate(parts, axis=1).reshape(batch, rows, columns, -1).transpose(0, 3, 1, 2)
    if len(operands) > 2 and operands[2] is not None:
        result = result + _wide(operands[2]).reshape(1, -1, 1, 1)
    return _activated(node, result)


def _matmul(node: Node, operands: Sequence[Array | None], product: Product) -> Array:
    result = product(_wide(operands[0]), _wide(operands[1])) * node.attrs["scale"]
    if len(operands) > 2 and operands[2] is not None:
        result = result + _wide(operands[2])
    return _activated(node, result)


def _conv_integer(node: Node, operands: Sequence[Array | None], product: Product) -> Array:
    x, weights = (_wide(array) - zero for array, zero in zip(operands, node.attrs["zeros"], strict=True))
    plain = replace(node, attrs=node.attrs | {"act": None})
    return _ended(node, _conv(plain, [x, weights], product), (1, -1, 1, 1))


def _matmul_integer(node: Node, operands: Sequence[Array | None], product: Product) -> Array:
    a, b = (_wide(array) - zero for array, zero in zip(operands, node.attrs["zeros"], strict=True))
    return _ended(node, product(a, b), (-1,))


def _ended(node: Node, sums: Array, channels: tuple[int, ...]) -> Array:
    """Return what the ending of a product of integers makes of its sums, step by step in int32 and float32."""
    ending = node.attrs["ending"]
    if ending is None:
        return sums

    def laid(numbers: Sequence[float] | None, dtype: Any) -> Any:
        return np.asarray((0,) if numbers is None else numbers, dtype).reshape(channels)

    offsets = laid(ending.offsets, np.int64)
    scales, biases = laid(ending.scales, np.float32), laid(ending.biases, np.float32)
    value: Array = (sums.astype(np.int64) + offsets).astype(np.int32).astype(np.float32) * scales + biases
    result = _activated(replace(node, attrs={"act": ending.act}), value)
    dtype = node.outputs[0].dtype
    if dtype.kind == "f":
        return result
    info = np.iinfo(dtype)
    return np.asarray(np.clip(np.rint(result.astype(np.float64)) + ending.zero, info.min, info.max))


def _max_pool(node: Node, operands: Sequence[Array | None]) -> Array:
    return np.asarray(_windows(_wide(operands[0]), node, node.attrs["kernel"], -np.inf).max(axis=(4, 5)))


def _avg_pool(node: Node, operands: Sequence[Array | None]) -> Array:
    x = _wide(operands[0])
    total = _windows(x, node, node.attrs["kernel"], 0.0).sum(axis=(4, 5))
    inside = _windows(np.ones_like(x[:1, :1]), node, node.attrs["kernel"], 0.0).sum(axis=(4, 5))
    return np.asarray(total / (math.prod(node.attrs["kernel"]) if node.attrs["count_include_pad"] else inside))


def _reduce(node: Node, operands: Sequence[Array | None]) -> Array:
    x = operands[0]
    assert x is not None
    wide = x.astype(np.int64) if x.dtype.kind in "iub" else x.astype(np.float64)
    kind, axes, keepdims = node.attrs["kind"], tuple(node.attrs["axes"]), node.attrs["keepdims"]
    if kind == "mean" and wide.dtype.kind == "i":  # integer division, towards zero
        count = math.prod(x.shape[axis] for axis in axes)
        total = wide.sum(axis=axes, keepdims=keepdims)
        return np.asarray(np.sign(total) * (np.abs(total) // count))
    if 0 in x.shape and kind in ("mean", "max", "min"):
        return np.full(node.outputs[0].shape, _of_nothing(kind, x.dtype), wide.dtype)
    reduction: Any = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}[kind]
    return np.asarray(reduction(wide, axis=axes, keepdims=keepdims))


def _of_nothing(kind: str, dtype: np.dtype[Any]) -> float:
    """Return the mean, the largest or the smallest of no number."""
    if kind == "mean":
        return math.nan
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min if kind == "max" else np.iinfo(dtype).max)
    return -math.inf if kind == "max" else math.inf


def _softmax(node: Node, operands: Sequence[Array | None]) -> Array:
    x, axis = _wide(operands[0]), node.attrs["axis"]
    shifted = x - x.max(axis=axis, keepdims=True)
    total = np.exp(shifted).sum(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(total) if node.attrs["log"] else np.exp(shifted) / total)


def _rope(node: Node, operands: Sequence[Array | None]) -> Array:
    """Turn pairs of elements; float32 operations, as the vector engine has them."""
    x, *angles = (np.asarray(operand, np.float32) for operand in operands)
    by_turns = node.attrs["interleaved"]
    cut = (
        (slice(0, None, 2), slice(1, None, 2))
        if by_turns
        else (slice(None, x.shape[-1] // 2), slice(x.shape[-1] // 2, None))
    )
    first, second = (x[..., part] for part in cut)
    wide = [[a[..., part] for part in cut] if a.shape[-1] == x.shape[-1] else [a, a] for a in angles]
    (cos, other_cos), (sin, other_sin) = wide
    result = np.empty_like(x)
    result[..., cut[0]] = first * cos - second * sin
    result[..., cut[1]] = second * other_cos + first * other_sin
    return result


def _sdpa(node: Node, operands: Sequence[Array | None]) -> Array:
    """Attention as `OPS` says it: scores and their expression in float64, like the products."""
    parts = node.attrs["parts"]
    q = _wide(operands[0])
    keys, values = (
        np.concatenate([_wide(x) for x in operands[first : first + parts]], axis=-2) for first in (1, 1 + parts)
    )
    if q.ndim > 2:
        keys, values = (np.repeat(x, q.shape[-3] // x.shape[-3], axis=-3) for x in (keys, values))
    others = [x for x in operands[1 + 2 * parts :] if x is not None]
    scores = np.asarray(q @ np.swapaxes(keys, -1, -2) * node.attrs["scale"], np.float32)
    scores = np.broadcast_to(run_expression(node.attrs["expr"], [scores, *others]), scores.shape).astype(np.float64)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights @ values / weights.sum(axis=-1, keepdims=True))


def _gather(node: Node, operands: Sequence[Array | None]) -> Array:
    data, indices = operands
    assert data is not None and indices is not None
    return np.take(data, indices.astype(np.int64), axis=node.attrs["axis"])


def _arg_max(node: Node, operands: Sequence[Array | None]) -> Array:
    assert operands[0] is not None
    return np.asarray(np.argmax(operands[0], axis=node.attrs["axis"], keepdims=node.attrs["keepdims"]))


def _slice(node: Node, operands: Sequence[Array | None]) -> Array:
    bounds = zip(node.attrs["starts"], node.attrs["stops"], node.attrs["steps"], strict=True)
    assert operands[0] is not None
    return operands[0][tuple(slice(*bound) for bound in bounds)]


def _pad(node: Node, operands: Sequence[Array | None]) -> Array:
    assert operands[0] is not None
    return np.pad(operands[0], node.attrs["pads"], constant_values=node.attrs["value"])


def _concat(node: Node, operands: Sequence[Array | None]) -> Array:
    return np.concatenate([x for x in operands if x is not None], axis=node.attrs["axis"])


def _elementwise(node: Node, operands: Sequence[Array | None]) -> Array:
    computed = []
    for array in operands:
        assert array is not None
        computed.append(array.astype(np.int32 if array.dtype.kind in "iub" else np.float32))
    result = _expression(node.attrs["expr"], computed)
    if node.outputs[0].dtype == np.bool_:
        result = result != 0
    return np.broadcast_to(result, node.outputs[0].shape).copy()


def run_expression(expr: Expr, operands: Sequence[Array]) -> Array:
    """Return the value of an expression for its operands, broadcast."""
    with np.errstate(all="ignore"):
        return _expression(expr, [x.astype(np.int32 if x.dtype.kind in "iub" else np.float32) for x in operands])


def _expression(expr: Expr, inputs: Sequence[Array]) -> Array:
    head = expr[0]
    if head == "in":
        return inputs[expr[1]]
    if head == "const":
        return np.array(expr[1], np.float32 if isinstance(expr[1], float) else np.int32)
    operands = [_expression(operand, inputs) for operand in expr[1:]]
    if head in _CASTS:
        cast: Array = _CASTS[head](operands[0])
        return cast
    floating = any(operand.dtype.kind == "f" for operand in (operands[1:] if head == "where" else operands))
    # Computing wide and rounding to float32 gives the correctly rounded result of each operation.
    wide = [operand.astype(np.float64 if operand.dtype.kind == "f" else np.int64) for operand in operands]
    result = np.asarray(_FUNCTIONS[head](*wide))
    if result.dtype == np.bool_:
        return np.asarray(result, np.int32)
    rounded: Array = result.astype(np.float32 if floating else np.int32)
    return rounded


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    quotient = np.abs(a) // np.where(b == 0, 1, np.abs(b))
    return np.asarray(np.where(b == 0, 0, np.sign(a) * np.sign(b) * quotient))


def _power(a: Array, b: Array) -> Array:
    """Integer powers wrap; those of negative exponents go towards zero."""
    if a.dtype.kind == "f":
        return np.asarray(np.power(a, b))
    one_way = np.where(np.abs(a) == 1, np.power(a, np.abs(b) % 2), 0)
    return np.asarray(np.where(b < 0, one_way, np.power(a, np.maximum(b, 0))))


def _erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64)


def _to_i32(x: Array) -> Array:
    """Towards zero, saturating; NaN gives zero."""
    if x.dtype.kind != "f":
        return x
    bounded = np.clip(np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0), -(2.0**31), 2.0**31 - 1)
    return np.asarray(bounded.astype(np.int32))


_CASTS: dict[str, Any] = {
    "cast_f32": lambda x: x.astype(np.float32),
    "cast_i32": _to_i32,
    "bits_i32": lambda x: x.view(np.int32),
    "bits_f32": lambda x: x.view(np.float32),
    "cast_bool": lambda x: (x != 0).astype(np.int32),
}
_FUNCTIONS: dict[str, Any] = {
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": _erf,
    "sin": np.sin,
    "cos": np.cos,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "sign": np.sign,
    "bit_not": np.invert,
    "not": lambda x: x == 0,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x: np.where(x < 0, 0, x),
    "is_nan": np.isnan,
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divide,
    "max": np.maximum,
    "min": np.minimum,
    "pow": _power,
    "mod": np.mod,
    "fmod": np.fmod,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
    "shl": lambda x, count: np.left_shift(x, count & 31),
    "shr": lambda x, count: np.right_shift(x, count & 31),
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "leaky_relu": lambda x, slope: np.where(x < 0, x * slope, x),
    "prelu": lambda x, slope: np.where(x < 0, x * slope, x),
    "where": lambda condition, a, b: np.where(condition != 0, a, b),
    "clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "hard_sigmoid": lambda x, alpha, beta: np.clip(x * alpha + beta, 0, 1),
}
_PRODUCTS: dict[str, Any] = {
    "Conv": _conv,
    "MatMul": _matmul,
    "ConvInteger": _conv_integer,
    "MatMulInteger": _matmul_integer,
}
_OPERATORS: dict[str, Any] = {
    "MaxPool": _max_pool,
    "AvgPool": _avg_pool,
    "Elementwise": _elementwise,
    "Reduce": _reduce,
    "Softmax": _softmax,
    "RoPE": _rope,
    "FlashSDPA": _sdpa,
    "IncrementalSDPA": _sdpa,
    "Gather": _gather,
    "ArgMax": _arg_max,
    "Reshape": lambda node, operands: operands[0].reshape(node.outputs[0].shape),
    "Transpose": lambda node, operands: operands[0].transpose(node.attrs["perm"]).copy(),
    "Slice": _slice,
    "Concat": _concat,
    "Expand": lambda node, operands: np.broadcast_to(operands[0], node.outputs[0].shape).copy(),
    "Pad": _pad,
}
