"""A job: the commands of one command buffer, run one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from npu_abi import C

from npu_firmware.commands import Command
from npu_firmware.inference import Inference
from npu_firmware.kernels import Launch
from npu_firmware.queues import Queue
from npu_firmware.walk import Walk

if TYPE_CHECKING:
    from npu_firmware.preemption import Saved


class State(IntEnum):
    """What a job waits for."""

    COMMAND = int(C.NPU_STAGE_COMMAND)  # the core: its next command
    TILES = int(C.NPU_STAGE_TILES)  # free tiles
    BARRIERS = int(C.NPU_STAGE_BARRIERS)  # the core: its first barriers
    ENGINES = int(C.NPU_STAGE_ENGINES)  # its walk
    FENCE = int(C.NPU_STAGE_FENCE)  # a fence value
    UNITS = int(C.NPU_STAGE_UNITS)  # the blocks of its launch
    DRAIN = int(C.NPU_STAGE_DRAIN)  # its running tasks, before it leaves its tiles to another job
    SAVE = int(C.NPU_STAGE_SAVE)  # the copy of its CMX
    SAVED = int(C.NPU_STAGE_SAVED)  # tiles, to go on
    RESTORE = int(C.NPU_STAGE_RESTORE)  # the copy of its CMX back


@dataclass(slots=True, eq=False)
class Job:
    """Run-time state. `tiles` are the physical tiles that it owns."""

    queue: Queue
    job_id: int
    ssid: int
    start_ps: int
    commands: list[Command] = field(default_factory=list)
    position: int = 0
    state: State = State.COMMAND
    inference: Inference | None = None
    dynamic: bool = False  # it runs with a run-time scheduler
    tiles: tuple[int, ...] = ()
    tile_count: int = 0  # that its inference needs
    work: Inference | None = None  # on the engines, or saved
    walk: Walk | None = None
    saved: Saved | None = None  # it was preempted
    preempt_va: int = 0  # preemption buffer, 0 = none
    preempt_bytes: int = 0
    band: int = 0  # that it counts as
    served_ps: int = 0  # when the core last did something for it, if there is more than one band
    launch: Launch | None = None
    taken_ps: int = 0  # when the core began with its kernel
    ticket: int = 0  # order of arrival among those that wait for tiles or SHAVEs
    failure: tuple[int, int, int] | None = None  # status, detail, info: it has failed, and fences are left to signal

    @property
    def cooperative(self) -> bool:
        """Whether it has a cooperative launch."""
        return self.launch is not None and self.launch.cooperative

    def skip_to_fence(self) -> None:
        """Move on to the next FENCE_SIGNAL from `position`, or behind the last command: all that a failed job still does."""
        while self.position < len(self.commands) and self.commands[self.position].type != C.NPU_CMD_FENCE_SIGNAL:
            self.position += 1
