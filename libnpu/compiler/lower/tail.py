"""What is computed element by element from the result of a matrix-engine operation, or for one, and from nothing else: tile by
tile, in CMX.

A large value would go to DDR and come back for it otherwise. The engine does what it has passes for, over the tile itself;
SHAVEs do the rest, and with a change of type one of order too, so that what leaves CMX lies as it will.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from npu_model.dtypes import code_of_numpy

from libnpu.compiler import kernels
from libnpu.compiler.lower.boxes import PARALLEL_ELEMENTS, box_of, chunks, cuts_of_long_runs, each_box
from libnpu.compiler.lower.pass_tiler import emit_passes
from libnpu.compiler.lower.passes import passes_cycles, passes_of
from libnpu.compiler.lower.shave_tiler import launch_element_by_element

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from npu_model.profile import Profile

    from libnpu.compiler.ir import Node, Value
    from libnpu.compiler.lower.builder import Builder
    from libnpu.compiler.lower.passes import Pass
    from libnpu.compiler.lower.view import View

_SINGLE_BYTES = 4  # of an element between two passes


@dataclass(frozen=True)
class Tail:
    """An element-wise `node` of one operand; its result replaces the operand where `passes`, or the type, allow it."""

    node: Node
    passes: tuple[Pass, ...]  # empty: SHAVEs do it
    profile: Profile

    @property
    def before(self) -> np.dtype[Any]:
        """The type of what it takes."""
        value = self.node.inputs[0]
        assert value is not None
        return value.dtype

    @property
    def in_place(self) -> bool:
        """Whether it writes over what it takes."""
        return self.before == self.node.outputs[0].dtype

    @property
    def between_bytes(self) -> int:
        """Bytes of buffers for each element, beside what it takes and makes."""
        return _SINGLE_BYTES * max(0, len(self.passes) - 1)

    def dpu_cycles(self, elements: int) -> int:
        """Return about what the matrix engine takes for a tile."""
        dpu = self.profile.dpu
        start = len(self.passes) * (dpu.startup_cycles + dpu.workload_cycles)
        return start + round(self._cycles * elements)

    @cached_property
    def _cycles(self) -> float:
        out = self.node.outputs[0]
        return passes_cycles(self.passes, self.node, self.profile.dpu) / prod(out.shape) if self.passes else 0.0

    def emit(self, builder: Builder, tile: View, out: View) -> None:
        """Append the tasks that make `out` of `tile`, which may be the same bytes."""
        if self.passes:
            emit_passes(builder, self.node, self.passes, {0: tile}, out, out.order())
            return
        by_vector_cores(builder, self.node, tile, out)


@dataclass(frozen=True)
class Head:
    """An element-wise `node` of one operand in DDR, `source` ([N][Y][X][Z]), of whose result pieces are made as they are needed."""

    node: Node
    source: View

    def piece(self, builder: Builder, starts: Sequence[int], sizes: Sequence[int]) -> View:
        """Append what makes a box of the result in CMX, channels side by side, and return it."""
        box = self.source.sliced(starts, sizes)
        taken = builder.fetch(box, box.order(), self.node, "in")
        result = replace(box, dtype=self.node.outputs[0].dtype)
        made = builder.scratch_tile(result, tuple(range(len(sizes))), self.node)
        by_vector_cores(builder, self.node, taken, made)
        return made


def by_vector_cores(builder: Builder, node: Node, tile: View, out: View) -> None:
    """Append the tasks that make `out` of `tile`, both in CMX: an element-wise node of one operand, shared by the cores of a tile."""
    units = builder.profile.shaves_per_tile if prod(out.shape) >= PARALLEL_ELEMENTS else 1
    programs = kernels.unary(node.attrs["expr"], code_of_numpy(tile.dtype), code_of_numpy(out.dtype))
    order, (axes, steps) = out.order(), cuts_of_long_runs(tile, out)
    for starts, sizes in each_box(out.shape, chunks(out.shape, axes, units, steps)):
        views = [box_of(view, starts, sizes).permuted(order) for view in (tile, out)]
        launch_element_by_element(builder, node, programs, views)


def tail_of(builder: Builder, value: Value) -> Tail | None:
    """Return what can follow the producer of `value` tile by tile; None when there is nothing, or `value` may stay in CMX."""
    node = builder.only_consumer(value)
    if not (builder.keeps_values and builder.fuses) or node is None or node.op != "Elementwise" or len(node.inputs) > 1:
        return None
    if builder.stays_in_cmx(value.nbytes):
        return None
    return Tail(node, passes_of(node, builder.profile, builder.tiles) or (), builder.profile)
