"""Operations of other engines that a SHAVE program starts: the descriptor is read, checked and put in front of its engine.

They do not enter the FIFOs that the management core fills: a head there may wait for a barrier that the program itself posts.
A job has one more FIFO in front of each engine for them, in which nothing waits for anything but the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npu_model import shave_operations as operations
from npu_model.descriptors import DescriptorError
from npu_model.shave_faults import ShaveFault, ShaveFaultCode
from npu_model.shave_machine import Start
from npu_model.shave_scalar import DMA

from npu_device.dma import DmaPlan, plan_one
from npu_device.dpu import DpuTask, plan_dpu
from npu_device.engine import Channel, Engine, Task

if TYPE_CHECKING:
    from npu_device.fabric import Fabric
    from npu_device.slot import JobSlot

KEPT_PLANS = 1024
UNLIMITED = 1 << 30  # room of a FIFO that the management core does not fill; a program starts few operations


def operation(fabric: Fabric, slot: JobSlot, request: Start, tile: int, list_id: int) -> Task:
    """Return the task that `request` asks for, for the SHAVE of job tile `tile`; the caller pushes it into its channel.

    Raises ShaveFault BAD_PORT or BAD_DESCRIPTOR, and MemoryFault when the descriptor is not mapped.
    """
    profile, space = fabric.profile, slot.space
    if request.engine == DMA and not 0 <= request.port < profile.dma_ports:
        detail = f"{request.port}, the device has {profile.dma_ports}"
        raise ShaveFault(ShaveFaultCode.BAD_PORT, request.pc, detail)
    address = request.address
    tiles = len(slot.tiles)
    try:
        if request.engine == DMA:
            raw = space.view(address, operations.DMA_BYTES, False).tobytes()
            channel = _channel(slot, fabric.engines[request.port])
            return next(_dma_plan(fabric, slot, raw).tasks(slot, channel, list_id))
        raw = space.view(address, operations.INVARIANT_BYTES, False).tobytes()
        nbytes = operations.variant_count(raw) * operations.VARIANT_BYTES
        raw_variants = space.view(address + operations.INVARIANT_BYTES, nbytes, False).tobytes()
        invariants, variants = operations.dpu_records(raw, raw_variants, space.workspace_bytes, tiles, tile)
        channel = _channel(slot, fabric.engines[profile.dma_ports + slot.tiles[tile]])
        return next(plan_dpu(profile, invariants, variants).tasks(slot, [channel] * tiles, list_id))
    except DescriptorError as error:
        raise ShaveFault(ShaveFaultCode.BAD_DESCRIPTOR, request.pc, str(error)) from None


def _dma_plan(fabric: Fabric, slot: JobSlot, raw: bytes) -> DmaPlan:
    """Return the plan of a descriptor, the same for the same bytes in the same memory. Raises DescriptorError."""
    workspace_bytes, tiles = slot.space.workspace_bytes, len(slot.tiles)
    key = raw, slot.ssid, workspace_bytes, tiles
    plan = fabric.program_plans.get(key)
    if plan is None:
        plan = plan_one(fabric.profile, operations.dma_descriptor(raw, workspace_bytes, tiles))
        if len(fabric.program_plans) == KEPT_PLANS:
            fabric.program_plans.clear()
        fabric.program_plans[key] = plan
    return plan


def work_of(task: Task) -> int:
    """Return what the watchdog of the program counts for an operation: bytes moved, and an eighth of the MACs."""
    if isinstance(task, DpuTask):
        return (task.amount >> 3) + task.sram_read + task.sram_write
    return task.amount


def _channel(slot: JobSlot, engine: Engine[Any]) -> Channel:
    channel = slot.direct_channels.get(engine)
    if channel is None:
        channel = slot.direct_channels[engine] = Channel(engine, slot, UNLIMITED)
    return channel
