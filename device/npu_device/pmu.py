"""Performance counters (enum npu_pmu), 64 bits, in cycles of the engine clock or in bytes.

Engines add to `raw` for ever; control writes only move what is subtracted, so counting costs one addition.
"""

from __future__ import annotations

from collections.abc import Callable

from npu_abi import C

COUNT = int(C.NPU_PMU_COUNT)
EN, FREEZE, CLR = int(C.NPU_PMU_CTRL_EN), int(C.NPU_PMU_CTRL_FREEZE), int(C.NPU_PMU_CTRL_CLR)
MASK = (1 << 64) - 1


class Pmu:
    """The counters of a device. `sample()` returns the running totals, time-dependent ones included."""

    def __init__(self, sample: Callable[[], list[int]]) -> None:
        self._sample = sample
        self.raw = [0] * COUNT
        self.control = EN
        self._base = [0] * COUNT
        self._held: list[int] | None = None  # values while stopped
        self._latched_high = 0

    def reset(self) -> None:
        """Return to the reset state: counting from zero."""
        self.control = EN
        self._held = None
        self._base = self._sample()

    def values(self) -> list[int]:
        """Return all counters by enum npu_pmu."""
        if self._held is not None:
            return list(self._held)
        return [(now - base) & MASK for now, base in zip(self._sample(), self._base, strict=True)]

    def write_control(self, value: int) -> None:
        """Apply a write of PMU_CTRL."""
        held = self.values()
        if value & CLR:
            held = [0] * COUNT
        self.control = value & (EN | FREEZE)
        if self.control == EN:
            self._held = None
            self._base = [now - old for now, old in zip(self._sample(), held, strict=True)]
        else:
            self._held = held

    def read_low(self, index: int) -> int:
        """Return bits 31:0 of a counter and latch 63:32."""
        value = self.values()[index]
        self._latched_high = value >> 32
        return value & 0xFFFFFFFF

    def read_high(self) -> int:
        """Return what the last `read_low` latched."""
        return self._latched_high
