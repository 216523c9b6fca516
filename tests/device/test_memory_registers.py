"""Registers of network on chip and DDR controller: what the simulated memory path has counted, and priorities that it obeys."""

import pytest
from npu_abi import C
from npu_device import Device

from tests.device.rig import CMX, Blob, Rig

SIZE = 1 << 17


def copied():
    """Return a rig of fidelity `full` that has copied from DDR."""
    rig = Rig("npu-37xx", compute=False, fidelity="full")
    blob = Blob()
    blob.add_dma(rig.alloc(SIZE), CMX, SIZE)
    assert rig.execute(rig.inference(blob)).job_status == C.NPU_JOB_SUCCESS
    return rig


def wide(bus, offset):
    return bus.read32(offset) | bus.read32(offset + 4) << 32


def test_counters_of_the_channels_are_those_of_the_memory_path():
    rig = copied()
    bus, counted = rig.bus, rig.device.fabric.memory.counters
    names = ("reads", "writes", "hits", "misses", "conflicts", "activates", "precharges", "refreshes", "turnarounds")
    names += ("busy_cycles", "refresh_cycles", "idle_cycles")
    assert len(names) == C.NPU_DDRC_COUNTER_COUNT
    channels = bus.read32(C.NPU_REG_DDRC_CHANNELS)
    assert channels == rig.device.profile.memory_system.dram.channels
    reads = 0
    for channel in range(channels):
        base = C.NPU_REG_DDRC_COUNTER_BASE + C.NPU_DDRC_COUNTER_STRIDE * channel
        found = {name: wide(bus, base + 8 * index) for index, name in enumerate(names)}
        assert found == {name: getattr(counted.channels[channel], name) for name in names}
        assert found["busy_cycles"] + found["refresh_cycles"] + found["idle_cycles"] == wide(
            bus, C.NPU_REG_NOC_CYCLES_LO
        )
        reads += found["reads"]
    assert reads * rig.device.profile.memory_system.dram.access_bytes >= SIZE


def test_credit_occupancy_of_every_port():
    rig = copied()
    bus, system = rig.bus, rig.device.profile.memory_system
    ports, credits = bus.read32(C.NPU_REG_NOC_PORTS) & 0xFFFF, bus.read32(C.NPU_REG_NOC_PORTS) >> 16
    assert credits == system.noc.credits
    assert ports == sum(len(links) for client in system.clients for links in system.ways(client))
    used = {}
    for port in range(ports):
        base = C.NPU_REG_NOC_CREDIT_BASE + C.NPU_NOC_CREDIT_STRIDE * port
        word, place = bus.read32(base), bus.read32(base + 4)
        assert word & 0xFFFF <= word >> 16 <= credits
        assert (word >> 16 > 0) == (wide(bus, base + 8) > 0)
        used[place & 0xFF] = used.get(place & 0xFF, 0) + wide(bus, base + 8)
    assert used[system.client("npu_dma")] > 0
    assert sum(used.values()) == used[system.client("npu_dma")] + used[system.client("npu_code")]


def test_priorities_are_the_cores_to_write_until_a_reset():
    rig = Rig("npu-37xx", fidelity="full")
    bus, hal, system = rig.bus, rig.device.core.hal, rig.device.profile.memory_system
    clients = bus.read32(C.NPU_REG_NOC_CLIENTS)
    offsets = [C.NPU_REG_NOC_QOS_BASE + 4 * client for client in range(clients)]
    assert [bus.read32(offset) for offset in offsets] == [client.priority for client in system.clients]
    for offset in offsets:
        hal.write_register(offset, 0xFFFFFFF5)
    assert [bus.read32(offset) for offset in offsets] == [5] * clients
    assert [hal.read_register(offset) for offset in offsets] == [5] * clients
    for offset in offsets:
        bus.write32(offset, 1)
    assert [bus.read32(offset) for offset in offsets] == [5] * clients
    assert bus.bad_accesses == clients
    bus.write32(C.NPU_REG_IP_RESET, C.NPU_IP_RESET_TRIGGER)
    assert [bus.read32(offset) for offset in offsets] == [client.priority for client in system.clients]


@pytest.mark.parametrize("profile", ["npu-37xx", "npu-40xx", "unit", "npu-37xx+edge-soc"])
def test_blocks_do_not_overlap_and_fast_has_priorities_alone(profile):
    full, fast = Device(profile, fidelity="full").bus, Device(profile).bus
    ports, channels = full.read32(C.NPU_REG_NOC_PORTS) & 0xFFFF, full.read32(C.NPU_REG_DDRC_CHANNELS)
    assert C.NPU_REG_NOC_CREDIT_BASE + ports * C.NPU_NOC_CREDIT_STRIDE <= C.NPU_REG_NOC_CLIENT_BASE
    assert C.NPU_DDRC_COUNTER_STRIDE >= 8 * C.NPU_DDRC_COUNTER_COUNT
    assert ports > 0
    assert channels > 0
    for offset in (C.NPU_REG_NOC_PORTS, C.NPU_REG_NOC_LINKS, C.NPU_REG_NOC_CYCLES_LO, C.NPU_REG_DDRC_CHANNELS):
        assert fast.read32(offset) == 0
    assert fast.read32(C.NPU_REG_NOC_CLIENTS) == full.read32(C.NPU_REG_NOC_CLIENTS)
    assert fast.read32(C.NPU_REG_NOC_QOS_BASE) == full.read32(C.NPU_REG_NOC_QOS_BASE)
    assert fast.bad_accesses == 0
    assert fast.read32(C.NPU_REG_NOC_CLIENT_BASE) == 0xFFFFFFFF
    assert fast.bad_accesses == 1
