"""One link that two clients share, as a queue: the model in which the figures B24 to B26 were given. It shares nothing with the memory path.

A link moves one flit a cycle, in order of arrival, or those of the NPU first. In a cycle a flit of the NPU comes with probability
`npu_flits`, and a burst of the CPU's with such a one that it asks for `cpu_flits`. A flit of the NPU takes one of 16 credits, which is
free again `ROUND_TRIP` cycles after the flit has moved; while none is free it waits in front of the port, where `waiting` flits have
room (None: any number). The NPU makes no more while that is full: what it would have made in that time is its loss.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

CREDITS, ROUND_TRIP, BURST_FLITS = 16, 15, 8
CYCLES = 100_000


@dataclass(frozen=True, slots=True)
class Share:
    """What the NPU got: flits a cycle, and its credits in use, 0 to 1, both on average."""

    flits: float
    full: float


def share(npu_flits: float, cpu_flits: float, waiting: int | None, priority: bool = False, seed: int = 0) -> Share:
    """Return the NPU's share in `CYCLES` cycles."""
    random = np.random.default_rng(seed)
    npu = (random.random(CYCLES) < npu_flits).tolist()
    cpu = (random.random(CYCLES) < cpu_flits / BURST_FLITS).tolist()
    queue: deque[bool] = deque()  # at the link, in order of arrival: is it the NPU's
    returns: deque[int] = deque()  # cycles in which credits come back
    outside = in_use = at_link = moved = held = 0
    room = CYCLES if waiting is None else waiting
    for now in range(CYCLES):
        while returns and returns[0] <= now:
            returns.popleft()
            in_use -= 1
        if cpu[now]:
            queue.extend([False] * BURST_FLITS)
        outside += npu[now]
        taken = min(outside, CREDITS - in_use)
        outside = min(outside - taken, room)
        in_use += taken
        at_link += taken
        queue.extend([True] * taken)
        first = bool(queue) and queue.popleft()
        is_npu = at_link > 0 if priority else first
        held += in_use
        if is_npu:
            at_link -= 1
            moved += 1
            returns.append(now + 1 + ROUND_TRIP)
    return Share(moved / CYCLES, held / CYCLES / CREDITS)
