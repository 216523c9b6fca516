"""Memory systems as data: what is shipped is valid, and a file of the user's is checked number by number."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from npu_model import native
from npu_model.memory import FOLDER, MemorySystem, MemorySystemError, MemoryUnsupported, load_memory, memory_names
from npu_model.memory_cycles import CycleMemory
from npu_model.memory_ranges import RANGES, problem
from npu_model.memory_runs import NO_RUNS

TEXT = (FOLDER / "edge-soc.json").read_text()
EDGE = load_memory("edge-soc")
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
            300.0,
            "mine.json: dram.trefi_ns is 300.0; more than 375.883 is allowed, or 0: a refresh, a page and a write between two, of trfc_ns 280.0, trp_ns 18.0, "
            "trcd_ns 18.0, tras_ns 42.0, cl_ns 21.25, cwl_ns 21.25, twr_ns 34.0, and four cycles of noc.clock_hz 1600000000",
        ),
        ("dram.trcd_ns", 3900.0, "mine.json: dram.trcd_ns is 3900.0; 0 to 1000 are allowed"),
        ("dram.cl_ns", 1e6, "mine.json: dram.cl_ns is 1000000.0; 0 to 1000 are allowed"),
        ("noc.hop_cycles", 10**6, "mine.json: noc.hop_cycles is 1000000; 1 to 1000 are allowed"),
        ("noc.credit_return_cycles", 10**6, "mine.json: noc.credit_return_cycles is 1000000; 1 to 1000 are allowed"),
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


def with_numbers(numbers):
    """edge-soc with dotted fields changed, of all clients."""
    data = json.loads(TEXT)
    for name, value in numbers.items():
        group, field = name.split(".")
        for member in data[group] if group == "clients" else [data[group]]:
            member[field] = value
    return msgspec.convert(data, MemorySystem)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (
            {"noc.clock_hz": 10**6, "dram.trefi_ns": 0.0, "noc.credits": 1, "noc.hop_cycles": 1000, "noc.credit_return_cycles": 1000},
            "noc.clock_hz is 1000000, noc.flit_bytes is 32, noc.credits is 1, noc.hop_cycles is 1000, noc.credit_return_cycles is 1000: "
            "npu_dma gets 16000 bytes per second; at least 1000000 are allowed",
        ),
        (
            {"clients.requests": 1, "clients.request_accesses": 1, "noc.hop_cycles": 1000, "noc.clock_hz": 10**8, "noc.credits": 256},
            "clients.requests is 1, clients.request_accesses is 1, noc.clock_hz is 100000000, noc.hop_cycles is 1000, ",
        ),
    ],
)  # fmt: skip
def test_numbers_that_leave_the_dma_ports_too_little_are_named(numbers, message):
    assert problem(with_numbers(numbers)).startswith(message)


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("name", sorted(name for name in RANGES if name.endswith(("_ns", "_cycles"))))
def test_at_both_ends_of_a_time_reads_end_soon_or_the_refresh_is_refused(name, end):
    system = with_numbers({name: RANGES[name][end]})
    why = problem(system)
    if why is not None:
        assert why.startswith("dram.trefi_ns is 3900.0; more than "), why
        assert f"{name.split('.')[1]} {RANGES[name][end]}" in why
        return
    memory = CycleMemory(system)
    memory.submit(0, 0, np.array([[1 << 32, 4096]]), NO_RUNS, 0)
    assert memory.advance(10**8) is not None


@pytest.mark.parametrize("tras_ns", [0.0, 42.0, 1000.0])
@pytest.mark.parametrize("clock_hz", [10**6, 10**7, 1_600_000_000])
@pytest.mark.parametrize("write", [False, True])
def test_the_shortest_refresh_interval_lets_transfers_go_on(tras_ns, clock_hz, write):
    numbers = {"dram.tras_ns": tras_ns, "noc.clock_hz": clock_hz}
    written_ns = EDGE.dram.cwl_ns + 16 / 7.5 + EDGE.dram.twr_ns
    least = EDGE.refresh_ns + max(tras_ns, written_ns) + 4e9 / clock_hz
    assert problem(with_numbers({**numbers, "dram.trefi_ns": least - 0.125})) is not None
    system = with_numbers({**numbers, "dram.trefi_ns": least + 0.125})
    assert problem(system) is None
    memory = CycleMemory(system)
    blocks = np.random.default_rng(0).integers(0, 1 << 12, 64)
    runs = np.array([[(1 << 32) + int(block) * 4096, 32] for block in blocks])
    memory.submit(0, 0, NO_RUNS if write else runs, runs if write else NO_RUNS, 0)
    assert memory.advance(10**10) is not None


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
