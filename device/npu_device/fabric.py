"""What the units of one device share: clock, memories, counters, trace, the core that they wake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npu_abi import C
from npu_model.profile import Profile

from npu_device.accesses import Accesses
from npu_device.barriers import INVALID, Barrier
from npu_device.clock import Clock, ClockDomain
from npu_device.cmx import Cmx
from npu_device.ddr import FluidPath, MemoryPath
from npu_device.dram import Dram
from npu_device.energy import add_energy
from npu_device.interrupts import Interrupts
from npu_device.known_runs import KnownRuns
from npu_device.memory_path import CyclePath
from npu_device.memory_registers import MemoryRegisters
from npu_device.mmu import Mmu
from npu_device.overflow import Overflows
from npu_device.pmu import Pmu
from npu_device.schedule import Schedule
from npu_device.scratch import Scratch
from npu_device.shave_core import ProgramCache
from npu_device.trace import Trace

if TYPE_CHECKING:
    from npu_model.memory_cycles import CycleMemory

    from npu_device.dma import DmaPlan
    from npu_device.engine import Channel, Engine
    from npu_device.inject import Injector
    from npu_device.instruction_cache import InstructionCache
    from npu_device.management_core import ManagementCore
    from npu_device.slot import JobSlot

CYCLES = int(C.NPU_PMU_CYCLES)
CORE_BUSY = int(C.NPU_PMU_CORE_BUSY)
TLB_MISS = int(C.NPU_PMU_TLB_MISS)
TASKS = int(C.NPU_PMU_TASKS)
RETIRE_RECORD = int(C.NPU_TRACE_BARRIER_RETIRE)


class Fabric:
    """The shared parts of a device. `engine_clock` is the one that counters and traces are in."""

    def __init__(self, profile: Profile, compute: bool, numerics: str, fidelity: str, trace: bool) -> None:
        self.profile = profile
        self.compute = compute
        self.numerics = numerics
        self.memory: CycleMemory | None = None  # where the memory path is simulated cycle by cycle
        self.clock: Clock
        self.ddr: MemoryPath
        if fidelity == "full":
            self.ddr = cycles = CyclePath(profile.memory_system)
            self.memory = cycles.memory
            self.clock = cycles.clock
        else:
            self.clock = Clock()
            self.ddr = FluidPath(self.clock, profile)
        self.memory_registers = MemoryRegisters(self.ddr, profile.memory_system, self.memory)
        self.engine_clock = ClockDomain(profile.dpu.clock_hz)
        self.dram = Dram(profile.ddr.capacity_bytes, poison=compute)
        self.interrupts = Interrupts()
        self.mmu = Mmu(self.dram, lambda: self.interrupts.raise_cause(C.NPU_ICB_MMU_EVENT))
        self.cmx = Cmx(profile.tiles, profile.cmx.workspace_bytes)
        self.programs = ProgramCache()
        self.known_runs = KnownRuns(profile, self.programs)
        self.program_plans: dict[tuple[bytes, int, int, int], DmaPlan] = {}  # of shave_operations
        self.scratch = Scratch()
        self.overflows = Overflows()
        self.accesses = Accesses()
        self.schedule = Schedule()
        self.trace = Trace(self.clock, self.engine_clock) if trace else None
        self.barriers = [Barrier(i) for i in range(profile.tiles * profile.barriers_per_tile)]
        self.engines: list[Engine[Any]] = []  # DMA ports, then the DPUs by tile, then the SHAVEs
        self.code_caches: list[InstructionCache] = []  # of the SHAVEs
        self.slots: list[JobSlot] = []  # jobs on the engines
        self.core: ManagementCore
        self.injector: Injector
        self.pmu = Pmu(self._sample)

    def cycle_now(self) -> int:
        """Return the engine-clock cycle of now."""
        return self.engine_clock.cycle_at(self.clock.now_ps)

    def tile_barriers(self, tile: int) -> list[Barrier]:
        """Return the physical barriers of a tile."""
        count = self.profile.barriers_per_tile
        return self.barriers[tile * count : (tile + 1) * count]

    def channels_of(self, engine: Engine[Any]) -> list[Channel]:
        """Return the FIFOs in front of an engine, of all jobs."""
        return [channel for slot in self.slots for channel in slot.all_channels() if channel.engine is engine]

    def invalidate(self, ssid: int) -> None:
        """Drop the translations of a context, and its lines in the instruction caches."""
        self.mmu.invalidate(ssid)
        self.drop_code(ssid)

    def invalidate_all(self) -> None:
        """Drop every translation and every line of the instruction caches."""
        self.mmu.invalidate()
        for cache in self.code_caches:
            cache.clear()

    def drop_code(self, ssid: int) -> None:
        """Drop the lines of a context in the instruction caches."""
        for cache in self.code_caches:
            cache.drop(ssid)

    def retire(self, barrier: Barrier) -> None:
        """Invalidate a barrier whose counts are used up, and tell the core."""
        barrier.producers = INVALID
        if self.trace is not None and barrier.slot is not None:
            self.trace.add(RETIRE_RECORD, 0, 0, barrier.virtual_id, barrier.slot.job_id, barrier.physical_id)
        core = self.core
        core.inputs.retired.append(barrier)
        if core.sleeping:
            core.wake()

    def _sample(self) -> list[int]:
        """Return the running totals, tasks in progress included."""
        now = self.cycle_now()
        values = list(self.pmu.raw)
        values[CYCLES] = now
        values[CORE_BUSY] += self.core.busy_cycles()
        values[TLB_MISS] = self.mmu.misses
        values[TASKS] = sum(engine.tasks_done for engine in self.engines)
        for engine in self.engines:
            if engine.task is not None:
                engine.progress(values, engine.task, now)
        for slot in self.slots:
            for channel in slot.all_channels():
                if channel.waiting_since >= 0:
                    channel.engine.wait_progress(values, channel, now)
        add_energy(values, self.profile, self.clock.now_ps)
        return values
