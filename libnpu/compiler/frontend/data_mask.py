"""DynamicDataMask: keeps padding out of results. Runs before anything is fused.

An axis of an input may be longer than what it holds (`dynamic`): how much counts is a further input of the graph, an int32 of one
element, `NAME.length`. What lies behind may be anything, NaN included. The pass follows such axes from value to value and
knows of each whether its padding is anything or zero. Where an operator mixes padding with data, its operand is replaced by a
selection (not a product: 0 · NaN is NaN), of the neutral element of what follows:

    MatMul along K, Conv          0, in each operand whose padding may be anything
    Reduce, Softmax, MaxPool      0, 1, -inf or inf; a mean becomes a sum by the length
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.compiler.frontend.rewriting import copy_graph
from libnpu.compiler.ir import Graph, Node, Value
from libnpu.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from libnpu.compiler.ir import Expr

NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}
_BY_MASK: Expr = ("where", ("lt", ("in", 1), ("in", 2)), ("in", 0))
INT32 = np.dtype(np.int32)


@dataclass(slots=True, frozen=True)
class Padded:
    """An axis that holds padding behind `length` elements; `is_zero`: of zeros."""

    length: Value
    is_zero: bool = False


Axes = dict[int, Padded]


def mask_padding(graph: Graph, dynamic: Mapping[str, int], masks: bool = True) -> Graph:
    """Return `graph` with lengths as inputs and, unless not `masks`, without padding in results. `dynamic`: input name -> axis.

    Raises Unsupported for an input or axis that there is not, and for an operator through which padding cannot be followed.
    """
    if not dynamic:
        return graph
    return _Pass(copy_graph(graph), masks).run(dynamic)


class _Pass:
    """One run; `padded` says of each value which axes are."""

    def __init__(self, graph: Graph, masks: bool) -> None:
        self.graph, self.masks = graph, masks
        self.padded: dict[Value, Axes] = {}
        self.nodes: list[Node] = []
        self.masked: dict[tuple[Value, int, float], Value] = {}

    def run(self, dynamic: Mapping[str, int]) -> Graph:
        inputs = {value.name: value for value in self.graph.inputs}
        lengths = []
        for name, axis in dynamic.items():
            value = inputs.get(name)
            if value is None or not 0 <= axis < len(value.shape):
                shape = "no such input" if value is None else f"its shape is {value.shape}"
                raise Unsupported(f"dynamic axis {axis} of {name}: {shape}")
            length = Value(f"{name}.length", (), INT32)
            lengths.append(length)
            self.padded[value] = {axis: Padded(length)}
        for node in self.graph.nodes:
            axes = self._follow(node)
            self.nodes.append(node)
            if axes:
                self.padded[node.outputs[0]] = axes
        graph = self.graph
        return Graph(graph.name, [*graph.inputs, *lengths], graph.outputs, self.nodes, graph.notes, graph.is_plan)

    def _of(self, node: Node, index: int) -> Axes:
        value = node.inputs[index] if index < len(node.inputs) else None
        return self.padded.get(value, {}) if value is not None else {}

    def _follow(self, node: Node) -> Axes:
        """Mask the operands of a node as it needs; return the padded axes of its result."""
        if not any(self._of(node, index) for index in range(len(node.inputs))):
            return {}
        rank = len(node.outputs[0].shape)
        match node.op:
            case "Elementwise" | "Expand":
                return self._aligned(node, rank)
            case "Transpose":
                return {
                    to: self._of(node, 0)[axis]
                    for to, axis in enumerate(node.attrs["perm"])
                    if axis in self._of(node, 0)
                }
            case "Reshape":
                return self._reshaped(node)
            case "Concat" | "Slice" | "Pad":
                return self._moved(node)
            case "MatMul":
                return self._product(node, rank)
            case "Reduce":
                return self._reduced(node)
            case "Softmax" | "ArgMax":
                return self._along(node)
            case "Conv" | "MaxPool":
                return self._windows(node)
        raise self._lost(node)

    def _lost(self, node: Node) -> Unsupported:
        return Unsupported(f"{node.name} ({node.op}): padding of a dynamic axis cannot be followed through it")

    def _aligned(self, node: Node, rank: int) -> Axes:
        found: Axes = {}
        for index, value in enumerate(node.inputs):
            assert value is not None
            for axis, padded in self._of(node, index).items():
                at = axis + rank - len(value.shape)
                if at in found and found[at].length is not padded.length:
                    raise Unsupported(f"{node.name} ({node.op}): one axis has two lengths")
                found[at] = Padded(padded.length, node.op == "Expand" and padded.is_zero)
        return found

    def _reshaped(self, node: Node) -> Axes:
        """An axis stays when its size does, and what lies before it."""
        source, out = node.inputs[0], node.outputs[0]
        assert source is not None
        found: Axes = {}
        for axis, padded in self._of(node, 0).items():
            before, size = prod(source.shape[:axis]), source.shape[axis]
            places = [k for k, n in enumerate(out.shape) if n == size and prod(out.shape[:k]) == before]
            if not places:
                raise self._lost(node)
            found[places[0]] = padded
        return found

    def _moved(self, node: Node) -> Axes:
        """Along a padded axis nothing may be cut or joined."""
        rank = len(node.outputs[0].shape)
        found: Axes = {}
        for index, value in enumerate(node.inputs):
            assert value is not None
            for axis, padded in self._of(node, index).items():
                if value.shape[axis] != node.outputs[0].shape[axis] or node.attrs.get("axis") == axis:
                    raise self._lost(node)
                found[axis] = Padded(padded.length)
        assert all(axis < rank for axis in found)
        return found

    def _product(self, node: Node, rank: int) -> Axes:
        found: Axes = {}
        for index in (0, 1):
            value = node.inputs[index]
            assert value is not None
            inner = len(value.shape) - (1 if index == 0 else 2)
            for axis, padded in self._of(node, index).items():
                if axis == inner:
                    if not padded.is_zero:
                        self._mask(node, index, axis, padded, 0.0)
                else:
                    found[axis + rank - len(value.shape)] = Padded(padded.length)
        return found

    def _reduced(self, node: Node) -> Axes:
        axes, keeps, kind = node.attrs["axes"], node.attrs["keepdims"], node.attrs["kind"]
        found: Axes = {}
        for axis, padded in self._of(node, 0).items():
            if axis not in axes:
                found[axis if keeps else axis - sum(other < axis for other in axes)] = Padded(padded.length)
                continue
            if not (padded.is_zero and NEUTRAL[kind] == 0.0):
                self._mask(node, 0, axis, padded, NEUTRAL[kind])
            if kind == "mean" and self.masks:
                self._mean(node, axis, padded)
        return found

    def _mean(self, node: Node, axis: int, padded: Padded) -> None:
        """Scale a mean over all elements to one over those that count: by size / length, before it is taken."""
        value = node.inputs[0]
        assert value is not None
        if value.dtype.kind in "iub":
            raise self._lost(node)
        scale: Expr = ("mul", ("in", 0), ("div", ("const", float(value.shape[axis])), ("cast_f32", ("in", 1))))
        node.inputs = [self._made(node, f"{node.name}.mean{axis}", scale, [value, padded.length]), *node.inputs[1:]]

    def _along(self, node: Node) -> Axes:
        axis, found = node.attrs["axis"], {}
        for at, padded in self._of(node, 0).items():
            if at == axis:
                self._mask(node, 0, at, padded, -np.inf)
                if node.op == "Softmax":
                    found[at] = Padded(padded.length, not node.attrs["log"])
            else:
                found[at - (node.op == "ArgMax" and not node.attrs["keepdims"] and axis < at)] = Padded(padded.length)
        return found

    def _windows(self, node: Node) -> Axes:
        source, out = node.inputs[0], node.outputs[0]
        assert source is not None
        kernel = node.attrs["kernel"] if node.op == "MaxPool" else node.inputs[1].shape[2:]  # type: ignore[union-attr]
        found: Axes = {}
        for axis, padded in self._of(node, 0).items():
            if axis == 1 and node.op == "Conv":
                self._mask(node, 0, axis, padded, 0.0)
                continue
            if axis >= 2 and (node.attrs["strides"][axis - 2] != 1 or out.shape[axis] != source.shape[axis]):
                raise self._lost(node)
            if axis >= 2 and kernel[axis - 2] > 1 and not (padded.is_zero and node.op == "Conv"):
                self._mask(node, 0, axis, padded, 0.0 if node.op == "Conv" else -np.inf)
            found[axis] = Padded(padded.length)
        return found

    def _mask(self, node: Node, index: int, axis: int, padded: Padded, number: float) -> None:
        """Let operand `index` have `number` where an axis is padding."""
        value = node.inputs[index]
        assert value is not None
        if not self.masks:
            return
        if value.dtype.kind in "iub" and not np.isfinite(number):
            info = np.iinfo(np.int32)
            number = info.min if number < 0 else info.max
        key = (value, axis, number)
        if key not in self.masked:
            places = np.arange(value.shape[axis], dtype=np.int32)
            shape = tuple(n if k == axis else 1 for k, n in enumerate(value.shape))
            where = Value(f"{node.name}.places{axis}.{index}", shape, INT32, places.reshape(shape))
            filler = int(number) if value.dtype.kind in "iub" else float(number)
            expr = (*_BY_MASK, ("const", filler))
            self.masked[key] = self._made(node, f"{node.name}.mask{axis}.{index}", expr, [value, where, padded.length])
            self.padded[self.masked[key]] = {**self.padded.get(value, {}), axis: Padded(padded.length, number == 0)}
        node.inputs = [self.masked[key] if k == index else operand for k, operand in enumerate(node.inputs)]

    def _made(self, node: Node, name: str, expr: Any, inputs: list[Value]) -> Value:
        value = Value(name, inputs[0].shape, inputs[0].dtype)
        self.nodes.append(Node("Elementwise", name, list(inputs), [value], {"expr": expr}, list(node.layers)))
        return value
