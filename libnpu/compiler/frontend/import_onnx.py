"""Import: walk the source's nodes in order and emit canonical nodes. Shapes are known at every step.

1. Inputs get their static shapes; initialisers, also those that are listed as inputs, are constants.
2. Shape and Size are constants. A node whose operands are all constants is evaluated.
3. Model functions, branches of an If, the known one or both, and operators that have no handler but a body in
   ONNX's schema are walked in place.
4. Every other node goes to its handler in `handlers.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from libnpu.compiler.frontend.builder import Builder
from libnpu.compiler.frontend.call import Call
from libnpu.compiler.frontend.channel_blocks import guess_of
from libnpu.compiler.frontend.constants import RANDOM, constant_of, evaluate, hollow_array, tensor_array
from libnpu.compiler.frontend.handlers import ADDED, FOREIGN, HANDLERS
from libnpu.compiler.frontend.infer import ShapeMismatch
from libnpu.compiler.frontend.source import (
    STANDARD_DOMAINS,
    ModelError,
    contradicts,
    declared_shape,
    domain_of,
    input_shapes,
    is_standard,
    may_lack_data,
    opset_of,
    spelled_shape,
)
from libnpu.compiler.frontend.types import check_types, check_version
from libnpu.compiler.frontend.unroll import batched_scan, loop, scan
from libnpu.compiler.ir import Graph, Value
from libnpu.errors import Unimplemented, Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from libnpu.compiler.frontend.infer import Shape

Scope = dict[str, Value | None]  # None: an operand that the caller of a function leaves out
# What a handler meets when attributes lack items, have the wrong type, or contradict the operands.
_MALFORMED = (IndexError, KeyError, ValueError, TypeError, AttributeError, ZeroDivisionError, OverflowError)
MAX_DEPTH = 32  # chosen: nesting of functions and branches, far above any exporter's


def import_model(model: onnx.ModelProto, shapes: Mapping[str, Shape], is_plan: bool = False) -> Graph:
    """Return the canonical graph of a checked model; of a plan, with hollow constants.

    Raises ModelError, Unsupported or Unimplemented by node.
    """
    walk = Walk(model)
    scope, inputs = begin(walk, model, shapes, is_plan)
    walk.nodes(model.graph.node, Body(scope, {}, "", 0))
    outputs = _bind_outputs(walk.build, model.graph.output, scope, inputs)
    notes = walk.declarations(model.graph, scope)
    return Graph(model.graph.name or "model", inputs, outputs, walk.build.nodes, notes, is_plan)


def begin(
    walk: Walk, model: onnx.ModelProto, shapes: Mapping[str, Shape], is_plan: bool = False
) -> tuple[Scope, list[Value]]:
    """Return what the first node sees, and the inputs; raises as `import_model`."""
    scope: Scope = {}
    for tensor in model.graph.initializer:
        if tensor.data_type != onnx.TensorProto.STRING:
            array = hollow_array(tensor) if is_plan and may_lack_data(tensor) else tensor_array(tensor)
            scope[tensor.name] = walk.build.const(array, tensor.name)
    if model.graph.sparse_initializer:
        raise Unimplemented(f"sparse initialiser {model.graph.sparse_initializer[0].values.name}")
    static = input_shapes(model, shapes)
    inputs = []
    for info in model.graph.input:
        if info.name in static:
            value = Value(info.name, static[info.name], _dtype(info))
            inputs.append(value)
            scope[info.name] = value
            if 0 in value.shape:  # there is one such array: a constant
                scope[info.name] = Value(info.name, value.shape, value.dtype, np.zeros(value.shape, value.dtype))
    return scope, inputs


def _dtype(info: onnx.ValueInfoProto) -> np.dtype[Any]:
    element = info.type.tensor_type.elem_type
    if element == onnx.TensorProto.STRING:
        raise Unsupported(f"value {info.name}: strings")
    try:
        dtype: np.dtype[Any] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element))
    except KeyError as error:
        raise ModelError(f"value {info.name}: element type {element} is unknown") from error
    return dtype


def _bind_outputs(
    build: Builder, declared: Iterable[onnx.ValueInfoProto], scope: Scope, inputs: list[Value]
) -> list[Value]:
    """Give each output its declared name; what is no node's result, or already an output, is copied.

    An output that is declared twice is one. It may have the name of the input that it is.
    """
    outputs: list[Value] = []
    for info in declared:
        if any(info.name == other.name for other in outputs):
            continue
        value = scope.get(info.name)
        if value is None:
            raise ModelError(f"output {info.name} is computed by no node")
        if info.type.tensor_type.elem_type and value.dtype != _dtype(info):
            raise ModelError(f"output {info.name}: computed as {value.dtype}, declared as {_dtype(info)}")
        check_output(info.name, value)
        if value.const is not None or any(value is other for other in (*inputs, *outputs)):
            build.layer = info.name
            value = build.elementwise(("in", 0), [value])
        value.name = info.name
        outputs.append(value)
    return outputs


def check_output(name: str, value: Value) -> None:
    """Refuse an output that no program can write: without elements, or a constant beyond the device's integers of 32 bits."""
    if 0 in value.shape:
        raise Unsupported(f"output {name}: shape {value.shape} has no element")
    array = value.const
    if array is None or array.dtype.name not in ("int64", "uint64"):
        return
    limits = np.iinfo(np.int32 if array.dtype == np.int64 else np.uint32)
    array = array.reshape(-1)
    beyond = array[(array < limits.min) | (array > limits.max)]
    if beyond.size:
        raise Unsupported(
            f"output {name}: the constant holds {beyond[0]}, the device computes {array.dtype} in 32 bits"
        )


@dataclass(frozen=True, slots=True)
class Body:
    """Where nodes are: in the model, a function or a branch. `parameters` are the attributes of the function, `prefix`
    begins the names of the nodes, and `depth` is how deep it is nested.
    """

    scope: Scope
    parameters: Mapping[str, onnx.AttributeProto]
    prefix: str
    depth: int


class Walk:
    """One pass over a model's nodes; `build` collects the result."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.build = Builder()
        self.opset = opset_of(model)
        self.functions = {(function.domain, function.name): function for function in model.functions}
        self.count = 0
        infos = (*model.graph.value_info, *model.graph.output)
        self.declared = {info.name: shape for info in infos if (shape := declared_shape(info)) is not None}
        # Inputs keep their names; outputs get theirs last, by force.
        for name in dict.fromkeys(info.name for info in (*model.graph.input, *model.graph.output)):
            self.build.unique(name)

    def nodes(self, nodes: Iterable[onnx.NodeProto], body: Body) -> None:
        """Walk the nodes of `body`."""
        if body.depth > MAX_DEPTH:
            raise Unsupported(f"{body.prefix or 'the model'}: functions nest deeper than {MAX_DEPTH}")
        for node in nodes:
            self.count += 1
            name = body.prefix + (node.name or f"{node.op_type}_{self.count}")
            bound = _bind_attributes(node, body.parameters)
            inputs = [self._operand(source, body.scope, name) if source else None for source in node.input]
            try:
                results = self.node(bound, name, inputs, body)
            except (ModelError, Unsupported, Unimplemented):
                raise
            except ShapeMismatch as error:
                raise ModelError(f"node {name}: {node.op_type}: {error}") from error
            except _MALFORMED as error:
                what = f"{type(error).__name__}: {error}"
                raise ModelError(f"node {name}: {node.op_type}: operands or attributes do not fit: {what}") from error
            for output, value in zip(node.output, results, strict=False):
                if output:
                    body.scope[output] = value

    def declarations(self, graph: onnx.GraphProto, scope: Scope) -> list[str]:
        """Return what to say of a guess, and of values whose declared shape is not the one computed: onnxruntime takes the computed one too, and warns.

        Raises ModelError for an element type that is not the one computed.
        """
        made = {name for node in graph.node for name in node.output}
        wrong = []
        for info in (*graph.value_info, *graph.output):
            value = scope.get(info.name)
            if value is None or info.name not in made:
                continue
            if info.type.tensor_type.elem_type and value.dtype != _dtype(info):
                raise ModelError(f"value {info.name}: computed as {value.dtype}, declared as {_dtype(info)}")
            if contradicts(info, value.shape):
                wrong.append(f"{info.name} is computed as {list(value.shape)}, declared as {spelled_shape(info)}")
        more = f", and {len(wrong) - 1} more like it" if len(wrong) > 1 else ""
        return [*guess_of(graph), *([f"{wrong[0]}{more}; what is computed counts"] if wrong else [])]

    def _operand(self, source: str, scope: Scope, name: str) -> Value | None:
        if source not in scope:
            raise ModelError(f"node {name}: input {source} is defined by nothing before it")
        return scope[source]

    def node(self, node: onnx.NodeProto, name: str, inputs: list[Value | None], body: Body) -> list[Value]:
        """Return the results of one node, "" for those that the source leaves out."""
        self.build.layer = name
        domain, own = domain_of(node), (node.domain, node.op_type) in self.functions
        if not own and is_standard(node, self.opset):
            check_version(node.op_type, self.opset, name)
            check_types(node.op_type, self.opset, name, inputs)
            known = self._constants(node, name, inputs)
            if known is not None:
                return known
            if node.op_type == "If":
                return self._branch(node, name, inputs, body)
            if node.op_type == "Scan":
                return self._scan(node, name, inputs, body)
            if node.op_type == "Loop":
                graph = next(item.g for item in node.attribute if item.name == "body")
                return loop(
                    self.build, name, inputs, lambda given, step: self._graph(graph, given, f"{name}/{step}", body)
                )
            handler = HANDLERS.get(node.op_type)
        else:
            handler = FOREIGN.get((domain, node.op_type)) if domain else ADDED.get(node.op_type)
        if handler is not None and not own:
            attrs = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
            declared = [self.declared.get(output) if body.depth == 0 else None for output in node.output]
            count = sum(map(bool, node.output))
            call = Call(node.op_type, name, self.opset, inputs, attrs, count, self.build, declared)
            first = len(self.build.nodes)
            result = handler(call)
            values = [call.checked(value) for value in (result if isinstance(result, list) else [result])]
            return self._named(node, values, first)
        function = self.functions.get((node.domain, node.op_type)) or self._schema_body(node, inputs)
        if function is None and not is_standard(node, self.opset):
            where = f"domain {domain!r}" if domain else f"operator set {self.opset}"
            raise Unsupported(f"node {name}: operator {node.op_type} of {where}")
        if function is None:
            raise Unimplemented(f"node {name}: operator {node.op_type}")
        return self._function(node, function, name, inputs, body.depth + 1)

    def _named(self, node: onnx.NodeProto, values: list[Value], first: int) -> list[Value]:
        """Give the source's names to the results that nodes from index `first` on made."""
        made = {output for new in self.build.nodes[first:] for output in new.outputs}
        for output, value in zip(node.output, values, strict=False):
            if output and value in made:
                value.name = self.build.unique(output)
        return values

    def _constants(self, node: onnx.NodeProto, name: str, inputs: list[Value | None]) -> list[Value] | None:
        """Return the results when they are known now, else None."""
        arrays: list[Any]
        if node.op_type == "Constant":
            arrays = [constant_of(node)]
        elif node.op_type in ("Shape", "Size") and inputs[0] is not None:
            shape = np.array(inputs[0].shape, np.int64)
            bounds = {item.name: item.i for item in node.attribute}
            part = shape[bounds.get("start", 0) : bounds.get("end", len(shape))]
            arrays = [part if node.op_type == "Shape" else np.array(np.prod(shape), np.int64)]
        elif node.op_type in RANDOM:
            raise Unsupported(f"node {name}: {node.op_type}: results must be the same in every run")
        elif (
            node.op_type == "CastLike"
            and inputs[0] is not None
            and inputs[0].const is not None
            and inputs[1] is not None
        ):
            to = onnx.helper.np_dtype_to_tensor_dtype(inputs[1].dtype)  # of the other operand only the type matters
            cast = onnx.helper.make_node("Cast", node.input[:1], node.output, node.name, to=to)
            arrays = list(evaluate(cast, self.opset, [inputs[0].const]))
        elif any(value is not None and value.const is None for value in inputs) or _has_graph(node):
            return None
        else:
            operands = [None if value is None else value.const for value in inputs]
            try:
                arrays = list(evaluate(node, self.opset, operands))
            except ModelError:
                schema = onnx.defs.get_schema(node.op_type, self.opset, "")
                if not (node.op_type in HANDLERS or schema.has_function or schema.has_context_dependent_function):
                    raise
                return None  # the handler or the body knows better, or says what is wrong; its nodes are folded
        names = [output for output in node.output if output]
        made = iter([self.build.const(array, output) for array, output in zip(arrays, names, strict=True)])
        return [next(made) if output else _nothing() for output in node.output]

    def _branch(self, node: onnx.NodeProto, name: str, inputs: list[Value | None], body: Body) -> list[Value]:
        condition = inputs[0].const if inputs and inputs[0] is not None else None
        branches = {item.name: item.g for item in node.attribute}
        if condition is None:
            return self._select(name, inputs[0], branches["then_branch"], branches["else_branch"], body)
        wanted = "then_branch" if condition.reshape(-1)[0] else "else_branch"
        return self._graph(branches[wanted], [], name, body)

    def _select(
        self, name: str, condition: Value | None, then: onnx.GraphProto, otherwise: onnx.GraphProto, body: Body
    ) -> list[Value]:
        """Return the results of both branches, and of each the one that a computed condition wants.

        What only runs for its result can run in vain, but for a gather by computed indices, which may be right in its own case alone.
        """
        refusal = f"node {name}: If with a condition that is computed at run time"
        if condition is None or prod(condition.shape) != 1:
            raise Unsupported(f"{refusal}, and is no single one")
        first = len(self.build.nodes)
        results = []
        for word, graph in (("then", then), ("else", otherwise)):
            try:
                results.append(self._graph(graph, [], f"{name}/{word}", body))
            except ModelError as error:  # it may be meant for operands of other shapes, and never run for these
                raise Unsupported(f"{refusal}, and a branch that does not fit: {error}") from error
        for node in self.build.nodes[first:]:
            if node.op == "Gather" and node.inputs[1] is not None and node.inputs[1].const is None:
                raise Unsupported(f"{refusal}, and a branch that may fault ({node.name})")
        chosen = []
        wanted = self.build.reshape(condition, ())
        self.build.layer = name
        for a, b in zip(*results, strict=True):
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                raise Unsupported(f"{refusal}, and results {a.dtype} {a.shape} or {b.dtype} {b.shape}")
            chosen.append(self.build.elementwise(("where", ("in", 0), ("in", 1), ("in", 2)), [wanted, a, b], a.dtype))
        return chosen

    def _scan(self, node: onnx.NodeProto, name: str, inputs: list[Value | None], body: Body) -> list[Value]:
        attrs = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}

        def step(given: list[Value], number: int) -> list[Value]:
            return self._graph(attrs["body"], given, f"{name}/{number}", body)

        if self.opset < 9:
            return batched_scan(self.build, name, attrs, inputs, step)
        return scan(self.build, name, attrs, [value for value in inputs if value is not None], step)

    def _graph(self, graph: onnx.GraphProto, given: list[Value], name: str, body: Body) -> list[Value]:
        """Return the outputs of a graph inside of a node, for the values of its inputs."""
        inner = dict(body.scope)
        for tensor in graph.initializer:
            inner[tensor.name] = self.build.const(tensor_array(tensor), tensor.name)
        inner |= {info.name: value for info, value in zip(graph.input, given, strict=True)}
        self.nodes(graph.node, Body(inner, body.parameters, f"{name}/", body.depth + 1))
        results = [self._operand(output.name, inner, name) for output in graph.output]
        return [_nothing() if value is None else value for value in results]

    def _function(
        self, node: onnx.NodeProto, function: onnx.FunctionProto, name: str, inputs: list[Value | None], depth: int
    ) -> list[Value]:
        parameters = {item.name: item for item in function.attribute_proto}
        if (node.domain, node.op_type) not in self.functions:  # a schema's body takes the schema's defaults
            schema = onnx.defs.get_schema(node.op_type, self.opset, "")
            defaults = {name: attribute.default_value for name, attribute in schema.attributes.items()}
            parameters |= {name: value for name, value in defaults.items() if value.type}
        parameters |= {item.name: item for item in node.attribute}
        inner: Scope = dict.fromkeys(function.input)
        inner |= dict(zip(function.input, inputs, strict=False))
        versions = [entry.version for entry in function.opset_import if entry.domain in STANDARD_DOMAINS]
        outer, self.opset = self.opset, versions[0] if versions else self.opset
        try:
            self.nodes(function.node, Body(inner, parameters, f"{name}/", depth))
        finally:
            self.opset = outer
        return [inner.get(output) or _nothing() for output in function.output]

    def _schema_body(self, node: onnx.NodeProto, inputs: list[Value | None]) -> onnx.FunctionProto | None:
        """Return the body that ONNX's schema gives for the operator at these operand types, None without one."""
        if not is_standard(node, self.opset):
            return None
        schema = onnx.defs.get_schema(node.op_type, self.opset, "")
        if schema.has_function:
            return schema.function_body
        if not schema.has_context_dependent_function:
            return None
        types = [_type_bytes(value) for value in inputs]
        version = max((v for v in schema.context_dependent_function_opset_versions if v <= self.opset), default=0)
        if not version:
            return None
        data = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), types)
        function = onnx.FunctionProto()
        function.ParseFromString(data)
        return function if function.node else None


def _type_bytes(value: Value | None) -> Any:
    if value is None:
        return onnx.TypeProto().SerializeToString()
    element = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    return onnx.helper.make_tensor_type_proto(element, value.shape).SerializeToString()


def _bind_attributes(node: onnx.NodeProto, parameters: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """Return `node` with references to function attributes replaced by their values, or left out if not given."""
    if not any(item.ref_attr_name for item in node.attribute):
        return node
    bound = onnx.NodeProto()
    bound.CopyFrom(node)
    del bound.attribute[:]
    for item in node.attribute:
        if not item.ref_attr_name:
            bound.attribute.append(item)
        elif item.ref_attr_name in parameters:
            value = bound.attribute.add()
            value.CopyFrom(parameters[item.ref_attr_name])
            value.name = item.name
    return bound


def _has_graph(node: onnx.NodeProto) -> bool:
    return any(item.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for item in node.attribute)


def _nothing() -> Value:
    """Stand for an output that the source leaves out; nothing may read it."""
    return Value("", (), np.dtype(np.float32))
