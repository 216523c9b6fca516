"""Which tile belongs to an inference, which runs blocks of kernels, and who waits for tiles.

Requests are served by bands, and within a band in the order of their arrival, so neither kernels nor inferences starve:

- An inference takes its tiles when nothing that came before it waits. While it is the first inference that waits, the tiles
  that it will get, those with the fewest blocks, take no blocks of launches that came after it.
- A launch waits while it has blocks left and none on a SHAVE; no inference that came after it takes a tile meanwhile. It may use the tiles
  that a later inference waits for when there are no others. A cooperative one places all its blocks at once.
- While a cooperative launch waits, launches that came after it start no blocks: SHAVEs come free for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npu_firmware.job import Job


class Tiles:
    """The usable tiles. `free` are those that belong to no inference; they may run blocks."""

    def __init__(self, usable: Iterable[int]) -> None:
        self.free = list(usable)
        self.blocks = dict.fromkeys(self.free, 0)  # outstanding, by tile
        self.waiting: list[Job] = []  # for tiles or SHAVEs, in the order of arrival
        self._tickets = 0

    def idle(self) -> list[int]:
        """Return the tiles that belong to nobody."""
        return [tile for tile in self.free if not self.blocks[tile]]

    def wait(self, job: Job) -> None:
        """Let a job wait, behind those that wait already."""
        self._tickets += 1
        job.ticket = self._tickets
        self.waiting.append(job)
        self.sort()

    def sort(self) -> None:
        """Put those that wait in order: the highest band first, then the order of arrival."""
        if len(self.waiting) > 1:
            self.waiting.sort(key=_order)

    def wait_again(self, job: Job) -> None:
        """Let a launch wait that has blocks left and none on a SHAVE, or a preempted inference, at the place that it had."""
        if job in self.waiting:
            return
        self.waiting.append(job)
        self.sort()

    def serve(self) -> Job | None:
        """Give tiles to the job that has waited longest, if it is an inference and there are enough; return it."""
        if not self.waiting:
            return None
        job = self.waiting[0]
        if not job.tile_count:
            return None
        idle = self.idle()
        count = job.tile_count
        if count > len(idle):
            return None
        del self.waiting[0]
        job.tiles = tuple(idle[:count])
        self.free = [tile for tile in self.free if tile not in job.tiles]
        return job

    def give_back(self, job: Job) -> None:
        """Take the tiles of an inference."""
        self.free = sorted([*self.free, *job.tiles])
        job.tiles = ()

    def open_to(self, job: Job, cooperative: bool) -> list[int]:
        """Return the tiles whose SHAVEs may take a block of the launch of `job` now."""
        if any(other.cooperative and _order(other) < _order(job) for other in self.waiting):
            return []
        first = next((other for other in self.waiting if other.tile_count), None)
        if first is None or job.band > first.band:
            return self.free
        by_blocks = sorted(self.free, key=lambda tile: (self.blocks[tile], tile))
        rest = sorted(by_blocks[first.tile_count :])
        earlier = _order(job) < _order(first)
        return self.free if earlier and (cooperative or not rest) else rest


def _order(job: Job) -> tuple[int, int]:
    return -job.band, job.ticket
