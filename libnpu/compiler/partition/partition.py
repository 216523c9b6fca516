"""The order of the partition's steps, and the container that comes out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npu_model import dtypes

from libnpu.compiler.partition.clusters import clusters
from libnpu.compiler.partition.extract import extract
from libnpu.compiler.partition.survey import reason_of, survey
from libnpu.compiler.partition.work import macs_of
from libnpu.errors import Unimplemented, Unsupported
from libnpu.parts import HostNode, HostPart, NpuPart, PartedModel, Tensor, evaluator_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx

    from libnpu.compiler.options import CompileOptions
    from libnpu.compiler.partition.survey import SourceNode, Survey, ValueType
    from libnpu.compiler.pipeline import Compiled


@dataclass(slots=True, eq=False)
class Partitioned:
    """A model in parts; `compiled` are those on the NPU, in order, `notes` what a person should know of the whole."""

    model: PartedModel
    compiled: list[Compiled]
    notes: list[str]


def partition(
    model: onnx.ModelProto,
    options: CompileOptions,
    compile_part: Callable[[onnx.ModelProto, CompileOptions], Compiled],
    refusal: Unsupported | Unimplemented,
) -> Partitioned:
    """Return a checked model in parts, of which `compile_part` makes blobs. `refusal` is why the NPU alone does not do it.

    What a part's later stages cannot do goes to the host as well, by the source node that they name. Raises ModelError; `refusal`
    where it speaks of no node; Unsupported, naming a node, for what no evaluator runs either.
    """
    refused: dict[str, str] = {}
    while True:
        found = survey(model, options.shapes, refused)
        more = _blamed(found, refusal)
        if not found.host and not more and not found.without:
            raise refusal
        if more:
            refused |= more
            found = survey(model, options.shapes, refused)
        parts = clusters(found)
        evaluators = [_evaluator(found, part) for part in parts if part[0].reason]
        try:
            return _assembled(found, parts, evaluators, options, compile_part)
        except _PartRefused as error:
            refusal = error.refusal
            if not _blamed(found, refusal):
                raise refusal from None


def reasons_of(model: onnx.ModelProto, options: CompileOptions, refusal: Unsupported | Unimplemented) -> list[str]:
    """Return why nodes of a checked model would run on the host, as far as one look shows, a line for each."""
    found = survey(model, options.shapes, {})
    blamed = _blamed(found, refusal)
    reasons = {node.name: node.reason or blamed.get(node.name, "") for node in found.nodes}
    return [f"node {name}: {reason}" for name, reason in reasons.items() if reason]


class _PartRefused(Exception):
    """A part that was thought to be the NPU's is not."""

    def __init__(self, refusal: Unsupported | Unimplemented) -> None:
        super().__init__(refusal)
        self.refusal = refusal


def _blamed(found: Survey, refusal: Unsupported | Unimplemented) -> dict[str, str]:
    """Return the nodes on the NPU that a stage behind the import says it cannot do, with the reason."""
    names = {node.name for node in found.nodes if not node.reason}
    blamed = {}
    for layer in refusal.layers:
        pieces = layer.split("/")
        tops = (
            "/".join(pieces[:count]) for count in range(len(pieces), 0, -1)
        )  # a node inside of another has its name in front
        top = next((name for name in tops if name in names), None)
        if top is not None:
            blamed[top] = reason_of(refusal, top)
    return blamed


def _evaluator(found: Survey, part: Sequence[SourceNode]) -> str:
    """Return what runs a part on the host. Raises Unsupported naming the first node that nothing runs."""
    try:
        return evaluator_of(extract(found, part, {name for node in part for name in node.outputs}))
    except Unsupported as whole:
        for node in part:
            try:
                evaluator_of(extract(found, [node], node.outputs))
            except Unsupported as error:
                raise Unsupported(f"node {node.name}: {node.reason}; {error.message}") from None
        raise Unsupported(f"node {part[0].name}: {part[0].reason}; {whole.message}") from None


def _assembled(
    found: Survey,
    parts: Sequence[Sequence[SourceNode]],
    evaluators: Sequence[str],
    options: CompileOptions,
    compile_part: Callable[[onnx.ModelProto, CompileOptions], Compiled],
) -> Partitioned:
    evaluator = iter(evaluators)
    taken: list[set[str]] = [{name for node in part for name in node.reads} for part in parts]
    made_parts: list[NpuPart | HostPart] = []
    blobs: list[Compiled] = []
    for index, part in enumerate(parts):
        wanted = set(found.outputs).union(*taken[:index], *taken[index + 1 :])
        model = extract(found, part, wanted, f".part{index}")
        inputs = tuple(info.name for info in model.graph.input)
        outputs = tuple(info.name for info in model.graph.output)
        if part[0].reason:
            nodes = tuple(HostNode(node.name, node.proto.op_type, node.reason) for node in part)
            counts = [macs_of(found, node) for node in part]
            macs = None if None in counts else sum(filter(None, counts))
            made_parts.append(HostPart(inputs, outputs, nodes, macs, next(evaluator), model.SerializeToString()))
            continue
        try:
            compiled = compile_part(model, dataclasses.replace(options, shapes={}))
        except (Unsupported, Unimplemented) as error:
            raise _PartRefused(error) from None
        blobs.append(compiled)
        made_parts.append(
            NpuPart(inputs, outputs, tuple(node.name for node in part), compiled.image.macs, compiled.blob)
        )
    names = dict.fromkeys(
        [*found.inputs, *found.outputs, *(name for part in made_parts for name in (*part.inputs, *part.outputs))]
    )
    tensors = {name: _tensor(name, found.types) for name in names}
    name = found.model.graph.name or "model"
    parted = PartedModel(
        name, _profile(blobs, options), tuple(found.inputs), tuple(found.outputs), tensors, tuple(made_parts)
    )
    return Partitioned(parted, blobs, found.notes)


def _profile(blobs: Sequence[Compiled], options: CompileOptions) -> str:
    from npu_model.profile import load_profile

    return blobs[0].image.profile if blobs else load_profile(options.profile).name


def _tensor(name: str, types: Mapping[str, ValueType]) -> Tensor:
    known = types[name]
    try:
        dtype = "" if known.dtype is None else dtypes.name(dtypes.code_of_numpy(known.dtype))
    except dtypes.DtypeError:
        dtype = ""  # hosts may pass it on
    return Tensor(name, dtype, (-1,) if known.shape is None else known.shape)
