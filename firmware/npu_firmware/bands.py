"""Priority bands: which band each job counts as. Only where queues of several bands are registered does anything here cost time.

A job that has waited for `core.starvation_cycles` counts as of one band more, and again after each such time, until its command ends. It waits
while the core does nothing for it and none of its tasks or blocks runs; a job that waits for a fence does not. The core looks when it acts:
what keeps a job waiting for ever has it act again and again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_abi import C

from npu_firmware.job import Job, State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npu_firmware.hal import Hal
    from npu_firmware.queues import Queue
    from npu_firmware.tiles import Tiles

HIGHEST = int(C.NPU_PRIORITY_BANDS) - 1


class Bands:
    """The bands of all jobs. `mixed`: there is more than one."""

    def __init__(self, hal: Hal, tiles: Tiles) -> None:
        self._hal = hal
        self._tiles = tiles
        core = hal.profile.core
        self._period_ps = -(-core.starvation_cycles * 10**12 // core.clock_hz)
        self.mixed = False

    def changed(self, queues: Iterable[Queue]) -> None:
        """Take note of the queues that there are."""
        self.mixed = len({queue.band for queue in queues}) > 1

    def age(self, jobs: list[Job], queues: Iterable[Queue]) -> None:
        """Raise what has waited too long."""
        now = self._hal.now_ps()
        for job in jobs:
            if job.state is State.FENCE or _works(job):
                job.served_ps = now
            elif now - job.served_ps >= self._period_ps:
                job.served_ps += self._period_ps
                self.set(job, min(job.band + 1, HIGHEST))
        for queue in queues:
            if not queue.rung or queue.job is not None:
                queue.since_ps = -1
            elif queue.since_ps < 0:
                queue.since_ps = now

    def of_ring(self, queue: Queue) -> int:
        """Return the band of the job that a ring holds."""
        waited = self._hal.now_ps() - queue.since_ps if queue.since_ps >= 0 else 0
        return min(queue.band + waited // self._period_ps, HIGHEST)

    def set(self, job: Job, band: int) -> None:
        """Let a job count as of a band from now on."""
        job.band = band
        if job.walk is not None:
            job.walk.slot.band = band
        if job.launch is not None:
            for block in job.launch.blocks:
                block.band = band
        self._tiles.sort()


def _works(job: Job) -> bool:
    """Whether a task or a block of a job runs."""
    if job.walk is not None:
        return job.walk.slot.running > 0
    return job.launch is not None and any(block.running for block in job.launch.blocks)
