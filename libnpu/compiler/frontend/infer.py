"""Shapes of the canonical operators: the one place that knows what an operator's output looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

Shape = tuple[int, ...]


class ShapeMismatch(ValueError):
    """Operand shapes do not fit the operator; the message holds both."""


def infer_shape(op: str, shapes: Sequence[Shape], attrs: dict[str, Any]) -> Shape | None:
    """Return the shape of the output of `op`, or None for Reshape and Expand, whose output value says it.

    Raises ShapeMismatch when the operands do not fit. `shapes` are those of the present inputs, in order.
    """
    match op:
        case "Conv" | "ConvInteger":
            return _conv(shapes[0], shapes[1], attrs)
        case "MatMul" | "MatMulInteger":
            return _matmul(shapes[0], shapes[1])
        case "MaxPool" | "AvgPool":
            return _pool(shapes[0], attrs)
        case "Elementwise":
            return broadcast(shapes)
        case "Reduce":
            return _reduced(shapes[0], attrs["axes"], attrs["keepdims"])
        case "ArgMax":
            if shapes[0][attrs["axis"]] == 0:
                raise ShapeMismatch(f"no largest element on axis {attrs['axis']} of {shapes[0]}")
            return _reduced(shapes[0], [attrs["axis"]], attrs["keepdims"])
        case "Softmax" | "RoPE":
            return shapes[0]
        case "FlashSDPA" | "IncrementalSDPA":
            return (*shapes[0][:-1], shapes[1 + attrs["parts"]][-1])
        case "Gather":
            axis = attrs["axis"]
            return (*shapes[0][:axis], *shapes[1], *shapes[0][axis + 1 :])
        case "Transpose":
            return tuple(shapes[0][axis] for axis in attrs["perm"])
        case "Slice":
            return tuple(
                max(0, -(-(stop - start) // step))
                for start, stop, step in zip(attrs["starts"], attrs["stops"], attrs["steps"], strict=True)
            )
        case "Concat":
            return _concat(shapes, attrs["axis"])
        case "Pad":
            return tuple(dim + before + after for dim, (before, after) in zip(shapes[0], attrs["pads"], strict=True))
        case "Reshape" | "Expand":
            return None
    raise AssertionError(f"no shape rule for operator {op}")


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the NumPy broadcast of `shapes`; raises ShapeMismatch."""
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for axis, dim in enumerate(shape, rank - len(shape)):
            if dim != 1 and result[axis] not in (1, dim):
                raise ShapeMismatch(f"shapes {', '.join(map(str, shapes))} do not broadcast")
            if dim != 1:
                result[axis] = dim
    return tuple(result)


def window_count(size: int, kernel: int, stride: int, pads: tuple[int, int], dilation: int) -> int:
    """Return how many windows of `kernel` taps fit into `size` padded elements."""
    return (size + sum(pads) - (dilation * (kernel - 1) + 1)) // stride + 1


def _spatial(size: Shape, kernel: Sequence[int], attrs: dict[str, Any]) -> Shape:
    top, left, bottom, right = attrs["pads"]
    dilations = attrs.get("dilations", [1, 1])
    counts = tuple(
        window_count(size[i], kernel[i], attrs["strides"][i], ((top, bottom), (left, right))[i], dilations[i])
        for i in range(2)
    )
    if min(counts) < 1:
        raise ShapeMismatch(f"kernel {list(kernel)} does not fit into {list(size)} with pads {attrs['pads']}")
    return counts


def _conv(x: Shape, w: Shape, attrs: dict[str, Any]) -> Shape:
    group = attrs["group"]
    if len(x) != 4 or len(w) != 4 or 0 in w or w[1] * group != x[1] or w[0] % group:
        raise ShapeMismatch(f"input {x} and weights {w} with {group} groups")
    return (x[0], w[0], *_spatial(x[2:], w[2:], attrs))


def _pool(x: Shape, attrs: dict[str, Any]) -> Shape:
    if len(x) != 4:
        raise ShapeMismatch(f"pooling of {x}, rank 4 expected")
    return (*x[:2], *_spatial(x[2:], attrs["kernel"], attrs))


def _matmul(a: Shape, b: Shape) -> Shape:
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        raise ShapeMismatch(f"matrix product of {a} and {b}")
    return (*broadcast([a[:-2], b[:-2]]), a[-2], b[-1])


def _reduced(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    if keepdims:
        return tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))
    return tuple(dim for axis, dim in enumerate(shape) if axis not in axes)


def _concat(shapes: Sequence[Shape], axis: int) -> Shape:
    first = shapes[0]
    for shape in shapes[1:]:
        if len(shape) != len(first) or any(
            a != b for i, (a, b) in enumerate(zip(first, shape, strict=True)) if i != axis
        ):
            raise ShapeMismatch(f"concatenation of {', '.join(map(str, shapes))} on axis {axis}")
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])
