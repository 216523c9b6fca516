"""Fault injection on the device's side: the core crashes or falls silent, messages and interrupts get lost, tasks hang, accesses fault.

Nothing here is in the way of a device on which no fault is armed: arming wraps the methods that pass a point, disarming takes the
wrappers away. A point is passed when what it is named after is about to happen. The firmware's points are seen from outside: it takes a job
when it advances a ring's head, it runs a command when it opens a slot or a launch for it, or writes to the job's memory.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from npu_abi import C, codec, offsetof, sizeof
from npu_model.armed import Armed, ArmedFaults

from npu_device.engine import Channel
from npu_device.faults import CoreStopped, MemoryFault

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_device.device import Device
    from npu_device.engine import Engine

ALL_ONES = 0xFFFFFFFF
SLOT_BYTES = sizeof("npu_ipc_slot")
HEAD_OFFSET = offsetof("npu_job_queue_header", "head")
_TYPE = codec("npu_ipc_slot", "msg.type")
_TASK_POINTS = {
    C.NPU_ENGINE_DMA: C.NPU_POINT_DMA_TASK,
    C.NPU_ENGINE_DPU: C.NPU_POINT_DPU_TASK,
    C.NPU_ENGINE_SHAVE: C.NPU_POINT_SHAVE_TASK,
}
_AT_ONCE = (C.NPU_FAULT_FW_CRASH, C.NPU_FAULT_FW_SILENT, C.NPU_FAULT_UNPLUG)


class _Silent:
    """A core that runs no firmware any more."""

    def step(self) -> int:
        """Do nothing."""
        return 0


class _WatchedChannel(Channel):
    """A FIFO that tells when a task is put in."""

    __slots__ = ()

    def push(self, task: Any) -> None:
        self.slot.fabric.injector.pass_in_step(C.NPU_POINT_TASK_DISPATCH)
        super().push(task)


class Injector:
    """The faults that are armed on one device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._armed = ArmedFaults()
        self._wrapped: list[tuple[Any, str]] = []
        self._lose_edge = 0  # interrupts that will not arrive
        device.fabric.injector = self

    # ---- arming ----

    def arm(self, fault: Armed) -> None:
        """Arm a fault; the caller has checked that the kind can strike at the point."""
        self._armed.add(fault)
        self.wrap()

    def struck(self, point: int, kind: int) -> int:
        """Return how often a fault has struck."""
        return self._armed.struck[point, kind]

    def disarm(self) -> None:
        """Forget all faults."""
        self._armed.clear()
        self._lose_edge = 0
        for owner, name in self._wrapped:
            owner.__dict__.pop(name, None)
        self._wrapped.clear()
        for engine in self._device.fabric.engines:
            for channel in self._device.fabric.channels_of(engine):
                channel.__class__ = Channel

    def wrap(self) -> None:
        """Put the wrappers that the armed points need in place; again when a new firmware has started."""
        if not self._armed:
            return
        device, fabric = self._device, self._device.fabric
        self._wrap(fabric.interrupts, "deliver", self._deliver)
        self._wrap(fabric.core, "start", self._start)
        for engine in fabric.engines:
            self._wrap(engine, "start", lambda channel, engine=engine: self._start_task(engine, channel))
            self._wrap(engine, "finish", lambda task, engine=engine: self._finish_task(engine, task))
            for channel in fabric.channels_of(engine):
                channel.__class__ = _WatchedChannel
        hal = device.core.hal
        if hal is not None:
            self._wrap(hal, "post_message", lambda address: self._post(hal, address))
            self._wrap(hal, "store", lambda ssid, va, data: self._store(hal, ssid, va, data))
            self._wrap(hal, "open_slot", lambda *args: self._open(hal, "open_slot", args))
            self._wrap(hal, "open_launch", lambda *args: self._open(hal, "open_launch", args))
            self._wrap(hal, "_channel", lambda slot, engine: self._channel(hal, slot, engine))

    def _wrap(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        if name not in owner.__dict__:
            setattr(owner, name, function)
            self._wrapped.append((owner, name))

    def pass_at_once(self, point: int) -> Armed | None:
        """Pass a point; what ends the core or the device strikes here, other faults are returned."""
        fault = self._armed.strike(point)
        if fault is not None and fault.kind in _AT_ONCE:
            self.strike(fault.kind)
            return None
        return fault

    def pass_in_step(self, point: int) -> Armed | None:
        """As `pass_at_once`, from within a step of the firmware, which goes no further when the core was struck."""
        fault = self._armed.strike(point)
        if fault is not None and fault.kind in _AT_ONCE:
            self.strike(fault.kind)
            raise CoreStopped
        return fault

    # ---- faults of the whole ----

    def strike(self, kind: int) -> None:
        """Do what ends the core or the device, now."""
        device = self._device
        if kind == C.NPU_FAULT_FW_CRASH:
            device.core.crash()
        elif kind == C.NPU_FAULT_FW_SILENT:
            device.core.replace(_Silent())
        else:
            device.unplug()

    # ---- the core's door ----

    def _start(self, image_pa: int, params_pa: int) -> None:
        core = self._device.core
        fault = self._armed.strike(C.NPU_POINT_BOOT_START)
        if fault is not None and fault.kind == C.NPU_FAULT_IMAGE_BITFLIP:
            memory = self._device.dram.view(image_pa, sizeof("npu_fw_header"))
            bit = fault.seed % (8 * len(memory))
            memory[bit // 8] ^= 1 << bit % 8
        before = core.hal
        type(core).start(core, image_pa, params_pa)
        if core.hal is not before:
            self.wrap()
        if fault is not None and fault.kind in _AT_ONCE:
            self.strike(fault.kind)

    def _post(self, hal: Any, address: int) -> None:
        (kind,) = _TYPE.unpack(hal.load(C.NPU_SSID_GLOBAL, address, SLOT_BYTES))
        points = {C.NPU_JSM_BOOT_DONE: C.NPU_POINT_BOOT_DONE, C.NPU_JSM_JOB_DONE: C.NPU_POINT_JOB_DONE}
        fault = self.pass_in_step(points.get(kind, C.NPU_POINT_MESSAGE_REPLY))
        post = type(hal).post_message
        if fault is None:
            post(hal, address)
            return
        if fault.kind == C.NPU_FAULT_MESSAGE_TWICE:
            post(hal, address)
            post(hal, address)
        elif fault.kind == C.NPU_FAULT_MESSAGE_GARBAGE:
            type(hal).store(hal, C.NPU_SSID_GLOBAL, address, random.Random(fault.seed).randbytes(SLOT_BYTES))
            post(hal, address)
        elif fault.kind == C.NPU_FAULT_IRQ_LOST:
            self._lose_edge += 1
            post(hal, address)

    def _store(self, hal: Any, ssid: int, va: int, data: bytes) -> None:
        if ssid != C.NPU_SSID_GLOBAL:
            self.pass_in_step(C.NPU_POINT_COMMAND)
        elif len(data) == 4 and va % C.NPU_PAGE_SIZE == HEAD_OFFSET:
            self.pass_in_step(C.NPU_POINT_JOB_TAKE)
        type(hal).store(hal, ssid, va, data)

    def _open(self, hal: Any, name: str, args: Any) -> Any:
        self.pass_in_step(C.NPU_POINT_COMMAND)
        return getattr(type(hal), name)(hal, *args)

    def _channel(self, hal: Any, slot: Any, engine: Engine[Any]) -> Channel:
        channel: Channel = type(hal)._channel(hal, slot, engine)
        channel.__class__ = _WatchedChannel
        return channel

    def _deliver(self) -> None:
        if self._lose_edge:
            self._lose_edge -= 1
            return
        fault = self._armed.strike(C.NPU_POINT_IRQ)
        if fault is None:
            type(self._device.fabric.interrupts).deliver(self._device.fabric.interrupts)
        elif fault.kind in _AT_ONCE:
            self.strike(fault.kind)

    # ---- engines ----

    def _start_task(self, engine: Engine[Any], channel: Channel) -> None:
        fault = self.pass_at_once(_TASK_POINTS[engine.kind])
        if channel.slot.failed or not channel.fifo:  # the fault took it away
            return
        task = channel.fifo[0]
        if fault is None:
            type(engine).start(engine, channel)
        elif fault.kind == C.NPU_FAULT_MMU:
            channel.fifo.popleft()
            channel.room += 1
            engine.task = task
            task.slot.running += 1
            task.start_cycle = self._device.fabric.cycle_now()
            engine.fault(task, MemoryFault(fault.seed & (1 << C.NPU_VA_BITS) - 1))
        elif fault.kind == C.NPU_FAULT_ENGINE_HANG:
            type(engine).start(engine, channel)
            if engine.task is not None and engine.task is task and not task.slot.failed:
                engine.cancel(task)  # its end never comes

    def _finish_task(self, engine: Engine[Any], task: Any) -> None:
        if task.posts:
            fault = self.pass_at_once(C.NPU_POINT_BARRIER)
            if fault is not None:
                task.posts = task.posts[1:]
        if engine.task is task:  # it has not been taken away
            type(engine).finish(engine, task)
