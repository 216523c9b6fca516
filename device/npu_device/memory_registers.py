"""Registers of the network on chip and the DDR controller: priorities, and what a memory path that is simulated cycle by cycle has counted.

Host and management core read all of them; the priorities are the core's to write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from npu_abi import C, enum
from npu_model.memory import MemorySystem
from npu_model.memory_cycles import CycleMemory

if TYPE_CHECKING:
    from npu_device.ddr import MemoryPath

PRIORITY_MASK = int(C.NPU_NOC_PRIORITIES) - 1  # bits of QOS


def _counters(name: str, prefix: str) -> list[tuple[int, str]]:
    """Return (id, name in memory.h) of the counters of an enumeration, whose last member is their number."""
    return [(int(kind), kind.name.removeprefix(prefix).lower()) for kind in sorted(enum(name))[:-1]]


CHANNEL_COUNTERS = _counters("npu_ddrc_counter", "NPU_DDRC_")
CLIENT_COUNTERS = _counters("npu_noc_client_counter", "NPU_NOC_")
LINK_COUNTERS = _counters("npu_noc_link_counter", "NPU_NOC_LINK_")


class MemoryRegisters:
    """The registers by offset; without a `memory` there are no ports, links and channels, and nothing is counted."""

    def __init__(self, path: MemoryPath, system: MemorySystem, memory: CycleMemory | None) -> None:
        self.reads: dict[int, Callable[[], int]] = {}
        self.core_writes: dict[int, Callable[[int], None]] = {}  # of the management core
        self._path = path
        self._reset = [client.priority for client in system.clients]
        self._priorities: list[int] = []
        self._latched_high = 0
        ports = [] if memory is None else self._ports(memory)
        credits = 0 if memory is None else memory.system.noc.credits
        clients = len(system.clients)
        channels = 0 if memory is None else memory.system.dram.channels
        self.reads[C.NPU_REG_NOC_PORTS] = lambda: len(ports) | credits << 16
        self.reads[C.NPU_REG_NOC_CLIENTS] = lambda: clients
        self._map_wide(C.NPU_REG_NOC_CYCLES_LO, lambda: 0 if memory is None else memory.counters.cycles)
        links = 0 if memory is None else len(memory.links)
        self.reads[C.NPU_REG_NOC_LINKS] = lambda: links
        self.reads[C.NPU_REG_DDRC_CHANNELS] = lambda: channels
        for number in range(clients):
            self._map_priority(number)
        if memory is not None:
            for number, port in enumerate(ports):
                self._map_port(memory, C.NPU_REG_NOC_CREDIT_BASE + C.NPU_NOC_CREDIT_STRIDE * number, *port)
            for number in range(clients):
                base = C.NPU_REG_NOC_CLIENT_BASE + C.NPU_NOC_CLIENT_STRIDE * number
                self._map_counters(base, CLIENT_COUNTERS, lambda number=number: memory.counters.clients[number])  # type: ignore[misc]
            for number in range(links):
                base = C.NPU_REG_NOC_LINK_BASE + C.NPU_NOC_LINK_STRIDE * number
                self._map_counters(base, LINK_COUNTERS, lambda number=number: memory.counters.links[number])  # type: ignore[misc]
            for number in range(channels):
                base = C.NPU_REG_DDRC_COUNTER_BASE + C.NPU_DDRC_COUNTER_STRIDE * number
                self._map_counters(base, CHANNEL_COUNTERS, lambda number=number: memory.counters.channels[number])  # type: ignore[misc]
        self.reset()

    def reset(self) -> None:
        """Return the priorities to those of the memory system."""
        self._priorities = list(self._reset)
        for number, priority in enumerate(self._priorities):
            self._path.set_priority(number, priority)

    @staticmethod
    def _ports(memory: CycleMemory) -> list[tuple[int, int, int]]:
        """Return (client, way, hop) of each port: the way there 0, the way back 1."""
        return [
            (number, way, hop)
            for number, client in enumerate(memory.system.clients)
            for way, links in enumerate(memory.system.ways(client))
            for hop in range(len(links))
        ]

    def _map_wide(self, offset: int, value: Callable[[], int]) -> None:
        def low() -> int:
            now = value()
            self._latched_high = now >> 32
            return now & 0xFFFFFFFF

        self.reads[offset] = low
        self.reads[offset + 4] = lambda: self._latched_high

    def _map_priority(self, client: int) -> None:
        def write(value: int) -> None:
            self._priorities[client] = value & PRIORITY_MASK
            self._path.set_priority(client, value & PRIORITY_MASK)

        offset = C.NPU_REG_NOC_QOS_BASE + 4 * client
        self.reads[offset] = lambda: self._priorities[client]
        self.core_writes[offset] = write

    def _map_port(self, memory: CycleMemory, offset: int, client: int, way: int, hop: int) -> None:
        def counters() -> Any:
            of = memory.counters
            hops = len(of.ports) // (2 * len(of.clients))
            return of.ports[(way * len(of.clients) + client) * hops + hop]

        self.reads[offset] = lambda: counters().in_use | counters().most << 16
        self.reads[offset + 4] = lambda: client | hop << 8 | way << 16
        self._map_wide(offset + 8, lambda: int(counters().occupancy))

    def _map_counters(self, base: int, counters: list[tuple[int, str]], block: Callable[[], Any]) -> None:
        for index, name in counters:
            self._map_wide(base + 8 * index, lambda name=name: int(getattr(block(), name)))  # type: ignore[misc]
