"""What holds for every memory system and whatever is asked of it."""

from __future__ import annotations

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


PIECES = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 20_000)), min_size=1, max_size=5) | st.builds(
    lambda count, stride, width: [(at * stride, width) for at in range(count)],
    st.integers(2, 200),
    st.sampled_from([512, 4096, 16384, 65536]),
    st.sampled_from([16, 64, 256]),
)
DISTANCES = st.sampled_from([0, 20 << 10, 1 << 20, 4 << 20]) | st.integers(0, 1 << 18).map(lambda at: at * 64)
COPIES = st.builds(
    lambda at, size, between: ([(at, size)], [(at + size + between, size)]),
    st.integers(0, 1 << 20),
    st.integers(64, 200_000),
    DISTANCES,
)


@settings(max_examples=120)
@given(
    name=st.sampled_from(memory_names()),
    sides=PIECES.map(lambda side: (side, [])) | PIECES.map(lambda side: ([], side)) | COPIES,
    at_ps=st.integers(0, 10**7),
    pace_ps=st.integers(0, 10**6),
    traffic=st.builds(
        Background,
        client=st.just("cpu"),
        bytes_per_second=st.integers(10**8, 20 * 10**9),
        burst_bytes=st.sampled_from([64, 256, 4096]),
        write_share=st.sampled_from([0.0, 0.5, 1.0]),
        address=st.just(1 << 30),  # no row of the transfer's: it never finds a page that traffic has opened for it
        seed=st.integers(0, 1000),
    ),
)
def test_traffic_of_another_client_never_makes_a_transfer_faster(name, sides, at_ps, pace_ps, traffic):
    """By more than the last access on the pins; of a copy, than one turn of the pins more or less."""
    system = load_memory(name)
    alone, disturbed = CycleMemory(system), CycleMemory(system)
    disturbed.set_background(traffic)
    reads, writes = (as_runs([((1 << 32) + address, length) for address, length in side]) for side in sides)
    for memory in (alone, disturbed):
        memory.submit(0, at_ps, reads, writes, pace_ps)
    both = len(reads) > 0 and len(writes) > 0
    assert alone.advance(10**10)[1] - disturbed.advance(10**10)[1] <= 1000 * inherent_ns(system, both)


def inherent_ns(system, both):
    """What the order of commands decides at the end: an access; or writes that go first down to a quarter of the queue, and a page."""
    dram = system.dram
    access_ns = dram.burst_transfers * dram.chained_bursts / dram.transfers_per_second * 1e9
    if not both:
        return access_ns
    turns_ns = dram.read_to_write_ns + dram.write_to_read_ns
    return dram.queue_depth // 4 * access_ns + turns_ns + dram.twr_ns + dram.trp_ns + dram.trcd_ns


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("name", ["client-37xx", "client-40xx", "edge-soc"])
def test_rows_that_conflict_in_one_channel_are_not_faster_beside_traffic(name, write):
    system = load_memory(name)
    runs = as_runs([((1 << 32) + (at << 16), 16) for at in range(250)])
    ends = []
    for gigabytes in (0, 1, 5, 20):
        memory = CycleMemory(system)
        memory.set_background(Background("cpu", gigabytes * 10**9, 4096, float(write), 1 << 30))
        memory.submit(0, 0, NO_RUNS if write else runs, runs if write else NO_RUNS, 100_000)
        ends.append(memory.advance(10**10)[1])
    assert ends[0] - min(ends) <= 1000 * inherent_ns(system, False)


def test_banks_work_side_by_side_though_accesses_have_waited_too_long():
    patient = load_memory("client-40xx")
    runs = as_runs([((1 << 32) + (at << 16), 16) for at in range(2000)])
    ends = []
    for system in (patient, changed(patient, {"age_limit_cycles": 10**6})):
        memory = CycleMemory(system)
        memory.submit(0, 0, NO_RUNS, runs, 0)
        ends.append(memory.advance(10**10)[1])
    assert ends[0] < 1.1 * ends[1]
