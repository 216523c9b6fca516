"""docs/device-spec.md, npu_hw.h and the device say the same: every register, offset, access, bit and counter."""

import re
import sys
from pathlib import Path

import pytest
from npu_abi import C, enum
from npu_device import Device

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import device_spec  # noqa: E402

PAGE = device_spec.PAGE.read_text()
HEADER = device_spec.HEADER.read_text()
REGISTERS = re.findall(r"^\| (0x[0-9a-f]{8}) \| `(\w+)` \| (RO|RW|WO|W1C) \| (.+) \|$", PAGE, re.M)
CONSTANTS = re.findall(r"^\| `(NPU_\w+)` \| ([^|]+) \| .*\|$", PAGE, re.M)
# Blocks of registers: base, and how far the members of one are apart; their first and last words are tried.
ARRAYS = {
    "DOORBELL_BASE": None,  # 0 is no doorbell
    "PMU_COUNTER_BASE": lambda p: range(0, 8 * C.NPU_PMU_COUNT, 4),
    "DMA_STATUS_BASE": lambda p: [
        C.NPU_DMA_STATUS_STRIDE * port + word for port in range(p.dma_ports) for word in (0, 4)
    ],
    "BARRIER_BASE": lambda p: range(0, 8 * p.tiles * p.barriers_per_tile, 4),
    "TILE_BASE": lambda p: range(0, 8 * p.tiles, 4),
    "NOC_QOS_BASE": lambda p: range(0, 4 * len(p.memory_system.clients), 4),
    "NOC_CREDIT_BASE": None,  # of fidelity `full`
    "NOC_CLIENT_BASE": None,
    "NOC_LINK_BASE": None,
    "DDRC_COUNTER_BASE": None,
}


def test_the_page_is_made_from_the_header():
    assert device_spec.render(HEADER) == PAGE, "python scripts/device_spec.py"


def test_every_register_is_on_the_page_and_none_is_there_besides():
    assert {name: int(offset, 16) for offset, name, _, _ in REGISTERS} == {
        register.name.removeprefix("NPU_REG_"): int(register) for register in enum("npu_hw_reg")
    }
    assert len({offset for offset, *_ in REGISTERS}) == len(REGISTERS)


def test_every_constant_of_the_header_is_on_the_page_with_its_value():
    declared = set(re.findall(r"\b(NPU_\w+)\s*=", re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)))
    defined = set(re.findall(r"^#define (NPU_\w+)\s+0x", HEADER, re.M))
    expected = {name for name in declared if not name.startswith("NPU_REG_")} | defined
    assert {name for name, _ in CONSTANTS} == expected
    assert len(CONSTANTS) == len(expected)
    for name, value in CONSTANTS:
        assert device_spec.Entry(name, value.strip()).number == int(getattr(C, name)), name


@pytest.mark.parametrize("name", ["npu_pmu", "npu_ddrc_counter", "npu_noc_client_counter", "npu_noc_link_counter"])
def test_every_counter_says_what_it_counts_and_ids_have_no_gap(name):
    (group,) = [one for one in device_spec.groups(HEADER) if one.enum == name]
    assert [entry.number for entry in group.entries] == list(range(len(enum(name))))
    assert [entry.name for entry in group.entries if not entry.text] == [group.entries[-1].name]  # the number of them


@pytest.mark.parametrize("profile", ["npu-37xx", "npu-40xx", "unit"])
def test_the_device_answers_as_the_page_says_and_nowhere_else(profile):
    device = Device(profile)
    bus, answered = device.bus, set()
    for text, name, access, _ in REGISTERS:
        offset = int(text, 16)
        steps = ARRAYS.get(name, lambda p: (0,))
        for step in steps(device.profile) if steps else ():
            answered.add(offset + step)
            before = bus.bad_accesses
            value = bus.read32(offset + step)
            assert bus.bad_accesses == before, name
            if access == "WO":
                assert value == 0, name
            if access == "RO":
                bus.write32(offset + step, 0)
                assert bus.bad_accesses == before + 1, name
    strays = set(bus._reads) | set(bus._writes)
    assert strays <= answered


def test_writes_arrive_where_the_page_says_so():
    for text, name, access, _ in REGISTERS:
        bus = Device("unit").bus
        if access == "RO" or ARRAYS.get(name, 0) is None:
            continue
        bus.write32(int(text, 16), 0)
        assert bus.bad_accesses == 0, name
