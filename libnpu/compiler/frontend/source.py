"""The ONNX file as it came: reading, checking, and the shapes of its inputs. No canonical graph yet."""

from __future__ import annotations

from heapq import heappop, heappush
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from libnpu.compiler.frontend.channel_blocks import mark_blocks
from libnpu.compiler.frontend.nested import all_nodes, captured
from libnpu.compiler.hollow import LEAST_BYTES
from libnpu.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from libnpu.compiler.frontend.infer import Shape

MIN_OPSET = 7  # Broadcasting became NumPy's there; older models say it in attributes.
STANDARD_DOMAINS = ("", "ai.onnx")
FOREIGN_DOMAIN = "com.microsoft"
_ELEMENT_BYTES = {
    int(onnx.TensorProto.FLOAT): 4,
    int(onnx.TensorProto.FLOAT16): 2,
    int(onnx.TensorProto.BFLOAT16): 2,
    int(onnx.TensorProto.DOUBLE): 8,
    int(onnx.TensorProto.INT8): 1,
    int(onnx.TensorProto.UINT8): 1,
    int(onnx.TensorProto.INT32): 4,
    int(onnx.TensorProto.INT64): 8,
}
_WEIGHT_TYPES = frozenset(
    map(int, (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE,
              onnx.TensorProto.INT8, onnx.TensorProto.UINT8))
)  # fmt: skip
# First bytes of files of other graph formats -> what they are.
_FORMATS = {
    b"<?xml": "XML, as OpenVINO IR",
    b"<net": "XML, as OpenVINO IR",
    b"PK\x03\x04": "a zip archive, as PyTorch's",
    b"\x89HDF": "HDF5, as Keras's",
}
_TFLITE = b"TFL3"  # at byte 4


class ModelError(ValueError):
    """The model file is damaged, inconsistent or incomplete; the message names the node or value."""


class OpenShape(ModelError):
    """The model leaves a dimension of an input open, and no shape was given; `what` says which, without the way out."""

    def __init__(self, input_name: str, what: str) -> None:
        super().__init__(f"{what}; give one with shapes={{{input_name!r}: ...}}")
        self.input_name = input_name
        self.what = what


def read_model(
    source: str | Path | bytes | onnx.ModelProto,
    is_plan: bool = False,
    foreign: Container[tuple[str, str]] = frozenset(),
) -> onnx.ModelProto:
    """Return the checked model, with external data loaded; of a plan, without that of large initialisers.

    Operators are those of the standard, of the model's functions, and (domain, name) in `foreign`, where the standard's domain is "".

    Raises ModelError, Unsupported, OSError.
    """
    model = source if isinstance(source, onnx.ModelProto) else parse(source)
    if isinstance(source, str | Path):
        load_external(model, source, is_plan)
    _check_names(model)
    _check_operators(model, foreign)
    model = mark_blocks(_in_order(model))
    try:
        onnx.checker.check_model(_skeleton(model, is_plan))
    except (onnx.checker.ValidationError, ValueError) as error:
        raise ModelError(f"not a valid ONNX model: {str(error).strip()}") from error
    return model


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of the standard operator set; before `MIN_OPSET`, operators are looked at one by one (`check_version`).

    Raises ModelError or Unsupported.
    """
    versions = [entry.version for entry in model.opset_import if entry.domain in STANDARD_DOMAINS]
    newest = onnx.defs.onnx_opset_version()
    if not versions:
        if not model.opset_import or any(node.domain in STANDARD_DOMAINS for node in all_nodes(model.graph)):
            raise ModelError("the model imports no standard operator set")
        return int(newest)  # nothing is of it
    if not 1 <= versions[0] <= newest:
        raise Unsupported(f"operator set {versions[0]}; {MIN_OPSET} to {newest} are known")
    return int(versions[0])


def domain_of(node: onnx.NodeProto) -> str:
    """Return the domain of a node's operator, "" of the standard, which has two names."""
    return "" if node.domain in STANDARD_DOMAINS else str(node.domain)


def is_standard(node: onnx.NodeProto, opset: int) -> bool:
    """Whether the standard has a node's operator, in its own domain, at `opset`."""
    return domain_of(node) == "" and bool(onnx.defs.has(node.op_type, opset, ""))


def input_shapes(model: onnx.ModelProto, overrides: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return the static shape of each graph input that is not an initialiser.

    `overrides` fixes shapes by input name. Raises ModelError for an unknown name, for a rank or a fixed dimension
    that the override contradicts, and for a dimension that stays unknown.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    constants |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    names = [value.name for value in inputs]
    for name in overrides:
        if name not in names:
            raise ModelError(f"shape given for {name!r}, which is no input; inputs: {', '.join(names) or 'none'}")
    return {value.name: _static_shape(value, overrides.get(value.name)) for value in inputs}


def declared_shape(info: onnx.ValueInfoProto) -> Shape | None:
    """Return the shape that the model says of a value, None where it leaves something open."""
    tensor = info.type.tensor_type
    if info.type.WhichOneof("value") != "tensor_type" or not tensor.HasField("shape"):
        return None
    dims = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim)
    return None if any(size < 0 for size in dims) else dims


def contradicts(info: onnx.ValueInfoProto, shape: Shape) -> bool:
    """Whether a value of `shape` is not what the model says of it: another rank, or another size of an axis that it fixes."""
    tensor = info.type.tensor_type
    if info.type.WhichOneof("value") != "tensor_type" or not tensor.HasField("shape"):
        return False
    dims = tensor.shape.dim
    return len(dims) != len(shape) or any(
        dim.HasField("dim_value") and dim.dim_value not in (size, -1) for dim, size in zip(dims, shape, strict=True)
    )


def spelled_shape(info: onnx.ValueInfoProto) -> str:
    """Return the shape that the model says of a value, for people."""
    dims = info.type.tensor_type.shape.dim
    return _spelled([(dim.dim_value if dim.HasField("dim_value") else None, dim.dim_param) for dim in dims])


def may_lack_data(tensor: onnx.TensorProto) -> bool:
    """Whether a plan needs no values of an initialiser: it is large, or has none, and cannot be a shape, an axis or a scalar."""
    elements = prod(tensor.dims)
    if tensor.data_type not in _WEIGHT_TYPES or elements < 2:
        return False
    return elements * _ELEMENT_BYTES[tensor.data_type] >= LEAST_BYTES or not _has_data(tensor)


def _has_data(tensor: onnx.TensorProto) -> bool:
    fields = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")
    return tensor.data_location != onnx.TensorProto.EXTERNAL and any(len(getattr(tensor, name)) for name in fields)


def parse(source: str | Path | bytes) -> onnx.ModelProto:
    """Return the model of a file or of its bytes as it stands there, unchecked, without external data.

    Raises ModelError, Unsupported for a file of another format, OSError.
    """
    what = "data" if isinstance(source, bytes) else str(source)
    if not (source if isinstance(source, bytes) else Path(source).stat().st_size):
        raise ModelError(f"{what}: is empty; expected an ONNX model")
    _check_format(source, what)
    try:
        if isinstance(source, bytes):
            model = onnx.load_from_string(source)
        else:
            model = onnx.load(source, load_external_data=False)
    except OSError:
        raise
    except Exception as error:  # protobuf's DecodeError has no stable home
        raise ModelError(f"{what}: not an ONNX file: {error}") from error
    if not model.HasField("graph"):
        raise ModelError(f"{what}: not an ONNX file: it holds no graph")
    return model


def external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors whose data lies in other files."""
    return filter(onnx.external_data_helper.uses_external_data, onnx.external_data_helper._get_all_tensors(model))


def load_external(model: onnx.ModelProto, path: str | Path, is_plan: bool = False) -> None:
    """Put the external data of the model at `path` into `model`; of a plan, not that of large initialisers. Raises ModelError."""
    try:
        for tensor in external_tensors(model):
            if not (is_plan and may_lack_data(tensor)):
                onnx.external_data_helper.load_external_data_for_tensor(tensor, str(Path(path).parent))
    except (onnx.checker.ValidationError, OSError, ValueError) as error:
        raise ModelError(f"{path}: its external data cannot be read: {error}") from error


def _check_format(source: str | Path | bytes, what: str) -> None:
    """Raise Unsupported for a file of another graph format."""
    if isinstance(source, bytes):
        start = source[:64]
    else:
        with open(source, "rb") as file:
            start = file.read(64)
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    found = next((name for magic, name in _FORMATS.items() if text.startswith(magic)), None)
    if start[4:8] == _TFLITE:
        found = "TensorFlow Lite"
    if found:
        raise Unsupported(f"{what}: UNSUPPORTED_FORMAT: {found}; only ONNX is read, which its framework can export")


def _skeleton(model: onnx.ModelProto, is_plan: bool) -> onnx.ModelProto:
    """Return what the checker looks at: the model with large constants of the right size, or without data, cut to one element.

    The checker serialises what it gets, and wants a shape with every input and output; ours are checked by name later.
    """
    skeleton = onnx.ModelProto()
    for field, value in model.ListFields():
        if field.name != "graph":
            _copy_field(skeleton, field.name, value)
    for field, value in model.graph.ListFields():
        if field.name != "initializer":
            _copy_field(skeleton.graph, field.name, value)
    for tensor in model.graph.initializer:
        size = _ELEMENT_BYTES.get(tensor.data_type, 0)
        copy = skeleton.graph.initializer.add()
        is_large = len(tensor.raw_data) >= LEAST_BYTES and len(tensor.raw_data) == size * prod(tensor.dims)
        if is_large or (is_plan and may_lack_data(tensor)):
            copy.name, copy.data_type, copy.raw_data = tensor.name, tensor.data_type, bytes(size)
            copy.dims.append(1)
        else:
            copy.CopyFrom(tensor)
    for info in (*skeleton.graph.input, *skeleton.graph.output):
        if _lacks_shape(info):
            info.type.tensor_type.shape.SetInParent()
    _rename_foreign(skeleton)
    return skeleton


def _rename_foreign(skeleton: onnx.ModelProto) -> None:
    """Give another domain to operators that the standard does not have in its own, which the checker would refuse."""
    opset, functions = opset_of(skeleton), {(function.domain, function.name) for function in skeleton.functions}
    strange = [
        node
        for node in all_nodes(skeleton.graph)
        if domain_of(node) == "" and (node.domain, node.op_type) not in functions and not is_standard(node, opset)
    ]
    for node in strange:
        node.domain = FOREIGN_DOMAIN
    if strange and all(entry.domain != FOREIGN_DOMAIN for entry in skeleton.opset_import):
        skeleton.opset_import.append(onnx.helper.make_opsetid(FOREIGN_DOMAIN, 1))


def _copy_field(target: Any, name: str, value: Any) -> None:
    if isinstance(value, (str, bytes, int)):
        setattr(target, name, value)
    else:
        getattr(target, name).MergeFrom(value)


def _lacks_shape(info: onnx.ValueInfoProto) -> bool:
    return info.type.WhichOneof("value") == "tensor_type" and not info.type.tensor_type.HasField("shape")


def _check_names(model: onnx.ModelProto) -> None:
    """Refuse names that are not UTF-8, which protobuf hands out as bytes."""
    graph = model.graph
    names: list[object] = [entry.domain for entry in model.opset_import]
    names += [graph.name, *(item.name for item in (*graph.input, *graph.output, *graph.initializer))]
    names += [dim.dim_param for info in graph.input for dim in info.type.tensor_type.shape.dim]
    for nodes in (all_nodes(graph), *(function.node for function in model.functions)):
        for node in nodes:
            names += [node.name, node.op_type, node.domain, *node.input, *node.output]
            names += [item.name for item in node.attribute]
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"a name in the model is not UTF-8: {name!r}")


def _check_operators(model: onnx.ModelProto, foreign: Container[tuple[str, str]]) -> None:
    """Name unknown operators with their node: the checker's own message has the operator only."""
    opset = opset_of(model)
    functions = {(function.domain, function.name) for function in model.functions}
    for node in all_nodes(model.graph):
        known = (node.domain, node.op_type) in functions or (domain_of(node), node.op_type) in foreign
        if not known and not is_standard(node, opset):
            where = f"node {node.name or ', '.join(node.output)}"
            domain = f"domain {node.domain!r}" if node.domain else f"operator set {opset}"
            raise Unsupported(f"{where}: operator {node.op_type} of {domain} is unknown")


def _in_order(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with each node behind those that make its operands, as onnxruntime puts them: the same one where they are."""
    graph = model.graph
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    before = [
        {makers[name] for name in (*node.input, *captured(node)) if name in makers} - {index}
        for index, node in enumerate(graph.node)
    ]
    if all(max(needed, default=-1) < index for index, needed in enumerate(before)):
        return model
    readers: dict[int, list[int]] = {}
    for index, needed in enumerate(before):
        for maker in needed:
            readers.setdefault(maker, []).append(index)
    left, order = [len(needed) for needed in before], []
    ready = [index for index, count in enumerate(left) if not count]
    while ready:
        index = heappop(ready)
        order.append(index)
        for reader in readers.get(index, ()):
            left[reader] -= 1
            if not left[reader]:
                heappush(ready, reader)
    if len(order) < len(graph.node):
        return model  # a circle, which the checker names
    sorted_model = onnx.ModelProto()
    sorted_model.CopyFrom(model)
    del sorted_model.graph.node[:]
    sorted_model.graph.node.extend(graph.node[index] for index in order)
    return sorted_model


def _static_shape(value: onnx.ValueInfoProto, override: Shape | None) -> Shape:
    tensor = value.type.tensor_type
    if value.type.WhichOneof("value") != "tensor_type":
        raise Unsupported(f"input {value.name}: type {value.type.WhichOneof('value')}, only tensors are supported")
    if not tensor.HasField("shape"):
        if override is None:
            raise OpenShape(value.name, f"input {value.name}: the model gives no shape")
        return tuple(override)
    dims = [(dim.dim_value if dim.HasField("dim_value") else None, dim.dim_param) for dim in tensor.shape.dim]
    declared = [size if size is not None and size >= 0 else None for size, _ in dims]
    if override is not None:
        fits = len(override) == len(declared) and all(
            size in (None, given) for size, given in zip(declared, override, strict=True)
        )
        if not fits or min(override, default=0) < 0:
            raise ModelError(f"input {value.name}: shape {tuple(override)} contradicts the model's {_spelled(dims)}")
        return tuple(override)
    if None in declared:
        raise OpenShape(value.name, f"input {value.name}: shape {_spelled(dims)} is not static")
    return tuple(size for size in declared if size is not None)


def _spelled(dims: list[tuple[int | None, str]]) -> str:
    return "[" + ", ".join(name or ("?" if size is None or size < 0 else str(size)) for size, name in dims) + "]"
