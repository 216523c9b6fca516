"""Trace recorder: struct npu_trace_record, in the order of events. Nothing is recorded unless it exists."""

from __future__ import annotations

import numpy as np
from npu_abi import dtype

from npu_device.clock import Clock, ClockDomain


class Trace:
    """Collects records; `drain` packs and drops them."""

    __slots__ = ("_clock", "_domain", "_rows")

    def __init__(self, clock: Clock, domain: ClockDomain) -> None:
        self._clock = clock
        self._domain = domain
        self._rows: list[tuple[int, ...]] = []

    def add(self, kind: int, engine: int, unit: int, task_id: int, job_id: int, value: int) -> None:
        """Record something that happens now."""
        self._rows.append((self._clock.now_ps, kind, engine, unit, task_id, job_id, value))

    def drain(self) -> bytes:
        """Return all records, oldest first, as struct npu_trace_record[], and forget them."""
        rows = self._rows
        self._rows = []
        records = np.zeros(len(rows), dtype=dtype("npu_trace_record"))
        if rows:
            columns = list(zip(*rows, strict=True))
            records["time_ps"] = columns[0]
            records["cycle"] = [self._domain.cycle_at(t) for t in columns[0]]
            for name, column in zip(("kind", "engine", "unit", "task_id", "job_id", "value"), columns[1:], strict=True):
                records[name] = column
        return records.tobytes()
