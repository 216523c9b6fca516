"""Times of the host's clock in calls: how far it goes, and what lies beyond. In ps."""

from __future__ import annotations

FOR_EVER = (1 << 63) - 1  # a deadline that never passes
NEVER_PS = (1 << 64) - 1  # of EMU_RUN: until nothing is left to happen
LAST_PS = 3 << 61  # chosen: half as long again as programs may advance (2^62 ps), as calls at their end cost time too


def deadline(value_ps: int) -> int:
    """Return a deadline as it counts: one that the clock does not reach never passes."""
    return value_ps if value_ps <= LAST_PS else FOR_EVER


def until(value_ps: int) -> int:
    """Return where EMU_RUN ends: a time that the clock does not reach is that at which nothing is left to happen."""
    return value_ps if value_ps <= LAST_PS else NEVER_PS
