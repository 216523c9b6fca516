"""Several inferences in one program: constants are brought into CMX for the first one, and stay there for the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from libnpu.compiler.program import Buffer, DdrKind, DdrTensor, DmaPayload, DpuPayload, Ref, TileOp

if TYPE_CHECKING:
    from libnpu.compiler.program import Access, ShavePayload, TileProgram

    Payload = DmaPayload | DpuPayload | ShavePayload


def repeat(program: TileProgram, count: int) -> None:
    """Let `program` do what it does `count` times, of the same inputs to the same outputs."""
    if count == 1:
        return
    kept = _constant_buffers(program.ops)
    once = list(program.ops)
    again = [op for op in once if not _is_constant(op, kept)]
    for number in range(1, count):
        buffers: dict[Buffer, Buffer] = {}
        program.ops += [_copy(op, number, kept, buffers) for op in again]
    program.macs *= count


def _constant_buffers(ops: list[TileOp]) -> set[Buffer]:
    """Return the buffers whose bytes are the same in each inference: they are made of constants alone."""
    kept = {access.target for op in ops for access in op.writes if isinstance(access.target, Buffer)}
    while True:
        varying = {access.target for op in ops if not _is_constant(op, kept) for access in op.writes} & kept
        if not varying:
            return kept
        kept -= varying


def _is_constant(op: TileOp, kept: set[Buffer]) -> bool:
    return all(access.target in kept for access in op.writes) and all(
        access.target in kept or (isinstance(access.target, DdrTensor) and access.target.kind == DdrKind.WEIGHTS)
        for access in op.reads
    )


def _copy(op: TileOp, number: int, kept: set[Buffer], buffers: dict[Buffer, Buffer]) -> TileOp:
    """Return `op` on buffers of its own, which `buffers` has; those of constants are shared."""

    def own(target: Buffer | DdrTensor) -> Buffer | DdrTensor:
        if isinstance(target, DdrTensor) or target in kept:
            return target
        if target not in buffers:
            buffers[target] = Buffer(f"{target.name}.again{number}", target.size_bytes, target.copies)
        return buffers[target]

    def ref(old: Ref) -> Ref:
        return Ref(own(old.target), old.offset)

    def accesses(old: list[Access]) -> list[Access]:
        return [replace(access, target=own(access.target)) for access in old]

    payload: Payload = op.payload
    if isinstance(payload, DmaPayload):
        payload = replace(payload, src=ref(payload.src), dst=ref(payload.dst))
    elif isinstance(payload, DpuPayload):
        payload = replace(payload, refs={field: ref(old) for field, old in payload.refs.items()})
    else:
        payload = replace(payload, refs=[ref(old) for old in payload.refs])
    name = f"{op.name}.again{number}"
    return replace(op, name=name, reads=accesses(op.reads), writes=accesses(op.writes), payload=payload)
