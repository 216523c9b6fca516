"""The container of a model in parts: a zip archive, nothing compressed, the same bytes for the same parts.

`manifest.json` comes first and says what the archive holds; then `partN.blob` of parts on the NPU and `partN.onnx` of parts on the
host, in the order in which they run. Values pass from part to part, and from and to the caller, by name.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_model import dtypes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAGIC = b"PK\x03\x04"  # what a zip archive with a file in it begins with
FORMAT, VERSION = "libnpu model in parts", 1
MANIFEST = "manifest.json"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the archive has no times


class PartsError(ValueError):
    """Bytes that are no model in parts, or a damaged one; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value by name. `dtype` is a short name (`npu_model.dtypes`), "" of what only hosts pass on; -1 in `shape` is known in a run."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def is_static(self) -> bool:
        """Whether type and shape are known."""
        return bool(self.dtype) and min(self.shape, default=0) >= 0

    @property
    def size_bytes(self) -> int:
        """Bytes of a static one, 0 of others."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.numpy_dtype.itemsize if self.is_static else 0

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return dtypes.numpy_dtype(self.code)

    @property
    def code(self) -> int:
        """The type as enum npu_dtype. Raises DtypeError for one that the NPU does not have."""
        return dtypes.code_of_name(self.dtype)


@dataclass(frozen=True, slots=True)
class HostNode:
    """A source node that the host evaluates, and why the NPU does not."""

    name: str
    op: str
    reason: str


@dataclass(frozen=True, slots=True)
class NpuPart:
    """A blob. `nodes` are the source nodes that it stands for, by name, `macs` what its matrix engine multiplies."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...]
    macs: int
    blob: bytes


@dataclass(frozen=True, slots=True)
class HostPart:
    """An ONNX model that `evaluator` runs (see `evaluator.py`). `macs` None: nobody has counted them."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[HostNode, ...]
    macs: int | None
    evaluator: str
    model: bytes


Part = NpuPart | HostPart


@dataclass(frozen=True, slots=True)
class PartedModel:
    """`tensors` are all values that cross, by name, those of the caller included."""

    name: str
    profile: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: Mapping[str, Tensor]
    parts: tuple[Part, ...]

    @property
    def host_nodes(self) -> list[HostNode]:
        return [node for part in self.parts if isinstance(part, HostPart) for node in part.nodes]

    @property
    def npu_parts(self) -> list[NpuPart]:
        return [part for part in self.parts if isinstance(part, NpuPart)]

    def sides(self) -> dict[str, set[type[Part]]]:
        """Return value -> the kinds of part that read it, for values that a part makes or the caller gives."""
        found: dict[str, set[type[Part]]] = {name: set() for name in self.tensors}
        for part in self.parts:
            for name in part.inputs:
                found[name].add(type(part))
        return found

    def made_on_host(self) -> set[str]:
        """Return the values that host parts make."""
        return {name for part in self.parts if isinstance(part, HostPart) for name in part.outputs}

    def to_host(self) -> list[Tensor]:
        """Return what the NPU makes and the host reads: copied out of device memory."""
        sides, hosts = self.sides(), self.made_on_host()
        made = [name for part in self.npu_parts for name in part.outputs]
        return [self.tensors[name] for name in made if HostPart in sides[name] and name not in hosts]

    def to_npu(self) -> list[Tensor]:
        """Return what the host makes and the NPU reads: copied into device memory."""
        sides = self.sides()
        made = [name for part in self.parts if isinstance(part, HostPart) for name in part.outputs]
        return [self.tensors[name] for name in made if NpuPart in sides[name]]


def pack(model: PartedModel) -> bytes:
    """Return the container of `model`."""
    files: dict[str, bytes] = {}
    parts: list[dict[str, Any]] = []
    for number, part in enumerate(model.parts):
        entry: dict[str, Any] = {"inputs": list(part.inputs), "outputs": list(part.outputs), "macs": part.macs}
        if isinstance(part, NpuPart):
            name = f"part{number}.blob"
            files[name] = part.blob
            entry |= {"on": "npu", "nodes": list(part.nodes)}
        else:
            name = f"part{number}.onnx"
            files[name] = part.model
            nodes = [{"name": node.name, "op": node.op, "reason": node.reason} for node in part.nodes]
            entry |= {"on": "host", "evaluator": part.evaluator, "nodes": nodes}
        parts.append({"file": name, **entry})
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "name": model.name,
        "profile": model.profile,
        "inputs": list(model.inputs),
        "outputs": list(model.outputs),
        "tensors": [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in model.tensors.values()],
        "parts": parts,
    }
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED) as archive:
        for name, content in {MANIFEST: (json.dumps(manifest, indent=1) + "\n").encode(), **files}.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), content)
    return data.getvalue()


def unpack(data: bytes) -> PartedModel:
    """Return what a container holds. Raises PartsError."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            manifest = json.loads(archive.read(MANIFEST))
            if manifest["format"] != FORMAT:
                raise PartsError(f"an archive of format {manifest['format']!r}; expected {FORMAT!r}")
            if manifest["version"] != VERSION:
                raise PartsError(f"version {manifest['version']} of the container; {VERSION} is known")
            tensors = {
                str(entry["name"]): Tensor(str(entry["name"]), str(entry["dtype"]), tuple(map(int, entry["shape"])))
                for entry in manifest["tensors"]
            }
            parts = tuple(_part(entry, archive.read(entry["file"])) for entry in manifest["parts"])
            model = PartedModel(
                str(manifest["name"]),
                str(manifest["profile"]),
                _names(manifest["inputs"]),
                _names(manifest["outputs"]),
                tensors,
                parts,
            )
    except PartsError:
        raise
    except (
        zipfile.BadZipFile,
        EOFError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        NotImplementedError,
    ) as error:
        raise PartsError(f"a damaged model in parts: {type(error).__name__}: {error}") from None
    _check(model)
    return model


def _part(entry: Mapping[str, Any], content: bytes) -> Part:
    inputs, outputs = _names(entry["inputs"]), _names(entry["outputs"])
    if entry["on"] == "npu":
        return NpuPart(inputs, outputs, _names(entry["nodes"]), int(entry["macs"]), content)
    if entry["on"] != "host":
        raise PartsError(f"a part on {entry['on']!r}; there are 'npu' and 'host'")
    nodes = tuple(HostNode(str(node["name"]), str(node["op"]), str(node["reason"])) for node in entry["nodes"])
    macs = None if entry["macs"] is None else int(entry["macs"])
    return HostPart(inputs, outputs, nodes, macs, str(entry["evaluator"]), content)


def _names(given: Sequence[Any]) -> tuple[str, ...]:
    return tuple(str(name) for name in given)


def _check(model: PartedModel) -> None:
    """Raise PartsError unless every value is made before it is used, once, and known where the NPU or the caller sees it."""
    made = set(model.inputs)
    for number, part in enumerate(model.parts):
        for name in part.inputs:
            if name not in made:
                raise PartsError(f"part {number} reads {name!r}, which nothing before it makes")
        for name in part.outputs:
            if name in made:
                raise PartsError(f"part {number} makes {name!r} again")
            made.add(name)
    npu = {name for part in model.npu_parts for name in (*part.inputs, *part.outputs)}
    for name in (*made, *model.outputs):
        if name not in model.tensors or name not in made:
            raise PartsError(f"value {name!r} is used, and is not described or not made")
    for name in (*npu, *model.inputs):
        tensor = model.tensors[name]
        if not tensor.is_static:
            raise PartsError(f"value {name!r} has no static type and shape")
        try:
            _ = tensor.code
        except dtypes.DtypeError as error:
            raise PartsError(f"value {name!r}: {error}") from None
