"""Trace recorder: struct npu_trace_record, in the order of events. Nothing is recorded unless it exists."""

from __future__ import annotations

from array import array

import numpy as np
from npu_abi import dtype

from npu_device.clock import Clock, ClockDomain

COLUMNS = ("time_ps", "kind", "engine", "unit", "task_id", "job_id", "value")


class Trace:
    """Collects records; `drain` packs and drops them."""

    __slots__ = ("_clock", "_domain", "_rows")

    def __init__(self, clock: Clock, domain: ClockDomain) -> None:
        self._clock = clock
        self._domain = domain
        self._rows = array("Q")  # COLUMNS of one record after the other

    def add(self, kind: int, engine: int, unit: int, task_id: int, job_id: int, value: int) -> None:
        """Record something that happens now."""
        self._rows.extend((self._clock.now_ps, kind, engine, unit, task_id, job_id, value))

    def drain(self) -> bytes:
        """Return all records, oldest first, as struct npu_trace_record[], and forget them."""
        rows = np.array(self._rows, np.uint64).reshape(-1, len(COLUMNS))
        self._rows = array("Q")
        records = np.zeros(len(rows), dtype=dtype("npu_trace_record"))
        for number, name in enumerate(COLUMNS):
            records[name] = rows[:, number]
        num, den = np.uint64(self._domain.num), np.uint64(self._domain.den)
        whole, rest = np.divmod(rows[:, 0], den)  # so that no product is too large
        records["cycle"] = whole * num + rest * num // den
        return records.tobytes()
