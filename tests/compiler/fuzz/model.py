"""A model that is drawn: its nodes, the arrays of its inputs and constants, and what the oracle says of every value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import ml_dtypes
import numpy as np
from onnx import helper, numpy_helper

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
IR_VERSION = 10


@dataclass(frozen=True, slots=True)
class Node:
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, object]
    domain: str = ""


@dataclass(slots=True)
class Model:
    """A model with its inputs' arrays in `feeds`, and the oracle's arrays of all values in `values`."""

    opset: int
    nodes: list[Node] = field(default_factory=list)
    feeds: dict[str, np.ndarray] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    values: dict[str, np.ndarray] = field(default_factory=dict)

    def proto(self):
        """Return the ONNX model, with types and shapes of its ends only."""
        nodes = [
            helper.make_node(n.op, n.inputs, n.outputs, f"{n.op}_{i}", domain=n.domain, **n.attrs)
            for i, n in enumerate(self.nodes)
        ]
        inputs = [info(name, array) for name, array in self.feeds.items()]
        outputs = [info(name, self.values[name]) for name in self.outputs]
        tensors = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph(nodes, "fuzz", inputs, outputs, tensors)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)

    def text(self):
        """Return the model in lines for people."""
        lines = [f"opset {self.opset}"]
        lines += [f"input {name}: {shown(array)}" for name, array in self.feeds.items()]
        lines += [f"constant {name}: {shown(array)}" for name, array in self.constants.items()]
        for node in self.nodes:
            attrs = "".join(f", {key}={value!r}" for key, value in node.attrs.items())
            made = ", ".join(
                f"{name} {self.values[name].dtype}{list(self.values[name].shape)}" for name in node.outputs if name
            )
            lines.append(f"{made} = {node.op}({', '.join(node.inputs)}{attrs})")
        return "\n".join([*lines, f"outputs {', '.join(self.outputs)}"])

    def pruned(self):
        """Return the model with only what its outputs need."""
        needed, kept = set(self.outputs), []
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs):
                kept.append(node)
                needed.update(node.inputs)
        feeds = {name: array for name, array in self.feeds.items() if name in needed}
        constants = {name: array for name, array in self.constants.items() if name in needed}
        return replace(self, nodes=kept[::-1], feeds=feeds, constants=constants)


def info(name, array):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def shown(array):
    content = f" {array.ravel().tolist()}" if array.size <= 12 else ""
    return f"{array.dtype}{list(array.shape)}{content}"


def is_float(dtype):
    return dtype.kind == "f" or dtype == BFLOAT16
