"""Faults that wait for their time, of driver and device alike: struct npu_emu_inject as it counts down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Armed:
    """A fault: `after` passes of its point (enum npu_fault_point), then it strikes `count` times."""

    point: int
    kind: int
    after: int
    count: int
    seed: int


def strike(armed: list[Armed], *points: int) -> Armed | None:
    """Count that points are passed, names of one moment; return the fault that strikes, if one does. A spent one leaves `armed`."""
    struck = None
    for fault in armed:
        if fault.point not in points:
            continue
        if fault.after:
            fault.after -= 1
        elif struck is None:
            struck = fault
    if struck is not None:
        struck.count -= 1
        if not struck.count:
            armed.remove(struck)
    return struck
