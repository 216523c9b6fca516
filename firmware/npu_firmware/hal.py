"""The hardware as the firmware sees it: protocols that the device's hal satisfies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any, Protocol

from npu_model.profile import Profile


class Channel(Protocol):
    """A job's FIFO in front of one engine."""

    room: int  # tasks that still fit
    idle: bool  # no task of the job waits here or runs

    def push(self, task: Any) -> None:
        """Put a task in; there must be room."""


class Task(Protocol):
    """A decoded descriptor, ready for its channel."""

    channel: Channel
    start_after: int  # virtual barrier, -1 = at once
    task_id: int
    list_id: int  # with index: where the descriptor is
    index: int
    ready: bool  # every barrier that it waits for is

    def blocking(self) -> list[int]:
        """Return the loaded virtual barriers that it waits for and that are not ready."""


class Slot(Protocol):
    """A job on the engines."""

    job_id: int
    outstanding: int  # tasks pushed and not ended
    running: int  # tasks started and not ended
    ends: int  # ended tasks, counted once the firmware has set it to 0; then it is woken at each
    band: int  # priority, written by the firmware
    failed: bool
    fault: tuple[int, int, int] | None  # enum npu_job_status, detail, info

    def recall(self) -> list[Task]:
        """Take the tasks that have not started out of the FIFOs, and return them."""

    def holding(self) -> bool:
        """Whether a task has an engine and waits for nothing that it started."""

    def quiet(self) -> bool:
        """Say whether nothing of the slot runs or could run by itself."""

    def blocked(self) -> tuple[int, int]:
        """Return the lowest loaded virtual barrier that a FIFO head waits for, and that task as index | list << 32; or (-1, 0)."""


class Launch(Protocol):
    """A kernel launch, as the device keeps it."""


class Block(Slot, Protocol):
    """A block of a kernel on its SHAVE. Times in ps, of struct npu_kernel_record."""

    number: int
    load_ps: int
    start_ps: int
    end_ps: int
    loaded_bytes: int
    cached_bytes: int


class Barrier(Protocol):
    """A physical barrier that retired."""

    slot: Any
    virtual_id: int
    valid: bool  # a virtual barrier is loaded
    producers: int  # left, as consumers
    consumers: int


class Inputs(Protocol):
    """What the firmware polls."""

    pending: bool  # a message, doorbell, fault or ended block is there; cleared by the firmware
    retired: list[Barrier]  # taken by the firmware, which leaves an empty list


class Hal(Protocol):
    """The management core's reach."""

    Fault: type[Exception]  # an access that is not mapped
    DescriptorError: type[Exception]
    params: bytes  # struct npu_boot_params
    release: int  # of the image that runs, as in struct npu_fw_header
    inputs: Inputs
    profile: Profile
    trace: Callable[[int, int, int, int, int, int], None] | None

    def enable_snooping(self) -> None: ...
    def read_register(self, offset: int) -> int: ...
    def write_register(self, offset: int, value: int) -> None: ...
    def now_ps(self) -> int: ...
    def alarm(self, patience_ps: int) -> int: ...
    def tasks_done(self) -> int: ...
    def pop_message(self) -> int: ...
    def post_message(self, address: int) -> None: ...
    def pop_doorbell(self) -> int: ...
    def load(self, ssid: int, va: int, nbytes: int) -> bytes: ...
    def store(self, ssid: int, va: int, data: bytes) -> None: ...
    def read(self, ssid: int, va: int, layout: Struct) -> tuple[Any, ...]: ...
    def open_slot(self, ssid: int, job_id: int, tiles: tuple[int, ...], barrier_count: int) -> Slot: ...
    def close_slot(self, slot: Slot) -> None: ...
    def faulted(self) -> list[Slot]: ...
    def check(self, ssid: int, va: int, nbytes: int, write: bool) -> None: ...
    def open_launch(
        self, ssid: int, job_id: int, text_va: int, code_bytes: int, args_va: int, grid: int, cooperative: bool
    ) -> Launch: ...
    def held_code(self, launch: Launch, tile: int, shave: int) -> int: ...
    def start_block(self, launch: Launch, number: int, tile: int, shave: int) -> Block: ...
    def pop_ended(self) -> Block | None: ...
    def cancel_blocks(self, blocks: list[Block]) -> None: ...
    def drop_code(self, ssid: int) -> None: ...
    def barriers(self, slot: Slot) -> list[Barrier]: ...
    def load_barrier(self, barrier: Barrier, virtual_id: int, producers: int, consumers: int) -> None: ...
    def plan_dma(self, records: Any) -> Any: ...
    def plan_dpu(self, invariants: Any, variants: Any) -> Any: ...
    def plan_shave(self, invocations: Any, ranges: Any) -> Any: ...
    def dma_tasks(self, slot: Slot, port: int, list_id: int, plan: Any) -> Iterable[Task]: ...
    def dpu_tasks(self, slot: Slot, list_id: int, plan: Any) -> Iterable[Task]: ...
    def shave_tasks(self, slot: Slot, list_id: int, plan: Any) -> Iterable[Task]: ...
