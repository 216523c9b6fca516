"""Values that left fp16's range: counted per task by the engines, kept until the driver asks."""

from __future__ import annotations

import numpy as np
from npu_abi import dtype


class Overflows:
    """Counts by job and task, in the order of the first overflow."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], int] = {}

    def add(self, job_id: int, task_id: int, count: int) -> None:
        """Note that a task rounded `count` finite values to infinity."""
        key = job_id, task_id
        self._counts[key] = self._counts.get(key, 0) + count

    def drain(self, ssid: int) -> bytes:
        """Return the counts of a context's jobs as struct npu_overflow_record[], and forget them."""
        rows = [(*key, count) for key, count in self._counts.items() if key[0] >> 8 == ssid]
        records = np.zeros(len(rows), dtype("npu_overflow_record"))
        for record, (job_id, task_id, count) in zip(records, rows, strict=True):
            record["job_id"], record["task_id"], record["count"] = job_id, task_id, count
            del self._counts[job_id, task_id]
        return records.tobytes()
