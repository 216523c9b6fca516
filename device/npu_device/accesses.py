"""Which device memory the engines read and wrote, for who watches it: noted per task, kept until the driver asks."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from npu_abi import C, dtype

from npu_device.cmx import in_window

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npu_model.footprint import Box, Footprint

Row = tuple[int, int, int, int, int, int, int, int]  # as the fields of struct npu_access_record


class Accesses:
    """Rows by context that is watched, `watched`, in the order in which the accesses began."""

    __slots__ = ("watched",)

    def __init__(self) -> None:
        self.watched: dict[int, list[Row]] = {}

    def watch(self, ssid: int, enable: bool) -> None:
        """Note the accesses of a context from now on, or no more; what was noted goes."""
        self.watched.pop(ssid, None)
        if enable:
            self.watched[ssid] = []

    def note(self, ssid: int, job_id: int, task_id: int, time_ps: int, footprint: Footprint) -> None:
        """Note what a task reads and writes, if its context is watched."""
        rows = self.watched.get(ssid)
        if rows is not None and len(rows) <= C.NPU_MAX_ACCESS_RECORDS:
            for write, boxes in enumerate(footprint):
                rows += [(time_ps, *runs, write, job_id, task_id) for runs in _runs(boxes)]

    def drain(self, ssid: int) -> bytes:
        """Return the accesses of a context as struct npu_access_record[], and forget them. Some were lost when there are
        more than NPU_MAX_ACCESS_RECORDS.
        """
        rows = self.watched.get(ssid)
        if not rows:
            return b""
        self.watched[ssid] = []
        return np.array(rows, dtype("npu_access_record")).tobytes()


def _runs(boxes: Iterable[Box]) -> Iterator[tuple[int, int, int, int]]:
    """Yield what lies in device memory as (address, bytes of a run, stride, runs)."""
    for box in boxes:
        if in_window(box.addr):
            continue
        *outer, (count, stride) = box.dims or ((1, 0),)
        for offsets in product(*(range(0, n * step, step) for n, step in outer)):
            yield box.addr + sum(offsets), box.width, stride, count
