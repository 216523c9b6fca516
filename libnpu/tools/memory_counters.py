"""What the registers of network on chip and DDR controller have counted, by name; fidelity `full` only.

Registers count from the start; a measurement is the difference of two looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npu_abi import C, enum

if TYPE_CHECKING:
    from libnpu.runtime import Device

Counts = dict[str, int]


@dataclass(frozen=True, slots=True)
class Port:
    """The places of a client at one router: `most` since the start, `occupancy` places in use summed over cycles."""

    client: str
    back: bool
    link: tuple[str, str]  # that its flits wait for
    in_use: int
    most: int
    occupancy: int


@dataclass(frozen=True, slots=True)
class Look:
    """All counters at one moment, or what they grew by."""

    cycles: int
    clients: dict[str, Counts]  # enum npu_noc_client_counter, in lower case without its prefix
    links: dict[tuple[str, str], Counts]  # enum npu_noc_link_counter
    ports: list[Port]
    channels: list[Counts]  # enum npu_ddrc_counter

    def since(self, before: Look) -> Look:
        """Return what was counted after `before`; `in_use` and `most` stay those of now."""
        return Look(
            self.cycles - before.cycles,
            {name: _minus(now, before.clients[name]) for name, now in self.clients.items()},
            {name: _minus(now, before.links[name]) for name, now in self.links.items()},
            [
                Port(now.client, now.back, now.link, now.in_use, now.most, now.occupancy - old.occupancy)
                for now, old in zip(self.ports, before.ports, strict=True)
            ],
            [_minus(now, old) for now, old in zip(self.channels, before.channels, strict=True)],
        )

    def channel_sum(self, counter: str) -> int:
        """Return a counter summed over the channels."""
        return sum(channel[counter] for channel in self.channels)


def _minus(now: Counts, before: Counts) -> Counts:
    return {name: value - before[name] for name, value in now.items()}


def look(device: Device) -> Look:
    """Read the registers of `device`, at fidelity `full`."""
    system = device.profile.memory_system
    clients = system.clients[: device.mmio(C.NPU_REG_NOC_CLIENTS)]
    links = system.links()[: device.mmio(C.NPU_REG_NOC_LINKS)]
    channels = device.mmio(C.NPU_REG_DDRC_CHANNELS)
    return Look(
        _wide(device, C.NPU_REG_NOC_CYCLES_LO),
        {
            client.name: _block(
                device, "npu_noc_client_counter", C.NPU_REG_NOC_CLIENT_BASE + C.NPU_NOC_CLIENT_STRIDE * n
            )
            for n, client in enumerate(clients)
        },
        {
            link: _block(device, "npu_noc_link_counter", C.NPU_REG_NOC_LINK_BASE + C.NPU_NOC_LINK_STRIDE * n)
            for n, link in enumerate(links)
        },
        [_port(device, n) for n in range(device.mmio(C.NPU_REG_NOC_PORTS) & 0xFFFF)],
        [
            _block(device, "npu_ddrc_counter", C.NPU_REG_DDRC_COUNTER_BASE + C.NPU_DDRC_COUNTER_STRIDE * n)
            for n in range(channels)
        ],
    )


def _wide(device: Device, offset: int) -> int:
    low = device.mmio(offset)  # latches what is above
    return low | device.mmio(offset + 4) << 32


def _block(device: Device, name: str, base: int) -> Counts:
    counters = sorted(enum(name))[:-1]  # the last one is their number
    prefixes = ("NPU_NOC_LINK_", "NPU_NOC_", "NPU_DDRC_")
    names = [next(c.name.removeprefix(p) for p in prefixes if c.name.startswith(p)).lower() for c in counters]
    return {name: _wide(device, base + 8 * int(c)) for name, c in zip(names, counters, strict=True)}


def _port(device: Device, number: int) -> Port:
    system = device.profile.memory_system
    base = C.NPU_REG_NOC_CREDIT_BASE + C.NPU_NOC_CREDIT_STRIDE * number
    places, where = device.mmio(base), device.mmio(base + 4)
    client, back = system.clients[where & 0xFF], bool(where >> 16 & 1)
    return Port(
        client.name,
        back,
        system.ways(client)[back][where >> 8 & 0xFF],
        places & 0xFFFF,
        places >> 16,
        _wide(device, base + 8),
    )
