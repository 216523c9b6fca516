"""Models by name for tools that measure shapes: real dimensions, seeded weights. `bert-layer`: one encoder layer of BERT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from libnpu.tools.console import ToolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

SEQ = 64  # rows of a sequence, when none are given: chosen
MAX_SEQ = 4096  # chosen: scores of 12 heads are 768 MiB then
HIDDEN, HEADS, INNER = 768, 12, 3072  # of BERT-base: Devlin et al., "BERT", 2019, section 3
OPSET, IR = 20, 9


def network_model(name: str, seq: int | None = None) -> Any:
    """Return the onnx.ModelProto of a name in NETWORKS, `seq` rows long. Raises ToolError for a length it cannot have."""
    rows = SEQ if seq is None else seq
    if not 1 <= rows <= MAX_SEQ:
        raise ToolError(f"--seq {rows}: a sequence has 1 to {MAX_SEQ} rows")
    return NETWORKS[name](rows)


class _Graph:
    """Collects the nodes and weights of a model in fp32."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._random = np.random.default_rng(0)

    def node(self, kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output, and return its name, which is the node's."""
        from onnx import helper

        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, name: str, value: Any) -> str:
        """Add a constant and return its name."""
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def linear(self, name: str, x: str, rows: int, columns: int) -> str:
        """Add x · W + b."""
        weights, bias = self._values(rows, columns), self._values(columns)
        product = self.node("MatMul", f"{name}_product", x, self.constant(f"{name}.weight", weights))
        return self.node("Add", name, product, self.constant(f"{name}.bias", bias))

    def norm(self, name: str, x: str) -> str:
        """Add a layer normalisation of rows."""
        scale = self.constant(f"{name}.scale", 1 + self._values(HIDDEN))
        return self.node("LayerNormalization", name, x, scale, self.constant(f"{name}.shift", self._values(HIDDEN)))

    def _values(self, *shape: int) -> NDArray[np.float32]:
        return self._random.standard_normal(shape, np.float32) * np.float32(0.02)


def bert_layer(rows: int) -> Any:
    """Return an encoder layer: attention of HEADS heads over `rows` rows, and the feed-forward network, each with a residual."""
    from onnx import TensorProto, helper

    g, size = _Graph(), HIDDEN // HEADS
    split = g.constant("split", np.array([rows, HEADS, size], np.int64))
    join = g.constant("join", np.array([rows, HIDDEN], np.int64))

    def heads(name: str, axes: list[int]) -> str:
        parts = g.node("Reshape", f"{name}_split", g.linear(name, "x", HIDDEN, HIDDEN), split)
        return g.node("Transpose", f"{name}_heads", parts, perm=axes)

    query, key, value = heads("q", [1, 0, 2]), heads("k", [1, 2, 0]), heads("v", [1, 0, 2])
    scores = g.node("MatMul", "scores", query, key)
    scaled = g.node("Mul", "scale", scores, g.constant("scale.by", np.float32(size**-0.5)))
    context = g.node("MatMul", "context", g.node("Softmax", "softmax", scaled, axis=-1), value)
    joined = g.node("Reshape", "join_heads", g.node("Transpose", "context_rows", context, perm=[1, 0, 2]), join)
    attended = g.node("Add", "attention_residual", g.linear("projection", joined, HIDDEN, HIDDEN), "x")
    normed = g.norm("attention_norm", attended)
    inner = g.node("Gelu", "gelu", g.linear("ffn_up", normed, HIDDEN, INNER))
    g.norm("y", g.node("Add", "ffn_residual", g.linear("ffn_down", inner, INNER, HIDDEN), normed))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (rows, HIDDEN)) for name in ("x", "y")]
    graph = helper.make_graph(g.nodes, "bert-layer", ends[:1], ends[1:], g.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)


NETWORKS: dict[str, Callable[[int], Any]] = {"bert-layer": bert_layer}
