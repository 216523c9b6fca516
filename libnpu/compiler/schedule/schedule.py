"""What a scheduler returns: operations with queue, times and addresses, and what it decided on the way."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from npu_abi import C

from libnpu.compiler.program import Buffer, DdrTensor, Engine, TileOp


class Queue(NamedTuple):
    """One in-order queue of the device: an engine and which of them (DMA port, DPU by tile, SHAVE counted over the tiles)."""

    engine: Engine
    unit: int


class DoesNotFit(ValueError):
    """An operation whose own buffers exceed CMX: names it, the bytes it needs and the bytes there are."""


class DecisionKind(Enum):
    """The four decisions of the FeasibleMemoryScheduler."""

    ALLOC = "alloc"  # a buffer gets its place in CMX
    PREFETCH = "prefetch"  # a load starts before the operations of earlier levels have
    PING_PONG = "ping-pong"  # a prefetch for the next tile of the layer that runs: its buffers alternate
    SPILL = "spill"  # a buffer leaves CMX before its last use


class Decision(NamedTuple):
    """What was decided at a time of the schedule, about which buffer or operation, and why or where: a text with places for `numbers`."""

    time_ps: int
    kind: DecisionKind
    subject: str
    detail: str
    numbers: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.time_ps} ps: {self.kind.value} {self.subject} {self.detail.format(*self.numbers)}"


@dataclass(slots=True, eq=False)
class ScheduledOp:
    """An operation with its place: queue, predicted times, and the CMX address of each buffer it touches."""

    op: TileOp
    queue: Queue
    start_ps: int
    end_ps: int
    addresses: dict[Buffer, int]  # of a mirrored buffer: in the first tile
    kind: str = "op"  # op | spill_out | spill_in | reload

    def places(self, buffer: Buffer, write: bool) -> list[int]:
        """Return the addresses at which it touches a buffer: of one that is in several tiles its own copy, or all to write."""
        first = self.addresses[buffer]
        if buffer.copies == 1 or self.queue.engine != Engine.DPU:
            return [first]
        tiles = range(buffer.copies) if write else (self.queue.unit,)
        return [first + tile * int(C.NPU_CMX_TILE_STRIDE) for tile in tiles]


@dataclass(slots=True, eq=False)
class Schedule:
    """Operations by predicted start, scratch that spilling added, and what was decided."""

    ops: list[ScheduledOp]
    makespan_ps: int
    level_limit: int
    peak_cmx_bytes: int  # of the fullest tile
    spill_out_bytes: int
    spill_in_bytes: int
    spill_tensors: list[DdrTensor]
    residency: list[tuple[Buffer, int, int, int]]  # buffer, address, from_ps, to_ps
    decisions: list[Decision]
