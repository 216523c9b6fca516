"""The pipeline of kernels whose operands are contiguous: load, compute and store overlap, over two sets of buffers.

A unit is an element or a row. For each chunk of units: wait for its load, start the load of the next one, compute, wait for
the store of the one before, start this one's store. The operands take turns at the two DMA ports, so that both have as much to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from libnpu.kernels.assembler import Const, Expr, Program, Reg, Value, ceil_div, expr, maximum, minimum
from libnpu.kernels.operations import LOAD, STORE, Space, copy, room, wait

# Emits what turns the input buffers into the output buffers, for a register's number of units.
Compute = Callable[[Sequence[Reg], Sequence[Reg], Reg], None]
FEWEST_CHUNKS = 4  # of a block, so that loads and stores overlap with something


@dataclass(frozen=True, slots=True)
class Stream:
    """An operand in DDR: its address, and the bytes of a unit."""

    address: Expr
    unit_bytes: Value


def run(
    p: Program,
    first: Reg,
    last: Reg,
    limit: Value,
    least: int,
    loads: Sequence[Stream],
    stores: Sequence[Stream],
    compute: Compute,
) -> None:
    """Compute units [first, last), at most `limit` at a time and not fewer than `least` when there are as many.

    The caller knows that one unit of all operands fits, twice.
    """
    with p.scope():
        operands = [*loads, *stores]
        chunk = p.let(sum((expr(s.unit_bytes) for s in operands), Const(0)))
        p.set(chunk, minimum(room(2 * len(operands)) // (chunk * 2), limit))
        p.set(chunk, minimum(chunk, maximum(ceil_div(last - first, FEWEST_CHUNKS), least)))
        # Pairs of buffers: the one in use, and the sum of both addresses, from which the other follows.
        space = Space(p)
        current, both = [], []
        for stream in operands:
            current.append(space.take(chunk * stream.unit_bytes))
            both.append(space.take(chunk * stream.unit_bytes))
            p.set(both[-1], current[-1] + both[-1])
        ins, outs = current[: len(loads)], current[len(loads) :]

        turn = p.let(0)

        def port(number: int) -> Expr:
            return (turn + number) % 2

        def load(at: Expr, buffers: Sequence[Expr], count: Expr) -> None:
            for number, (stream, buffer) in enumerate(zip(loads, buffers, strict=True)):
                copy(p, stream.address + at * stream.unit_bytes, buffer, count * stream.unit_bytes, port(number), LOAD)

        count = p.let(minimum(chunk, last - first))
        with p.when(first, "<", last):
            load(first, ins, count)
        with p.repeat_while(first, "<", last, "chunk"):
            following = p.let(minimum(chunk, last - first - count))
            wait(p, LOAD)
            with p.when(0, "<", following):
                load(first + count, [total - now for total, now in zip(both, ins, strict=False)], following)
            compute(ins, outs, count)
            wait(p, STORE)
            for number, (stream, buffer) in enumerate(zip(stores, outs, strict=True), len(loads)):
                size = count * stream.unit_bytes
                copy(p, buffer, stream.address + first * stream.unit_bytes, size, port(number), STORE)
            p.set(turn, 1 - turn)
            for total, now in zip(both, current, strict=True):
                p.set(now, total - now)
            p.set(first, first + count)
            p.set(count, following)
