"""Faults that wait for their time, of driver and device alike: struct npu_emu_inject as it counts down."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Armed:
    """A fault: `after` passes of its point (enum npu_fault_point), then it strikes `count` times; with `count` 0 it is spent.

    Armed in several places it counts the passes of all of them.
    """

    point: int
    kind: int  # enum npu_fault_kind
    after: int = 0
    count: int = 1
    seed: int = 0


class ArmedFaults:
    """The faults that are armed in one place. `struck`: how often a fault has struck there, by (point, kind)."""

    def __init__(self) -> None:
        self._faults: list[Armed] = []
        self.struck: Counter[tuple[int, int]] = Counter()

    def __bool__(self) -> bool:
        return bool(self._faults)

    def add(self, fault: Armed) -> None:
        """Arm a fault."""
        self._faults.append(fault)

    def clear(self) -> None:
        """Forget the faults, not how often they have struck."""
        self._faults.clear()

    def strike(self, point: int) -> Armed | None:
        """Count that a point is passed; return the fault that strikes, if one does. Of several the one that was armed first."""
        self._faults = [fault for fault in self._faults if fault.count]
        struck = None
        for fault in self._faults:
            if fault.point != point:
                continue
            if fault.after:
                fault.after -= 1
            elif struck is None:
                struck = fault
        if struck is not None:
            struck.count -= 1
            self.struck[point, struck.kind] += 1
        return struck
