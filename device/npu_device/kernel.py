"""Blocks of kernels on the device: what the blocks of one launch share, and the slot of each.

A block has a job slot of its own, without barriers, in front of one SHAVE. Its window shows that SHAVE's slice of CMX, its DPU is that of the
tile. Blocks of one launch can race in memory, as tasks of one job can, so they share the list of what runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_abi import C

from npu_device.cmx import BASE, STRIDE, SliceSpace
from npu_device.slot import JobSlot

if TYPE_CHECKING:
    from npu_device.engine import Task
    from npu_device.fabric import Fabric
    from npu_device.shave import BlockTask

SLICE_ALIGNMENT = 64
NO_BARRIER = int(C.NPU_BARRIER_NONE)


class Launch:
    """One launch: the program, and how far its blocks have come. Blocks of a cooperative one start together and meet at `bar`s."""

    __slots__ = (
        "_arrived", "_ended", "_loaded", "args_va", "code_bytes", "cooperative", "executing", "grid", "job_id", "ssid", "text_va",
    )  # fmt: skip

    def __init__(
        self, ssid: int, job_id: int, text_va: int, code_bytes: int, args_va: int, grid: int, cooperative: bool
    ) -> None:
        self.ssid = ssid
        self.job_id = job_id
        self.text_va = text_va
        self.code_bytes = code_bytes
        self.args_va = args_va
        self.grid = grid
        self.cooperative = cooperative
        self.executing: list[Task] = []  # running tasks with data, of all blocks
        self._loaded: list[BlockTask] = []  # cooperative: ready to start
        self._arrived: list[BlockTask] = []  # at the `bar`
        self._ended = 0  # blocks

    def loaded(self, task: BlockTask) -> list[BlockTask]:
        """Note that a block has its program; return the blocks that start now."""
        if not self.cooperative:
            return [task]
        self._loaded.append(task)
        return self._loaded if len(self._loaded) == self.grid else []

    def arrive(self, task: BlockTask) -> list[BlockTask]:
        """Note that a block has come to a `bar`; return the blocks that go on now."""
        self._arrived.append(task)
        if len(self._arrived) == self.grid:
            arrived, self._arrived = self._arrived, []
            return arrived
        self._check()
        return []

    def end(self) -> None:
        """Note the end of a block."""
        self._ended += 1
        self._check()

    def _check(self) -> None:
        """Fail the launch when blocks wait for one that has ended."""
        if self._ended and self._arrived:
            task = min(self._arrived, key=lambda waiting: waiting.index)
            task.slot.fail(C.NPU_JOB_DEADLOCK, NO_BARRIER, task)


class BlockSlot(JobSlot):
    """One block on its SHAVE. The times are those of struct npu_kernel_record."""

    __slots__ = ("cached_bytes", "end_ps", "load_ps", "loaded_bytes", "number", "start_ps")

    launch: Launch
    space: SliceSpace

    def __init__(self, fabric: Fabric, launch: Launch, number: int, tile: int, shave: int) -> None:
        super().__init__(fabric, launch.ssid, launch.job_id, (tile,), 0)
        size = slice_bytes(fabric.profile.cmx.workspace_bytes, fabric.profile.shaves_per_tile)
        self.space = SliceSpace(fabric.mmu, fabric.cmx, launch.ssid, tile, shave * size, size)
        self.shift = tile * STRIDE + shave * size
        self.launch = launch
        self.executing = launch.executing
        self.number = number
        self.load_ps = self.start_ps = self.end_ps = 0
        self.loaded_bytes = self.cached_bytes = 0

    def operation_ended(self, task: Task) -> None:
        """Take note that the program has ended."""
        self.end_ps = self.fabric.clock.now_ps
        if not self.failed:
            self.fabric.core.report_ended(self)
            self.launch.end()

    def close(self) -> None:
        """Take the block off the engines."""
        launch = self.launch
        launch.executing[:] = [task for task in launch.executing if task.slot is not self]
        self.executing = []
        super().close()

    def registers(self) -> list[int]:
        """Return r2 to r5 at the entry of the program."""
        return [self.number, self.launch.grid, BASE, self.space.size_bytes]


def slice_bytes(workspace_bytes: int, shaves: int) -> int:
    """Return the bytes of CMX that a block has: a tile's over its SHAVEs, whole lines of 64 bytes."""
    return workspace_bytes // shaves & -SLICE_ALIGNMENT
