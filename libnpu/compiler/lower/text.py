"""Tile programs and schedules as text, for dumps: one line per operation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libnpu.compiler.program import Access, TileOp, TileProgram
    from libnpu.compiler.schedule import Schedule


def program_text(program: TileProgram) -> str:
    """Return the tensors and operations of a tile program."""
    return "\n".join(_program_lines(program))


def _program_lines(program: TileProgram) -> Iterator[str]:
    yield f"program {program.name}: {len(program.ops)} operations, {program.macs} MACs"
    for tensor in program.ddr:
        yield f"ddr {tensor.kind.name.lower()} {tensor.name} {tensor.size_bytes} bytes"
    for index, op in enumerate(program.ops):
        yield f"{index}: {_op(op)}"


def _op(op: TileOp) -> str:
    accesses = f"reads {_accesses(op.reads)} writes {_accesses(op.writes)}"
    return f"{op.engine.name.lower()} {op.name} [{op.layer}] {op.cost_ps} ps {accesses}"


def _accesses(accesses: Sequence[Access]) -> str:
    return ", ".join(
        f"{a.target.name}+{a.offset}:{a.width}" + "".join(f"x{n}/{s}" for n, s in a.dims) for a in accesses
    )


def schedule_text(schedule: Schedule) -> str:
    """Return the operations of a schedule with their times, queues and addresses."""
    lines = [f"schedule: {schedule.makespan_ps} ps, level limit {schedule.level_limit}"]
    for index, scheduled in enumerate(schedule.ops):
        places = " ".join(f"{buffer.name}@{address:#x}" for buffer, address in scheduled.addresses.items())
        queue = f"{scheduled.queue.engine.name.lower()}{scheduled.queue.unit}"
        lines.append(f"{index}: {scheduled.start_ps}..{scheduled.end_ps} {queue} {scheduled.op.name} {places}")
    return "\n".join(lines)
