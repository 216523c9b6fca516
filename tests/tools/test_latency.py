"""npu latency: percentiles beside traffic, and a breakdown in which each picosecond of the critical path counts once."""

import json

import pytest
from npu_model.profile import load_profile

from libnpu.blob import write
from libnpu.tools import latency, memory_loads
from libnpu.tools.breakdown import CORE, DDR, ENGINE, NOC, OTHERS, PARTS, SCRATCHPAD, Breakdown, with_instant_memory
from libnpu.tools.critical_path import critical_path
from libnpu.tools.memory_loads import Load

EDGE = "npu-37xx+edge-soc"
HARDWARE = load_profile(EDGE)


@pytest.fixture(scope="module")
def edge_blob(npu, model_path, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("edge") / "small.blob")
    assert npu("compile", model_path, "--shape", "x=1,3,8,8", "--profile", EDGE, "-o", path) == (0, "", "")
    return path


def answer(npu, *arguments):
    status, out, err = npu("latency", *arguments, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def run_loads(loads, traffic=None, runs=1):
    image = memory_loads.load_image(HARDWARE, loads)
    return image, latency.inferences(write(image), image, EDGE, runs, traffic or {})


def parts_of(loads, traffic=None):
    image, (one,) = run_loads(loads, traffic)
    parts = latency.breakdown(image, EDGE, one)
    assert sum(parts.values()) == one.latency_ps
    return parts


def test_r023_the_parts_add_up_to_the_run_exactly(npu, edge_blob):
    found = answer(npu, edge_blob, "--breakdown")
    assert set(found["breakdown_ps"]) == set(PARTS)
    assert sum(found["breakdown_ps"].values()) == found["p50_ps"]
    assert all(ps >= 0 for ps in found["breakdown_ps"].values())
    assert found["breakdown_ps"][ENGINE] > 0 < found["breakdown_ps"][DDR]


@pytest.mark.parametrize("profile", ["npu-37xx", "npu-40xx", "unit"])
def test_the_parts_add_up_on_a_device_with_its_own_memory(npu, model_path, profile):
    """Whatever divides its clocks' seconds: 2^60 ps of the first two are more than 2^63 ticks."""
    found = answer(npu, model_path, "--shape", "x=1,3,8,8", "--breakdown", "--profile", profile)
    assert sum(found["breakdown_ps"].values()) == found["p50_ps"]


def test_the_path_covers_the_job_without_gap_or_overlap():
    image, (one,) = run_loads([Load(n << 16, 4096, 4096, 1) for n in range(40)])
    path = critical_path(image, one.slices, one.start_ps, one.end_ps, HARDWARE.core.fifo_depth)
    edges = [path[0].start_ps, *(segment.end_ps for segment in path)]
    assert edges == sorted(set(edges))
    assert (edges[0], edges[-1]) == (one.start_ps, one.end_ps)
    assert [s.start_ps for s in path] == edges[:-1]
    assert sum(s.task is not None for s in path) == 20  # all of one port


def test_one_load_alone_waits_for_nobody_and_beside_the_cpu_it_does():
    load = [Load(0, 1 << 18, 1 << 18, 1)]
    alone, shared = parts_of(load), parts_of(load, {"cpu": 40 * 10**9})
    assert alone[ENGINE] == 0
    assert alone[OTHERS] < 0.05 * sum(alone.values())
    assert alone[SCRATCHPAD] == pytest.approx((1 << 18) / 31.2e9 * 1e12, rel=0.02)  # the rate of a port
    assert shared[OTHERS] > 0.2 * sum(shared.values())
    assert {name: shared[name] for name in (SCRATCHPAD, NOC, DDR)} == pytest.approx(
        {name: alone[name] for name in (SCRATCHPAD, NOC, DDR)}, rel=0.2, abs=200_000
    )


def test_rows_that_conflict_are_the_memorys_time():
    dram = HARDWARE.memory_system.dram
    period = dram.page_bytes * dram.banks * dram.channels
    spread = parts_of([Load(0, 256, 256 * 9, 200)])
    conflict = parts_of([Load(0, 256, period, 200)])
    assert conflict[DDR] > 2 * spread[DDR]
    assert conflict[SCRATCHPAD] == spread[SCRATCHPAD]


def test_a_memory_that_answers_at_once_leaves_no_time_to_ddr():
    import msgspec

    instant = msgspec.structs.replace(HARDWARE, memory=with_instant_memory(HARDWARE.memory_system))
    image, (one,) = run_loads([Load(0, 1 << 16, 1 << 16, 1)])
    path = critical_path(image, one.slices, one.start_ps, one.end_ps, HARDWARE.core.fifo_depth)
    assert Breakdown(image, instant).of(path)[DDR] == 0
    assert Breakdown(image, HARDWARE).of(path)[DDR] > 0


def test_r090_percentiles_come_from_seeded_traffic(npu, edge_blob):
    load = ("--runs", "20", "--bg", "cpu=30")
    first, again, other = (answer(npu, edge_blob, *load, "--seed", seed) for seed in ("1", "1", "2"))
    assert first == again != other
    assert first["min_ps"] < first["p50_ps"] <= first["p95_ps"] <= first["max_ps"]
    assert first["consistency"] == first["p95_ps"] / first["p50_ps"] > 1


def test_percentiles_are_values_that_were_measured():
    assert [latency.percentile(range(1, 101), share) for share in (1, 50, 95, 100)] == [1, 50, 95, 100]
    assert [latency.percentile([7], share) for share in (0, 50, 95)] == [7, 7, 7]
    assert latency.percentile([3, 1, 2], 50) == 2


def test_a_table_is_for_people(npu, edge_blob):
    status, out, _ = npu("latency", edge_blob, "--breakdown", "--bg", "cpu=1")
    assert status == 0
    assert "latency consistency, p95 / p50" in out
    assert CORE in out
