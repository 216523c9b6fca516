"""Channel blocks: how many channels lie together in models that onnxruntime's optimiser wrote for the vectors of one machine.

Such models have operators of com.microsoft.nchwc, and say the number nowhere. It follows from channels that are filled up, if there are any; else
the model means what onnxruntime would take it for here.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from libnpu.compiler.frontend.nested import all_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping

DOMAIN = "com.microsoft.nchwc"
BLOCKS = (16, 8)  # what onnxruntime has: of AVX-512 and ARM64, and of other x86
CPU_INFO = Path("/proc/cpuinfo")


def mark_blocks(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the attribute `block` in each blocked node, and `guessed` where the model says no other; the same model if it has none."""
    if not any(node.domain == DOMAIN for node in all_nodes(model.graph)):
        return model
    if any(item.name == "block" for node in all_nodes(model.graph) for item in node.attribute if node.domain == DOMAIN):
        return model  # a part of a model that was marked
    stated = stated_block(model.graph)
    attributes = {"block": stated} if stated else {"block": machines_block(), "guessed": 1}
    marked = onnx.ModelProto()
    marked.CopyFrom(model)
    for node in all_nodes(marked.graph):
        if node.domain == DOMAIN:
            node.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in attributes.items())
    return marked


def guess_of(graph: onnx.GraphProto) -> list[str]:
    """Return what to say of a marked model whose block is a guess."""
    for node in all_nodes(graph):
        found = {item.name: item.i for item in node.attribute if node.domain == DOMAIN}
        if "guessed" in found:
            return [
                f"node {node.name}: channels are taken for blocks of {found['block']}, as onnxruntime has them on this machine"
            ]
    return []


def stated_block(graph: onnx.GraphProto) -> int:
    """Return the block that the counts of channels, padded and not, allow; 0 where they allow both, or none."""
    padded = {tensor.name: tensor.dims[0] for tensor in graph.initializer if len(tensor.dims) == 4}
    makers = {name: node for node in all_nodes(graph) for name in node.output}
    possible = set(BLOCKS)
    for node in all_nodes(graph):
        if node.domain != DOMAIN:
            continue
        if node.op_type == "Conv" and node.input[1] in padded:
            possible = {block for block in possible if padded[node.input[1]] % block == 0}
        if node.op_type == "ReorderOutput":
            channels = next((item.i for item in node.attribute if item.name == "channels"), 0)
            above = _convolution_above(node, makers)
            count = None if above is None else padded.get(above.input[1])
            if channels and count:
                possible = {block for block in possible if -(-channels // block) * block == count}
    return possible.pop() if len(possible) == 1 else 0


def _convolution_above(node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto]) -> onnx.NodeProto | None:
    """Return the blocked convolution whose channels a node gets through others, by their first operands; None if there is none."""
    for _ in makers:  # a circle has no more
        maker = makers.get(node.input[0]) if node.input and node.op_type != "Concat" else None
        if maker is None or (maker.domain, maker.op_type) == (DOMAIN, "Conv"):
            return maker
        node = maker
    return None


def machines_block() -> int:
    """Return the block that onnxruntime takes on this machine, where alone it would run a model that says no other."""
    if platform.machine() in ("aarch64", "arm64"):
        return BLOCKS[0]
    try:
        return BLOCKS[0] if " avx512f" in CPU_INFO.read_text() else BLOCKS[1]
    except OSError:
        return BLOCKS[1]
