"""Extract: an ONNX model of some nodes of a surveyed one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx

from libnpu.compiler.partition.survey import ValueType

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from libnpu.compiler.partition.survey import SourceNode, Survey


def extract(survey: Survey, nodes: Sequence[SourceNode], wanted: Collection[str], suffix: str = "") -> onnx.ModelProto:
    """Return a model of `nodes`, whose inputs are what they read of others and whose outputs are what they make of `wanted`.

    Constants are its initialisers. Names, operator sets and functions are the model's; its own name gets `suffix`.
    """
    made = [name for node in nodes for name in node.outputs]
    own, reads = set(made), list(dict.fromkeys(name for node in nodes for name in node.reads))
    model = onnx.ModelProto(ir_version=survey.model.ir_version, opset_import=survey.model.opset_import)
    model.functions.extend(survey.model.functions)
    graph = model.graph
    graph.name = (survey.model.graph.name or "model") + suffix
    for node in nodes:
        copy = graph.node.add()
        copy.CopyFrom(node.proto)
        copy.name = node.name
    for name in reads:
        if name in own:
            continue
        constant = survey.constants.get(name)
        if constant is None:
            _describe(graph.input.add(), name, survey.types[name])
        elif isinstance(constant, onnx.TensorProto):
            graph.initializer.add().CopyFrom(constant)
        else:
            graph.initializer.add().CopyFrom(onnx.numpy_helper.from_array(np.asarray(constant), name))
    for name in made:
        if name in wanted:
            _describe(graph.output.add(), name, survey.types[name])
    return model


def _describe(info: onnx.ValueInfoProto, name: str, known: ValueType) -> None:
    info.name = name
    if known.dtype is None:  # anything, a sequence for instance
        return
    dims = None if known.shape is None else [None if dim < 0 else dim for dim in known.shape]
    element = onnx.helper.np_dtype_to_tensor_dtype(known.dtype)
    info.type.CopyFrom(onnx.helper.make_tensor_type_proto(element, dims))
