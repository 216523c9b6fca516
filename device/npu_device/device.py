"""The device: registers, DRAM and interrupt line on the outside, a clock that the driver advances.

Nothing happens between calls: `run_until` executes every event up to a time, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from npu_abi import C
from npu_model.memory import Client
from npu_model.memory_cycles import Background
from npu_model.profile import Profile, load_profile

from npu_device.bus import Bus
from npu_device.clock import ClockDomain
from npu_device.dma import DmaPort
from npu_device.dpu import DpuEngine
from npu_device.dram import Dram
from npu_device.engine import Engine
from npu_device.fabric import Fabric
from npu_device.inject import Injector
from npu_device.management_core import ManagementCore
from npu_device.schedule import Schedule
from npu_device.shave import ShaveEngine


class Device:
    """One NPU of a hardware profile (or its name). `numerics` is "exact" or "fast"; `compute=False` models time only.

    `fidelity` of the memory path: "fast" (ddr.py) or "full" (memory_path.py), which raises MemoryUnsupported without the C
    helpers. Values do not depend on it.
    """

    def __init__(
        self,
        profile: Profile | str,
        *,
        compute: bool = True,
        numerics: str = "exact",
        fidelity: str = "fast",
        trace: bool = False,
    ) -> None:
        self.profile = load_profile(profile) if isinstance(profile, str) else profile
        if numerics not in ("exact", "fast"):
            raise ValueError(f"numerics {numerics!r}: 'exact' or 'fast'")
        if fidelity not in ("fast", "full"):
            raise ValueError(f"fidelity {fidelity!r}: 'fast' or 'full'")
        self.fabric = fabric = Fabric(self.profile, compute, numerics, fidelity, trace)
        dma, dpu = ClockDomain(self.profile.dma.clock_hz), ClockDomain(self.profile.dpu.clock_hz)
        shave = ClockDomain(self.profile.shave.clock_hz)
        self.ports: list[Engine[Any]] = [DmaPort(fabric, port, dma) for port in range(self.profile.dma_ports)]
        self.dpus: list[Engine[Any]] = [DpuEngine(fabric, tile, dpu) for tile in range(self.profile.tiles)]
        self.shaves: list[list[ShaveEngine]] = [
            [ShaveEngine(fabric, tile, core, shave) for core in range(self.profile.shaves_per_tile)]
            for tile in range(self.profile.tiles)
        ]
        fabric.engines = [*self.ports, *self.dpus, *(engine for row in self.shaves for engine in row)]
        fabric.code_caches = [engine.cache for row in self.shaves for engine in row]
        self.core = fabric.core = ManagementCore(fabric, self.ports, self.dpus, self.shaves)
        fabric.interrupts.on_edge = self._count_interrupt
        self.bus = Bus(self)
        self._clock = fabric.clock
        self._on_removal: Callable[[], None] | None = None
        injector = Injector(self)
        self.inject, self.struck, self.strike, self.disarm = (
            injector.arm,
            injector.struck,
            injector.strike,
            injector.disarm,
        )
        # Runs all events up to a time and moves to it; an earlier time changes nothing.
        self.run_until: Callable[[int], None] = self._clock.run_until

    @property
    def dram(self) -> Dram:
        """The physical memory."""
        return self.fabric.dram

    @property
    def now_ps(self) -> int:
        """The device's time."""
        return self._clock.now_ps

    @property
    def interrupts(self) -> int:
        """How many rising edges the interrupt line has had."""
        return self.fabric.interrupts.edges

    @property
    def idle(self) -> bool:
        """Whether no engine and no step of the core is in progress."""
        return self.core.idle and all(engine.task is None for engine in self.fabric.engines)

    def run_until_interrupt(self, time_ps: int) -> bool:
        """Run events with time <= `time_ps` until one raised the interrupt line; return whether one did.

        The clock stays at the last event that ran, or moves to `time_ps` when there was no interrupt.
        """
        return self._clock.run_until_interrupt(time_ps, self.fabric.interrupts)

    def next_event_ps(self) -> int | None:
        """Return the time of the next event, or None: then only the host can make something happen."""
        return self._clock.next_event_ps()

    def connect_irq(self, handler: Callable[[], None]) -> None:
        """Call `handler` on each rising edge of the interrupt line, at device time `now_ps`."""
        self.fabric.interrupts.handler = handler

    def connect_removal(self, handler: Callable[[], None]) -> None:
        """Call `handler` when the device is taken out of its slot."""
        self._on_removal = handler

    def set_schedule(self, kind: int, seed: int = 0) -> None:
        """Choose task durations: enum npu_schedule. Applies to tasks that start from now on."""
        if kind not in (C.NPU_SCHEDULE_TIMED, C.NPU_SCHEDULE_SEED):
            raise ValueError(f"schedule {kind}")
        self.fabric.schedule = Schedule(kind, seed)

    def set_traffic(self, traffic: Background) -> None:
        """Let a client of the memory system that has no engine ask for memory from now on."""
        self.fabric.ddr.set_traffic(traffic)

    @property
    def clients(self) -> list[Client]:
        """The clients of the memory path."""
        return self.profile.memory_system.clients

    def counters(self) -> list[int]:
        """Return all counters by enum npu_pmu."""
        return self.fabric.pmu.values()

    def drain_trace(self) -> bytes:
        """Return and drop the recorded struct npu_trace_record[]; empty without `trace`."""
        return b"" if self.fabric.trace is None else self.fabric.trace.drain()

    def drain_overflows(self, ssid: int) -> bytes:
        """Return and drop the struct npu_overflow_record[] of a context."""
        return self.fabric.overflows.drain(ssid)

    @property
    def computes(self) -> bool:
        """Whether it computes values, or time only."""
        return self.fabric.compute

    def watch_accesses(self, ssid: int, enable: bool) -> None:
        """Keep the accesses of a context's jobs to device memory from now on, or no more."""
        self.fabric.accesses.watch(ssid, enable)

    def drain_accesses(self, ssid: int) -> bytes:
        """Return and drop the struct npu_access_record[] of a context."""
        return self.fabric.accesses.drain(ssid)

    def reset(self) -> None:
        """IP_RESET: stop the core, empty engines, FIFOs, barriers and CMX. DRAM and the clock go on."""
        fabric = self.fabric
        fabric.clock.clear()
        for slot in fabric.slots:
            slot.channels.clear()
            slot.direct_channels.clear()
        fabric.slots.clear()
        for engine in fabric.engines:
            engine.reset()
        for barrier in fabric.barriers:
            barrier.clear()
            barrier.slot = None
        fabric.ddr.clear()
        for tile in range(self.profile.tiles):
            fabric.cmx.poison(tile)
        fabric.mmu.reset()
        fabric.interrupts.reset()
        self.core.reset()
        self.bus.reset()
        fabric.pmu.reset()

    def unplug(self) -> None:
        """Take the device out of its slot: nothing runs, registers read all ones, and the host is told that it is gone."""
        self.reset()
        self.bus.go_dead()
        if self._on_removal is not None:
            self._on_removal()

    def tile_busy(self, tile: int) -> int:
        """Return the TILE register: DPU busy 0, SHAVE busy 15:8."""
        shaves = sum(int(engine.task is not None) << core for core, engine in enumerate(self.shaves[tile]))
        return int(self.dpus[tile].task is not None) | shaves << 8

    def tile_tasks_done(self, tile: int) -> int:
        """Return the tasks that a tile's units completed since reset."""
        return self.dpus[tile].tasks_done + sum(engine.tasks_done for engine in self.shaves[tile])

    def _count_interrupt(self) -> None:
        self.fabric.pmu.raw[C.NPU_PMU_IRQS] += 1
        if self.fabric.trace is not None:
            self.fabric.trace.add(C.NPU_TRACE_IRQ, C.NPU_ENGINE_CORE, 0, 0, 0, self.fabric.interrupts.status)
