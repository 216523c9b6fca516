"""What holds for every memory system and whatever is asked of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_model.memory import MemorySystem, load_memory, memory_names
from npu_model.memory_cycles import Background, CycleMemory
from npu_model.memory_runs import NO_RUNS

from tests.memory.workloads import as_runs, backgrounds, changed, run_compiled, submissions, systems

QUIET = 10**8  # ps


@given(system=systems(), submissions=submissions(cancels=True))
def test_bytes_asked_are_bytes_moved_less_waste_and_credits_return(system: MemorySystem, submissions):
    _, counters, _ = run_compiled(system, submissions, None, QUIET)
    size = system.dram.access_bytes
    for client in counters["clients"]:
        assert client["accesses_issued"] == client["accesses_done"]
        assert client["bytes_moved"] == client["accesses_done"] * size
        assert 0 <= client["bytes_moved"] - client["bytes_asked"] <= client["accesses_done"] * (size - 1)
    moved = sum(channel["reads"] + channel["writes"] for channel in counters["channels"]) * size
    assert moved == sum(client["bytes_moved"] for client in counters["clients"])
    assert all(in_use == 0 for _, in_use, _ in counters["ports"].values())


@given(
    system=systems(), submissions=submissions(cancels=True), background=backgrounds(), until_ps=st.integers(0, 10**6)
)
def test_at_any_time_no_port_is_over_full_and_no_link_or_pin_too_fast(system, submissions, background, until_ps):
    _, counters, _ = run_compiled(system, submissions, background, until_ps)
    cycles = counters["cycles"]
    for occupancy, in_use, most in counters["ports"].values():
        assert 0 <= in_use <= most <= system.noc.credits
        assert occupancy <= cycles * system.noc.credits
    assert all(link["flits"] <= cycles for link in counters["links"])
    for channel in counters["channels"]:
        assert channel["busy_cycles"] + channel["refresh_cycles"] + channel["idle_cycles"] == cycles
        assert channel["hits"] + channel["misses"] + channel["conflicts"] == channel["reads"] + channel["writes"]
        pins = cycles * (system.ticks_per_second // system.noc.clock_hz)
        latest = (
            max(system.dram.cl_ns, system.dram.cwl_ns) * 1e-9 * system.ticks_per_second
        )  # on the pins after the last command
        burst = system.ticks_per_second // system.dram.transfers_per_second * system.dram.burst_transfers
        assert channel["data_ticks"] <= pins + latest + 2 * burst * system.dram.chained_bursts


def random_transfer(seed, kind):
    """Memory system, runs that are read and written, when, at which pace, priorities and traffic beside it: what nobody chose."""
    rng = np.random.default_rng(seed)
    system = load_memory(memory_names()[int(rng.integers(0, 4))])
    count, stride, width = (
        int(rng.integers(2, 200)),
        int(rng.choice([512, 4096, 16384, 65536])),
        int(rng.choice([16, 64, 256])),
    )
    rows = [(at * stride, width) for at in range(count)]
    pieces = [(int(rng.integers(0, 1 << 20)), int(2 ** rng.uniform(0, 14.3))) for _ in range(int(rng.integers(1, 6)))]
    at, size = int(rng.integers(0, 1 << 20)), int(2 ** rng.uniform(6, 17.6))
    between = int(rng.choice([0, 20 << 10, 1 << 20, 4 << 20, 64 * int(rng.integers(0, 1 << 18))]))
    apart = int(rng.integers(1, 5)) << (17 if system.name == "edge-soc" else 22)  # in the same bank
    side = rows if rng.random() < 0.5 else pieces
    sides = [random_runs(np.random.default_rng((seed, base)), base) for base in (0, 1 << 26)]
    reads, writes = {
        "read of many runs": (sides[0], []),
        "write of many runs": ([], sides[0]),
        "copy of many runs": as_long_as_each_other(*sides),
        "read": (side, []),
        "write": ([], side),
        "copy": ([(at, size)], [(at + size + between, size)]),
        "copy within a bank": ([(at, size // 4 + 1)], [(at + apart, size // 4 + 1)]),
    }[kind]
    pace_ps = int(rng.integers(0, 10**6)) * int(rng.integers(0, 2))
    priorities = [int(priority) for priority in rng.integers(0, 8, 3)]
    traffic = [
        Background(
            client,
            int(system.noc.link_bytes_per_second * 10 ** rng.uniform(-2, 0)),
            int(rng.choice([32, 64, 256, 1024, 4096])),
            float(rng.choice([0.0, 0.3, 0.5, 1.0])),
            1 << 30,
            int(rng.choice([1 << 12, 1 << 18, 1 << 26])),
            int(rng.integers(0, 1000)),
        )
        for client in (["cpu"], ["npu_code"], ["cpu", "npu_code"])[int(rng.integers(0, 3))]
    ]
    return system, reads, writes, int(rng.integers(0, 10**7)), pace_ps, priorities, traffic


def random_runs(rng, base):
    """Rows of planes at two strides, up to some hundred and in any order, or pieces anywhere; in most cases a long run behind them."""
    width, count = int(rng.choice([2, 7, 16, 64, 256, 1024])), int(2 ** rng.uniform(1, 8.7))
    stride = width + int(rng.choice([0, 32, 512, 1024, 4096, 16384, 65536]))
    inner, plane = int(rng.choice([1, 2, 4, 8])), int(rng.choice([1 << 14, 1 << 16, 1 << 17, 1 << 20]))
    start = base + int(rng.integers(0, 4096))
    rows = [
        (start + at % inner * stride + at // inner * (stride if inner == 1 else plane), width) for at in range(count)
    ]
    pieces = [(base + int(rng.integers(0, 1 << 24)), int(rng.integers(1, 2 * width))) for _ in range(count)]
    runs = [rows, rows[::-1], pieces][int(rng.integers(0, 3))]
    last = [(base + (1 << 25) + int(rng.integers(0, 1 << 20)), int(2 ** rng.uniform(8, 16)))]
    return runs + last * int(rng.integers(0, 4) > 0)


def as_long_as_each_other(*sides):
    """Both sides of a copy, cut to the bytes of the shorter one."""
    left = [min(sum(length for _, length in side) for side in sides)] * 2
    cut = []
    for at, side in enumerate(sides):
        cut.append([])
        for address, length in side:
            length = min(length, left[at])
            left[at] -= length
            cut[-1] += [(address, length)] * (length > 0)
    return cut


def faster_by_ps(system, reads, writes, at_ps, pace_ps, priorities, traffic):
    """How much earlier a transfer of the NPU ends with traffic than without, whose rows are its own: none that the transfer needs is open."""
    ends = []
    for background in ([], traffic):
        memory = CycleMemory(system)
        for client, priority in enumerate(priorities):
            memory.set_priority(client, priority)
        for one in background:
            memory.set_background(one)
        runs = (as_runs([((1 << 32) + address, length) for address, length in side]) for side in (reads, writes))
        memory.submit(0, at_ps, *runs, pace_ps)
        ends.append(memory.advance(ends[0][1] - 1 if ends else None))
    return ends[0][1] - ends[1][1] if ends[1] else 0


def gain_of_a_refresh_ps(system, pace_ps):
    """What traffic may be worth: alone a page is opened again between two accesses at a pace, and pages behind it in its bank come later."""
    if not pace_ps or not system.dram.trefi_ns:
        return 0
    cycle_ps = 1e12 / system.noc.clock_hz
    return (max(system.dram.trcd_ns, system.dram.tras_ns) * 1000 // cycle_ps + 1) * cycle_ps


@pytest.mark.parametrize(
    ("name", "run", "at_ps", "pace_ps", "traffic", "gain_ps"),
    [
        ("client-37xx", (828472, 4005), 6091481, 1563665, (8_100_000_000, 64, 0.5, 2009), 5926),
        ("edge-soc", (1035864, 1494), 9371798, 2964161, (46_080_000_000, 512, 1.0, 1133), 10_000),
    ],
)
def test_a_page_that_a_refresh_parts_is_opened_once_where_traffic_holds_up_who_opened_it_before(
    name, run, at_ps, pace_ps, traffic, gain_ps
):
    """The one way to be faster beside traffic: it takes a refresh, and accesses at a pace on both sides of it."""
    system, (rate, burst, writes, seed) = load_memory(name), traffic
    background = [Background("cpu", rate, burst, writes, 1 << 30, 64 << 20, seed)]
    rest = ([0, 0, 0], background)
    assert faster_by_ps(system, [run], [], at_ps, pace_ps, *rest) == gain_ps <= gain_of_a_refresh_ps(system, pace_ps)
    assert faster_by_ps(changed(system, {"trefi_ns": 0.0}), [run], [], at_ps, pace_ps, *rest) == 0
    assert faster_by_ps(system, [run], [], at_ps, 0, *rest) == 0


@pytest.mark.parametrize("seed", range(100))
def test_paced_reads_across_a_refresh_gain_no_more_than_a_page_that_is_opened_again(seed):
    rng = np.random.default_rng((seed, 7800))
    system = load_memory(["client-37xx", "client-40xx", "edge-soc"][seed % 3])
    run = (int(rng.integers(0, 1 << 20)), int(2 ** rng.uniform(8, 14)))
    before_ps, pace_ps = int(rng.integers(0, 2 * 10**6)), int(rng.integers(5 * 10**5, 3 * 10**6))
    at_ps = 7_800_000 - round(system.clients[0].latency_ns * 1000) - before_ps
    traffic = Background(
        "cpu",
        int(system.noc.link_bytes_per_second * 10 ** rng.uniform(-1, 0)),
        int(rng.choice([64, 256, 512])),
        float(rng.choice([0.0, 0.5, 1.0])),
        1 << 30,
        64 << 20,
        seed,
    )
    faster = faster_by_ps(system, [run], [], at_ps, pace_ps, [0, 0, 0], [traffic])
    assert faster <= gain_of_a_refresh_ps(system, pace_ps)


KINDS = ["read", "write", "copy", "copy within a bank", "read of many runs", "write of many runs", "copy of many runs"]


@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 2000), marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_of_random_transfers_none_is_faster_beside_traffic(kind, seeds):
    assert [seed for seed in seeds if faster_by_ps(*random_transfer(seed, kind))] == []


RUNS = st.lists(
    st.tuples(st.integers(0, 1 << 14) | st.integers(0, 1 << 20), st.integers(1, 1500)), min_size=1, max_size=25
)


@settings(max_examples=60)
@given(
    system=systems(),
    sides=RUNS.map(lambda side: (side, [])) | RUNS.map(lambda side: ([], side)) | st.tuples(RUNS, RUNS),
    at_ps=st.integers(0, 10**6),
    pace_ps=st.just(0) | st.integers(0, 10**6),
    priorities=st.lists(st.integers(0, 7), min_size=3, max_size=3),
    traffic=st.lists(
        st.builds(
            Background,
            client=st.sampled_from(["cpu", "npu_code"]),
            bytes_per_second=st.integers(10**8, 60 * 10**9),
            burst_bytes=st.sampled_from([32, 64, 300, 1000]),
            write_share=st.sampled_from([0.0, 0.3, 1.0]),
            address=st.just(1 << 30),
            span_bytes=st.sampled_from([1024, 1 << 16, 1 << 22]),
            seed=st.integers(0, 1000),
        ),
        min_size=1,
        max_size=2,
    ),
)
def test_of_no_memory_system_traffic_makes_a_transfer_faster_by_more_than_a_refresh_allows(
    system, sides, at_ps, pace_ps, priorities, traffic
):
    faster = faster_by_ps(system, *sides, at_ps, pace_ps, priorities, traffic)
    assert faster <= gain_of_a_refresh_ps(system, pace_ps)


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("name", memory_names())
def test_rows_of_a_buffer_take_as_long_in_whichever_order_they_are_asked_for(name, write):
    """By the turns of their banks: rows of one page follow each other, and those of one bank are as far apart as can be."""
    system, ends = load_memory(name), set()
    rows = [((1 << 32) + 4096 * at, 64) for at in range(128)]
    for order in (np.arange(128), np.arange(128)[::-1], np.random.default_rng(0).permutation(128)):
        memory, runs = CycleMemory(system), as_runs([rows[at] for at in order])
        memory.submit(0, 0, NO_RUNS if write else runs, runs if write else NO_RUNS, 0)
        ends.add(memory.advance()[1])
    assert len(ends) == 1


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("name", ["client-37xx", "client-40xx", "edge-soc"])
def test_rows_that_conflict_in_one_channel_are_not_faster_beside_traffic(name, write):
    runs = as_runs([((1 << 32) + (at << 16), 16) for at in range(250)])
    ends = []
    for gigabytes in (0, 1, 5, 20):
        memory = CycleMemory(load_memory(name))
        memory.set_background(Background("cpu", gigabytes * 10**9, 4096, float(write), 1 << 30))
        memory.submit(0, 0, NO_RUNS if write else runs, runs if write else NO_RUNS, 100_000)
        ends.append(memory.advance(10**10)[1])
    assert ends[0] <= min(ends)


@pytest.mark.parametrize("nbytes", [1210, 4974, 16_000, 44_237])
@pytest.mark.parametrize("name", ["client-40xx", "edge-soc"])
def test_a_copy_between_rows_of_one_bank_turns_the_bank_once_a_buffer_alone_as_beside_traffic(name, nbytes):
    """The rows are used in turn, as far as a buffer reaches; what comes in between only delays that."""
    system = load_memory(name)
    row = system.dram.page_bytes * system.dram.channels
    apart = row * system.dram.banks * (system.dram.banks if system.dram.bank_xor else 1)
    source, target = as_runs([(1 << 32, nbytes)]), as_runs([((1 << 32) + apart, nbytes)])
    buffer = system.clients[0].requests * system.clients[0].request_accesses * system.dram.access_bytes
    ends = []
    for gigabytes in (0, 1, 5, 15):
        memory = CycleMemory(changed(system, {"trefi_ns": 0.0}))
        memory.set_background(Background("cpu", gigabytes * 10**9, 64, 0.5, 1 << 30))
        memory.submit(0, 0, source, target, 0)
        ends.append(memory.advance(10**10)[1])
        if not gigabytes:
            turns = 2 * -(-nbytes // buffer) + 2 * -(-nbytes // row)
            assert max(memory.counters.channels[at].conflicts for at in range(system.dram.channels)) <= turns
    assert ends[0] <= min(ends)


def test_a_copy_at_a_pace_takes_as_long_as_its_pace_and_the_writes_of_what_it_holds():
    """One side waits for the other one's buffers, and catches up: not both paces one behind the other."""
    system = load_memory("client-40xx")
    runs = as_runs([(1 << 32, 1 << 20)])
    alone, paced = CycleMemory(system), CycleMemory(system)
    for memory, pace_ps in ((alone, 0), (paced, 40 * 10**6)):
        memory.submit(0, 0, runs, runs + np.array([1 << 26, 0]), pace_ps)
    ends = [memory.advance(10**10)[1] for memory in (alone, paced)]
    assert ends[0] < 20 * 10**6
    assert 40 * 10**6 < ends[1] < 40 * 10**6 + 0.1 * ends[0]


def test_banks_work_side_by_side_though_accesses_have_waited_too_long():
    patient = load_memory("client-40xx")
    runs = as_runs([((1 << 32) + (at << 16), 16) for at in range(2000)])
    ends = []
    for system in (patient, changed(patient, {"age_limit_cycles": 10**6})):
        memory = CycleMemory(system)
        memory.submit(0, 0, NO_RUNS, runs, 0)
        ends.append(memory.advance(10**10)[1])
    assert ends[0] < 1.1 * ends[1]
