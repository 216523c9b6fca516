"""Builder: appends canonical nodes to a graph that is being made, with their shapes, unique names and source layer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.compiler.frontend.infer import Shape, ShapeMismatch, broadcast, infer_shape
from libnpu.compiler.frontend.ranges import wrapped
from libnpu.compiler.ir import Expr, Node, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(slots=True, frozen=True)
class Dequantised:
    """What a float value was made from: integers, a scale and a zero point of one number each, or of one per element of `axis`."""

    whole: Value
    scale: Value
    zero: Value | None
    axis: int


@dataclass(slots=True, frozen=True)
class Sums:
    """What a float value was made from: int32 sums times two scales, then clipped."""

    total: Value
    scales: tuple[Value, Value]
    low: float = -math.inf
    high: float = math.inf

    def clipped(self, low: float, high: float) -> Sums:
        """Return these within narrower bounds, as Clip sets them: the upper one counts where they cross."""
        return replace(self, low=min(max(self.low, low), high), high=min(max(self.high, low), high))


@dataclass(slots=True)
class Builder:
    """Nodes so far, in execution order. `layer` is the source node that the next nodes stand for.

    `dequantised` and `sums` know float values by the integers that they stand for, `blocked` values in blocks of channels by those in order.
    """

    nodes: list[Node] = field(default_factory=list)
    layer: str = ""
    dequantised: dict[Value, Dequantised] = field(default_factory=dict)
    sums: dict[Value, Sums] = field(default_factory=dict)
    blocked: dict[Value, Value] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)
    _node_names: set[str] = field(default_factory=set)

    def unique(self, wish: str) -> str:
        """Reserve a name that no value has yet: `wish`, or `wish` with a number."""
        return _unique(wish, self._taken)

    def const(self, array: NDArray[Any], name: str = "const") -> Value:
        """Return a constant value; `array` is not copied and must not change."""
        return Value(self.unique(name), array.shape, array.dtype, array)

    def emit(
        self,
        op: str,
        inputs: Sequence[Value | None],
        attrs: dict[str, Any],
        *,
        shape: Shape | None = None,
        dtype: np.dtype[Any] | None = None,
    ) -> Value:
        """Append a node and return its output; `shape` only for Reshape and Expand. Raises ShapeMismatch.

        A result without elements is a constant: no node makes it.
        """
        present = [value for value in inputs if value is not None]
        inferred = infer_shape(op, [value.shape for value in present], attrs)
        final = inferred if inferred is not None else shape
        assert final is not None, f"{op} needs its output shape"
        if op == "Reshape" and prod(final) != prod(present[0].shape):
            raise ShapeMismatch(f"{present[0].name} {present[0].shape} cannot have shape {final}")
        if op == "Expand" and broadcast([present[0].shape, final]) != final:
            raise ShapeMismatch(f"{present[0].name} {present[0].shape} does not broadcast to {final}")
        if 0 in final:  # nothing to compute
            return self.const(np.zeros(final, dtype or present[0].dtype), f"{self.layer}/empty")
        name = _unique(self.layer, self._node_names)
        output = Value(self.unique(f"{name}/result"), final, dtype or present[0].dtype)
        self.nodes.append(Node(op, name, list(inputs), [output], attrs, [self.layer]))
        return output

    def elementwise(self, expr: Expr, inputs: Sequence[Value], dtype: np.dtype[Any] | None = None) -> Value:
        """Append an expression of `inputs`; integers of up to 16 bits wrap as ONNX's do. `dtype`: by default the first's."""
        expr = wrapped(expr, inputs, dtype or inputs[0].dtype)
        return self.emit("Elementwise", inputs, {"expr": expr}, dtype=dtype)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """Reshape, or `x` itself when it has that shape."""
        final = tuple(int(dim) for dim in shape)
        return x if final == x.shape else self.emit("Reshape", [x], {}, shape=final)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """Transpose; of a constant a view, which moves no bytes: lowering may turn it back."""
        if x.const is not None:
            return self.const(x.const.transpose(perm), x.name)
        return self.emit("Transpose", [x], {"perm": list(perm)})

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        final = tuple(int(dim) for dim in shape)
        return x if final == x.shape else self.emit("Expand", [x], {}, shape=final)

    def slice(self, x: Value, bounds: dict[int, tuple[int, int, int]]) -> Value:
        """Slice by axis -> (start, stop, step); other axes stay whole. Bounds are in range already."""
        ranges = [bounds.get(axis, (0, dim, 1)) for axis, dim in enumerate(x.shape)]
        starts, stops, steps = (list(column) for column in zip(*ranges, strict=True))
        return self.emit("Slice", [x], {"starts": starts, "stops": stops, "steps": steps})

    def reduce(self, x: Value, kind: str, axes: Sequence[int], keepdims: bool) -> Value:
        return self.emit("Reduce", [x], {"kind": kind, "axes": sorted(axes), "keepdims": keepdims})


def _unique(wish: str, taken: set[str]) -> str:
    name, number = wish, 0
    while name in taken:
        number += 1
        name = f"{wish}.{number}"
    taken.add(name)
    return name
