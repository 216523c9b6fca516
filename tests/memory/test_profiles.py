"""Memory systems as data: what is shipped is valid, and a file of the user's is checked number by number."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from npu_model import native
from npu_model.memory import FOLDER, MemorySystemError, MemoryUnsupported, load_memory, memory_names
from npu_model.memory_cycles import CycleMemory
from npu_model.memory_ranges import RANGES
from npu_model.memory_runs import NO_RUNS

TEXT = (FOLDER / "edge-soc.json").read_text()
NUMBERS = sorted(
    f"{group}.{field}"
    for group in ("dram", "noc")
    for field, value in json.loads(TEXT)[group].items()
    if not isinstance(value, bool)
) + [f"clients.{field}" for field in ("priority", "keep_flits", "request_accesses", "requests", "latency_ns")]


@pytest.fixture
def write_memory(tmp_path):
    """Writes edge-soc with one field changed (of the first client), and returns the file's path."""

    def write(name, value):
        data = json.loads(TEXT)
        group, field = name.split(".")
        member = data[group][0] if group == "clients" else data[group]
        member[field] = value
        path = tmp_path / "mine.json"
        path.write_text(json.dumps(data))
        return str(path)

    return write


def test_the_shipped_memory_systems_are_loaded_by_name():
    assert memory_names() == ["client-37xx", "client-40xx", "edge-soc", "ideal"]
    for name in memory_names():
        assert load_memory(name).name == name


def test_every_number_has_limits():
    assert sorted(RANGES) == sorted(NUMBERS)


@pytest.mark.parametrize("name", memory_names())
def test_every_number_has_a_source(name):
    system = load_memory(name)
    for field in RANGES:
        group = field.split(".")[0]
        if group == "clients" and group not in system.sources:
            assert all(f"clients.{client.name}" in system.sources for client in system.clients)
        else:
            assert field in system.sources or group in system.sources, field


@pytest.mark.parametrize("name", sorted(RANGES))
@pytest.mark.parametrize("value", [-1, 10**30, 2**63])
def test_a_number_out_of_range_is_refused_by_the_name_of_its_field(write_memory, name, value):
    with pytest.raises(MemorySystemError, match=name.split(".")[1]):
        load_memory(write_memory(name, value))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("dram.channels", 17, "mine.json: dram.channels is 17; 1 to 16 are allowed"),
        ("noc.credits", 0, "mine.json: noc.credits is 0; 1 to 256 are allowed"),
        ("noc.clock_hz", 1_600_000_001, "mine.json: noc.clock_hz is 1600000001; a multiple of 1000 is allowed"),
        ("dram.page_bytes", 2000, "mine.json: dram.page_bytes is 2000; it must be a multiple of an access, 32"),
        ("dram.burst_transfers", 3, "mine.json: dram.interleave_bytes is 128; it must be a multiple of an access, 6"),
        (
            "dram.trefi_ns",
            500.0,
            "mine.json: dram.trefi_ns is 500.0; more than twice trfc_ns and trp_ns is allowed, or 0",
        ),
        ("clients.name", "dma", "mine.json: clients has ['dma', 'npu_code', 'cpu']; it must have npu_dma"),
        ("clients.name", "cpu", "mine.json: clients has ['cpu', 'npu_code', 'cpu']; at most 8 of different names are allowed"),
        ("clients.route", [], "mine.json: the route of npu_dma is []; 1 to 8 different routers are allowed"),
        ("clients.route", ["island", "cpu"], "mine.json: the route of npu_dma is ['island', 'cpu']; 1 to 8 different routers are allowed"),
        ("clients.route", ["island", "gate"], "mine.json: the route of npu_code goes from island to hub, another one to gate"),
    ],
)  # fmt: skip
def test_the_message_has_field_value_and_limits(write_memory, name, value, message):
    with pytest.raises(MemorySystemError) as caught:
        load_memory(write_memory(name, value))
    assert str(caught.value) == message


def test_what_is_not_a_file_is_refused(tmp_path):
    (tmp_path / "folder.json").mkdir()
    for name in (str(tmp_path / "folder.json"), str(tmp_path / "absent.json"), "no-such-memory"):
        with pytest.raises(MemorySystemError):
            load_memory(name)


def test_it_is_exported_and_read_again(tmp_path):
    system = load_memory("edge-soc")
    path = tmp_path / "exported.json"
    path.write_bytes(msgspec.json.encode(system))
    assert load_memory(str(path)) == system


def test_without_the_c_helpers_the_cycle_model_says_so(monkeypatch):
    native.load.cache_clear()
    monkeypatch.setenv("LIBNPU_NATIVE", "0")
    try:
        with pytest.raises(MemoryUnsupported, match="memory fidelity 'full' needs the C helpers"):
            CycleMemory(load_memory("edge-soc"))
    finally:
        native.load.cache_clear()


@pytest.mark.parametrize(("name", "latency_ns"), [("client-37xx", 956), ("client-40xx", 300)])
def test_the_port_of_a_client_answers_after_the_latency_that_vpunn_gives(name, latency_ns):
    memory = CycleMemory(load_memory(name))
    memory.submit(0, 0, np.array([[1 << 32, 32]]), NO_RUNS, 0)
    end = memory.advance(10**9)
    assert end is not None
    assert end[1] / 1000 == pytest.approx(latency_ns, rel=0.005)
