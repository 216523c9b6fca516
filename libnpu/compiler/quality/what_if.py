"""Which one change would help a compiled model most: the same graph compiled again for a device, or with costs, that differ in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from libnpu.compiler.program import DdrKind, DdrTensor, DmaPayload, Engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_model.profile import Profile

    from libnpu.compiler.ir import Graph
    from libnpu.compiler.program import TileOp, TileProgram

    # (profile, tiles, what to do to the program before it is scheduled) -> makespan in ps, None where that does not compile
    Reschedule = Callable[[Profile, int, Callable[[TileProgram], None]], int | None]


@dataclass(slots=True, frozen=True)
class Change:
    """One thing that is changed, all else being equal."""

    words: str
    device: Callable[[Profile], Profile] = lambda profile: profile
    more_tiles: int = 0
    is_free: Callable[[Graph, TileOp], bool] | None = None  # operations that then cost nothing


def _converts_input(graph: Graph, op: TileOp) -> bool:
    """Whether SHAVEs bring an input to the type, and the order in memory, that the layer behind takes."""
    converting = {n.name for n in graph.nodes if n.attrs.get("expr") == ("in", 0) and n.inputs[0] in graph.inputs}
    return op.engine == Engine.SHAVE and op.name.rsplit(".", 2)[0] in converting


def _moves_inside(_: Graph, op: TileOp) -> bool:
    """Whether a DMA moves what one layer made for another: to DDR and back, or to another order in memory."""
    ends = (op.payload.src.target, op.payload.dst.target) if isinstance(op.payload, DmaPayload) else ()
    outside = any(isinstance(t, DdrTensor) and t.kind != DdrKind.SCRATCH for t in ends)
    return op.engine == Engine.DMA and not outside


CHANGES = (
    Change("DDR twice as fast", lambda p: replace(p, ddr=replace(p.ddr, bytes_per_second=2 * p.ddr.bytes_per_second))),
    Change("no latency of DDR", lambda p: replace(p, ddr=replace(p.ddr, latency_ns=0.0))),
    Change("one more tile", lambda p: replace(p, tiles=p.tiles + 1), more_tiles=1),
    Change("twice the multiply-accumulates of each DPU", lambda p: replace(p, dpu=_twice_the_macs(p.dpu))),
    Change("twice the SHAVEs of each tile", lambda p: replace(p, shaves_per_tile=2 * p.shaves_per_tile)),
    Change("DMA ports twice as fast", lambda p: replace(p, dma=_fast_ports(p.dma))),
    Change(
        "no start-up of tasks", lambda p: replace(p, dpu=_no_start(p.dpu), shave=replace(p.shave, startup_cycles=0))
    ),
    Change("inputs in the type and order that the first layer takes", is_free=_converts_input),
    Change("no copies between layers", is_free=_moves_inside),
)


def what_ifs(
    graph: Graph, reschedule: Reschedule, profile: Profile, tiles: int, makespan_ps: int
) -> list[dict[str, Any]]:
    """Return what each change would make of `makespan_ps`, the one that helps most first; `saves` is a part of it."""
    found = []
    for change in CHANGES:

        def edit(program: TileProgram, is_free: Callable[[Graph, TileOp], bool] | None = change.is_free) -> None:
            for op in program.ops:
                if is_free is not None and is_free(graph, op):
                    op.cost_ps, op.far_ps, op.path_ps = 1, (), 0

        changed_ps = reschedule(change.device(profile), tiles + change.more_tiles, edit)
        if changed_ps is not None:
            found.append(
                {
                    "change": change.words,
                    "makespan_ps": changed_ps,
                    "saves": round(1 - changed_ps / max(makespan_ps, 1), 3),
                }
            )
    return sorted(found, key=lambda entry: entry["makespan_ps"])


def _twice_the_macs(dpu: Any) -> Any:
    return replace(
        dpu,
        macs_per_cycle={name: 2 * rate for name, rate in dpu.macs_per_cycle.items()},
        dw_macs_per_cycle={name: 2 * rate for name, rate in dpu.dw_macs_per_cycle.items()},
    )


def _fast_ports(dma: Any) -> Any:
    return replace(dma, clock_hz=2 * dma.clock_hz)


def _no_start(dpu: Any) -> Any:
    return replace(dpu, startup_cycles=0, workload_cycles=0)
