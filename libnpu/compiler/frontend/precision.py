"""Precision policy: which type each value has inside.

Both policies: int64 becomes int32, and uint32 and uint64 the int32 of the same lower bits (constants are checked, the range
of computed values is the caller's business), as the vector engine has 32-bit integers; float64 becomes float32, which is
noted. Graph inputs and outputs keep their types, which the vector engine loads and stores: an Elementwise cast stands behind
an input, unless all readers are Elementwise or Reduce, which read any float type; and before an output, unless its maker is
Elementwise, Softmax or a wide Reduce.

"fp32": bfloat16 becomes float32 as well, and float16 stays.

"fp16": float32 and bfloat16 become float16, except for wide values, whose range or cancellation float16 cannot hold.
They are float32 while an Elementwise or Reduce node reads them:
- results of Reduce sum, mean and prod (they grow with the element count, and variances are differences of them), and
  an expression that only such reductions read (squares, mostly);
- results of Elementwise, Reshape and Expand whose computed float operands are all wide;
- results of Elementwise that are one number, a scale mostly, or integers of 32 bits as they are; and of Reshape and Expand of such. What is computed
  from them is not wide for that.
A constant operand is float32 in a wide Elementwise node, in one of integers alone or that gives integers, or as a bias, which the engine adds to the float32 sum, else
float16. Constants inside of expressions stay float32.
Constant weights of products of integers that take 4 bits are int4 or uint4.
Constants beyond float16's range are saturated and noted with the layer's name. Hollow ones stay hollow.

"int8", for plans: as "fp16", but for the values of `narrow.py`. "int4", for plans: as "int8", but constant weights of MatMul are
int4, where those of an output fill whole bytes.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_model import casts

from libnpu.compiler.frontend.narrow import INT8, is_carrier, is_narrow_product, narrow_values, quantised
from libnpu.compiler.frontend.rewriting import Rewriter
from libnpu.compiler.hollow import hollow, is_hollow
from libnpu.compiler.ir import INT4, UINT4, Graph, Node, Value
from libnpu.errors import Unsupported

if TYPE_CHECKING:
    from numpy.typing import NDArray

HALF, SINGLE = np.dtype(np.float16), np.dtype(np.float32)
HALF_MAX = 65504.0
_HALF_INFINITY = 0x7C00  # its bits without the sign
INT32 = np.iinfo(np.int32)
UINT32 = np.iinfo(np.uint32)
_GROWING = frozenset({"sum", "mean", "prod"})
_MOVING = frozenset({"Reshape", "Expand"})
_ANY_FLOAT = frozenset({"Elementwise", "Reduce"})  # operands may be of several float types
_ENDS = frozenset({"int64", "uint32", "uint64", "float64"})  # also types of inputs and outputs
_KNOWN = frozenset({"float16", "float32", "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "bool"})
_WORDS = frozenset({"int64", "uint32", "uint64"})  # int32 inside


def set_precision(graph: Graph, precision: str) -> Graph:
    """Return `graph` under the policy "fp16", "fp32" or, a plan, "int8" or "int4". Raises Unsupported for types that no engine computes."""
    return _Policy(graph, precision).apply()


class _Policy:
    """One application; builds new values and nodes, so that `graph` stays as it is."""

    def __init__(self, graph: Graph, precision: str) -> None:
        self.graph = graph
        self.half = precision != "fp32"
        self.int8 = precision in ("int8", "int4")
        self.int4 = precision == "int4"
        self.narrow = narrow_values(graph) if self.int8 else set()
        self.wide = _wide_values(graph) - self.narrow if self.half else set()
        self.nodes: list[Node] = []
        self.notes: list[str] = list(graph.notes)
        self.new: dict[Value, Value] = {}
        self.casts: dict[tuple[Value, np.dtype[Any]], Value] = {}
        self.small: dict[Value, Value] = {}  # weights of 4 bits, by those of 8
        self.names = {value.name for node in graph.nodes for value in node.outputs}
        self.names |= {value.name for value in graph.inputs}

    def apply(self) -> Graph:
        readers: dict[Value, list[Node]] = {}
        for node in self.graph.nodes:
            for value in node.inputs:
                if value is not None:
                    readers.setdefault(value, []).append(node)
        for value, what in [(v, "input") for v in self.graph.inputs] + [(v, "output") for v in self.graph.outputs]:
            if value.dtype.name not in _KNOWN | _ENDS:
                raise Unsupported(
                    f"{what} {value.name}: type {value.dtype.name}; inputs and outputs may be "
                    f"{', '.join(sorted(_KNOWN | _ENDS))}"
                )
        doubles = [v for node in self.graph.nodes for v in node.outputs if v.dtype.name == "float64"]
        if doubles:
            self.notes.append(f"{doubles[0].name}: float64 is computed as {self._inside(doubles[0])}")
        inputs = []
        for value in self.graph.inputs:
            outer = Value(value.name, value.shape, value.dtype)
            inputs.append(outer)
            flexible = value.dtype in (HALF, SINGLE) and all(n.op in _ANY_FLOAT for n in readers.get(value, []))
            unread = value not in readers
            self.new[value] = outer if flexible or unread else self._cast(outer, self._inside(value), value.name)
        for node in self.graph.nodes:
            self._node(node)
        outputs = [self.new[value] for value in self.graph.outputs]
        return Graph(self.graph.name, inputs, outputs, self.nodes, self.notes, self.graph.is_plan)

    def _inside(self, value: Value) -> np.dtype[Any]:
        name = value.dtype.name
        if value in self.narrow:
            return INT8
        if value in self.wide:
            return SINGLE
        if name in _WORDS:
            return np.dtype(np.int32)
        if self.half and name in ("float32", "float64", "bfloat16"):
            return HALF
        if name in ("float64", "bfloat16"):
            return SINGLE
        if name not in _KNOWN:
            raise Unsupported(f"value {value.name}: type {name}")
        return value.dtype

    def _node(self, node: Node) -> None:
        output = node.outputs[0]
        target = self._inside(output)
        outer = output.dtype if any(output is end for end in self.graph.outputs) else None
        if outer is not None and (node.op == "Elementwise" or (node.op == "Softmax" and outer in (HALF, SINGLE))):
            target = outer
        operands = [None if value is None else self._operand(node, value, target) for value in node.inputs]
        attrs = node.attrs
        if node.op == "Elementwise" and output in self.narrow and not is_carrier(node):
            attrs = attrs | {"expr": quantised(attrs["expr"])}
        ends_here = outer is None or outer == target
        result = Value(output.name if ends_here else self._unique(f"{output.name}.inside"), output.shape, target)
        self.nodes.append(Node(node.op, node.name, operands, [result], attrs, node.layers))
        if not ends_here:
            assert outer is not None
            name = f"{output.name}.cast"
            self.nodes.append(_cast_node(name, result, Value(output.name, output.shape, outer), node.layers))
            inner, result = result, self.nodes[-1].outputs[0]
            narrower = inner.dtype.kind == outer.kind == "f" and inner.dtype.itemsize < outer.itemsize
            if narrower or outer.name in _WORDS:
                self.casts[result, inner.dtype] = (
                    inner  # nothing was lost: who wants it narrow takes it from where it was
                )
        self.new[output] = result

    def _operand(self, node: Node, value: Value, target: np.dtype[Any]) -> Value:
        if value.const is not None:
            wide = node.op == "Elementwise" and (
                node.outputs[0] in self.wide or _of_integers(node) or _to_integers(node)
            )
            bias = node.op in ("Conv", "MatMul") and value is node.inputs[2]
            if self.int8 and is_narrow_product(node) and value is node.inputs[1]:
                kind = INT4 if self.int4 and node.op == "MatMul" and _fill_bytes(node, value) else INT8
                return Value(value.name, value.shape, kind, hollow(value.shape, kind))
            if node.op in ("ConvInteger", "MatMulInteger") and value is node.inputs[1] and _fill_bytes(node, value):
                return self._small(value)
            return self._constant(node, value, SINGLE if wide or bias else self._inside(value))
        new = self.new[value]
        if self.int8 and (is_narrow_product(node) or (is_carrier(node) and node.outputs[0] in self.narrow)):
            return self._cast(new, INT8, value.name)
        if node.op not in _ANY_FLOAT and new.dtype.name in _WORDS:  # an output that only the vector cores read as it is
            return self._cast(new, np.dtype(np.int32), value.name)
        if node.op in _ANY_FLOAT or new.dtype.kind in "iub":
            return new
        wanted = target if node.op in _MOVING else self._inside_narrow(new)
        return self._cast(new, wanted, value.name)

    def _inside_narrow(self, value: Value) -> np.dtype[Any]:
        """Return the float type in which an engine other than the SHAVEs reads a value, which is an output of a type that only these have."""
        if self.half:
            return HALF
        return SINGLE if value.dtype.name in ("float64", "bfloat16") else value.dtype

    def _small(self, value: Value) -> Value:
        """Return weights of integers as such of 4 bits, where that is all they take."""
        array = value.const
        assert array is not None
        if value not in self.small:
            kind, ends = (INT4, (-8, 7)) if array.dtype == INT8 else (UINT4, (0, 15))
            fits = not is_hollow(array) and array.min(initial=0) >= ends[0] and array.max(initial=0) <= ends[1]
            self.small[value] = Value(value.name, value.shape, kind, array.astype(kind)) if fits else value
        return self.small[value]

    def _constant(self, node: Node, value: Value, target: np.dtype[Any]) -> Value:
        assert value.const is not None
        if value.dtype == target or (value.dtype.kind in "iub") != (target.kind in "iub"):
            target = value.dtype if value.dtype.name in _KNOWN else self._inside(value)
        if value.dtype == target:
            return value
        key = (value, target)
        if key not in self.casts:
            array, beyond = _narrowed(value.const, target)
            if beyond:
                self.notes.append(
                    f"{node.name}: {beyond} of {array.size} values of {value.name} are beyond {target}, saturated"
                )
            self.casts[key] = Value(value.name, array.shape, array.dtype, array)
        return self.casts[key]

    def _cast(self, value: Value, target: np.dtype[Any], name: str) -> Value:
        if value.dtype == target:
            return value
        key = (value, target)
        if key not in self.casts:
            cast = Value(self._unique(f"{name}.{target}"), value.shape, target)
            self.nodes.append(_cast_node(cast.name, value, cast, [name]))
            if target == INT8 and value.dtype.kind == "f":
                self.nodes[-1].attrs["expr"] = quantised(("in", 0))
            self.casts[key] = cast
        return self.casts[key]

    def _unique(self, wish: str) -> str:
        name, number = wish, 0
        while name in self.names:
            number += 1
            name = f"{wish}.{number}"
        self.names.add(name)
        return name


def _cast_node(name: str, source: Value, target: Value, layers: list[str]) -> Node:
    return Node("Elementwise", name, [source], [target], {"expr": ("in", 0)}, list(layers))


def _narrowed(array: NDArray[Any], target: np.dtype[Any]) -> tuple[NDArray[Any], int]:
    """Return `array` as `target`, finite values saturated, and how many were."""
    if is_hollow(array):
        return hollow(array.shape, target), 0
    if (
        array.flags.f_contiguous and not array.flags.c_contiguous
    ):  # stays so: a matrix that is turned once more is dense
        turned, count = _narrowed(array.T, target)
        return turned.T, count
    if target == HALF:
        with np.errstate(over="ignore"):
            half = casts.f32_to_f16(array).view(HALF) if array.dtype == SINGLE else array.astype(HALF)
        if not (half.view(np.uint16) & 0x7FFF == _HALF_INFINITY).any():
            return half, 0
        beyond = np.isinf(half) & np.isfinite(array)
        count = int(np.count_nonzero(beyond))
        if count:
            half = np.where(beyond, np.copysign(HALF_MAX, half), half).astype(HALF)
        return half, count
    if target == np.int32 and array.dtype.kind == "u":
        beyond = array > UINT32.max
        return np.minimum(array, UINT32.max).astype(np.uint32).view(target), int(np.count_nonzero(beyond))
    if target == np.int32:
        beyond = (array < INT32.min) | (array > INT32.max)
        return np.clip(array, INT32.min, INT32.max).astype(target), int(np.count_nonzero(beyond))
    return array.astype(target), 0


def _wide_values(graph: Graph) -> set[Value]:
    """Return the values that stay float32 under fp16, as the module's docstring says."""
    edit = Rewriter(graph)  # works on a copy: `origin` leads back
    copies = [value for node in edit.graph.nodes for value in node.outputs]
    origin = dict(zip(copies, (value for node in graph.nodes for value in node.outputs), strict=True))
    wide: set[Value] = set()
    held: set[Value] = set()  # wide themselves alone
    for node in edit.graph.nodes:
        output = node.outputs[0]
        if output.dtype != SINGLE:
            continue
        computed = [v for v in node.inputs if v is not None and v.const is None and v.dtype.kind not in "iub"]
        users = edit.users(output)
        if (
            _grows(node)
            or (node.op == "Elementwise" and users and not edit.is_output(output) and all(map(_grows, users)))
            or (
                node.op in ("Elementwise", *_MOVING)
                and wide.intersection(computed)
                and (wide | held).issuperset(computed)
            )
        ):
            wide.add(output)
        elif (node.op == "Elementwise" and (prod(output.shape) == 1 or _is_word(node))) or (
            node.op in _MOVING and held.intersection(computed)
        ):
            held.add(output)
    wide |= held
    for node in reversed(edit.graph.nodes):  # without a reader that profits, a value need not be wide
        output = node.outputs[0]
        profits = edit.is_output(output) or any(
            user.op in _ANY_FLOAT or (user.op in _MOVING and user.outputs[0] in wide) for user in edit.users(output)
        )
        if not profits:
            wide.discard(output)
    return {origin[value] for value in wide}


def _is_word(node: Node) -> bool:
    """Whether an expression gives integers of 32 bits as floats, without a scale."""
    return node.attrs["expr"][0] == "cast_f32" and any(
        value is not None and value.dtype.itemsize >= 4 for value in node.inputs
    )


def _fill_bytes(node: Node, weights: Value) -> bool:
    """Whether the engine takes weights of 4 bits: those of an output fill whole bytes, of one group."""
    if node.op in ("Conv", "ConvInteger"):
        return node.attrs["group"] == 1 and prod(weights.shape[1:]) % 2 == 0
    return len(weights.shape) >= 2 and prod(weights.shape[:-2]) == 1 and weights.shape[-2] % 2 == 0


def _of_integers(node: Node) -> bool:
    """Whether all that an expression computes from are integers, so that nothing in it has been rounded to float16."""
    computed = [value for value in node.inputs if value is not None and value.const is None]
    return bool(computed) and all(value.dtype.kind in "iub" for value in computed)


def _to_integers(node: Node) -> bool:
    """Whether a difference of a constant in its last bits may be one of a whole number."""
    return node.outputs[0].dtype.kind in "iub"


def _grows(node: Node) -> bool:
    return node.op == "Reduce" and node.attrs["kind"] in _GROWING
