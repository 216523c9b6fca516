"""Models by name of which only shapes count: initialisers without data, for plans and times.

`resnet50-shape`: He et al., "Deep Residual Learning for Image Recognition", 2016, table 1, stride in the 3 x 3 convolution, normalisation
in weights and biases. `llama7b-shape`: Touvron et al., "LLaMA", 2023, table 2, 7B: one token behind a cache of 1023.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OPSET, IR = 17, 9
STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # of ResNet-50: channels of the 3 x 3 convolutions, blocks
CLASSES = 1000
LAYERS, HIDDEN, HEADS, INNER, VOCABULARY = 32, 4096, 32, 11008, 32000
PAST = 1023  # tokens in the cache, chosen: a context of 1024 with the new one


class ShapeGraph:
    """Collects nodes, inputs, outputs and initialisers of one floating-point type."""

    def __init__(self, element: int) -> None:
        self.element = element
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def node(self, kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output, and return its name, which is the node's."""
        from onnx import helper

        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def weights(self, name: str, *shape: int) -> str:
        """Add an initialiser without data, and return its name."""
        from onnx import TensorProto

        self.constants.append(TensorProto(name=name, data_type=self.element, dims=shape))
        return name

    def constant(self, name: str, value: Any) -> str:
        """Add a constant with its value, integers as they are, and return its name."""
        from onnx import helper, numpy_helper

        array = np.asarray(value)
        if array.dtype.kind == "f":
            array = array.astype(helper.tensor_dtype_to_np_dtype(self.element))
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def end(self, ends: list[Any], name: str, shape: Sequence[int]) -> str:
        """Make a value an input or an output of the model, and return its name."""
        from onnx import helper

        ends.append(helper.make_tensor_value_info(name, self.element, shape))
        return name

    def model(self, name: str) -> Any:
        from onnx import helper

        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)


def resnet50() -> Any:
    """Return ResNet-50 for one image of 224 x 224."""
    from onnx import TensorProto

    g = ShapeGraph(TensorProto.FLOAT)

    def conv(name: str, x: str, inputs: int, outputs: int, kernel: int, stride: int = 1) -> str:
        weights, bias = g.weights(f"{name}.weight", outputs, inputs, kernel, kernel), g.weights(f"{name}.bias", outputs)
        return g.node("Conv", name, x, weights, bias, strides=[stride] * 2, pads=[kernel // 2] * 4)

    x = g.node("Relu", "stem/relu", conv("stem", g.end(g.inputs, "image", (1, 3, 224, 224)), 3, 64, 7, 2))
    x, channels = g.node("MaxPool", "pool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 64
    for number, (width, blocks) in enumerate(STAGES, 1):
        for block in range(blocks):
            name, stride = f"stage{number}.{block}", 2 if number > 1 and block == 0 else 1
            y = g.node("Relu", f"{name}/relu1", conv(f"{name}/conv1", x, channels, width, 1))
            y = g.node("Relu", f"{name}/relu2", conv(f"{name}/conv2", y, width, width, 3, stride))
            y = conv(f"{name}/conv3", y, width, 4 * width, 1)
            x = x if block else conv(f"{name}/project", x, channels, 4 * width, 1, stride)
            x, channels = g.node("Relu", f"{name}/relu3", g.node("Add", f"{name}/add", y, x)), 4 * width
    x = g.node("Flatten", "flatten", g.node("GlobalAveragePool", "average", x))
    weights = g.weights("classes.weight", channels, CLASSES), g.weights("classes.bias", CLASSES)
    g.end(g.outputs, g.node("Gemm", "classes", x, *weights), (1, CLASSES))
    return g.model("resnet50-shape")


def llama7b(layers: int = LAYERS) -> Any:
    """Return the decoder for one token: its input is the token's row of the embedding, its outputs are scores and the cache's new rows."""
    from onnx import TensorProto

    g, size = ShapeGraph(TensorProto.FLOAT16), HIDDEN // HEADS
    split, join = g.constant("split", [1, HEADS, size]), g.constant("join", [1, HIDDEN])
    halves, epsilon, by = (
        g.constant("halves", [size // 2] * 2),
        g.constant("epsilon", 1e-5),
        g.constant("by", size**-0.5),
    )
    turns = [g.end(g.inputs, name, (1, 1, size)) for name in ("cos", "sin")]

    def linear(name: str, x: str, inputs: int, outputs: int) -> str:
        return g.node("MatMul", name, x, g.weights(f"{name}.weight", inputs, outputs))

    def norm(name: str, x: str) -> str:
        square = g.node("ReduceMean", f"{name}/mean", g.node("Mul", f"{name}/square", x, x), axes=[-1], keepdims=1)
        root = g.node("Sqrt", f"{name}/root", g.node("Add", f"{name}/epsilon", square, epsilon))
        return g.node("Mul", name, g.node("Div", f"{name}/divide", x, root), g.weights(f"{name}.weight", HIDDEN))

    def heads(name: str, x: str) -> str:
        return g.node("Reshape", f"{name}_heads", linear(name, x, HIDDEN, HIDDEN), split)

    def turned(name: str, x: str) -> str:
        from onnx import helper

        parts = [f"{name}/first", f"{name}/second"]
        g.nodes.append(helper.make_node("Split", [x, halves], parts, name=f"{name}/split", axis=2))
        other = g.node("Concat", f"{name}/turn", g.node("Neg", f"{name}/minus", parts[1]), parts[0], axis=2)
        straight, across = g.node("Mul", f"{name}/cos", x, turns[0]), g.node("Mul", f"{name}/sin", other, turns[1])
        return g.node("Add", name, straight, across)

    def cached(name: str, x: str) -> str:
        row = g.end(g.outputs, g.node("Transpose", f"{name}_row", x, perm=[1, 0, 2]), (HEADS, 1, size))
        return g.node("Concat", f"{name}_all", g.end(g.inputs, f"{name}_past", (HEADS, PAST, size)), row, axis=1)

    x = g.end(g.inputs, "x", (1, HIDDEN))
    for n in range(layers):
        at = f"layers.{n}"
        normed = norm(f"{at}/norm1", x)
        q, k = (turned(f"{at}/{w}_turned", heads(f"{at}/{w}", normed)) for w in "qk")
        keys, values = cached(f"{at}/k", k), cached(f"{at}/v", heads(f"{at}/v", normed))
        query = g.node("Transpose", f"{at}/q_rows", q, perm=[1, 0, 2])
        scores = g.node("MatMul", f"{at}/scores", query, g.node("Transpose", f"{at}/k_columns", keys, perm=[0, 2, 1]))
        weights = g.node("Softmax", f"{at}/softmax", g.node("Mul", f"{at}/scale", scores, by), axis=-1)
        context = g.node("Transpose", f"{at}/rows", g.node("MatMul", f"{at}/context", weights, values), perm=[1, 0, 2])
        joined = g.node("Reshape", f"{at}/join", context, join)
        x = g.node("Add", f"{at}/add1", x, linear(f"{at}/o", joined, HIDDEN, HIDDEN))
        normed = norm(f"{at}/norm2", x)
        gate, up = linear(f"{at}/gate", normed, HIDDEN, INNER), linear(f"{at}/up", normed, HIDDEN, INNER)
        silu = g.node("Mul", f"{at}/silu", gate, g.node("Sigmoid", f"{at}/sigmoid", gate))
        x = g.node("Add", f"{at}/add2", x, linear(f"{at}/down", g.node("Mul", f"{at}/gated", silu, up), INNER, HIDDEN))
    g.end(g.outputs, linear("scores", norm("norm", x), HIDDEN, VOCABULARY), (1, VOCABULARY))
    return g.model("llama7b-shape")


SHAPES: dict[str, Callable[[], Any]] = {"resnet50-shape": resnet50, "llama7b-shape": llama7b}
