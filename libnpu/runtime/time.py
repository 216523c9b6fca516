"""Durations that programs give: nanoseconds on the virtual clock."""

from __future__ import annotations

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.arguments import shown, wrong

LAST_PS = 1 << 62  # end of the clock: 53 days
FOR_EVER_PS = (1 << 63) - 1  # deadlines from here on never pass
NEVER_PS = (1 << 64) - 1  # later than all that happens


def duration_ps(duration_ns: float, what: str) -> int | None:
    """Return `duration_ns` in picoseconds; None when no clock gets so far, infinity included.

    Raises INVALID_VALUE for a negative one or NaN, TypeError for no number; `what` names it.
    """
    try:
        if duration_ns >= 0:
            return round(duration_ns * 1000) if duration_ns * 1000 <= LAST_PS else None
    except (TypeError, ValueError):  # arrays compare too
        raise wrong(duration_ns, f"a {what}", "a number of nanoseconds") from None
    raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"a {what} of {shown(duration_ns)} ns; 0 is the least")


def timeout_ps(timeout_ns: float | None) -> int | None:
    """Return a time-out in picoseconds; None, infinity and what no clock reaches: for ever. Raises as `duration_ps`."""
    return None if timeout_ns is None else duration_ps(timeout_ns, "time-out")
