"""npu soc-diag: the ways to memory, credits of ports as the device's registers count them, and the contention experiment."""

import json

import pytest

from libnpu.tools import soc_diag


def answer(npu, *arguments):
    status, out, err = npu("soc-diag", *arguments, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def by_link(found):
    return {(p["client"], *p["link"]): p for p in found["ports"]}


def test_r032_the_npu_is_three_routers_from_memory_and_shares_two_links_with_the_cpu(npu):
    found = answer(npu, "--topology")
    assert found["routers"] == ["island", "hub", "gate"]
    assert {c["name"]: c["route"] for c in found["clients"]} == {
        "npu_dma": ["island", "hub", "gate", "ddr"],
        "npu_code": ["island", "hub", "gate", "ddr"],
        "cpu": ["hub", "gate", "ddr"],
    }
    shared = [(link["from"], link["to"]) for link in found["links"] if {"npu_dma", "cpu"} <= set(link["clients"])]
    assert sorted(shared) == [("gate", "ddr"), ("gate", "hub"), ("hub", "gate")]
    assert (found["credits"], found["link_bytes_per_second"]) == (16, 51_200_000_000)


def test_r035_r109_credits_of_each_port_show_the_link_that_is_full(npu):
    alone, shared = by_link(answer(npu, "--credits")), by_link(answer(npu, "--credits", "--bg", "cpu=25"))
    full = ("npu_dma", "gate", "hub")
    assert shared[full]["occupancy"] > 0.85
    assert shared["npu_dma", "hub", "island"]["occupancy"] < 0.6
    assert shared[full]["stalls"]["arbitration"] > 0.2 > alone[full]["stalls"]["arbitration"]
    assert all(port["most"] <= port["credits"] == 16 for port in (*alone.values(), *shared.values()))
    assert not any(client == "cpu" for client, *_ in alone)


def test_r037_priority_7_through_the_firmware_lets_the_occupancy_of_the_port_fall_beside_the_cpu(npu):
    port = ("npu_dma", "gate", "hub")  # where it shares the way back with the CPU
    last, first = (answer(npu, "--credits", "--bg", "cpu=25", "--qos", priority) for priority in ("0", "7"))
    assert by_link(last)[port]["occupancy"] > 0.9
    assert by_link(first)[port]["occupancy"] < 0.8
    assert by_link(first)["cpu", "gate", "hub"]["occupancy"] > by_link(last)["cpu", "gate", "hub"]["occupancy"] + 0.3
    assert first["bytes_per_second"] > 1.4 * last["bytes_per_second"]


def test_r033_the_cpu_takes_more_than_30_percent_while_the_pins_are_not_saturated_and_priority_gives_it_back():
    alone, heavy, alone_first, heavy_first = soc_diag.contention("npu-37xx+edge-soc", 7, loads=(0.0, 0.4))
    assert heavy.cpu_bytes_per_second == 20_480_000_000
    assert alone.loss == 0
    assert heavy.loss > 0.3
    assert heavy.pins < 0.9
    assert heavy_first.loss < heavy.loss / 2
    assert alone_first.npu_bytes_per_second == alone.npu_bytes_per_second


def test_tables_are_for_people(npu):
    for arguments, words in ((["--topology"], "island > hub > gate > ddr"), (["--credits"], "credit_occupancy")):
        status, out, _ = npu("soc-diag", *arguments)
        assert status == 0
        assert words in out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "one of the arguments --topology --credits --experiment is required"),
        (["--topology", "--credits"], 2, "not allowed with argument"),
        (["--credits", "--qos", "8"], 2, "expected a priority, 0 to 7, found '8'"),
        (["--experiment", "heat"], 2, "invalid choice: 'heat'"),
        (["--topology", "--qos", "3"], 1, "--qos 3: goes with --credits or --experiment"),
        (["--topology", "--qos", "0"], 1, "--qos 0: goes with --credits or --experiment"),
        (["--topology", "--bg", "gpu=3"], 1, "--bg gpu=3: goes with --credits"),
        (["--experiment", "contention", "--bg", "cpu=3"], 1, "--bg cpu=3: goes with --credits"),
        (["--credits", "--bg", "gpu=3"], 1, "no client 'gpu' of memory; there are npu_dma, npu_code, cpu"),
        (["--topology", "--profile", "npu-1"], 1, "no hardware profile named 'npu-1'"),
    ],
)
def test_wrong_arguments_are_named(npu, arguments, status, message):
    found, out, err = npu("soc-diag", *arguments)
    assert (found, out) == (status, "")
    assert message in err
