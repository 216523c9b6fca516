"""Windows of convolutions and poolings along an axis, as intervals of what depends on each place, and the weights of products."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from libnpu.compiler.ir import Node, Value

CONVOLUTIONS = ("Conv", "ConvInteger")
POOLINGS = ("MaxPool", "AvgPool")
PRODUCTS = ("MatMul", "MatMulInteger")
_TAKE_ALL = ("Elementwise", "Reduce", "Softmax", "Reshape", "Transpose", "Concat", "Expand", "Pad", *PRODUCTS)


class Line(NamedTuple):
    """Along one axis of an image: for each place of another one, the range [low, high) that depends on it, or that it depends on."""

    low: NDArray[np.int64]
    high: NDArray[np.int64]


class Axis(NamedTuple):
    """A window along one axis."""

    kernel: int
    stride: int
    dilation: int
    pad: int
    inputs: int
    outputs: int

    def lines(self, tap: int, line: Line) -> Line:
        """Return the outputs that read inputs of `line` at one tap."""
        low, high = (edge + self.pad - tap * self.dilation for edge in line)
        first = np.maximum(0, -(-low // self.stride))
        return Line(first, np.minimum(self.outputs, (high - 1) // self.stride + 1))

    def taps(self, line: Line) -> int:
        """Return at how many taps the inputs of a line are read at least."""
        found = [self.lines(tap, line) for tap in range(self.kernel)]
        return int(sum(one.high > one.low for one in found).min())  # type: ignore[union-attr]

    def follow(self, line: Line) -> Line | None:
        """Return outputs that depend on the inputs of a line; None when at some place there are none."""
        found = [self.lines(tap, line) for tap in range(self.kernel)]
        if self.dilation == 1 and self.stride <= self.kernel:  # those of all taps lie side by side
            found = [Line(found[-1].low, found[0].high)]
        best = max(found, key=lambda one: int((one.high - one.low).min()))
        return best if bool((best.high > best.low).all()) else None

    def behind(self, line: Line) -> Line:
        """Return the inputs that the outputs of a line read."""
        low = line.low * self.stride - self.pad
        high = (line.high - 1) * self.stride - self.pad + (self.kernel - 1) * self.dilation + 1
        return Line(np.clip(low, 0, self.inputs), np.clip(high, 0, self.inputs))

    def live_outputs(self) -> list[int]:
        """Return for each tap how many outputs read an input there, no padding."""
        whole = Line(np.zeros(1, np.int64), np.full(1, self.inputs))
        found = [self.lines(tap, whole) for tap in range(self.kernel)]
        return [max(0, int(line.high[0] - line.low[0])) for line in found]

    def live_taps(self) -> NDArray[np.int64]:
        """Return for each output at how many taps it reads an input, no padding."""
        at = np.arange(self.outputs)[:, None] * self.stride - self.pad + np.arange(self.kernel) * self.dilation
        return np.asarray(((at >= 0) & (at < self.inputs)).sum(axis=1))

    def reads_all(self) -> bool:
        """Whether each input is read by an output."""
        each = np.arange(self.inputs)
        return self.taps(Line(each, each + 1)) > 0


def reads_all(node: Node, value: Value) -> bool:
    """Whether a node takes every element of one of its operands."""
    if node.op in (*CONVOLUTIONS, *POOLINGS):
        return node.inputs[0] is value and all(axis.reads_all() for axis in axes(node))
    return node.op in _TAKE_ALL


def constant_weights(node: Node) -> Value | None:
    """Return the constant that a convolution or product multiplies with; None where both operands are computed."""
    value = node.inputs[1] if node.op in (*CONVOLUTIONS, *PRODUCTS) else None
    return value if value is not None and value.const is not None else None


def weight_bytes(weights: Value, node: Node) -> int:
    """Return the bytes that weights take in DDR: in the type of the operand that they are multiplied with."""
    source = node.inputs[0]
    assert source is not None
    return min(weights.nbytes, prod(weights.shape) * source.dtype.itemsize)


def axes(node: Node) -> tuple[Axis, Axis]:
    """Return the windows of a convolution or pooling along rows and columns."""
    source, out = node.inputs[0], node.outputs[0]
    assert source is not None
    weights = node.inputs[1] if node.op in CONVOLUTIONS else None
    kernel = weights.shape[2:] if weights is not None else node.attrs["kernel"]
    strides, pads, dilations = node.attrs["strides"], node.attrs["pads"], node.attrs.get("dilations", (1, 1))
    y, x = (
        Axis(int(kernel[k]), int(strides[k]), int(dilations[k]), int(pads[k]), source.shape[2 + k], out.shape[2 + k])
        for k in (0, 1)
    )
    return y, x
