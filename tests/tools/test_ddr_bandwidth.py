"""npu ddr-bandwidth: what DMA gets of memory in patterns, alone and beside the CPU."""

import json

import pytest
from npu_model.profile import load_profile

from libnpu.blob import read, verify, write
from libnpu.tools import cli, memory_loads

EDGE = "npu-37xx+edge-soc"


def measure(npu, *arguments):
    status, out, err = npu("ddr-bandwidth", *arguments, "--json")
    assert (status, err) == (0, "")
    return {one["pattern"]: one for one in json.loads(out)["patterns"]}


def test_r014_a_stream_gets_45_to_52_gigabytes_per_second_of_60(npu):
    found = measure(npu, "--pattern", "seq")["seq"]
    assert found["pin_bytes_per_second"] == 60 * 10**9
    assert 45e9 <= found["bytes_per_second"] <= 52e9
    assert found["asked_bytes"] == found["moved_bytes"] == 8 << 20
    assert found["waste"] == 0


def test_r024_r028_traffic_of_the_cpu_lowers_it_and_random_blocks_get_less_than_a_stream(npu):
    alone, shared = measure(npu, "--pattern", "seq,rand4k"), measure(npu, "--pattern", "seq,rand4k", "--bg", "cpu=20")
    assert alone["rand4k"]["bytes_per_second"] < 0.7 * alone["seq"]["bytes_per_second"]
    for pattern in alone:
        assert shared[pattern]["bytes_per_second"] < 0.97 * alone[pattern]["bytes_per_second"]
    assert alone["seq"]["clients_moved_bytes"]["cpu"] == 0 < shared["seq"]["clients_moved_bytes"]["cpu"]


def test_r026_runs_of_16_bytes_move_whole_accesses_of_32(npu):
    found = measure(npu, "--pattern", "burst16")["burst16"]
    assert (found["asked_bytes"], found["moved_bytes"], found["waste"]) == (128 << 10, 256 << 10, 0.5)


def test_every_access_opens_a_row_or_finds_it_open(npu):
    for found in measure(npu).values():
        rows = sum(found[f"row_{kind}"] for kind in ("hits", "misses", "conflicts"))
        assert 0 <= rows - found["moved_bytes"] // 32 <= 64  # and a few for page tables and the list


@pytest.mark.parametrize("profile", ["npu-37xx", "npu-40xx", "unit"])
def test_the_loads_are_a_correct_blob_of_each_profile(profile):
    hardware = load_profile(profile)
    for pattern in memory_loads.PATTERNS.values():
        loads = pattern(hardware.cmx.workspace_bytes // hardware.dma_ports)
        image = read(write(memory_loads.load_image(hardware, loads)))
        assert verify(image, hardware) == []
        assert sum(len(image.tasks[f".npu.tasks.dma{port}"]) for port in range(hardware.dma_ports)) == len(loads)


def test_r028_it_is_a_command_of_its_own_too(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["ddr_bandwidth_test", "--pattern", "seq,rand4k", "--json"])
    assert cli.ddr_bandwidth_test() == 0
    assert [one["pattern"] for one in json.loads(capsys.readouterr().out)["patterns"]] == ["seq", "rand4k"]


def test_a_table_is_for_people(npu):
    status, out, _ = npu("ddr-bandwidth", "--pattern", "burst16", "--bg", "cpu=1.5")
    assert status == 0
    assert out.startswith("DMA loads on npu-37xx+edge-soc beside cpu=1.5 GB/s, pins 60.0 GB/s")
    assert "50.0%" in out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--bg", "cpu"], 1, "--bg cpu: expected CLIENT=GB/s of 0 to 1000"),
        (["--bg", "cpu=nan"], 1, "--bg cpu=nan: expected CLIENT=GB/s"),
        (["--bg", "cpu=1,cpu=2"], 1, "each client once"),
        (["--bg", "gpu=1"], 1, "no client 'gpu' of memory; there are npu_dma, npu_code, cpu"),
        (["--bg", "cpu=100"], 1, "its link carries 51200000000"),
        (["--pattern", "zigzag"], 2, "no pattern 'zigzag'; there are seq, strided, rand4k, burst16"),
        (["--profile", "npu-37xx+none"], 1, "no memory system named 'none'"),
    ],
)
def test_wrong_arguments_are_named(npu, arguments, status, message):
    found, out, err = npu("ddr-bandwidth", *arguments)
    assert (found, out) == (status, "")
    assert message in err
