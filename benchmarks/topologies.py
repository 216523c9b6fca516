"""Topologies of which only shapes count: initialisers without data, for plans and times. Inputs are images or embeddings."""

from __future__ import annotations

from typing import Any

from libnpu.tools.shapes import ShapeGraph

# Of YOLO v3 tiny: channels of the 3 x 3 convolutions in front, each with a pooling behind, the last of stride 1 (yolov3-tiny.cfg).
_YOLO = (16, 32, 64, 128, 256, 512)
_EARLY = 4  # whose result goes to the second scale, too


def yolo_v3_tiny() -> Any:
    """Return YOLO v3 tiny for an image of 416 x 416, its normalisations in weights and biases."""
    from onnx import TensorProto

    g = ShapeGraph(TensorProto.FLOAT)

    def conv(name: str, x: str, inputs: int, outputs: int, kernel: int, acts: bool = True) -> str:
        operands = g.weights(f"{name}.w", outputs, inputs, kernel, kernel), g.weights(f"{name}.b", outputs)
        made = g.node("Conv", name, x, *operands, pads=[kernel // 2] * 4)
        return g.node("LeakyRelu", f"{name}.act", made, alpha=0.1) if acts else made

    x, channels = g.end(g.inputs, "image", (1, 3, 416, 416)), 3
    for number, width in enumerate(_YOLO):
        x, channels = conv(f"front{number}", x, channels, width, 3), width
        if number == _EARLY:
            early = x
        stride, pads = (2, [0] * 4) if number < len(_YOLO) - 1 else (1, [0, 0, 1, 1])
        x = g.node("MaxPool", f"pool{number}", x, kernel_shape=[2, 2], strides=[stride] * 2, pads=pads)
    x = conv("neck", conv("deep", x, 512, 1024, 3), 1024, 256, 1)
    g.end(g.outputs, conv("large", conv("large.in", x, 256, 512, 3), 512, 255, 1, acts=False), (1, 255, 13, 13))
    twice = g.constant("twice", [1.0, 1.0, 2.0, 2.0])
    up = g.node("Resize", "up", conv("up.in", x, 256, 128, 1), "", twice, mode="nearest")
    joined = g.node("Concat", "joined", up, early, axis=1)
    g.end(g.outputs, conv("small", conv("small.in", joined, 384, 256, 3), 256, 255, 1, acts=False), (1, 255, 26, 26))
    return g.model("yolo_v3_tiny")


def bert(layers: int, hidden: int, heads: int, rows: int) -> Any:
    """Return the encoder layers of BERT over `rows` tokens, behind the look-up of their embeddings (Devlin et al., section 3)."""
    from onnx import TensorProto

    g, size = ShapeGraph(TensorProto.FLOAT), hidden // heads
    split, join = g.constant("split", [rows, heads, size]), g.constant("join", [rows, hidden])
    by, root, one, half = (
        g.constant(n, v) for n, v in (("by", size**-0.5), ("root", 0.5**0.5), ("one", 1.0), ("half", 0.5))
    )

    def linear(name: str, x: str, inputs: int, outputs: int) -> str:
        product = g.node("MatMul", f"{name}.product", x, g.weights(f"{name}.w", inputs, outputs))
        return g.node("Add", name, product, g.weights(f"{name}.b", outputs))

    def norm(name: str, x: str) -> str:
        return g.node(
            "LayerNormalization", name, x, g.weights(f"{name}.scale", hidden), g.weights(f"{name}.shift", hidden)
        )

    def heads_of(name: str, x: str, perm: list[int]) -> str:
        parts = g.node("Reshape", f"{name}.split", linear(name, x, hidden, hidden), split)
        return g.node("Transpose", f"{name}.heads", parts, perm=perm)

    def gelu(name: str, x: str) -> str:
        error = g.node("Erf", f"{name}.erf", g.node("Mul", f"{name}.in", x, root))
        return g.node("Mul", name, g.node("Mul", f"{name}.half", x, half), g.node("Add", f"{name}.one", error, one))

    x = g.end(g.inputs, "x", (rows, hidden))
    for n in range(layers):
        q, k, v = (heads_of(f"{n}.{w}", x, p) for w, p in (("q", [1, 0, 2]), ("k", [1, 2, 0]), ("v", [1, 0, 2])))
        scores = g.node("Mul", f"{n}.scale", g.node("MatMul", f"{n}.scores", q, k), by)
        context = g.node("MatMul", f"{n}.context", g.node("Softmax", f"{n}.softmax", scores, axis=-1), v)
        joined = g.node("Reshape", f"{n}.join", g.node("Transpose", f"{n}.rows", context, perm=[1, 0, 2]), join)
        x = norm(f"{n}.norm1", g.node("Add", f"{n}.add1", linear(f"{n}.o", joined, hidden, hidden), x))
        inner = gelu(f"{n}.gelu", linear(f"{n}.up", x, hidden, 4 * hidden))
        x = norm(f"{n}.norm2", g.node("Add", f"{n}.add2", linear(f"{n}.down", inner, 4 * hidden, hidden), x))
    g.end(g.outputs, x, (rows, hidden))
    return g.model("bert")
