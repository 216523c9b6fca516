"""Survey: the import's walk over a model once more, which goes on behind a node that the NPU cannot do.

Such a node, with all that it holds, is one for the host. Its results have the types and shapes that ONNX infers, the model
declares, or onnxruntime infers; a node whose operand has none until it runs is one for the host too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from libnpu.compiler.frontend.constants import RANDOM
from libnpu.compiler.frontend.import_onnx import Body, Scope, Walk, begin, check_output
from libnpu.compiler.frontend.nested import captured
from libnpu.compiler.frontend.source import ModelError, domain_of
from libnpu.compiler.ir import Value
from libnpu.errors import Unimplemented, Unsupported
from libnpu.parts.evaluator import types_by_runtime

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from libnpu.compiler.frontend.infer import Shape

MOST_DATA = 1 << 10  # elements of a constant that ONNX may look at to infer a shape: shapes, axes, sizes


@dataclass(slots=True, frozen=True)
class ValueType:
    """`dtype` None: unknown, or no tensor. `shape` None: the rank is unknown; -1 in it: that dimension is."""

    dtype: np.dtype[Any] | None
    shape: Shape | None

    @property
    def is_static(self) -> bool:
        return self.dtype is not None and self.shape is not None and min(self.shape, default=0) >= 0


@dataclass(slots=True, eq=False)
class SourceNode:
    """A node of the model's own graph. `reads` are the values that it takes, its graphs' included; `reason` is "" on the NPU."""

    proto: onnx.NodeProto
    name: str
    reads: list[str]
    outputs: list[str]
    reason: str = ""


@dataclass(slots=True, eq=False)
class Survey:
    """`nodes` on which outputs depend, in order, without those whose results are all known now. `constants` are these, and initialisers.

    `without` counts the nodes that the NPU cannot do and nobody needs.
    """

    model: onnx.ModelProto
    nodes: list[SourceNode]
    types: dict[str, ValueType]
    constants: dict[str, NDArray[Any] | onnx.TensorProto]
    inputs: list[str]
    outputs: list[str]
    without: int
    notes: list[str]
    host: list[SourceNode] = field(init=False)

    def __post_init__(self) -> None:
        self.host = [node for node in self.nodes if node.reason]


def survey(model: onnx.ModelProto, shapes: Mapping[str, Shape], refused: Mapping[str, str]) -> Survey:
    """Return what is known of a checked model. `refused` are nodes that a later stage could not do, with its reasons.

    Raises ModelError, and Unsupported for what the host cannot do either.
    """
    walk = _Survey(model, refused)
    scope, inputs = begin(walk, model, shapes)
    walk.scope = scope
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.STRING:
            walk.leave_open(tensor.name, ValueType(None, tuple(tensor.dims)))
    walk.nodes(model.graph.node, Body(scope, {}, "", 0))
    makers = {output: node for node in walk.found for output in node.outputs}
    outputs = list(dict.fromkeys(info.name for info in model.graph.output))
    for name in outputs:
        if scope.get(name) is None:
            raise ModelError(f"output {name} is computed by no node")
        if name not in walk.open:
            _check_output(name, scope, makers)
    initialisers = {tensor.name: tensor for tensor in model.graph.initializer}
    constants: dict[str, NDArray[Any] | onnx.TensorProto] = dict(initialisers)
    types = {}
    for name, value in scope.items():
        if value is None:
            continue
        types[name] = walk.open.get(name) or ValueType(value.dtype, value.shape)
        if name not in walk.open and value.const is not None:
            constants.setdefault(name, value.const)
    copies = _constant_outputs(outputs, makers, types, constants)
    alive = _alive([*copies, *walk.found], outputs, constants)
    without = sum(bool(node.reason) for node in walk.found) - sum(bool(node.reason) for node in alive)
    closed = {name: value for name, value in scope.items() if name not in walk.open}
    notes = walk.declarations(model.graph, closed)
    return Survey(model, alive, types, constants, [value.name for value in inputs], outputs, without, notes)


def _alive(nodes: list[SourceNode], outputs: list[str], constants: Collection[str]) -> list[SourceNode]:
    """Return the nodes that make what an output needs and is not known."""
    needed, alive = set(outputs), []
    for node in reversed(nodes):
        if any(name in needed for name in node.outputs):
            alive.append(node)
            needed |= {name for name in node.reads if name not in constants}
    return alive[::-1]


def _constant_outputs(
    outputs: list[str],
    makers: Mapping[str, SourceNode],
    types: dict[str, ValueType],
    constants: dict[str, NDArray[Any] | onnx.TensorProto],
) -> list[SourceNode]:
    """Return copies that make the outputs which are initialisers, whose values get another name."""
    copies = []
    for name in outputs:
        if name in makers or name not in constants:
            continue
        inner = f"{name}.value"
        array = constants.pop(name)
        constants[inner] = onnx.numpy_helper.to_array(array) if isinstance(array, onnx.TensorProto) else array
        types[inner] = types[name]
        copies.append(SourceNode(onnx.helper.make_node("Identity", [inner], [name]), name, [inner], [name]))
    return copies


def _check_output(name: str, scope: Scope, makers: Mapping[str, SourceNode]) -> None:
    """Let the host make an output that the NPU cannot write."""
    value = scope[name]
    assert value is not None
    try:
        check_output(name, value)
    except Unsupported as error:
        if name not in makers:
            raise
        makers[name].reason = makers[name].reason or reason_of(error, makers[name].name)


def reason_of(refusal: Unsupported | Unimplemented, name: str) -> str:
    """Return what a refusal says of node `name`, without that name."""
    kind = "not supported" if isinstance(refusal, Unsupported) else "not implemented"
    return f"{kind}: {refusal.message.removeprefix(f'node {name}: ')}"


class _Survey(Walk):
    """The walk. `open` are values of the model's own graph whose type or shape only a run tells."""

    def __init__(self, model: onnx.ModelProto, refused: Mapping[str, str]) -> None:
        super().__init__(model)
        self.model = model
        self.refused = refused
        self.found: list[SourceNode] = []
        self.open: dict[str, ValueType] = {}
        self.scope: Scope = {}
        self._inferred: dict[str, onnx.TypeProto] | None = None

    def leave_open(self, name: str, known: ValueType) -> Value:
        """Note a value that only the host can take, and return what stands for it."""
        self.open[name] = known
        self.scope[name] = value = Value(name, (), np.dtype(np.float32))
        return value

    def node(self, node: onnx.NodeProto, name: str, inputs: list[Value | None], body: Body) -> list[Value]:
        """As `Walk.node`, of a node for the host too."""
        if body.depth:
            return super().node(node, name, inputs, body)
        reads = list(dict.fromkeys([*filter(None, node.input), *captured(node)]))
        found = SourceNode(node, name, reads, [output for output in node.output if output])
        self.found.append(found)
        reason = self.refused.get(name) or next(map(self._why_open, (n for n in reads if n in self.open)), "")
        if not reason:
            try:
                return super().node(node, name, inputs, body)
            except (Unsupported, Unimplemented) as error:
                reason = reason_of(error, name)
        if node.op_type in RANDOM:
            raise Unsupported(f"node {name}: {node.op_type}: results must be the same in every run")
        found.reason = reason
        return [self._result(node, output, inputs) for output in node.output]

    def _why_open(self, name: str) -> str:
        known = self.open[name]
        if known.dtype is None:
            return f"value {name} is no tensor of numbers whose type is known"
        return f"value {name} has a shape that only a run tells"

    def _result(self, node: onnx.NodeProto, output: str, inputs: list[Value | None]) -> Value:
        if not output:
            return Value("", (), np.dtype(np.float32))
        known = self._type(node, output, inputs)
        if not known.is_static:
            return self.leave_open(output, known)
        assert known.dtype is not None and known.shape is not None
        value = Value(self.build.unique(output), known.shape, known.dtype)
        if 0 in known.shape:  # there is one such array
            value.const = np.zeros(known.shape, known.dtype)
        return value

    def _type(self, node: onnx.NodeProto, output: str, inputs: list[Value | None]) -> ValueType:
        """Return what is known of a result: by ONNX from the operands that are known, of the whole model, or by onnxruntime."""
        known = _value_type(self._types_of(node, inputs).get(output))
        for more in (self._types_of_model, lambda: self._types_by_runtime(node, inputs)):
            if known.is_static:
                break
            known = _joined(known, _value_type(more().get(output)))
        return known

    def _types_of(self, node: onnx.NodeProto, inputs: list[Value | None]) -> dict[str, onnx.TypeProto]:
        domain, version = domain_of(node), self._version(domain_of(node))
        if (node.domain, node.op_type) in self.functions or not onnx.defs.has(node.op_type, version, domain):
            return {}
        operands = self._operands(node, inputs)
        if operands is None:
            return {}
        schema = onnx.defs.get_schema(node.op_type, version, domain)
        opsets = [onnx.helper.make_opsetid(domain, version)]
        try:
            found: dict[str, onnx.TypeProto] = onnx.shape_inference.infer_node_outputs(
                schema, node, *operands, opset_imports=opsets
            )
        except Exception:  # of onnx's own kinds: then the model says it, or nobody does
            return {}
        return found

    def _types_by_runtime(self, node: onnx.NodeProto, inputs: list[Value | None]) -> dict[str, onnx.TypeProto]:
        operands = None if captured(node) else self._operands(node, inputs)
        if operands is None:
            return {}
        types, data = operands
        model = onnx.ModelProto(ir_version=self.model.ir_version, opset_import=self.model.opset_import)
        model.functions.extend(self.model.functions)
        graph = model.graph
        graph.name = node.op_type
        graph.node.append(node)
        graph.input.extend(
            onnx.ValueInfoProto(name=name, type=known) for name, known in types.items() if name not in data
        )
        graph.initializer.extend(data.values())
        graph.output.extend(onnx.ValueInfoProto(name=output) for output in node.output if output)
        return {
            name: onnx.helper.make_tensor_type_proto(
                onnx.TensorProto.DataType.Value(kind.upper()), [None if dim < 0 else dim for dim in shape]
            )
            for name, (kind, shape) in types_by_runtime(model).items()
        }

    def _version(self, domain: str) -> int:
        versions = {entry.domain: entry.version for entry in self.model.opset_import}
        return self.opset if domain == "" else int(versions.get(domain, 1))

    def _operands(
        self, node: onnx.NodeProto, inputs: list[Value | None]
    ) -> tuple[dict[str, onnx.TypeProto], dict[str, onnx.TensorProto]] | None:
        """Return what is known of a node's operands: types, and values that may be shapes; None if one has no type."""
        types, data = {}, {}
        for name, value in zip(node.input, inputs, strict=False):
            if value is None:
                continue
            known = self.open.get(name) or ValueType(value.dtype, value.shape)
            if known.dtype is None:
                return None
            dims = None if known.shape is None else [None if dim < 0 else dim for dim in known.shape]
            element = onnx.helper.np_dtype_to_tensor_dtype(known.dtype)
            types[name] = onnx.helper.make_tensor_type_proto(element, dims)
            if name not in self.open and value.const is not None and value.const.size <= MOST_DATA:
                data[name] = onnx.numpy_helper.from_array(np.asarray(value.const), name)
        return types, data

    def _types_of_model(self) -> dict[str, onnx.TypeProto]:
        if self._inferred is None:
            model = onnx.ModelProto()
            model.CopyFrom(self.model)
            for info in model.graph.input:
                value = self.scope.get(info.name)
                if value is not None and info.name not in self.open:
                    element = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
                    info.type.CopyFrom(onnx.helper.make_tensor_type_proto(element, value.shape))
            try:
                model = onnx.shape_inference.infer_shapes(model, data_prop=True)
            except Exception:  # a model of more than 2 GB, or of operators that ONNX does not know
                model = self.model
            self._inferred = {info.name: info.type for info in (*model.graph.value_info, *model.graph.output)}
        return self._inferred


def _joined(first: ValueType, second: ValueType) -> ValueType:
    """Return what is known of a value from two sides, of which the first counts."""
    dtype = second.dtype if first.dtype is None else first.dtype
    if first.shape is None or second.shape is None or len(first.shape) != len(second.shape):
        return ValueType(dtype, first.shape if second.shape is None else second.shape)
    return ValueType(dtype, tuple(b if a < 0 else a for a, b in zip(first.shape, second.shape, strict=True)))


def _value_type(proto: onnx.TypeProto | None) -> ValueType:
    if proto is None or proto.WhichOneof("value") != "tensor_type":
        return ValueType(None, None)
    tensor = proto.tensor_type
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim)
    if tensor.elem_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        return ValueType(None, shape)
    return ValueType(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)), shape)
