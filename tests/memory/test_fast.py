"""Fidelity `fast` beside `full`: patterns, several ports, traffic of the CPU with and without priority, whole models."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from npu_device.clock import Clock
from npu_device.ddr import FluidPath
from npu_model.memory import load_memory
from npu_model.memory_cycles import Background, CycleMemory
from npu_model.memory_forms import ClosedForms
from npu_model.memory_runs import NO_RUNS
from npu_model.profile import load_profile

import libnpu
from libnpu.blob import write
from libnpu.tools.memory_loads import Load, load_image
from libnpu.trace.slices import slices_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "memory.md"
KIB, MIB = 1 << 10, 1 << 20
PROFILES = ["npu-37xx", "npu-40xx", "npu-37xx+edge-soc"]
LINK = {"npu-37xx": 27e9, "npu-40xx": 136e9, "npu-37xx+edge-soc": 51.2e9, "npu-40xx+edge-soc": 51.2e9, "unit": 65.5e9}
EDGE = load_memory("edge-soc")


def sequential(size, count=8):
    return [Load(at * size, size, size, 1) for at in range(count)]


def strided(width, stride, rows, count=8):
    return [Load(at * rows * stride, width, stride, rows) for at in range(count)]


def random_blocks(size, count=60):
    places = np.random.default_rng(0).integers(0, (16 * MIB) // size, count)
    return [Load(int(place) * size, size, size, 1) for place in places]


def span_ps(profile, fidelity, loads, cpu=0.0, priority=0, **traffic):
    """How long `loads` take in turn on the ports, beside so much of a link as traffic of the CPU."""
    with libnpu.open(profile, compute=False, fidelity=fidelity, trace=True, where="") as device:
        device.set_noc_priority("npu_dma", priority)
        if cpu:
            device.traffic("cpu", int(cpu * LINK[profile]), address=1 << 30, **traffic)
        module = device.load(write(load_image(device.profile, loads)))
        with device.create_stream() as stream:
            device.trace()
            stream.launch(module, {}, {})
            stream.synchronize()
            slices = [one for one in slices_of(device.trace()) if one.engine == "DMA"]
    return max(one.end_ps for one in slices) - min(one.start_ps for one in slices)


def error(profile, loads, *args, **options):
    return span_ps(profile, "fast", loads, *args, **options) / span_ps(profile, "full", loads, *args, **options) - 1


PATTERNS = {
    "pieces of 64 KiB": sequential(64 * KIB),
    "pieces of 4 KiB": sequential(4 * KIB, 40),
    "random blocks of 4 KiB": random_blocks(4 * KIB),
    "random blocks of 256 bytes": random_blocks(256),
    "256 bytes of every 4 KiB": strided(256, 4 * KIB, 256),
    "16 bytes of every 128": strided(16, 128, 512),
    "a channel alone": strided(32, 8 * KIB, 128),
    "a bank alone": strided(64, 256 * KIB, 16),
    "streams, strides and blocks": [
        load
        for trio in zip(sequential(16 * KIB), strided(128, KIB, 64), random_blocks(4 * KIB, 8), strict=True)
        for load in trio
    ],
}


@pytest.mark.parametrize("profile", [*PROFILES, "unit"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_take_as_long_as_under_full_within_twelve_percent(profile, pattern):
    loads = PATTERNS[pattern]
    part = load_profile(profile).cmx.workspace_bytes // load_profile(profile).dma_ports
    if max(load.asked for load in loads) > part:
        pytest.skip("more than the scratchpad holds")
    full, cycle_ps = span_ps(profile, "full", loads), 10**12 // load_profile(profile).dma.clock_hz
    assert span_ps(profile, "fast", loads) == pytest.approx(full, rel=0.12, abs=cycle_ps)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("priority", [0, 7])
@pytest.mark.parametrize("cpu", [0.2, 0.4, 0.6])
def test_streams_beside_the_cpu_within_fifteen_percent(profile, cpu, priority):
    assert abs(error(profile, sequential(64 * KIB), cpu, priority)) <= 0.15


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    "pattern", ["random blocks of 4 KiB", "256 bytes of every 4 KiB", "streams, strides and blocks"]
)
def test_patterns_beside_the_cpu_within_fifteen_percent(profile, pattern):
    assert abs(error(profile, PATTERNS[pattern], 0.4)) <= 0.15


@pytest.mark.parametrize("profile", [*PROFILES, "npu-40xx+edge-soc"])
@pytest.mark.parametrize("pattern", ["pieces of 64 KiB", "a channel alone", "streams, strides and blocks"])
def test_traffic_makes_nothing_faster_and_priority_nothing_slower(profile, pattern):
    loads = PATTERNS[pattern]
    alone = span_ps(profile, "fast", loads)
    for cpu in (0.1, 0.5, 0.9):
        first = span_ps(profile, "fast", loads, cpu, 7)
        assert (
            alone <= first <= 1.015 * span_ps(profile, "fast", loads, cpu)
        )  # a little, as transfers of two ports meet otherwise, also in banks


def cost(system, runs, *, written=False, client="npu_dma"):
    runs = np.array(runs, np.int64)
    sides = (NO_RUNS, runs) if written else (runs, NO_RUNS)
    return ClosedForms(system).cost(system.client(client), *sides)


def test_rows_in_one_bank_open_it_one_behind_the_other():
    """As many times activate, data and precharge as there are rows; refresh is not in it."""
    period = EDGE.dram.page_bytes * EDGE.dram.banks * EDGE.dram.channels
    found = cost(EDGE, [(i * period, 32) for i in range(100)])
    access_ns = 16 / 7.5
    cycle_ns = max(EDGE.dram.tras_ns, EDGE.dram.trcd_ns + access_ns) + EDGE.dram.trp_ns
    assert found.busy_ps[2:] == pytest.approx((1000 * 100 * cycle_ns, 0, 0, 0))


def test_a_row_of_16_bytes_costs_a_whole_access_and_a_request():
    apart, dense = cost(EDGE, [(i * 128, 16) for i in range(512)]), cost(EDGE, [(0, 512 * 16)])
    assert (apart.moved, dense.moved) == (512 * 32, 512 * 16)
    hit_ns = EDGE.network_latency_ns("npu_dma") - EDGE.dram.trcd_ns
    turns = (
        512 * 128 // (EDGE.dram.page_bytes * EDGE.dram.channels)
    )  # all that are outstanding wait for a page that opens
    opening_ns = EDGE.dram.trp_ns + EDGE.dram.trcd_ns
    assert apart.window_ps == pytest.approx(1000 * (512 / 16 * hit_ns + turns * opening_ns), rel=0.05)


def test_a_request_waits_for_what_is_left_of_others_services():
    """Reads are served by the block, writes until a half full queue of them is a quarter full, with two turns of the pins."""
    forms, access_ns = ClosedForms(EDGE), 16 / 7.5
    mine, read, written = cost(EDGE, [(0, 4096)]), cost(EDGE, [(0, MIB)]), cost(EDGE, [(0, MIB)], written=True)
    half = 0.5 * (1 - EDGE.refresh_share) / max(read.busy_ps[2:])  # a channel is half busy with it
    block_ns, drain_ns = 4 * access_ns, EDGE.dram.queue_depth / 4 * access_ns
    service_ns = drain_ns + EDGE.dram.read_to_write_ns + EDGE.dram.write_to_read_ns
    assert forms.waits_ps([mine, read], [0.0, half])[0] == pytest.approx(1000 * 0.5 * block_ns / 2 / (1 - 0.5))
    load = 0.5 * service_ns / drain_ns
    assert forms.waits_ps([mine, written], [0.0, half])[0] == pytest.approx(1000 * load * service_ns / 2 / (1 - load))
    assert forms.waits_ps([mine, read], [half, half])[1] < forms.waits_ps([mine, read], [half, 2 * half])[0]


def test_long_runs_in_one_bank_lose_the_turns_of_its_pages_and_short_ones_nothing():
    """Two that read alike are in one bank for a part of the time; it turns when as many accesses as two queues hold have come."""
    forms, page = ClosedForms(EDGE), EDGE.dram.page_bytes * EDGE.dram.channels
    one = cost(EDGE, [(0, page)])
    other, apart = cost(EDGE, [(EDGE.dram.banks * page, page)]), cost(EDGE, [(page, page)])
    access_ns = 16 / 7.5
    met, left = forms.clashes([one, other], [1.0, 1.0])
    assert met == 1
    assert left == pytest.approx(
        access_ns / (access_ns + (EDGE.dram.trp_ns + EDGE.dram.trcd_ns) / (2 * EDGE.dram.queue_depth))
    )
    assert forms.clashes([one, apart], [1.0, 1.0]) == (0.0, 1.0)
    rows = cost(EDGE, [(at * 4096, 256) for at in range(256)])
    assert forms.clashes([rows, rows], [1.0, 1.0]) == (0.0, 1.0)


def test_who_is_slower_at_a_link_has_half_of_memory_until_it_holds_again_what_it_sent_during_a_refresh():
    """8 KiB of each, 45.5 and 5.7 GB/s of a link with 51.2, pins with 60: `full` gives 39.6 GB/s to the faster one."""
    bounds = ClosedForms(EDGE).after_refresh({0: 5.7e9, 2: 45.5e9}, {0: 8192.0, 2: 8192.0}, 67.0)
    assert bounds == {2: pytest.approx(39.6e9, rel=0.01)}
    assert ClosedForms(EDGE).after_refresh({0: 20e9, 2: 20e9}, {0: 8192.0, 2: 8192.0}, 67.0) == {}


@pytest.mark.parametrize("name", ["client-37xx", "client-40xx", "edge-soc", "ideal"])
def test_a_long_run_alone_has_the_bandwidth_of_the_memory_system(name):
    system = load_memory(name)
    found = cost(system, [(0, 4 * MIB)])
    rate = found.moved / ClosedForms(system).fastest_ps(found, 0) * 1e12
    assert rate == pytest.approx(system.bytes_per_second("npu_dma"), rel=0.01)


class Transfer:
    """A flow, and the unit that is told of its end."""

    client, share, token, since_ps = "npu_dma", 0, 2, 0

    def __init__(self, path, size, pace_ps):
        self.path, self.remaining_ps, self.demand, self.end_ps = path, pace_ps, size * 10**9 // pace_ps, None
        self.size = size

    def runs(self):
        return np.array([(0, self.size)]), NO_RUNS

    def cost(self, forms):
        return forms.cost(0, *self.runs())

    def fire(self, action, arg):
        if action == self.token:
            self.path.leave(self)
            self.end_ps = self.path._clock.now_ps


def copy_ps(profile, fidelity, between):
    """How long 4 MiB take from DDR to DDR, with so many bytes between the two ends."""
    with libnpu.open(profile, compute=False, fidelity=fidelity, where="") as device:
        source, *_, target = [device.alloc(size) for size in (4 * MIB, between, 4 * MIB) if size]
        with device.create_stream() as stream:
            start = device.now_ps
            stream.copy(target, source)
            stream.synchronize()
            return device.now_ps - start


@pytest.mark.parametrize("between", [0, 20 * KIB, MIB, 12345 * 64])
@pytest.mark.parametrize("profile", [*PROFILES, "npu-40xx+edge-soc", "aie-like"])
def test_a_copy_within_ddr_by_two_ports_takes_as_long_as_under_full_at_any_distance(profile, between):
    assert abs(copy_ps(profile, "fast", between) / copy_ps(profile, "full", between) - 1) <= 0.15


@pytest.mark.parametrize("pace_ns", [0, 30_000, 100_000])
@pytest.mark.parametrize("between", [0, 20 * KIB, 12345 * 64])
@pytest.mark.parametrize("name", ["client-37xx", "client-40xx", "edge-soc", "ideal"])
def test_a_copy_alone_takes_as_long_as_under_full_at_any_distance_and_pace(name, between, pace_ns):
    system = load_memory(name)
    reads = np.array([[1 << 32, 2 * MIB]])
    writes = reads + np.array([2 * MIB + between, 0])
    memory, forms = CycleMemory(system), ClosedForms(system)
    memory.submit(0, 0, reads, writes, 1000 * pace_ns)
    full = memory.advance(10**12)[1]
    fast = forms.fastest_ps(forms.cost(0, reads, writes), 1000 * pace_ns) + 1000 * system.latency_ns("npu_dma")
    assert fast == pytest.approx(full, rel=0.06)


def test_what_traffic_did_not_get_it_asks_for_later():
    """Beside one transfer at a link that priority gives it, the CPU falls behind, and the next one, without, takes longer for that."""
    profile = load_profile("npu-37xx+client-37xx")
    spans = []
    for first_priority in (0, 7):
        clock = Clock()
        path = FluidPath(clock, profile)
        path.set_traffic(Background("cpu", 12 * 10**9))
        path.set_priority(0, first_priority)
        first, second = Transfer(path, MIB, MIB * 1000 // 31), Transfer(path, MIB, MIB * 1000 // 31)
        path.enter(first, first, 0, 1)
        while first.end_ps is None:
            clock.run_until(clock.heap[0][0])
        path.set_priority(0, 0)
        begun = clock.now_ps
        path.enter(second, second, begun, 1)
        while second.end_ps is None:
            clock.run_until(clock.heap[0][0])
        spans.append(second.end_ps - begun)
        assert path.idle
    assert spans[1] > 1.2 * spans[0]


def test_transfers_that_meet_again_get_the_same_unless_priorities_changed():
    clock = Clock()
    path = FluidPath(clock, load_profile("npu-37xx+client-37xx"))
    path.set_traffic(Background("cpu", 12 * 10**9))
    spans = []
    for priority in (0, 0, 7, 7, 0):
        path.set_priority(0, priority)
        begun = clock.now_ps
        pair = [Transfer(path, MIB, MIB * 1000 // 31) for _ in range(2)]
        for one in pair:
            path.enter(one, one, begun, 1)
        while any(one.end_ps is None for one in pair):
            clock.run_until(clock.heap[0][0])
        spans.append(max(one.end_ps for one in pair) - begun)
        clock.run_until(clock.now_ps + 10**9)  # the CPU has got what it asked for
    assert spans[0] == spans[1] == spans[4] > 1.02 * spans[2]
    assert spans[2] == spans[3]


def model_error(blob, profile, cpu=0.0, priority=0):
    spans = []
    for fidelity in ("fast", "full"):
        with libnpu.open(profile, compute=False, fidelity=fidelity, where="") as device, device.load(blob) as module:
            device.set_noc_priority("npu", priority)
            if cpu:
                device.traffic("cpu", int(cpu * LINK[profile]))
            inputs = {tensor.name: np.zeros(tensor.shape, np.float32) for tensor in module.inputs}
            start = device.now_ps
            module.run(inputs)
            spans.append(device.now_ps - start)
    return spans[0] / spans[1] - 1


@cache
def seeded_blob(model, profile):
    from models import seeded

    from libnpu.compiler import CompileOptions, compile_model

    return compile_model(seeded(model), CompileOptions(precision="fp16", profile=profile)).blob


@pytest.mark.slow
@pytest.mark.parametrize(("model", "profile"), [*zip(["resnet50", "squeezenet", "shufflenet"], PROFILES, strict=True)])
@pytest.mark.parametrize(("cpu", "priority"), [(0.0, 0), (0.4, 0), (0.6, 7)])
def test_whole_models_within_five_percent_alone_and_fifteen_beside_the_cpu(model, profile, cpu, priority):
    assert abs(model_error(seeded_blob(model, profile), profile, cpu, priority)) <= (0.15 if cpu else 0.05)


@pytest.mark.long
@pytest.mark.parametrize("model", ["ResNet-50", "SqueezeNet", "ShuffleNet"])
def test_the_document_says_what_full_gives_beside_fast(model):
    errors = [model_error(seeded_blob(model.lower().replace("-", ""), profile), profile) for profile in PROFILES]
    cells = [f"{1 / (1 + off) - 1:+.1%}".replace("%", " %") for off in errors]
    assert f"\n| {model} | {' | '.join(cells)} |\n" in DOCUMENT.read_text()


def random_case(seed):
    """Loads that nobody chose, and traffic."""
    rng = np.random.default_rng(seed)
    loads = []
    for _ in range(int(rng.integers(4, 40))):
        width, rows = int(2 ** rng.integers(4, 15)), int(2 ** rng.integers(0, 8))
        rows = max(min(rows, 64 * KIB // width), 1)
        stride = width + int(rng.integers(0, 3)) * int(2 ** rng.integers(4, 13))
        loads.append(Load(int(rng.integers(0, 16 * MIB // 64)) * 64, width, stride, rows))
    return loads, {
        "cpu": float(rng.choice([0.1, 0.25, 0.4, 0.55])),
        "priority": int(rng.choice([0, 7])),
        "write_share": float(rng.choice([0.0, 0.3, 1.0])),
        "burst_bytes": int(rng.choice([64, 256, 1024])),
    }


@pytest.mark.slow
@pytest.mark.parametrize("profile", [*PROFILES, "npu-40xx+edge-soc"])
def test_random_loads_with_and_without_random_traffic(profile):
    alone, beside = [], []
    for seed in range(30):
        loads, traffic = random_case(seed)
        alone.append(abs(error(profile, loads)))
        beside.append(abs(error(profile, loads, **traffic)))
    assert np.mean(alone) <= 0.06
    assert np.percentile(alone, 90) <= 0.10
    assert np.mean(beside) <= 0.10
    assert np.percentile(beside, 95) <= 0.15


@pytest.mark.parametrize("profile", ["npu-37xx", "npu-40xx", "unit", "npu-40xx+edge-soc"])
def test_costs_that_are_kept_are_those_of_the_transfer(profile):
    """Transfers at random places, by whole periods of the banks apart: a cost is what a model that knows none yet finds."""
    system, random = load_profile(profile).memory_system, np.random.default_rng(0)
    forms = ClosedForms(system)
    client = system.client("npu_dma")
    for _ in range(8):
        count, width = int(random.integers(1, 12)), int(random.integers(1, 9000))
        reads = np.stack([random.integers(0, 64 * MIB, count), np.full(count, width)], axis=1)
        writes = reads[: random.integers(0, 2)] + np.array([int(random.integers(1, 3)) << 26, 0])
        for places in (0, 1, 3):
            by = np.array([places * forms._period % (1 << 62), 0])
            found = forms.cost(client, reads + by, writes + by)
            assert found == ClosedForms(system).cost(client, reads + by, writes + by)
    assert len(forms._costs) <= 8 + 1
