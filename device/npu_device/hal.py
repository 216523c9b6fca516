"""What the firmware sees of the device: message FIFOs, doorbells, loads and stores, job slots, engine FIFOs, barriers.

The firmware states this interface as protocols of its own (npu_firmware/hal.py); nothing else of the device is reachable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np
from npu_abi import C
from npu_model.descriptors import DescriptorError
from npu_model.profile import Profile

from npu_device.barriers import Barrier
from npu_device.dma import DmaPlan, plan_dma
from npu_device.dpu import DpuPlan, plan_dpu
from npu_device.engine import Channel, Engine, Task
from npu_device.faults import MemoryFault
from npu_device.kernel import BlockSlot, Launch
from npu_device.mmu import PAGE_SHIFT
from npu_device.shave import ShaveEngine, ShavePlan, block_task, plan_shave
from npu_device.slot import JobSlot

if TYPE_CHECKING:
    from npu_device.fabric import Fabric
    from npu_device.management_core import ManagementCore

Records = np.ndarray[Any, np.dtype[np.void]]
LOAD_RECORD = int(C.NPU_TRACE_BARRIER_LOAD)
CORE = int(C.NPU_ENGINE_CORE)


class Inputs:
    """What the firmware polls: `pending` (a message, doorbell or fault is there; the firmware clears it) and the barriers
    that retired (the firmware takes the list and leaves an empty one)."""

    __slots__ = ("pending", "retired")

    def __init__(self) -> None:
        self.pending = False
        self.retired: list[Barrier] = []


class Hal:
    """The management core's view. `params` are the bytes of struct npu_boot_params, `release` is the image's, as in struct npu_fw_header."""

    Fault = MemoryFault
    DescriptorError = DescriptorError

    def __init__(
        self,
        fabric: Fabric,
        core: ManagementCore,
        params: bytes,
        release: int,
        inputs: Inputs,
        ports: list[Engine[Any]],
        dpus: list[Engine[Any]],
        shaves: list[list[ShaveEngine]],
    ) -> None:
        self._fabric = fabric
        self._core = core
        self._window = fabric.mmu.window
        self._pages = fabric.mmu.pages
        self._ports = ports
        self._dpus = dpus
        self._shaves = shaves
        self.params = params
        self.release = release
        self.inputs = inputs
        self.profile: Profile = fabric.profile
        trace = fabric.trace
        self.trace: Callable[[int, int, int, int, int, int], None] | None = None if trace is None else trace.add

    def enable_snooping(self) -> None:
        """Let DMA look into the host's caches where the page table says so, until the next reset."""
        self._fabric.mmu.snooping = True

    def read_register(self, offset: int) -> int:
        """Return a register of the network on chip or the DDR controller."""
        return self._fabric.memory_registers.reads[offset]()

    def write_register(self, offset: int, value: int) -> None:
        """Write a register of the network on chip that is the core's: NPU_REG_NOC_QOS_BASE of a client."""
        self._fabric.memory_registers.core_writes[offset](value)

    def now_ps(self) -> int:
        """Return the time."""
        return self._fabric.clock.now_ps

    def alarm(self, patience_ps: int) -> int:
        """Wake the core, if it sleeps then, after what it gives a task to end, and return when that is. A seed stretches it as tasks."""
        time_ps = self._fabric.clock.now_ps + patience_ps * self._fabric.schedule.patience
        self._core.alarm(time_ps)
        return time_ps

    def tasks_done(self) -> int:
        """Return how many tasks the engines have ended since the reset."""
        return sum(engine.tasks_done for engine in self._fabric.engines)

    # ---- messages and doorbells ----

    def pop_message(self) -> int:
        """Return the next message address that the host posted, 0 when there is none."""
        queue = self._core.messages
        return queue.popleft() if queue else 0

    def post_message(self, address: int) -> None:
        """Post a message address to the host and raise its interrupt."""
        self._fabric.interrupts.push_host(address)

    def pop_doorbell(self) -> int:
        """Return the next doorbell that was rung, 0 when there is none."""
        queue = self._core.doorbells
        return queue.popleft() if queue else 0

    # ---- memory ----

    def load(self, ssid: int, va: int, nbytes: int) -> bytes:
        """Return bytes of a context. Raises Fault; nothing is queued for the driver."""
        if nbytes > 0:
            memory, start, _ = self._pages.get((ssid, va >> PAGE_SHIFT)) or self._window(ssid, va, False)
            offset = va - start
            if offset + nbytes <= len(memory):
                return memory[offset : offset + nbytes].tobytes()
        elif nbytes < 0 or va < 0:
            raise MemoryFault(va)
        return b"".join(piece.tobytes() for piece in self._fabric.mmu.segments(ssid, va, nbytes, False))

    def store(self, ssid: int, va: int, data: bytes) -> None:
        """Write bytes of a context. Raises Fault before anything is written."""
        window = self._pages.get((ssid, va >> PAGE_SHIFT))
        if window is None or window[2]:
            window = self._window(ssid, va, True)
        memory, start, _ = window
        offset = va - start
        if offset + len(data) <= len(memory):
            memory[offset : offset + len(data)] = data
            return
        position = 0
        for piece in self._fabric.mmu.segments(ssid, va, len(data), True):
            piece[...] = np.frombuffer(data, np.uint8, len(piece), position)
            position += len(piece)

    def read(self, ssid: int, va: int, layout: Struct) -> tuple[Any, ...]:
        """Load a structure and return the members that `layout` names. Raises Fault."""
        memory, start, _ = self._pages.get((ssid, va >> PAGE_SHIFT)) or self._window(ssid, va, False)
        offset = va - start
        if offset + layout.size <= len(memory):
            return layout.unpack_from(memory, offset)
        return layout.unpack(self.load(ssid, va, layout.size))

    # ---- job slots ----

    def open_slot(self, ssid: int, job_id: int, tiles: tuple[int, ...], barrier_count: int) -> JobSlot:
        """Give physical `tiles` and their first barriers to a job; their CMX becomes poison."""
        for tile in tiles:
            self._fabric.cmx.poison(tile)
        slot = JobSlot(self._fabric, ssid, job_id, tiles, barrier_count)
        self._fabric.slots.append(slot)
        return slot

    def close_slot(self, slot: JobSlot) -> None:
        """Take a job off the engines, finished or not."""
        core = self._core
        self.inputs.retired = [barrier for barrier in self.inputs.retired if barrier.slot is not slot]
        core.faults = [one for one in core.faults if one is not slot]
        slot.close()
        self._fabric.slots.remove(slot)

    def faulted(self) -> list[JobSlot]:
        """Return and forget the slots that failed since the last call; `slot.fault` says how."""
        found, self._core.faults = self._core.faults, []
        return found

    # ---- blocks of kernels ----

    def check(self, ssid: int, va: int, nbytes: int, write: bool) -> None:
        """Translate bytes of a context, at least one. Raises Fault."""
        self._fabric.mmu.check(ssid, va, nbytes, write)

    def open_launch(
        self, ssid: int, job_id: int, text_va: int, code_bytes: int, args_va: int, grid: int, cooperative: bool
    ) -> Launch:
        """Describe a launch; its blocks are started one by one. Those of a cooperative one begin when all `grid` are there."""
        return Launch(ssid, job_id, text_va, code_bytes, args_va, grid, cooperative)

    def held_code(self, launch: Launch, tile: int, shave: int) -> int:
        """Return how many lines of the program are in the instruction cache of a SHAVE."""
        cache = self._shaves[tile][shave].cache
        return cache.held_lines(launch.ssid, launch.text_va, launch.code_bytes)

    def start_block(self, launch: Launch, number: int, tile: int, shave: int) -> BlockSlot:
        """Put a block in front of a SHAVE, whose tile no inference owns; it runs after those that are there already."""
        slot = BlockSlot(self._fabric, launch, number, tile, shave)
        self._fabric.slots.append(slot)
        task = block_task(slot, self._shaves[tile][shave])
        task.channel.push(task)
        return slot

    def pop_ended(self) -> BlockSlot | None:
        """Return the next block that has ended, None when there is none; `close_slot` takes it off its SHAVE."""
        queue = self._core.ended
        return queue.popleft() if queue else None

    def cancel_blocks(self, blocks: list[BlockSlot]) -> None:
        """Take blocks off the engines, ended or not."""
        for block in blocks:
            block.failed = True  # none of them starts because another one goes
        for block in blocks:
            self.close_slot(block)
        ended = self._core.ended
        self._core.ended = deque(block for block in ended if block not in blocks)

    def drop_code(self, ssid: int) -> None:
        """Drop what instruction caches have of a context."""
        self._fabric.drop_code(ssid)

    # ---- barriers ----

    def barriers(self, slot: JobSlot) -> list[Barrier]:
        """Return the physical barriers of a job by relative id."""
        return slot.barriers

    def load_barrier(self, barrier: Barrier, virtual_id: int, producers: int, consumers: int) -> None:
        """Load a virtual barrier; the physical one must have retired."""
        barrier.virtual_id = virtual_id
        barrier.producers = producers
        barrier.consumers = consumers
        if self.trace is not None and barrier.slot is not None:
            self.trace(LOAD_RECORD, CORE, 0, virtual_id, barrier.slot.job_id, barrier.physical_id)

    # ---- engine FIFOs ----

    def plan_dma(self, records: Records) -> DmaPlan:
        """Decode records of npu_dma_task. A plan serves any number of launches."""
        return plan_dma(self.profile, records)

    def plan_dpu(self, invariants: Records, variants: Records) -> DpuPlan:
        """Decode invariants. Raises DescriptorError when the DPU cannot do what one asks."""
        return plan_dpu(self.profile, invariants, variants)

    def plan_shave(self, invocations: Records, ranges: Records) -> ShavePlan:
        """Decode invocations."""
        return plan_shave(invocations, ranges)

    def dma_tasks(self, slot: JobSlot, port: int, list_id: int, plan: DmaPlan) -> Iterable[Task]:
        """Give a plan's tasks for a port."""
        return plan.tasks(slot, self._channel(slot, self._ports[port]), list_id)

    def dpu_tasks(self, slot: JobSlot, list_id: int, plan: DpuPlan) -> Iterable[Task]:
        """Give a plan's tasks for the DPUs of the job's tiles."""
        return plan.tasks(slot, [self._channel(slot, self._dpus[tile]) for tile in slot.tiles], list_id)

    def shave_tasks(self, slot: JobSlot, list_id: int, plan: ShavePlan) -> Iterable[Task]:
        """Give a plan's tasks for the SHAVEs of the job's tiles."""
        channels = [[self._channel(slot, engine) for engine in self._shaves[tile]] for tile in slot.tiles]
        return plan.tasks(slot, channels, list_id)

    def _channel(self, slot: JobSlot, engine: Engine[Any]) -> Channel:
        channel = slot.channels.get(engine)
        if channel is None:
            channel = slot.channels[engine] = Channel(engine, slot, self.profile.core.fifo_depth)
        return channel
