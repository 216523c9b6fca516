"""Memory systems: external memory, and the network on chip in front of it, as validated data. Units are in the names.

A memory system is a JSON file in `profiles/memory/` (or a path of the user's), apart from the devices that use it: a
profile names the one that it has. Every number has an entry in `sources`. What happens in it, cycle by cycle, is
memory_cycles.py; memory.h says how the parameters act.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from math import lcm
from pathlib import Path

import msgspec

from npu_model.data_file import read_data
from npu_model.memory_ranges import problem

FOLDER = Path(__file__).parent / "profiles" / "memory"


class Dram(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The memory and its controller. All channels are alike; a refresh takes all banks of all channels at once."""

    transfers_per_second: int  # of one data pin
    channels: int
    channel_bits: int
    banks: int  # of a channel
    page_bytes: int  # of a bank
    burst_transfers: int  # the shortest burst
    chained_bursts: int  # that one command moves
    interleave_bytes: int  # after as many bytes the next channel follows
    bank_xor: bool  # the row is mixed into the bank's number
    trcd_ns: float  # activate to column command
    trp_ns: float  # precharge to activate
    tras_ns: float  # activate to precharge
    twr_ns: float  # end of written data to precharge
    cl_ns: float  # read command to data
    cwl_ns: float  # write command to data
    trfc_ns: float  # a refresh
    trefi_ns: float  # between refreshes; 0: none
    read_to_write_ns: float  # gap between data on the pins
    write_to_read_ns: float
    queue_depth: int  # accesses that the controller chooses from, per channel
    age_limit_cycles: int  # an access that has waited for longer goes first

    @property
    def burst_bytes(self) -> int:
        """Bytes of the shortest burst."""
        return self.burst_transfers * self.channel_bits // 8

    @property
    def access_bytes(self) -> int:
        """Bytes that one command moves."""
        return self.burst_bytes * self.chained_bursts

    @property
    def pin_bytes_per_second(self) -> int:
        """What the data pins of all channels carry without a gap."""
        return self.transfers_per_second * self.channels * self.channel_bits // 8


class Noc(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Routers and links. A link moves one flit a cycle. The controller has the same clock."""

    clock_hz: int
    flit_bytes: int
    hop_cycles: int  # from one router's port to the next, when nothing is in the way
    credit_return_cycles: int  # after which a place that a flit has left can be used again
    credits: int  # places of a client at each port
    duplex: bool  # between routers a link moves one flit of data each way, not one in all; requests have their own wires there

    @property
    def link_bytes_per_second(self) -> int:
        """What one direction of a link carries."""
        return self.clock_hz * self.flit_bytes

    @property
    def port_bytes_per_second(self) -> int:
        """What the credits of a port let one client move, at most as much as the link."""
        trip = max(self.hop_cycles + self.credit_return_cycles, self.credits)
        return self.clock_hz * self.flit_bytes * self.credits // trip


class Client(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Somebody who asks for memory. Links between the routers of its route are shared with the others there."""

    name: str
    route: list[str]  # routers, from the client to the controller
    priority: int  # 0 to 7, the highest first at each port
    keep_flits: int  # after as many another client of its priority has the link
    request_accesses: int  # a request has at most so many, of contiguous bytes
    requests: int  # outstanding, of one transfer
    latency_ns: float  # before its first request is in the network: address translation, other fabrics


class MemorySystem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A memory with its network and its clients."""

    name: str
    description: str
    dram: Dram
    noc: Noc
    clients: list[Client]
    sources: dict[str, str]  # dotted field name or group -> where the value comes from

    def client(self, name: str) -> int:
        """Return the number of a client. KeyError when there is none of that name."""
        for number, client in enumerate(self.clients):
            if client.name == name:
                return number
        raise KeyError(name)

    @property
    def ticks_per_second(self) -> int:
        """Unit of time of which a cycle and a beat on the pins are multiples."""
        return lcm(self.noc.clock_hz, self.dram.transfers_per_second)

    @property
    def refresh_ns(self) -> float:
        """Time of one refresh in which no bank answers; 0 where there is none."""
        dram = self.dram
        return dram.trfc_ns + dram.trp_ns + dram.trcd_ns if dram.trefi_ns else 0.0

    @property
    def refresh_share(self) -> float:
        """Part of the time in which no bank answers."""
        return self.refresh_ns / self.dram.trefi_ns if self.dram.trefi_ns else 0.0

    def stalled_share(self, bytes_per_second: float, held_bytes: float, trip_ns: float, catches_up: bool) -> float:
        """Return the part of the time in which refresh lets data of that rate stop: not while what is held goes on flowing.

        `held_bytes` are under way, of which those of a trip are no reserve. Where memory does not catch up, there is none.
        """
        if not self.dram.trefi_ns:
            return 0.0
        reserve_ns = held_bytes / bytes_per_second * 1e9 - trip_ns if catches_up else 0.0
        return min(max(self.refresh_ns - reserve_ns, 0.0), self.refresh_ns) / self.dram.trefi_ns

    @property
    def page_turns(self) -> float:
        """How much longer a run of many pages takes than its bytes on the pins: the queue may not reach far enough into the next page."""
        dram = self.dram
        page_ns = dram.page_bytes * dram.channels / dram.pin_bytes_per_second * 1e9
        hidden_ns = dram.queue_depth * dram.access_bytes * dram.channels / dram.pin_bytes_per_second * 1e9
        return (page_ns + max(dram.trp_ns + dram.trcd_ns - hidden_ns, 0)) / page_ns

    @property
    def split_bytes_per_second(self) -> int:
        """What the controller puts into its queues of one client: an access a cycle."""
        return self.dram.access_bytes * self.noc.clock_hz

    def bytes_per_second(self, client: str) -> int:
        """Return what a long transfer of `client` gets alone, in closed form; memory_cycles.py gives the same within 5 %.

        The least of what its port, its requests and the controller's splitting of them carry, and of what the pins do
        between refreshes and turns of pages that the queue does not hide.
        """
        own = self.clients[self.client(client)]
        window_bytes = own.requests * own.request_accesses * self.dram.access_bytes
        trip_ns = self.network_latency_ns(client)
        *ports, pins = self.rates(client).values()
        port = min(ports)
        stalled = self.stalled_share(port, window_bytes, trip_ns, self.split_bytes_per_second > port)
        return int(min(port * (1 - stalled), pins))

    def rates(self, client: str) -> dict[tuple[str, ...], float]:
        """Return bytes per second that a long transfer of `client` gets at most, each by the fields that it comes from: of its port, of the
        controller's splitting, of its requests, and last of the pins.
        """
        dram, own = self.dram, self.clients[self.client(client)]
        window_bytes, trip_ns = own.requests * own.request_accesses * dram.access_bytes, self.network_latency_ns(client)
        pins = dram.pin_bytes_per_second / self.page_turns * (1 - self.refresh_share)
        access = ("dram.channel_bits", "dram.burst_transfers", "dram.chained_bursts")
        trip = ("noc.clock_hz", "noc.hop_cycles", "dram.trcd_ns", "dram.cl_ns", "dram.transfers_per_second")
        port = ("noc.clock_hz", "noc.flit_bytes", "noc.credits", "noc.hop_cycles", "noc.credit_return_cycles")
        turns = ("dram.page_bytes", "dram.trp_ns", "dram.trcd_ns", "dram.trfc_ns", "dram.trefi_ns")
        return {
            port: self.noc.port_bytes_per_second,
            ("noc.clock_hz", *access): self.split_bytes_per_second,
            ("clients.requests", "clients.request_accesses", *trip, *access): int(window_bytes * 1e9 / trip_ns),
            ("dram.transfers_per_second", "dram.channels", "dram.channel_bits", *turns): pins,
        }

    def network_latency_ns(self, client: str) -> float:
        """Return what passes until the data of one read is back, in an idle system: network, activation, first data."""
        dram, noc = self.dram, self.noc
        hops = 2 * len(self.clients[self.client(client)].route)
        flits = -(-dram.access_bytes // noc.flit_bytes)
        cycles = hops * noc.hop_cycles + 2 + flits - 1
        burst_ns = dram.burst_transfers * dram.chained_bursts / dram.transfers_per_second * 1e9
        return cycles / noc.clock_hz * 1e9 + dram.trcd_ns + dram.cl_ns + burst_ns

    def latency_ns(self, client: str) -> float:
        """Return what passes until the data of a transfer's first read is back, in an idle system."""
        return self.network_latency_ns(client) + self.clients[self.client(client)].latency_ns

    def links(self) -> list[tuple[str, str]]:
        """Return the links, both directions: those that are nearest to where their flits go first."""
        far: dict[tuple[str, str], int] = {}
        for client in self.clients:
            for way in self.ways(client):
                for left, link in enumerate(reversed(way)):
                    far[link] = max(far.get(link, 0), left)
        return sorted(far, key=far.__getitem__)  # stable: in the order of the clients

    def ways(self, client: Client) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Return the links from a client to the controller and back."""
        there = [*client.route, "ddr"]
        back = [*reversed(client.route), client.name]
        return list(pairwise(there)), list(pairwise(back))


class MemoryUnsupported(RuntimeError):
    """The C helpers are not there, and nothing else computes the memory path cycle by cycle."""


class MemorySystemError(ValueError):
    """A memory system that does not exist or does not validate; the message names the field."""


def memory_names() -> list[str]:
    """Return the names of the shipped memory systems, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load_memory(name_or_path: str) -> MemorySystem:
    """Return the shipped memory system of that name, or the one in the JSON file at that path. Raises MemorySystemError."""
    if Path(name_or_path).suffix == ".json":
        return _read(Path(name_or_path))
    if name_or_path in memory_names():
        return _shipped(name_or_path)
    raise MemorySystemError(
        f"no memory system named {name_or_path!r}; there are {', '.join(memory_names())}, or give a .json file"
    )


@cache
def _shipped(name: str) -> MemorySystem:
    return _read(FOLDER / f"{name}.json")


def _read(path: Path) -> MemorySystem:
    try:
        system = read_data(path, MemorySystem, "file of a memory system")
    except ValueError as error:
        raise MemorySystemError(str(error)) from None
    why = problem(system)
    if why is not None:
        raise MemorySystemError(f"{path.name}: {why}")
    return system
