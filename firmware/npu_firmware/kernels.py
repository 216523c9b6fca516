"""Kernel launches: checks a command, gives each block to the least-loaded SHAVE, and keeps what is outstanding.

The core calls, in this order: `check` and `begin` when it comes to the command; `ready` and `place` until every block has a
SHAVE; `end` for each block that has ended; `cancel` when the job ends early.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npu_abi import C, codec, sizeof

from npu_firmware.commands import Kernel
from npu_firmware.errors import ParseError
from npu_firmware.hal import Block, Hal
from npu_firmware.hal import Launch as Handle
from npu_firmware.tiles import Tiles

if TYPE_CHECKING:
    from npu_firmware.job import Job

LOW_END = int(C.NPU_VA_LOW_END)
COOPERATIVE = int(C.NPU_KERNEL_COOPERATIVE)
MAX_CODE_BYTES, MAX_ARGS_BYTES = int(C.NPU_MAX_KERNEL_CODE_BYTES), int(C.NPU_MAX_KERNEL_ARGS_BYTES)
MAX_GRID = int(C.NPU_MAX_KERNEL_GRID)
PICK, CORE = int(C.NPU_TRACE_KERNEL_PICK), int(C.NPU_ENGINE_CORE)
RECORD_BYTES = sizeof("npu_kernel_record")
RECORD = codec(
    "npu_kernel_record", "taken_ps", "picked_ps", "load_ps", "start_ps", "end_ps", "unit", "loaded_bytes", "cached_bytes"
)  # fmt: skip


@dataclass(slots=True, eq=False)
class Unit:
    """A SHAVE with the number of blocks that it was given: not ended, and ever."""

    tile: int
    shave: int
    outstanding: int = 0
    by_band: list[int] = field(default_factory=lambda: [0] * C.NPU_PRIORITY_BANDS)  # outstanding
    given: int = 0

    @property
    def number(self) -> int:
        """Its number in records and traces."""
        return self.tile << 4 | self.shave


@dataclass(slots=True, eq=False)
class Launch:
    """A launch in progress. `blocks` are those with a SHAVE and not ended, with that SHAVE, when it was chosen,
    and the band it had then. `returned` were recalled before they began, and are placed again first.
    """

    kernel: Kernel
    handle: Handle
    cooperative: bool  # all blocks run at the same time
    taken_ps: int
    next: int = 0  # number of the next block to place
    ended: int = 0
    returned: list[int] = field(default_factory=list)
    blocks: dict[Block, tuple[Unit, int, int]] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether all blocks have ended."""
        return self.ended == self.kernel.grid


class Kernels:
    """The SHAVEs and what was given to them."""

    def __init__(self, hal: Hal, tiles: Tiles) -> None:
        self._hal = hal
        self._tiles = tiles
        self._units = [Unit(tile, shave) for tile in tiles.free for shave in range(hal.profile.shaves_per_tile)]
        self._depth = hal.profile.core.fifo_depth + 1  # blocks of a SHAVE: one runs

    def check(self, ssid: int, kernel: Kernel, number: int) -> None:
        """Check a command of a context, which has that number in its buffer. Raises ParseError."""
        k = kernel
        good = k.text_va % 16 == 0 and k.code_bytes % 16 == 0 and 0 < k.code_bytes <= MAX_CODE_BYTES
        good &= k.text_va + k.code_bytes <= LOW_END and k.args_va + k.args_bytes <= LOW_END
        good &= k.args_va % 8 == 0 and k.args_bytes <= MAX_ARGS_BYTES and (k.args_va == 0) == (k.args_bytes == 0)
        good &= k.record_va % 8 == 0 and 0 < k.grid <= MAX_GRID and not k.flags & ~COOPERATIVE
        good &= not k.flags & COOPERATIVE or k.grid <= len(self._units)
        if not good:
            raise ParseError(C.NPU_PARSE_BAD_KERNEL, number)
        try:
            self._hal.check(ssid, k.text_va, k.code_bytes, False)
            if k.args_bytes:
                self._hal.check(ssid, k.args_va, k.args_bytes, False)
            if k.record_va:
                self._hal.check(ssid, k.record_va, k.grid * RECORD_BYTES, True)
        except self._hal.Fault:
            raise ParseError(C.NPU_PARSE_BAD_KERNEL, number) from None

    def begin(self, job: Job, kernel: Kernel) -> None:
        """Make a checked command the launch of `job`, which waits for SHAVEs from now on."""
        k = kernel
        cooperative = bool(k.flags & COOPERATIVE)
        handle = self._hal.open_launch(
            job.ssid, job.job_id, k.text_va, k.code_bytes, k.args_va, k.grid, cooperative
        )  # fmt: skip
        job.launch = Launch(k, handle, cooperative, job.taken_ps)
        self._tiles.wait(job)

    def ready(self, job: Job) -> int:
        """Return how many blocks of `job` can be placed at once, 0 when it has to wait or has no more."""
        launch = job.launch
        assert launch is not None
        grid = launch.kernel.grid
        if launch.next == grid and not launch.returned:
            return 0
        if launch.cooperative:
            return grid if len(self._candidates(job, launch)) >= grid else 0
        return int(bool(self._candidates(job, launch)))

    def place(self, job: Job) -> None:
        """Give the next block, or all of a cooperative launch, to the SHAVEs with the fewest blocks outstanding."""
        hal, launch = self._hal, job.launch
        assert launch is not None
        now = hal.now_ps()
        for _ in range(launch.kernel.grid if launch.cooperative else 1):
            unit = self._choose(launch, self._candidates(job, launch))
            unit.outstanding += 1
            unit.given += 1
            self._tiles.blocks[unit.tile] += 1
            unit.by_band[job.band] += 1
            if launch.returned:
                number = launch.returned.pop(0)
            else:
                number, launch.next = launch.next, launch.next + 1
            if hal.trace is not None:
                hal.trace(PICK, CORE, 0, number, job.job_id, unit.number)
            block = hal.start_block(launch.handle, number, unit.tile, unit.shave)
            block.band = job.band
            launch.blocks[block] = unit, now, job.band

    def _candidates(self, job: Job, launch: Launch) -> list[Unit]:
        """Return the SHAVEs that may take a block: for a cooperative launch, those that have none."""
        open_tiles = self._tiles.open_to(job, launch.cooperative)
        depth = 1 if launch.cooperative else self._depth
        band = 0 if launch.cooperative else job.band
        return [
            unit
            for unit in self._units
            if (unit.outstanding < depth or (band and sum(unit.by_band[band:]) < depth)) and unit.tile in open_tiles
        ]

    def _choose(self, launch: Launch, units: list[Unit]) -> Unit:
        """Return the SHAVE for the next block: the order is that of NPU_CMD_KERNEL_LAUNCH in npu_fw.h."""
        fewest = min(unit.outstanding for unit in units)
        ties = [unit for unit in units if unit.outstanding == fewest]
        if len(ties) == 1:
            return ties[0]
        held = self._hal.held_code
        return min(ties, key=lambda unit: (-held(launch.handle, unit.tile, unit.shave), unit.given, unit.number))

    def end(self, job: Job, block: Block) -> Launch:
        """Take a block that has ended off its SHAVE and write its record; return its launch. Raises Fault."""
        launch = job.launch
        assert launch is not None
        _, picked_ps, _ = launch.blocks[block]
        unit = self._take_off(launch, block)
        self._hal.close_slot(block)
        launch.ended += 1
        if launch.kernel.record_va:
            record = RECORD.pack(
                launch.taken_ps, picked_ps, block.load_ps, block.start_ps, block.end_ps, unit.number, block.loaded_bytes,
                block.cached_bytes,
            )  # fmt: skip
            self._hal.store(job.ssid, launch.kernel.record_va + block.number * RECORD_BYTES, record)
        return launch

    def cancel(self, job: Job) -> list[Block]:
        """Take every block of `job` off the SHAVEs; return them."""
        launch = job.launch
        assert launch is not None
        blocks = list(launch.blocks)
        for block in blocks:
            self._take_off(launch, block)
        self._hal.cancel_blocks(blocks)
        return blocks

    def recall(self, job: Job) -> list[Block]:
        """Take the blocks of `job` that have not begun off the SHAVEs, to be placed again; return them. A cooperative launch keeps its blocks."""
        launch = job.launch
        assert launch is not None
        blocks = (
            [] if launch.cooperative else [block for block in launch.blocks if not block.running and not _ended(block)]
        )
        for block in blocks:
            self._take_off(launch, block)
        self._hal.cancel_blocks(blocks)
        launch.returned = sorted([*launch.returned, *(block.number for block in blocks)])
        return blocks

    def _take_off(self, launch: Launch, block: Block) -> Unit:
        unit, _, band = launch.blocks.pop(block)
        unit.by_band[band] -= 1
        unit.outstanding -= 1
        self._tiles.blocks[unit.tile] -= 1
        return unit


def _ended(block: Block) -> bool:
    return block.end_ps > 0 or block.failed
