"""Emission: scheduled operations become the task lists of a blob image.

Each queue's list is in schedule order; `task_id` is an operation's place in the whole schedule. CMX addresses are final, DDR
addresses are relocations against sections or network tensors. Equal SHAVE programs are stored once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C, dtype
from npu_model.dtypes import code_of_numpy

from libnpu.blob.image import BlobImage, IoTensor, Relocation
from libnpu.compiler.lower.records import dma_records, dpu_records
from libnpu.compiler.program import Buffer, DdrKind, DdrTensor, DmaPayload, DpuPayload, Engine, Ref, ShavePayload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npu_model.profile import Profile
    from numpy.typing import NDArray

    from libnpu.compiler.ir import Graph, Value
    from libnpu.compiler.program import TileProgram
    from libnpu.compiler.schedule import BarrierPlan, Schedule, ScheduledOp

_ALIGNMENT = 64
_STRIDE = int(C.NPU_CMX_TILE_STRIDE)
_DMA = (".npu.tasks.dma0", ".npu.tasks.dma1")
_INVARIANTS, _VARIANTS = ".npu.tasks.dpu_invariant", ".npu.tasks.dpu_variant"
_RANGES, _INVOCATIONS = ".npu.tasks.shave_range", ".npu.tasks.shave_invocation"
_BARRIERS = ".npu.barriers"
_TEXT, _ARGS, _WEIGHTS, _SCRATCH = ".text.shave", ".data.shave_args", ".data.weights", ".bss.scratch"

_RETURNS = ("reload", "spill_in")  # kinds of operations that bring a buffer back

Numbered = list[tuple[int, "ScheduledOp"]]  # (task id, operation) of one list


def emit(graph: Graph, program: TileProgram, schedule: Schedule, plan: BarrierPlan, profile: Profile) -> BlobImage:
    """Return the blob image of a schedule with its barriers."""
    image = BlobImage(
        name=graph.name or "model",
        profile=profile.name,
        tile_count=_tile_count(schedule, plan, profile),
        cmx_bytes=max((a % _STRIDE + b.size_bytes for b, a, _, _ in schedule.residency), default=0),
        barrier_count=plan.ids_used,
        inputs=[_io(value) for value in graph.inputs],
        outputs=[_io(value) for value in graph.outputs],
        tasks={},
        weights=bytes(program.weights),
        planned_weight_bytes=program.weight_bytes if graph.is_plan else 0,
        scratch_bytes=place_scratch([*program.ddr, *schedule.spill_tensors]),
        macs=program.macs,
        debug=_debug(program, schedule, plan, profile),
    )
    lists: dict[tuple[Engine, int], Numbered] = {}
    for number, scheduled in enumerate(schedule.ops):
        unit = scheduled.queue.unit if scheduled.op.engine == Engine.DMA else 0
        lists.setdefault((scheduled.op.engine, unit), []).append((number, scheduled))
    for port, section in enumerate(_DMA):
        _emit_dma(image, section, lists.get((Engine.DMA, port), []), plan)
    _emit_dpu(image, lists.get((Engine.DPU, 0), []), plan)
    _emit_shave(image, lists.get((Engine.SHAVE, 0), []), plan, profile.shaves_per_tile)
    _emit_barriers(image, plan)
    return image


def _tile_count(schedule: Schedule, plan: BarrierPlan, profile: Profile) -> int:
    """Return how many tiles have an engine, bytes or barriers that are used."""
    units = {Engine.DPU: 1, Engine.SHAVE: profile.shaves_per_tile}
    engines = {s.queue.unit // units[s.queue.engine] for s in schedule.ops if s.queue.engine in units}
    memory = {address // _STRIDE + b.copies - 1 for b, address, _, _ in schedule.residency}
    return max(1 + max(engines | memory, default=0), -(-plan.ids_used // profile.barriers_per_tile))


def _io(value: Value) -> IoTensor:
    return IoTensor(value.name, code_of_numpy(value.dtype), tuple(value.shape), value.nbytes)


def place_scratch(tensors: Sequence[DdrTensor]) -> int:
    """Give every scratch tensor its offset, one after the other; return the bytes of the section."""
    end = 0
    for tensor in tensors:
        if tensor.kind == DdrKind.SCRATCH:
            tensor.offset, tensor.symbol = end, _SCRATCH
            end += -(-tensor.size_bytes // _ALIGNMENT) * _ALIGNMENT
    return end


def _cmx_address(scheduled: ScheduledOp, ref: Ref) -> int:
    """Return the address of a CMX operand; 0 for one in DDR, which a relocation fills in."""
    if isinstance(ref.target, Buffer):
        (place,) = scheduled.places(ref.target, write=False)
        return int(C.NPU_CMX_BASE) + place + ref.offset
    return 0


def _relocate(image: BlobImage, section: str, offset: int, ref: Ref) -> None:
    target = ref.target
    if isinstance(target, DdrTensor):
        base = 0 if target.kind in (DdrKind.INPUT, DdrKind.OUTPUT) else target.offset
        image.relocations.append(Relocation(section, offset, target.symbol, base + ref.offset))


def _synchronise(records: NDArray[np.void], ops: Numbered, plan: BarrierPlan) -> None:
    numbers = [number for number, _ in ops]
    records["barriers_wait_mask"] = np.array([plan.wait_masks[n] for n in numbers], np.uint64)
    records["barriers_post_mask"] = np.array([plan.post_masks[n] for n in numbers], np.uint64)
    records["sched_start_after"] = np.array([plan.start_after[n] for n in numbers], np.uint32)
    records["task_id"] = numbers


def _emit_dma(image: BlobImage, section: str, ops: Numbered, plan: BarrierPlan) -> None:
    if not ops:
        return
    payloads = [s.op.payload for _, s in ops if isinstance(s.op.payload, DmaPayload)]
    records = dma_records(payloads, lambda i, ref: _cmx_address(ops[i][1], ref))
    _synchronise(records, ops, plan)
    offsets = _offsets(records.dtype)
    for index, payload in enumerate(payloads):
        start = index * records.itemsize
        _relocate(image, section, start + offsets["transaction_src"], payload.src)
        _relocate(image, section, start + offsets["transaction_dst"], payload.dst)
    image.tasks[section] = records


def _emit_dpu(image: BlobImage, ops: Numbered, plan: BarrierPlan) -> None:
    if not ops:
        return
    payloads = [s.op.payload for _, s in ops if isinstance(s.op.payload, DpuPayload)]
    invariants, variants = dpu_records(payloads, lambda i, ref: _cmx_address(ops[i][1], ref))
    invariants["tile"] = [scheduled.queue.unit for _, scheduled in ops]
    copies = [p.refs["out_addr"].target.copies for p in payloads if isinstance(p.refs["out_addr"].target, Buffer)]
    invariants["out_tiles"] = [(1 << count) - 1 if count > 1 else 0 for count in copies]
    _synchronise(invariants, ops, plan)
    image.tasks[_INVARIANTS], image.tasks[_VARIANTS] = invariants, variants


def _emit_shave(image: BlobImage, ops: Numbered, plan: BarrierPlan, shaves_per_tile: int) -> None:
    if not ops:
        return
    programs: dict[bytes, int] = {}
    text, arguments = bytearray(), bytearray()
    starts: list[tuple[int, int]] = []
    records = np.zeros(len(ops), dtype("npu_shave_invocation"))
    offsets = _offsets(records.dtype)
    for index, (_, scheduled) in enumerate(ops):
        payload = scheduled.op.payload
        assert isinstance(payload, ShavePayload)
        if payload.code not in programs:
            programs[payload.code] = len(starts)
            starts.append((len(text), len(payload.code)))
            text += payload.code
        block = payload.args([_cmx_address(scheduled, ref) for ref in payload.refs])
        arguments += bytes(-len(arguments) % _ALIGNMENT)
        for word, operand in payload.args.slots:
            ref = payload.refs[operand]
            _relocate(image, _ARGS, len(arguments) + 8 * word, Ref(ref.target, ref.offset + payload.args.words[word]))
        place = index * records.itemsize + offsets["args_va"]
        image.relocations.append(Relocation(_INVOCATIONS, place, _ARGS, len(arguments), 4))
        records[index]["range_index"] = programs[payload.code]
        records[index]["args_bytes"] = len(block)
        records[index]["tile"], records[index]["shave"] = divmod(scheduled.queue.unit, shaves_per_tile)
        arguments += block
    _synchronise(records, ops, plan)
    ranges = np.zeros(len(starts), dtype("npu_shave_range"))
    ranges["code_bytes"] = [size for _, size in starts]
    text_va = _offsets(ranges.dtype)["text_va"]
    for index, (start, _) in enumerate(starts):
        image.relocations.append(Relocation(_RANGES, index * ranges.itemsize + text_va, _TEXT, start))
    image.tasks[_RANGES], image.tasks[_INVOCATIONS] = ranges, records
    image.text, image.shave_args = bytes(text), bytes(arguments)


def _emit_barriers(image: BlobImage, plan: BarrierPlan) -> None:
    if not plan.barriers:
        return
    records = np.zeros(len(plan.barriers), dtype("npu_barrier_config"))
    records["next_same_id"] = [b.next_same_id for b in plan.barriers]
    records["producer_count"] = [len(b.producers) for b in plan.barriers]
    records["consumer_count"] = [len(b.consumers) for b in plan.barriers]
    records["real_id"] = [b.real_id for b in plan.barriers]
    image.tasks[_BARRIERS] = records


def _offsets(record: np.dtype[Any]) -> dict[str, int]:
    assert record.fields is not None
    return {name: int(entry[1]) for name, entry in record.fields.items()}


def _debug(program: TileProgram, schedule: Schedule, plan: BarrierPlan, profile: Profile) -> dict[str, Any]:
    """Return what people, tools and the proof want to know: names and operands by task id, CMX over time, statistics."""
    stays = _stays(schedule)
    engines = [engine.name.lower() for engine in Engine]
    counts = {e: sum(s.op.engine.name.lower() == e for s in schedule.ops) for e in engines}
    busy = {e: sum(s.end_ps - s.start_ps for s in schedule.ops if s.op.engine.name.lower() == e) for e in engines}
    return {
        "tasks": [
            {"name": s.op.name, "layer": s.op.layer, "engine": s.op.engine.name, "kind": s.kind} | _operands(s)
            for s in schedule.ops
        ],
        "stats": {
            "tasks": counts,
            "predicted_busy_ps": busy,
            "predicted_makespan_ps": schedule.makespan_ps,
            "peak_cmx_bytes": schedule.peak_cmx_bytes,
            "spill_out_bytes": schedule.spill_out_bytes,
            "spill_in_bytes": schedule.spill_in_bytes,
            "barriers": len(plan.barriers),
            "barrier_ids": plan.ids_used,
            "macs": program.macs,
            "profile": profile.name,
        },
        "cmx": [
            [b.name, address + tile * _STRIDE, b.size_bytes, first, last]
            for b, address, first, last in stays
            for tile in range(b.copies)
        ],
    }


def _operands(scheduled: ScheduledOp) -> dict[str, dict[str, list[str | int]]]:
    """Return which bytes of which buffers a descriptor means: address field -> [buffer, offset]."""
    payload = scheduled.op.payload
    if isinstance(payload, DmaPayload):
        refs = {"transaction_src": payload.src, "transaction_dst": payload.dst}
    elif isinstance(payload, DpuPayload):
        refs = payload.refs
    else:
        return {}
    return {"operands": {f: [r.target.name, r.offset] for f, r in refs.items() if isinstance(r.target, Buffer)}}


def _stays(schedule: Schedule) -> list[tuple[Buffer, int, int, int]]:
    """Return each stay of a buffer in CMX: address, first and last task. One that comes back stays again, wherever that is."""
    found: list[tuple[Buffer, int, int, int]] = []
    latest: dict[Buffer, int] = {}
    for number, scheduled in enumerate(schedule.ops):
        for buffer, address in scheduled.addresses.items():
            index = latest.get(buffer)
            last = found[index][3] if index is not None else number
            comes_back = scheduled.kind in _RETURNS and schedule.ops[last].kind != scheduled.kind
            if index is None or comes_back or found[index][1] != address:
                latest[buffer] = len(found)
                found.append((buffer, address, number, number))
            else:
                found[index] = (buffer, address, found[index][2], number)
    return found
