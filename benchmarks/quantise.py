"""A model in int8 as quantisers write it: QuantizeLinear and DequantizeLinear around what operations read, weights by channel, biases in int32.

Scales are chosen, not measured: times do not depend on values. One scale for all activations, as quantisers for NPUs give the two sides of an addition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

SCALE = np.float32(0.05)
_WEIGHTED = ("Conv", "Gemm", "MatMul")
_QUANTISED = (*_WEIGHTED, "Add", "Sum", "MaxPool", "GlobalAveragePool")


def quantised(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model`, which has its initialisers' data, in int8."""
    from onnx import helper, numpy_helper

    nodes, constants = _folded(model)
    made: list[Any] = []
    kept: dict[str, NDArray[Any]] = {"int8.scale": np.asarray(SCALE), "int8.zero": np.array(0, np.int8)} | constants
    done: dict[str, str] = {}

    def activation(name: str) -> str:
        if name not in done:
            made.append(helper.make_node("QuantizeLinear", [name, "int8.scale", "int8.zero"], [f"{name}.q"]))
            made.append(helper.make_node("DequantizeLinear", [f"{name}.q", "int8.scale", "int8.zero"], [f"{name}.dq"]))
            done[name] = f"{name}.dq"
        return done[name]

    def constant(name: str, scale: NDArray[np.float32], dtype: Any, axis: int) -> str:
        array, most = constants[name], np.iinfo(dtype).max
        laid = scale.reshape([-1 if k == axis else 1 for k in range(array.ndim)])
        kept[f"{name}.int"] = np.clip(np.rint(array / laid), -most, most).astype(dtype)
        kept[f"{name}.scale"] = scale
        made.append(helper.make_node("DequantizeLinear", [f"{name}.int", f"{name}.scale"], [f"{name}.dq"], axis=axis))
        return f"{name}.dq"

    for node in nodes:
        inputs = list(node.input)
        if node.op_type in _QUANTISED:
            inputs = [name if name in constants else activation(name) for name in inputs]
        if node.op_type in _WEIGHTED:
            weights = constants[inputs[1]]
            turned = any(item.name == "transB" and item.i for item in node.attribute)
            axis = 0 if node.op_type == "Conv" or turned else weights.ndim - 1
            others = tuple(k for k in range(weights.ndim) if k != axis)
            scale = (np.maximum(np.abs(weights).max(axis=others), 1e-8) / 127).astype(np.float32)
            inputs[1] = constant(inputs[1], scale, np.int8, axis)
            inputs[2:] = [constant(name, SCALE * scale, np.int32, 0) for name in inputs[2:]]
        made.append(helper.make_node(node.op_type, inputs, list(node.output), name=node.name))
        made[-1].attribute.extend(node.attribute)
    used = {name for node in made for name in node.input}
    tensors = [numpy_helper.from_array(array, name) for name, array in kept.items() if name in used]
    graph = helper.make_graph(made, model.graph.name, model.graph.input, model.graph.output, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def _folded(model: onnx.ModelProto) -> tuple[list[Any], dict[str, NDArray[Any]]]:
    """Return nodes and constants with normalisations behind convolutions in their weights and biases."""
    from onnx import helper, numpy_helper

    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    places: dict[str, int] = {}
    nodes: list[Any] = []
    for node in model.graph.node:
        place = places.get(node.input[0], -1) if node.op_type == "BatchNormalization" else -1
        if place >= 0:
            conv, (scale, shift, mean, variance) = nodes[place], (constants[name] for name in node.input[1:5])
            epsilon = next((item.f for item in node.attribute if item.name == "epsilon"), 1e-5)
            factor, name = scale / np.sqrt(variance + epsilon), conv.output[0]
            bias = constants[conv.input[2]] if len(conv.input) > 2 else np.float32(0)
            constants[f"{name}.w"] = (constants[conv.input[1]] * factor[:, None, None, None]).astype(np.float32)
            constants[f"{name}.b"] = ((bias - mean) * factor + shift).astype(np.float32)
            inputs = [conv.input[0], f"{name}.w", f"{name}.b"]
            nodes[place] = helper.make_node("Conv", inputs, node.output, name=conv.name)
            nodes[place].attribute.extend(conv.attribute)
            continue
        places |= {node.output[0]: len(nodes)} if node.op_type == "Conv" else {}
        nodes.append(node)
    return nodes, constants
