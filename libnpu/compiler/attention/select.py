"""SelectAttentionPath: how each attention of a graph is computed, and why.

    prefill, long, and the kernel can do it -> flash
    decode, and the kernel can do it        -> incremental
    else                                    -> decompose

Decode is one query for each head, prefill are more. Long is an attention whose scores would not live in CMX. `decompose` leaves
the graph as it is: product, scale, mask, softmax, product. The others become one operator each, which the lowering unrolls.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from npu_model.dtypes import code_of_numpy
from npu_model.shave_isa import VECTOR_CAPACITY

from libnpu.compiler import kernels
from libnpu.compiler.attention.match import find_attention
from libnpu.compiler.frontend.fold import remove_dead
from libnpu.compiler.frontend.rewriting import Rewriter
from libnpu.compiler.frontend.verify import verify
from libnpu.compiler.ir import Graph, Node, Value
from libnpu.errors import Unsupported

if TYPE_CHECKING:
    from npu_model.profile import Profile

    from libnpu.compiler.attention.match import Match

LIVES = 0.42  # of CMX, that a value may have to live there (lower/builder.py, LARGE)
_OPERATORS = {"flash": "FlashSDPA", "incremental": "IncrementalSDPA"}


@dataclass(slots=True, frozen=True)
class Choice:
    """How an attention is computed. `reason` is in words; `shape` is that of its scores."""

    layer: str
    path: str  # of ATTENTION (options.py), but not "auto"
    reason: str
    shape: tuple[int, ...]
    engines: tuple[tuple[str, str], ...]  # what it is computed in: operation, engine


def select_path(is_prefill: bool, is_long: bool, is_supported: bool) -> str:
    """Return the path of an attention by phase, length and what the kernel can do."""
    if is_prefill and is_long and is_supported:
        return "flash"
    if not is_prefill and is_supported:
        return "incremental"
    return "decompose"


def select_attention(
    graph: Graph, profile: Profile, cmx_bytes: int, wanted: str = "auto"
) -> tuple[Graph, list[Choice]]:
    """Return `graph` with its attentions computed as `wanted` says, and the choices. `cmx_bytes` are those of all tiles.

    Raises Unsupported when a path is wanted that the kernel cannot go.
    """
    edit = Rewriter(graph)
    matches = find_attention(edit)
    if not matches:
        return graph, []
    choices = [_choose(match, cmx_bytes, wanted) for match in matches]
    made = {
        match.result: (match, choice)
        for match, choice in zip(matches, choices, strict=True)
        if choice.path in _OPERATORS
    }
    if not made:
        return graph, choices
    gone = {node for match, _ in made.values() for node in match.nodes}
    nodes: list[Node] = []
    for node in edit.graph.nodes:
        if node in made:
            nodes += _operators(*made[node])
        elif node not in gone:
            nodes.append(node)
    edit.graph.nodes = nodes
    return verify(remove_dead(edit.graph), "SelectAttentionPath"), choices


def _choose(match: Match, cmx_bytes: int, wanted: str) -> Choice:
    scores, layer = match.product.outputs[0], (match.softmax.layers or [match.softmax.name])[-1]
    queries, lacks = scores.shape[-2], _lacks(match)
    size = prod(scores.shape) * scores.dtype.itemsize
    is_long = size > LIVES * cmx_bytes
    phase = f"prefill of {queries} queries" if queries > 1 else "decode of one query"
    if wanted == "auto":
        path = select_path(queries > 1, is_long, not lacks)
        room = f"{size} bytes of scores {'do not live' if is_long else 'live'} in {cmx_bytes} bytes of CMX"
        reason = f"{phase}, {lacks}" if lacks else f"{phase}, {room}" if queries > 1 else phase
    else:
        path, reason = wanted, f"asked for; {phase}"
        if lacks and wanted in _OPERATORS:
            raise Unsupported(f"{layer}: attention path {wanted}: {lacks}")
    return Choice(layer, path, reason, scores.shape, _engines(match, path))


def _lacks(match: Match) -> str:
    """Return what keeps the kernels from an attention, "" when nothing does."""
    wide = max(match.keys[0].shape[-1], match.values[0].shape[-1])
    if wide > VECTOR_CAPACITY:
        return f"heads of {wide} elements, of which a SHAVE's register holds {VECTOR_CAPACITY}"
    codes = tuple(code_of_numpy(mask.dtype) for mask in match.masks)
    half = code_of_numpy(match.query.dtype)
    try:
        kernels.flash_sdpa(match.expr, codes, half, False, True, True)
        kernels.incremental_sdpa(match.expr, codes, match.scale, (half,) * 3, len(match.keys), False, True)
    except Unsupported as error:
        return str(error)
    return ""


def _engines(match: Match, path: str) -> tuple[tuple[str, str], ...]:
    if path == "flash":
        return (("QK^T of a tile", "DPU"), ("scale", "DPU PPE"), ("flash_sdpa", "SHAVE"), ("PV of a tile", "DPU"))
    if path == "incremental":
        return (("incremental_sdpa", "SHAVE"),)
    mask = [("mask", "DPU or SHAVE")] if match.between else []
    return (("QK^T", "DPU"), ("scale", "DPU PPE"), *mask, ("softmax", "SHAVE"), ("PV", "DPU"))


def _operators(match: Match, choice: Choice) -> list[Node]:
    """Return the nodes that take the place of an attention."""
    last, result = match.result, match.result.outputs[0]
    layers = list(dict.fromkeys(layer for node in match.nodes for layer in node.layers))
    inputs: list[Value | None] = [match.query, *match.keys, *match.values, *match.masks]
    attrs = {"parts": len(match.keys), "scale": match.scale, "expr": match.expr}
    if match.weighted is None:
        return [*match.new_nodes, Node(_OPERATORS[choice.path], last.name, inputs, [result], attrs, layers)]
    whole = Value(f"{result.name}.rows", result.shape, result.dtype)
    weights = match.softmax.outputs[0]
    operands = [whole if value is weights else value for value in match.weighted.inputs]
    empties = Node("Elementwise", match.weighted.name, operands, [result], dict(match.weighted.attrs), layers)
    return [*match.new_nodes, Node(_OPERATORS[choice.path], last.name, inputs, [whole], attrs, layers), empties]


def choices_text(choices: list[Choice]) -> str:
    """Return a line for each attention, and what it is computed in."""
    lines = []
    for choice in choices:
        lines.append(f"{choice.layer}: scores {list(choice.shape)}: {choice.path} ({choice.reason})")
        lines += [f"  {what}: {engine}" for what, engine in choice.engines]
    return "\n".join(lines or ["no attention"])
