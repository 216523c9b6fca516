"""Lowering: a graph of operators becomes a tile program of engine operations on buffers.

Values get homes (`builder.py`), matrix-engine nodes become tiles with weights and halos (`matrix.py`, `dpu_ops.py`,
`dpu_tiler.py`) that sums follow where they can (`eltwise.py`), what one value becomes (`tail.py`) and the next layer, band by band
(`chain.py`), poolings of whole images are two steps (`pooling.py`), vector nodes become boxes (`shave_tiler.py`, `boxes.py`), data
movement becomes views or DMA (`movement.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from libnpu.compiler.lower.builder import LONG, WAITING, Builder
from libnpu.compiler.lower.eltwise import lower_eltwise
from libnpu.compiler.lower.errors import CompileError
from libnpu.compiler.lower.flash import lower_flash
from libnpu.compiler.lower.incremental import lower_incremental
from libnpu.compiler.lower.matrix import defers, lower_matmul, lower_sliding
from libnpu.compiler.lower.movement import (
    lower_concat,
    lower_expand,
    lower_pad,
    lower_reshape,
    lower_slice,
    lower_transpose,
    plan_concats,
)
from libnpu.compiler.lower.order import shrinking_first
from libnpu.compiler.lower.pass_tiler import lower_passes
from libnpu.compiler.lower.rope import lower_rope
from libnpu.compiler.lower.shave_tiler import (
    lower_argmax,
    lower_elementwise,
    lower_gather,
    lower_reduce,
    lower_softmax,
)
from libnpu.errors import Unimplemented, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_model.profile import Profile

    from libnpu.compiler.ir import Graph, Node
    from libnpu.compiler.program import TileProgram

__all__ = ["CompileError", "lower"]


def _lower_elementwise(builder: Builder, node: Node) -> None:
    if not defers(builder, node) and not lower_eltwise(builder, node) and not lower_passes(builder, node):
        lower_elementwise(builder, node)


LOWERINGS: dict[str, Callable[[Builder, Node], None]] = {
    "Conv": lower_sliding,
    "MatMul": lower_matmul,
    "ConvInteger": lower_sliding,
    "MatMulInteger": lower_matmul,
    "MaxPool": lower_sliding,
    "AvgPool": lower_sliding,
    "Elementwise": _lower_elementwise,
    "Reduce": lower_reduce,
    "Softmax": lower_softmax,
    "RoPE": lower_rope,
    "FlashSDPA": lower_flash,
    "IncrementalSDPA": lower_incremental,
    "Gather": lower_gather,
    "ArgMax": lower_argmax,
    "Reshape": lower_reshape,
    "Transpose": lower_transpose,
    "Slice": lower_slice,
    "Concat": lower_concat,
    "Expand": lower_expand,
    "Pad": lower_pad,
}


def lower(
    graph: Graph,
    profile: Profile,
    cmx_bytes: int | None = None,
    pingpong: bool = True,
    tiles: int = 1,
    keeps_values: bool = True,
    grain: int = 1,
    shares_few: bool = True,
    fuses: bool = True,
) -> TileProgram:
    """Return the tile program of `graph` for `tiles` tiles of `profile` with `cmx_bytes` of CMX each (default: all of it).

    Unless `keeps_values`, what one operation leaves to the next goes through DDR. `grain`: tasks of a layer for each unit of its
    engine, where that costs little; with `shares_few` few elements are shared too, where each takes long.
    `fuses`: large results of the matrix engine go to the next layer band by band.

    Raises CompileError when an operation's smallest tile does not fit, Unimplemented or Unsupported for operators and forms.
    """
    available = min(cmx_bytes or profile.cmx.workspace_bytes, profile.cmx.workspace_bytes)
    graph = shrinking_first(graph, int(available * tiles * WAITING), LONG)
    builder = Builder(graph, profile, available, pingpong, tiles, keeps_values, grain, shares_few, fuses)
    plan_concats(builder)
    for node in graph.nodes:
        if builder.is_done(node):
            continue
        lowering = LOWERINGS.get(node.op)
        if lowering is None:
            raise Unimplemented(f"{node.name}: operator {node.op} has no lowering")
        try:
            lowering(builder, node)
        except (Unsupported, Unimplemented) as error:
            error.layers = tuple(node.layers)
            raise
        builder.done(node)
    return builder.finish()
