"""Where the weights of an ONNX file lie: the offset of each one's bytes, in the file or in one beside it. A file is mapped at a page, so that what is aligned there is in memory."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx

    Span = tuple[int, int]  # first byte, and the one behind the last

# Field numbers of ModelProto; GraphProto; NodeProto; AttributeProto; TensorProto (onnx.proto).
_GRAPH = 7
_NODE, _INITIALIZER = 1, 5
_OUTPUT, _ATTRIBUTE = 2, 5
_TENSOR = 5
_NAME = 8
_IN_PLACE = (4, 9, 10)  # float_data and double_data, which are packed, and raw_data
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


class Place(NamedTuple):
    """A weight's bytes in a file. `offset` None: its numbers are encoded one by one, so that it has no bytes of its own."""

    name: str
    file: str
    offset: int | None
    size_bytes: int

    def is_aligned(self, align: int) -> bool:
        """Whether it begins at a multiple of `align` bytes."""
        return self.offset is not None and self.offset % align == 0


def is_weight(tensor: onnx.TensorProto) -> bool:
    """Whether an initialiser holds numbers to compute with, of which there are several: no shape, no axis, no scalar."""
    from onnx import TensorProto

    indices = (TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING)
    return tensor.data_type not in indices and prod(tensor.dims) > 1


def weights_of(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Yield name and tensor of the weights of a graph: initialisers, and those of Constant nodes."""
    constants = [(tensor.name, tensor) for tensor in graph.initializer]
    for node in graph.node:
        if node.op_type == "Constant":
            constants += [(node.output[0], item.t) for item in node.attribute if item.name == "value"]
    yield from ((name, tensor) for name, tensor in constants if is_weight(tensor))


class _Anything:
    """The operators of other domains: what they are does not matter here."""

    def __contains__(self, operator: object) -> bool:
        return True


def check_valid(model: str | onnx.ModelProto) -> None:
    """Raise what `read_model` does for a file, or a model with its data, that is not valid, whatever its operators are."""
    from libnpu.compiler.frontend.source import read_model

    read_model(model, foreign=_Anything())


def places(path: str) -> list[Place]:
    """Return where each weight of the model at `path` lies. Raises what `check_valid` does."""
    import onnx

    from libnpu.compiler.frontend.source import parse

    check_valid(path)
    model = parse(path)
    inside = dict(_inside(Path(path).read_bytes()))
    found = []
    for name, tensor in weights_of(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            size = -(-prod(tensor.dims) * _bits(tensor) // 8)
            location = entries.get("location", "")
            found.append(Place(name, location, int(entries.get("offset", 0)), int(entries.get("length", size))))
        else:
            offset, size = inside.get(name, (None, 0))
            found.append(Place(name, Path(path).name, offset, size))
    return found


def _bits(tensor: onnx.TensorProto) -> int:
    """Return the bits that an element takes in a file: numbers of less than a byte share one."""
    import ml_dtypes
    import onnx

    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return int(ml_dtypes.iinfo(dtype).bits) if dtype.name in ("int2", "uint2", "int4", "uint4") else 8 * dtype.itemsize


def _inside(data: bytes) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the name of each initialiser or Constant, and offset and size of its bytes in the file."""
    for graph in _of(data, (0, len(data)), _GRAPH):
        for tensor in _of(data, graph, _INITIALIZER):
            yield from _bytes(data, tensor, _of(data, tensor, _NAME))
        for node in _of(data, graph, _NODE):
            for attribute in _of(data, node, _ATTRIBUTE):
                for tensor in _of(data, attribute, _TENSOR):
                    yield from _bytes(data, tensor, _of(data, node, _OUTPUT))


def _bytes(data: bytes, tensor: Span, names: list[Span]) -> Iterator[tuple[str, tuple[int, int]]]:
    for field in _IN_PLACE:
        for start, end in _of(data, tensor, field):
            yield data[slice(*names[0])].decode(), (start, end - start)


def _of(data: bytes, message: Span, wanted: int) -> list[Span]:
    return [(start, end) for number, start, end in _fields(data, *message) if number == wanted]


def _fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each field of a message that has a length."""
    while start < end:
        key, start = _varint(data, start)
        number, kind = key >> 3, key & 7
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
        if kind in (_VARINT, _BYTES):
            value, start = _varint(data, start)
            size = value if kind == _BYTES else 0
        if kind == _BYTES:
            yield number, start, start + size
        start += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
