"""What the passes of the back end did, as text: one line per layer, tile, decision or barrier."""

from __future__ import annotations

from itertools import groupby
from math import prod
from typing import TYPE_CHECKING

from npu_model import footprint
from npu_model.footprint import Box

from libnpu.compiler.frontend.text import node_text
from libnpu.compiler.program import Buffer, DdrTensor, DmaPayload, DpuPayload, Engine, ShavePayload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npu_model.profile import Profile

    from libnpu.compiler.ir import Graph, Node
    from libnpu.compiler.program import TileOp, TileProgram
    from libnpu.compiler.schedule import BarrierPlan, Schedule

_BIASED = ("Conv", "MatMul")  # whose third input is a bias


def dpu_tiles_text(program: TileProgram) -> str:
    """Return the tiles of each layer that the DPU runs: output pixels and channels, and the predicted time."""
    return "\n".join(_tile_lines(program, Engine.DPU))


def shave_tiles_text(program: TileProgram) -> str:
    """Return the tiles of each layer that SHAVEs run: the kernel's program, how many operands do not lie in one run, and the predicted time."""
    return "\n".join(_tile_lines(program, Engine.SHAVE))


def attention_text(program: TileProgram) -> str:
    """Return the chain of tiles that each block of queries of a FlashSDPA became: the keys of each tile, and the state they share."""
    chains: dict[tuple[str, str, str], list[TileOp]] = {}
    for op in program.ops:
        if "chain" in op.attrs:
            chains.setdefault((op.layer, op.attrs["chain"], op.attrs["state"]), []).append(op)
    lines = []
    for (layer, place, state), tiles in chains.items():
        lines.append(f"{layer}: {place}: {len(tiles)} tile{'s'[: len(tiles) > 1]}, state {state}")
        lines += [f"  {op.name}: keys {op.attrs['keys']}, {op.cost_ps} ps" for op in tiles]
    return "\n".join(lines or ["no FlashSDPA"])


def regions_text(program: TileProgram) -> str:
    """Return the regions of layers that hand values on in CMX, without DDR between them: the layers in order, and what each gives to which."""
    makers: dict[Buffer, str] = {}
    handed: dict[tuple[str, str], dict[Buffer, None]] = {}
    region: dict[str, str] = {}  # layer -> another one of its region, the first one to itself

    def first(layer: str) -> str:
        while region[layer] != layer:
            layer = region[layer]
        return layer

    for op in program.ops:
        region.setdefault(op.layer, op.layer)
        for access in op.reads:
            if not isinstance(access.target, Buffer):
                continue
            maker = makers.get(access.target, op.layer)
            if maker != op.layer:
                handed.setdefault((maker, op.layer), {})[access.target] = None
                region[first(op.layer)] = first(maker)
        is_load = op.engine == Engine.DMA and any(isinstance(access.target, DdrTensor) for access in op.reads)
        for target in (access.target for access in op.writes if not is_load):
            if isinstance(target, Buffer):
                makers[target] = op.layer
    members: dict[str, list[str]] = {}
    for layer in region:
        members.setdefault(first(layer), []).append(layer)
    lines = []
    for layers in (found for found in members.values() if len(found) > 1):
        values = {b: None for (maker, _), kept in handed.items() if maker in layers for b in kept}
        lines.append(f"region: {', '.join(layers)}: {sum(b.size_bytes for b in values)} bytes handed on in CMX")
        for (maker, reader), kept in handed.items():
            if maker in layers:
                lines.append(f"  {maker} -> {reader}: {', '.join(f'{b.name} {b.size_bytes} bytes' for b in kept)}")
    return "\n".join(lines or ["no region"])


def engines_text(graph: Graph, program: TileProgram) -> str:
    """Return the graph that the back end gets, a line for each operation, with its engines: "-" where DMA or another's task does it.

    What the PPE does as the DPU drains has a line of its own.
    """
    engines: dict[str, dict[str, None]] = {}
    for op in program.ops:
        if op.engine != Engine.DMA:
            engines.setdefault(op.attrs["node"], {})[op.engine.name] = None
    lines = []
    for node in graph.nodes:
        used = list(engines.get(node.name, {}))
        lines.append(f"[{' '.join(used) or '-'}] {node_text(node)}")
        if "DPU" in used:
            lines += [f"[DPU PPE]   {what}" for what in _drained(node)]
    return "\n".join(lines)


def _drained(node: Node) -> Iterator[str]:
    """Yield what the PPE does to the sums of a node, in this order."""
    ending, act, scale = (node.attrs.get(name) for name in ("ending", "act", "scale"))
    if ending is not None:
        numbers = {"offset": ending.offsets, "scale": ending.scales, "bias": ending.biases}
        yield from (what for what, each in numbers.items() if each is not None)
        act = ending.act
    if scale is not None and scale != 1:
        yield f"scale {scale:g}"
    if node.op in _BIASED and node.inputs[2:] not in ([], [None]):
        yield "bias"
    if act is not None:
        yield act[0]
    if ending is not None and ending.zero:
        yield f"zero {ending.zero}"


def decisions_text(schedule: Schedule) -> str:
    """Return the scheduler's decisions in the order of their time, after a summary."""
    counts: dict[str, int] = {}
    for decision in schedule.decisions:
        counts[decision.kind.value] = counts.get(decision.kind.value, 0) + 1
    summary = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    head = (
        f"{schedule.makespan_ps} ps at level limit {schedule.level_limit}, "
        f"CMX peak {schedule.peak_cmx_bytes} bytes, {summary or 'no decision'}"
    )
    return "\n".join([head, *map(str, schedule.decisions)])


def tensors_text(schedule: Schedule) -> str:
    """Return the bytes that DMA moves from and to each tensor in DDR; what never leaves CMX is not there."""
    read: dict[DdrTensor, int] = {}
    written: dict[DdrTensor, int] = {}
    for op in (scheduled.op for scheduled in schedule.ops):
        if isinstance(op.payload, DmaPayload):
            count = op.payload.length * op.payload.num_planes
            for end, moved in ((op.payload.src.target, read), (op.payload.dst.target, written)):
                if isinstance(end, DdrTensor):
                    moved[end] = moved.get(end, 0) + count
    return "\n".join(
        f"{tensor.kind.name.lower()} {tensor.name}: {read.get(tensor, 0)} bytes read, {written.get(tensor, 0)} written"
        for tensor in dict.fromkeys([*read, *written])
    )


def bursts_text(schedule: Schedule, profile: Profile) -> str:
    """Return what DMA asks of each tensor in DDR, and what the bursts move that it touches: a burst is one of all channels, whole.

    Runs that go on where the one before ended are one.
    """
    dram = profile.memory_system.dram
    burst = dram.burst_bytes * dram.channels
    asked: dict[DdrTensor, int] = {}
    moved: dict[DdrTensor, int] = {}
    for op in (scheduled.op for scheduled in schedule.ops):
        for access in (*op.reads, *op.writes) if isinstance(op.payload, DmaPayload) else ():
            if not isinstance(access.target, DdrTensor):
                continue
            found = footprint.runs(Box(access.target.offset + access.offset, access.width, access.dims))
            asked[access.target] = asked.get(access.target, 0) + int((found[:, 1] - found[:, 0]).sum())
            touched = int((-(-found[:, 1] // burst) - found[:, 0] // burst).sum()) * burst
            moved[access.target] = moved.get(access.target, 0) + touched
    lines = [(f"{tensor.kind.name.lower()} {tensor.name}", asked[tensor], moved[tensor]) for tensor in asked]
    lines.append(("all", sum(asked.values()), sum(moved.values())))
    return "\n".join(
        f"{name}: {wanted} bytes asked, {took} moved in bursts of {burst}, waste {1 - wanted / took:.2%}"
        for name, wanted, took in lines
        if took
    )


def barriers_text(plan: BarrierPlan) -> str:
    """Return the virtual barriers in array order."""
    return "\n".join(
        f"{k}: id {b.real_id} producers {list(b.producers)} consumers {list(b.consumers)}"
        for k, b in enumerate(plan.barriers)
    )


def _tile_lines(program: TileProgram, engine: Engine) -> Iterator[str]:
    for layer, group in groupby((op for op in program.ops if op.engine == engine), key=lambda op: op.layer):
        tiles = list(group)
        total = sum(op.cost_ps for op in tiles)
        yield f"{layer}: {len(tiles)} tile{'s'[: len(tiles) > 1]}, {total} ps"
        for op in tiles:
            yield f"  {op.name}: {_work(op)}, {op.cost_ps} ps"


def _work(op: TileOp) -> str:
    payload = op.payload
    match payload:
        case DpuPayload():
            shapes = [
                f"{v['size_x']}x{v['size_y']}x{v['size_z']} at {v['start_x']},{v['start_y']},{v['start_z']}"
                for v in payload.variants
            ]
            return "outputs " + " + ".join(shapes)
        case ShavePayload():
            written = sum(access.width * prod(count for count, _ in access.dims) for access in op.writes)
            strided = sum(bool(access.dims) for access in (*op.reads, *op.writes))
            return f"{len(payload.code) // 16} instructions, {written} bytes out, strided {strided}"
        case _:
            return f"{payload.length * payload.num_planes} bytes"
