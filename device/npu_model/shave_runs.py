"""Runs of scalar instructions as one Python function each, for programs that run often.

A run begins where a branch leads to, or behind what ends another one: a branch, which belongs to it, or a vector instruction, one
that suspends the program, or one that ends it, which do not. Its function does in order what the handlers of its rows do, so
registers, counters, and faults with their places are the same; the way from row to row is saved. To compile an instruction takes
as long as to run it about forty times (measured).
"""

from __future__ import annotations

from typing import Any

from npu_model.shave_integers import BAD_TARGET, CONDITIONS, HANDLERS, RESULTS, immediate, wrap64
from npu_model.shave_machine import Row
from npu_model.shave_scalar import ENDS, jmp

_NAMES = {handler: name for name, handler in HANDLERS.items()}
_BRANCHES = {*(HANDLERS[name] for name in CONDITIONS), jmp}


def fuse(rows: list[Row]) -> list[Row]:
    """Return the rows of a program with each run in place of its first instruction."""
    fused = list(rows)
    source: list[str] = []
    values: dict[str, Any] = {"wrap64": wrap64}
    runs = [run for run in _runs(rows) if len(run) > 1]
    for run in runs:
        source += f"def run{run.start}(m, _):", " r = m.r"
        for index in run:
            source += _lines(rows[index], index, values)
    exec(compile("\n".join(source), "<SHAVE program>", "exec"), values)
    for run in runs:
        fused[run.start] = values[f"run{run.start}"], None, len(run)
    return fused


def _runs(rows: list[Row]) -> list[range]:
    """Return the runs of a program as indices of rows."""
    targets = {_target(row) for row in rows}
    runs: list[range] = []
    first = 0
    for index, row in enumerate(rows):
        handler, _, scalars = row
        if index in targets:
            runs.append(range(first, index))
            first = index
        if not scalars or handler in ENDS or _target(row) == BAD_TARGET:
            runs.append(range(first, index))
            first = index + 1
        elif handler in _BRANCHES:
            runs.append(range(first, index + 1))
            first = index + 1
    runs.append(range(first, len(rows)))
    return runs


def _target(row: Row) -> int | None:
    """Return where a branch leads."""
    handler, argument, _ = row
    if handler not in _BRANCHES:
        return None
    target: int = argument if handler is jmp else argument[2]
    return target


def _lines(row: Row, index: int, values: dict[str, Any]) -> list[str]:
    """Return the Python of an instruction; `values` gets what it names."""
    handler, argument, _ = row
    if handler is jmp:
        return [f" m.pc = {index}", f" return {argument}"]
    name = _NAMES.get(handler)
    if name is None:
        values[f"handler{index}"], values[f"argument{index}"] = handler, argument
        return [f" m.pc = {index}", f" handler{index}(m, argument{index})"]
    d, a, b = argument
    if name in RESULTS:
        return [f" r[{d}] = " + RESULTS[name].format(a=f"r[{a}]", b=f"({b})" if immediate(name) else f"r[{b}]")]
    return [f" if {CONDITIONS[name].format(a=f'r[{d}]', b=f'r[{a}]')}:", f"  m.pc = {index}", f"  return {b}"]
