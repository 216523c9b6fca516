"""What must hold of a tile program before it is scheduled: accesses inside their targets, operands in CMX, buffers that fit.

Only SHAVEs may read DDR beside DMA: rows of a table that they choose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.compiler.lower.errors import does_not_fit
from libnpu.compiler.program import Buffer, DdrKind, DdrTensor, Engine

if TYPE_CHECKING:
    from libnpu.compiler.program import Access, TileOp, TileProgram


def verify_program(program: TileProgram, cmx_bytes: int) -> None:
    """Raise AssertionError on a malformed operation, CompileError on one whose buffers exceed CMX together."""
    written: set[Buffer | DdrTensor] = set()
    for op in program.ops:
        for access in (*op.reads, *op.writes):
            _check_bounds(op, access)
            gathers = op.engine == Engine.SHAVE and access in op.reads
            if op.engine != Engine.DMA and not gathers and not isinstance(access.target, Buffer):
                raise AssertionError(f"{op.name}: operand {access.target.name} is not in CMX")
        for access in op.reads:
            target = access.target
            fresh = isinstance(target, Buffer) or target.kind in (DdrKind.SCRATCH, DdrKind.OUTPUT)
            if fresh and target not in written:
                raise AssertionError(f"{op.name} reads {target.name} before anything writes it")
        for access in op.writes:
            if isinstance(access.target, DdrTensor) and access.target.kind in (DdrKind.WEIGHTS, DdrKind.INPUT):
                raise AssertionError(f"{op.name} writes {access.target.name}")
            written.add(access.target)
        buffers = {a.target: a.target.size_bytes for a in (*op.reads, *op.writes) if isinstance(a.target, Buffer)}
        if sum(buffers.values()) > cmx_bytes:
            raise does_not_fit(f"{op.layer} ({op.name})", "one task", sum(buffers.values()), cmx_bytes)


def _check_bounds(op: TileOp, access: Access) -> None:
    copies = isinstance(access.target, Buffer) and access.target.copies > 1
    start = access.offset % C.NPU_CMX_TILE_STRIDE if copies else access.offset
    end = start + access.width + sum((n - 1) * s for n, s in access.dims)
    if start < 0 or end > access.target.size_bytes:
        raise AssertionError(
            f"{op.name}: bytes {start}..{end} of {access.target.name}, which has {access.target.size_bytes}"
        )
