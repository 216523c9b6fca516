"""Graph IR: what the front end hands to the back end. Values with static shapes, nodes in execution order.

The front end (import, fold, simplify, fuse, precision) produces a graph that holds only the operators listed in `OPS`;
the back end (lower, tile, schedule, barriers, emit) consumes it. Semantics are ONNX's in ONNX's axis order (NCHW); which
order a tensor has in memory is the back end's business.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

INT4, UINT4 = np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4)  # of constant weights alone
SMALL_INTEGERS = (INT4, UINT4)

# Operators of the canonical graph -> attributes (name: meaning). All shapes are static, all values NumPy-typed.
OPS: dict[str, dict[str, str]] = {
    # Matrix engine. `act` is None | ("relu",) | ("clip", lo, hi) | ("leaky_relu", slope), applied last (PPE).
    "Conv": {
        "strides": "[y, x]",
        "pads": "[top, left, bottom, right]",
        "dilations": "[y, x]",
        "group": "int",
        "act": "see above",
    },
    # inputs x [N, C, H, W], w [O, C/group, kh, kw] (constant), bias [O] float constant (float32 under fp16) or None. 1-D is H = 1 after a Reshape.
    "MatMul": {"act": "see above", "scale": "float, multiplies the product before bias"},
    # inputs a [..., M, K], b [..., K, N] with NumPy broadcasting, bias [N] as for Conv.
    "ConvInteger": {
        "strides": "[y, x]",
        "pads": "as Conv's; they add nothing",
        "dilations": "[y, x]",
        "group": "int",
        "zeros": "zero points of both operands",
        "ending": "Ending or None",
    },
    "MatMulInteger": {"zeros": "zero points of both operands", "ending": "Ending or None"},
    # inputs as those of Conv and MatMul, int8 or uint8 each (constant weights int4 or uint4 too), no bias; the result is int32, or what the ending makes. The sums stay below 2^24.
    "MaxPool": {"kernel": "[y, x]", "strides": "[y, x]", "pads": "[t, l, b, r]", "dilations": "[y, x]"},
    "AvgPool": {"kernel": "[y, x]", "strides": "[y, x]", "pads": "[t, l, b, r]", "count_include_pad": "bool"},
    # Vector engine, element by element with NumPy broadcasting: one node may hold a whole fused expression.
    "Elementwise": {"expr": "nested tuple, see `Expr`"},
    "Reduce": {"kind": "sum|mean|max|min|prod", "axes": "sorted non-negative ints", "keepdims": "bool"},
    "Softmax": {"axis": "non-negative int", "log": "bool"},
    # x [..., D], cosines, sines [..., D or D / 2]: pairs of elements of x are turned, neighbours if interleaved, else of halves
    "RoPE": {"interleaved": "bool"},
    # Attention as one operation: q [..., M, D], `parts` keys [..., S_i, D], as many values [..., S_i, E], and what `expr` reads beside the scaled
    # scores [..., M, S], which are its input 0, with NumPy broadcasting; softmax along S, in float32. On the axis before M, keys and
    # values may have fewer heads than q: heads that lie together share one.
    "FlashSDPA": {"parts": "int", "scale": "float, of q k^T", "expr": "of the scores"},  # many queries
    "IncrementalSDPA": {"parts": "int", "scale": "float, of q k^T", "expr": "of the scores"},  # one query, or few
    "Gather": {"axis": "int"},  # inputs data, indices (any integer tensor)
    "ArgMax": {"axis": "int", "keepdims": "bool"},
    # Data movement: a view or DMA.
    "Reshape": {},  # one input; the output value's shape says the rest (also Squeeze, Unsqueeze, Flatten)
    "Transpose": {"perm": "list of ints"},
    "Slice": {"starts": "per axis", "stops": "per axis", "steps": "per axis, > 0"},
    "Concat": {"axis": "non-negative int"},
    "Expand": {},  # broadcast to the output value's shape
    "Pad": {"pads": "[(before, after)] per axis", "value": "float"},
}

# Expr = ("in", i) | ("const", number) | (op, Expr, ...). Types: the node's inputs convert to the compute type
# (float32 for float dtypes, int32 for integer and bool); a const is float32 if it is a Python float, else int32; casts
# change the type (cast_i32 towards zero; bits_i32 and bits_f32 keep the bits); comparisons, logic and is_nan give int32 0 or 1; the result converts to the
# output's dtype. All operands of one operation have one type. Integer div goes towards zero; mod has the
# divisor's sign, fmod the dividend's; bit_* and shifts are of integers, by the count modulo 32, shr keeps the sign. uint32 and
# uint64 are their lower 32 bits.
EXPR_OPS = {
    1: [
        "neg",
        "abs",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "exp",
        "log",
        "tanh",
        "erf",
        "sin",
        "cos",
        "floor",
        "ceil",
        "round",
        "sign",
        "not",
        "sigmoid",
        "relu",
        "is_nan",
        "hard_swish",
        "bit_not",
        "cast_f32",
        "cast_i32",
        "cast_bool",
        "bits_i32",
        "bits_f32",
    ],
    2: [
        "add",
        "sub",
        "mul",
        "div",
        "max",
        "min",
        "pow",
        "mod",
        "fmod",
        "bit_and",
        "bit_or",
        "bit_xor",
        "shl",
        "shr",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "and",
        "or",
        "xor",
        "leaky_relu",
        "prelu",
    ],
    3: ["where", "clip", "hard_sigmoid"],  # where(c, a, b); clip(x, lo, hi); hard_sigmoid(x, alpha, beta)
}
Expr = tuple[Any, ...]


@dataclass(slots=True, frozen=True)
class Ending:
    """What the matrix engine does with sums of integers, in this order: each is by output channel, or one for all.

    (sum + offset, int32) · scale + bias in float32, the activation; for results of integers to nearest even, + `zero`, saturated.
    """

    offsets: tuple[int, ...] | None
    scales: tuple[float, ...]
    biases: tuple[float, ...] | None
    zero: int
    act: tuple[Any, ...] | None

    def __str__(self) -> str:
        offsets, biases = (0 if numbers is None else len(numbers) for numbers in (self.offsets, self.biases))
        return f"{offsets} offsets, {len(self.scales)} scales, {biases} biases, zero {self.zero}, act {self.act}"


@dataclass(slots=True, eq=False)
class Value:
    """A tensor: `shape` static, `dtype` a NumPy dtype; `const` holds its data when it is known at compile time."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    const: NDArray[Any] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of its elements: of 4-bit integers two share one."""
        return prod(self.shape) * self.dtype.itemsize // (2 if self.dtype in SMALL_INTEGERS else 1)


@dataclass(slots=True, eq=False)
class Node:
    """One operator. `name` is unique; `layers` are the names of the source nodes that it stands for."""

    op: str
    name: str
    inputs: list[Value | None]
    outputs: list[Value]
    attrs: dict[str, Any] = field(default_factory=dict)
    layers: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Graph:
    """A model: `nodes` in execution order; inputs and outputs keep the source's names, shapes and dtypes."""

    name: str
    inputs: list[Value]
    outputs: list[Value]
    nodes: list[Node]
    notes: list[str] = field(default_factory=list)  # what a person should know: saturated weights, dropped ranges
    is_plan: bool = False  # large constants have no values (`hollow`); int8 stands for numbers of unknown scales

    def is_quantised(self, value: Value) -> bool:
        """Whether the int8 elements of `value` stand for other numbers, so that the matrix engine may work on them."""
        return self.is_plan and value.dtype == "int8"
