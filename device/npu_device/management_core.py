"""The management core: runs the firmware's `step` on the clock and collects what interrupts it.

`core.step()` performs the effect of the action that it announced before, picks the next one and returns its cost in core
cycles; 0 means that there is nothing to do: the core sleeps until an interrupt (message, doorbell, FIFO room, barrier
retired, task failed or job quiet).
"""

from __future__ import annotations

from collections import deque
from heapq import heappush
from typing import TYPE_CHECKING, Any

from npu_abi import C

from npu_device import boot_rom
from npu_device.clock import PRIORITY_CORE, ClockDomain
from npu_device.faults import CoreStopped, MemoryFault
from npu_device.hal import Hal, Inputs

if TYPE_CHECKING:
    from npu_device.engine import Engine
    from npu_device.fabric import Fabric
    from npu_device.kernel import BlockSlot
    from npu_device.shave import ShaveEngine
    from npu_device.slot import JobSlot

STEP = 0
ALARM = 1
CORE_BUSY = int(C.NPU_PMU_CORE_BUSY)
DOORBELLS = int(C.NPU_PMU_DOORBELLS)


class ManagementCore:
    """The core and its inputs."""

    def __init__(
        self, fabric: Fabric, ports: list[Engine[Any]], dpus: list[Engine[Any]], shaves: list[list[ShaveEngine]]
    ) -> None:
        self._fabric = fabric
        self._clock = fabric.clock
        self._interrupts = fabric.interrupts
        self._units = (ports, dpus, shaves)
        self._domain = domain = ClockDomain(fabric.profile.core.clock_hz)
        self._num, self._den = domain.num, domain.den
        self.reset()

    def reset(self) -> None:
        """Stop the core and empty its inputs."""
        self.status = int(C.NPU_BOOT_OFF)
        self.messages: deque[int] = deque()
        self.doorbells: deque[int] = deque()
        self.faults: list[JobSlot] = []
        self.ended: deque[BlockSlot] = deque()
        self._core: Any = None
        self.hal: Hal | None = None  # of the firmware that runs
        self.inputs = Inputs()
        self.sleeping = False
        self._cycle = 0  # of the core's clock: when the current step ends
        self._awake_since = 0  # engine-clock cycle

    @property
    def idle(self) -> bool:
        """Whether the core runs and has nothing to do."""
        return self._core is None or self.sleeping

    def start(self, image_pa: int, params_pa: int) -> None:
        """Boot from an image; `status` says how it went."""
        if self.status == C.NPU_BOOT_RUNNING:
            return
        fabric = self._fabric
        try:
            entry, release = boot_rom.read_image(fabric.dram, image_pa)
            params = boot_rom.read_params(fabric.dram, params_pa)
        except boot_rom.BootError as error:
            self.status = error.status
            return
        self.status = int(C.NPU_BOOT_RUNNING)
        if fabric.trace is not None:
            fabric.trace.add(C.NPU_TRACE_BOOT, C.NPU_ENGINE_CORE, 0, 0, 0, 0)
        self.hal = Hal(fabric, self, params, release, self.inputs, *self._units)
        self._core = entry(self.hal)
        self.sleeping = True
        self.wake()

    def wake(self) -> None:
        """Let a sleeping core look at its inputs, now."""
        if self.sleeping:
            self.sleeping = False
            clock = self._clock
            now = clock.now_ps
            self._cycle = self._domain.next_edge(now)
            self._awake_since = self._fabric.cycle_now()
            clock.at(now, PRIORITY_CORE, self, STEP, None)

    def alarm(self, time_ps: int) -> None:
        """Wake the core at a time, if it sleeps then."""
        self._clock.at(time_ps, PRIORITY_CORE, self, ALARM, self._core)

    def attend(self) -> None:
        """Tell the firmware that an input has something, and wake it."""
        self.inputs.pending = True
        if self.sleeping:
            self.wake()

    def fire(self, action: int, arg: Any) -> None:
        """Run steps of the firmware: one, and those that end before anything else happens."""
        if action == ALARM:
            if arg is self._core:  # else it was for a firmware that has gone
                self.wake()
            return
        core, clock = self._core, self._clock
        heap, edges = clock.heap, self._interrupts.edges
        try:
            while cost := core.step():
                if core is not self._core:  # the host reset the device from its interrupt handler
                    return
                self._cycle = cycle = self._cycle + cost
                end = -(-cycle * self._den // self._num)
                if (heap and heap[0][0] <= end) or end > clock.limit_ps or self._interrupts.edges != edges:
                    heappush(heap, (end, PRIORITY_CORE, clock.next_sequence(), self, STEP, None))
                    return
                clock.now_ps = end
        except MemoryFault:
            self.crash()
            return
        except CoreStopped:
            return
        if core is not self._core:
            return
        self._fabric.pmu.raw[CORE_BUSY] += self.busy_cycles()
        self.sleeping = True

    def busy_cycles(self) -> int:
        """Return the engine-clock cycles since the core woke, 0 when it sleeps."""
        if self._core is None or self.sleeping:
            return 0
        return self._fabric.cycle_now() - self._awake_since

    def post(self, address: int) -> None:
        """Take a message address from the host."""
        self.messages.append(address)
        self.attend()

    def ring(self, doorbell: int) -> None:
        """Take a doorbell."""
        self._fabric.pmu.raw[DOORBELLS] += 1
        if self._fabric.trace is not None:
            self._fabric.trace.add(C.NPU_TRACE_DOORBELL, C.NPU_ENGINE_CORE, 0, doorbell, 0, 0)
        if doorbell not in self.doorbells:
            self.doorbells.append(doorbell)
        self.attend()

    def report_fault(self, slot: JobSlot) -> None:
        """Tell the firmware that a job failed."""
        self.faults.append(slot)
        self.attend()

    def report_ended(self, block: BlockSlot) -> None:
        """Tell the firmware that a block of a kernel has ended."""
        self.ended.append(block)
        self.attend()

    def replace(self, program: Any) -> None:
        """Run something else instead of the firmware."""
        self._core = program

    def crash(self) -> None:
        """Stop for good, as when the firmware touches memory of its own that is not mapped."""
        self.status = int(C.NPU_BOOT_CRASHED)
        self._core = None
        self.sleeping = False
        self._clock.cancel(self, None)
        self._fabric.interrupts.raise_cause(C.NPU_ICB_CORE_FAULT)
