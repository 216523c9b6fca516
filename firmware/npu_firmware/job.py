"""A job: the commands of one command buffer, run one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from npu_firmware.commands import Command
from npu_firmware.inference import Inference
from npu_firmware.queues import Queue
from npu_firmware.walk import Walk


class State(IntEnum):
    """What a job waits for."""

    COMMAND = 0  # the core: its next command
    TILES = 1  # free tiles
    BARRIERS = 2  # the core: its first barriers
    ENGINES = 3  # its walk
    FENCE = 4  # a fence value


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
    tiles: tuple[int, ...] = ()
    walk: Walk | None = None
