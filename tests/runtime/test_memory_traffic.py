"""Traffic of other clients of memory, and registers, as programs reach them."""

from __future__ import annotations

import pytest
from npu_abi import C

import libnpu

EDGE = "npu-37xx+edge-soc"
MIB = 1 << 20
CPU = 2  # the client's number in edge-soc


def wide(device, offset):
    return device.mmio(offset) | device.mmio(offset + 4) << 32


def client(device, number, counter):
    return wide(device, C.NPU_REG_NOC_CLIENT_BASE + C.NPU_NOC_CLIENT_STRIDE * number + 8 * counter)


def test_traffic_has_its_rate_from_now_on_also_while_the_device_sleeps_until_it_ends():
    with libnpu.open(EDGE, fidelity="full", compute=False, where="") as device:
        device.host_delay(100_000)
        assert client(device, CPU, C.NPU_NOC_BYTES_ASKED) == 0
        device.traffic("cpu", 10 * 10**9)
        device.host_delay(200_000)
        moved = client(device, CPU, C.NPU_NOC_BYTES_MOVED)
        assert moved == pytest.approx(200_000 * 10, rel=0.05)
        device.traffic("cpu", 0)
        device.host_delay(200_000)
        assert client(device, CPU, C.NPU_NOC_BYTES_MOVED) <= moved + 64 * 1024  # what was under way


def test_it_slows_transfers_and_the_same_seed_does_so_alike():
    seen = []
    for rate, seed in ((0, 1), (20, 1), (20, 1), (20, 2)):
        with libnpu.open(EDGE, fidelity="full", compute=False, where="") as device:
            source, target = device.alloc(MIB), device.alloc(MIB)
            device.traffic("cpu", rate * 10**9, seed=seed)
            device.copy(target, source, MIB)
            device.synchronize()
            assert client(device, 0, C.NPU_NOC_BYTES_ASKED) == 2 * MIB
            seen.append(device.now_ps)
    assert seen[0] < 0.9 * seen[1]
    assert seen[1] == seen[2] != seen[3]


def test_counters_of_links_and_clients_agree():
    with libnpu.open(EDGE, fidelity="full", compute=False, where="") as device:
        source, target = device.alloc(MIB), device.alloc(MIB)
        device.copy(target, source, MIB)
        device.synchronize()
        names = device.profile.memory_system.links()
        assert device.mmio(C.NPU_REG_NOC_LINKS) == len(names)
        flits = {
            name: wide(device, C.NPU_REG_NOC_LINK_BASE + C.NPU_NOC_LINK_STRIDE * number + 8 * C.NPU_NOC_LINK_FLITS)
            for number, name in enumerate(names)
        }
        moved = sum(client(device, number, C.NPU_NOC_BYTES_MOVED) for number in range(2))
        assert 2 * MIB <= moved <= 2 * MIB + 4096  # read and written, and page tables or code
        read_flits, write_flits = flits["gate", "hub"], flits["gate", "ddr"]
        assert 0 <= read_flits - MIB // 32 <= 4096 // 32
        requests = write_flits - MIB // 32  # a read is one flit on the way there
        assert 0 < requests <= MIB // (16 * 32) + 16


@pytest.mark.parametrize("fidelity", ["full", "fast"])
def test_r037_a_priority_is_set_by_the_firmware_and_not_by_who_writes_the_register(fidelity):
    with libnpu.open(EDGE, fidelity=fidelity, compute=False, where="") as device:
        assert device.noc_priorities() == {"npu_dma": 0, "npu_code": 0, "cpu": 0}
        device.mmio(C.NPU_REG_NOC_QOS_BASE, 7)
        assert device.mmio(C.NPU_REG_NOC_QOS_BASE) == 0
        assert device.mmio(C.NPU_REG_BAD_MMIO) == 1
        device.set_noc_priority("npu", 7)
        device.set_noc_priority("cpu", 3)
        assert device.noc_priorities() == {"npu_dma": 7, "npu_code": 7, "cpu": 3}
        assert [device.mmio(C.NPU_REG_NOC_QOS_BASE + 4 * number) for number in range(3)] == [7, 7, 3]


@pytest.mark.parametrize("again", [lambda d: d.recover(engine=True), lambda d: d.recover(), lambda d: d.reset()])
def test_r037_a_priority_outlives_recoveries(again):
    with libnpu.open("unit", where="") as device:
        device.set_noc_priority("npu_dma", 5)
        again(device)
        assert device.noc_priorities()["npu_dma"] == 5
        assert device.mmio(C.NPU_REG_NOC_QOS_BASE) == 5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: d.traffic("gpu", 1), "no client 'gpu' of memory; there are npu_dma, npu_code, cpu"),
        (lambda d: d.traffic("npu_dma", 1), "client 0 is npu_dma, the device itself"),
        (lambda d: d.traffic("cpu", 10**12), "its link carries 51200000000"),
        (lambda d: d.traffic("cpu", -1), "bytes_per_second is -1; 0 to"),
        (lambda d: d.traffic("cpu", 1, write_share=1.1), r"write_share is 1\.1; 0 to 1 are allowed"),
        (lambda d: d.traffic("cpu", 1, burst_bytes=4096, span_bytes=64), "at least burst_bytes, 4096, is needed"),
        (lambda d: d.set_noc_priority("gpu", 1), "no client 'gpu' of memory; there are npu, npu_dma, npu_code, cpu"),
        (lambda d: d.set_noc_priority("npu", 8), "priority 8 of client 0; 0 to 7 are allowed"),
        (lambda d: d.set_noc_priority("npu", -1), "priority is -1; 0 to"),
        (lambda d: d.mmio(C.NPU_REG_IP_RESET, 1), "register 0x1800160; multiples of 4 from 0x1a00000"),
        (lambda d: d.mmio(1 << 32), r"offset is 4294967296; 0 to 2\^32 - 1 are allowed"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with libnpu.open(EDGE, fidelity="full", compute=False, where="") as device:
        with pytest.raises(libnpu.NpuError, match=message) as caught:
            call(device)
        assert caught.value.result == C.NPU_ERROR_INVALID_VALUE


def test_at_fidelity_fast_there_are_the_same_clients_and_priorities_and_nothing_is_counted():
    seen = []
    for rate, priority in ((0, 0), (16, 0), (16, 7)):
        with libnpu.open("npu-37xx", compute=False, where="") as device:
            assert device.mmio(C.NPU_REG_NOC_CLIENTS) == len(device.profile.memory_system.clients)
            assert device.mmio(C.NPU_REG_NOC_LINKS) == 0
            source, target = device.alloc(MIB), device.alloc(MIB)
            device.set_noc_priority("npu_dma", priority)
            device.traffic("cpu", rate * 10**9)
            device.copy(target, source, MIB)
            device.synchronize()
            seen.append(device.now_ps)
    assert seen[0] <= seen[2] < seen[1]


def test_traffic_that_comes_first_and_fills_the_link_starves_a_copy_until_the_watchdog_ends_it():
    with libnpu.open("npu-37xx", compute=False) as device:
        device.set_noc_priority("cpu", 7)
        device.traffic("cpu", 27 * 10**9)
        source, target = device.alloc(1 << 20), device.alloc(1 << 20)
        with pytest.raises(libnpu.NpuError, match="NPU_ERROR_WATCHDOG_TIMEOUT"):
            device.copy(target, source)
        device.traffic("cpu", 0)
        with device.create_context() as other:  # the device itself works on
            other.copy(other.alloc(1 << 20), other.alloc(1 << 20))
    with libnpu.open("npu-40xx", compute=False) as device:  # here a little is left
        device.set_noc_priority("cpu", 7)
        device.traffic("cpu", 136 * 10**9, write_share=1.0)
        device.copy(device.alloc(1 << 20), device.alloc(1 << 20))
