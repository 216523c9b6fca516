"""Which buffers are in every tile: results that DPUs write to all tiles at once, so that each DPU reads its own tile's.

A DPU reads another tile's CMX by the line, and its own faster; it writes to all tiles by the line. What SHAVEs write, to one
tile, a DMA copies to the others. A buffer is mirrored where its readers gain more by prediction than its writers and copies
cost, and where CMX has room for it at every time of its life.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from npu_abi import C
from npu_model import cycles

from libnpu.compiler.lower.dpu_tiler import PS_PER_SECOND
from libnpu.compiler.lower.records import dma_records
from libnpu.compiler.lower.view import aligned
from libnpu.compiler.program import FAR, Access, Buffer, DmaPayload, DpuPayload, Engine, Ref, TileOp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npu_model.profile import Profile

    from libnpu.compiler.program import TileProgram

ROOM = 0.67  # of all CMX: what lives at any time, copies included, is at most this where a buffer is mirrored; chosen by trials
_MOST = 0.8  # the same where copies save more time than it takes to move as much to DDR and back, to make room; chosen by trials


def mirror(program: TileProgram, profile: Profile, tiles: int, tile_bytes: int) -> None:
    """Mark the buffers of `program` that are worth a copy in each of several tiles of `tile_bytes`; append the copies that it takes."""
    if tiles == 1:
        return
    users: dict[Buffer, list[int]] = {}
    for index, op in enumerate(program.ops):
        for buffer in {a.target: None for a in (*op.reads, *op.writes) if isinstance(a.target, Buffer)}:
            users.setdefault(buffer, []).append(index)
    live = np.zeros(len(program.ops), np.int64)
    for buffer, uses in users.items():
        live[uses[0] : uses[-1] + 1] += aligned(buffer.size_bytes)
    gains = {b: _gain_ps([program.ops[i] for i in uses], b, profile, tiles) for b, uses in users.items()}
    worth = [buffer for buffer, gain in gains.items() if gain > 0]
    for buffer in sorted(worth, key=lambda b: -gains[b] / max(b.size_bytes, 1)):
        uses, more = users[buffer], aligned(buffer.size_bytes) * (tiles - 1)
        life = live[uses[0] : uses[-1] + 1]
        tight = any(_bytes(program.ops[index]) > tile_bytes for index in uses)
        makes_room = gains[buffer] > 2 * more * PS_PER_SECOND / profile.ddr.bytes_per_second
        if not tight and int(life.max()) + more <= tile_bytes * tiles * (_MOST if makes_room else ROOM):
            life += more
            buffer.copies = tiles
    program.ops = [each for op in program.ops for each in (op, *_copies(op, profile))]


def _gain_ps(ops: list[TileOp], buffer: Buffer, profile: Profile, tiles: int) -> float:
    """Return the time that copies of a buffer save, those that use it being spread over the tiles; 0 where they are impossible."""
    gain, readers, writers = 0.0, 0, 0
    for op in ops:
        written = any(access.target is buffer for access in op.writes)
        payload = op.payload
        if not isinstance(payload, DpuPayload):
            if written and (op.engine != Engine.SHAVE or any(access.dims for access in op.writes)):
                return 0.0  # DPUs write to several tiles; what lies in pieces takes too many copies
            if written:
                writers += 1
                gain -= sum(copy.cost_ps for copy in _copies_of(op, buffer, profile, tiles))
            continue
        bits = sum(
            {FAR[name] for name, ref in payload.refs.items() if name in FAR and ref.target is buffer}
            - {FAR["out_addr"]}
        )
        gain += (op.far_ps[bits] - op.cost_ps) * (tiles - 1) / tiles
        readers += bits > 0
        if written:
            writers += 1
            gain -= (op.far_ps[FAR["out_addr"]] - op.cost_ps) / tiles
    # What one task makes for one other can be near to both without a copy.
    return gain if readers and readers + writers > 2 and writers else 0.0


def _copies(op: TileOp, profile: Profile) -> Iterator[TileOp]:
    """Yield the copies to other tiles of what a SHAVE writes."""
    if op.engine == Engine.SHAVE:
        for buffer in {a.target: None for a in op.writes if isinstance(a.target, Buffer)}:
            yield from _copies_of(op, buffer, profile, buffer.copies)


def _copies_of(op: TileOp, buffer: Buffer, profile: Profile, tiles: int) -> Iterator[TileOp]:
    for access in (access for access in op.writes if access.target is buffer):
        cost_ps = 0
        for tile in range(1, tiles):
            place = access.offset + tile * int(C.NPU_CMX_TILE_STRIDE)
            payload = DmaPayload(Ref(buffer, access.offset), Ref(buffer, place), access.width)
            if not cost_ps:  # the same to all tiles
                cost_ps = int(cycles.dma_alone_ps(profile, dma_records([payload]))[0])
            # Who reads any copy comes behind it: it counts as a writer of the first one too.
            written = [access, Access(buffer, place, access.width)]
            name = f"{op.name}.tile{tile}"
            yield TileOp(name, op.layer, Engine.DMA, cost_ps, [access], written, payload, {"what": "copy to tile"})


def _bytes(op: TileOp) -> int:
    buffers = {a.target: a.target.size_bytes for a in (*op.reads, *op.writes) if isinstance(a.target, Buffer)}
    return sum(map(aligned, buffers.values()))
