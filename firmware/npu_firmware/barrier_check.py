"""Validation of barrier configurations and of the masks that name them, in bulk."""

from __future__ import annotations

from typing import Any

import numpy as np
from npu_abi import C

from npu_firmware.errors import ParseError
from npu_firmware.task_check import refuse

Records = np.ndarray[Any, np.dtype[np.void]]
BAD = int(C.NPU_PARSE_BAD_BARRIER)
NONE = int(C.NPU_BARRIER_NONE)


def check(ids: int, configs: Records, tasks: list[tuple[int, Records]], number: int) -> None:
    """Check chains and counts. `ids` is the number of physical ids, `tasks` the task lists with their numbers."""
    real = configs["real_id"].astype(np.int64)
    producers, consumers = configs["producer_count"].astype(np.int64), configs["consumer_count"].astype(np.int64)
    most = int(C.NPU_MAX_BARRIER_COUNT)
    refuse(real >= ids, BAD, number)
    refuse((producers < 1) | (producers > most) | (consumers > most), BAD, number)
    # The virtual barriers of one id form one chain in array order.
    order = np.argsort(real, kind="stable")
    expected = np.full(len(configs), NONE, dtype=np.int64)
    same = real[order][:-1] == real[order][1:]
    expected[order[:-1][same]] = order[1:][same]
    refuse(configs["next_same_id"].astype(np.int64) != expected, BAD, number)
    posted, waited = np.zeros(64, dtype=np.int64), np.zeros(64, dtype=np.int64)
    for list_number, records in tasks:
        if not len(records):
            continue
        after = records["sched_start_after"].astype(np.int64)
        refuse((after != NONE) & (after >= len(configs)), BAD, list_number)
        for name, counts in (("barriers_post_mask", posted), ("barriers_wait_mask", waited)):
            masks = np.ascontiguousarray(records[name])
            if ids < 64:
                refuse(masks >> np.uint64(ids) != 0, BAD, list_number)
            bits = np.unpackbits(masks.view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
            counts += bits.sum(axis=0, dtype=np.int64)
    for counts, column in ((posted, producers), (waited, consumers)):
        expected_counts = np.bincount(real, weights=column, minlength=64).astype(np.int64)
        wrong = np.flatnonzero(counts != expected_counts[:64])
        if len(wrong):
            at = np.flatnonzero(real == wrong[0])
            raise ParseError(BAD, (int(at[0]) if len(at) else 0) | number << 32)
