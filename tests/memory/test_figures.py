"""Figures of the memory path that come out of its mechanism, beside those that are quoted for it.

Three parameters of `edge-soc` are calibrated, one figure each: noc.clock_hz, which is the limit of a long stream, so that
B17 holds; noc.hop_cycles on random reads of 4 KiB (B23); noc.credit_return_cycles on the credits that a port has in use
(B26). The CPU's traffic in B42 is set by its first figure. All else is predicted: the bursts of 64 bytes of B23, the second
figure of B42, B24, B25, and what priority does in B26.
"""

from __future__ import annotations

import numpy as np
import pytest
from npu_model.memory import load_memory
from npu_model.memory_cycles import Background, CycleMemory
from npu_model.memory_runs import NO_RUNS

from tests.memory.workloads import changed

EDGE = load_memory("edge-soc")
NPU, BASE, FAR = EDGE.client("npu_dma"), 1 << 32, 1 << 28
MIB = 1 << 20
BACK, CPU = 1, EDGE.client("cpu")


def read(memory, runs, *, at_ps=0, pace_ps=0, write=False):
    """Move the runs, and return the time of the end."""
    runs = np.array(runs, np.int64).reshape(-1, 2)
    memory.submit(NPU, at_ps, NO_RUNS if write else runs, runs if write else NO_RUNS, pace_ps)
    end = memory.advance(10**12)
    assert end is not None
    return end[1]


def with_cpu(system, gigabytes_per_second):
    """A memory with that much background traffic."""
    memory = CycleMemory(system)
    memory.set_background(Background("cpu", round(gigabytes_per_second * 1e9), address=FAR))
    return memory


def sequential(system, *, cpu=0.0, write=False):
    """GB/s of one long transfer."""
    return 2 * MIB / read(with_cpu(system, cpu), [(BASE, 2 * MIB)], write=write) * 1000


def random_4k(system, *, cpu=0.0, blocks=150):
    """GB/s of blocks of 4 KiB at random places, one after the other, each with one request outstanding."""
    memory = with_cpu(changed(system, clients={"npu_dma": {"requests": 1}}), cpu)
    at = 0
    for block in np.random.default_rng(0).integers(0, 1 << 18, blocks):
        at = read(memory, [(BASE + int(block) * 4096, 4096)], at_ps=at)
    return blocks * 4096 / at * 1000


def chained(system, bursts=4):
    """With accesses of 128 bytes: that many bursts a command."""
    return changed(system, {"chained_bursts": bursts})


def test_b16_r013_pins_of_lpddr5x_7500_x_64_carry_60_gigabytes_per_second():
    assert EDGE.dram.pin_bytes_per_second == 60_000_000_000


def test_b17_r014_a_sequential_stream_gets_45_to_52():
    assert 45 <= sequential(EDGE) <= 52
    assert 45 <= sequential(EDGE, write=True) <= 52
    assert 45 <= sequential(EDGE, cpu=2) <= 52


def test_r014_what_is_lost_is_refresh_and_pages_and_the_link():
    without_refresh = changed(EDGE, {"trefi_ns": 0.0})
    assert sequential(without_refresh) > 1.07 * sequential(EDGE)
    wide = changed(without_refresh, noc={"flit_bytes": 64, "clock_hz": 3_200_000_000})
    assert sequential(without_refresh) < sequential(wide) <= 60


@pytest.mark.parametrize(("bursts", "moved"), [(1, 32), (4, 128)])
def test_r026_a_read_of_16_bytes_moves_a_whole_access(bursts, moved):
    memory = CycleMemory(chained(EDGE, bursts))
    read(memory, [(BASE, 16)])
    counters = memory.counters.clients[NPU]
    assert (counters.bytes_asked, counters.bytes_moved) == (16, moved)


@pytest.mark.parametrize(
    ("system", "row", "moved"),
    [(EDGE, 0, 128), (EDGE, 2, 128), (chained(EDGE), 0, 128), (chained(EDGE), 4, 128), (chained(EDGE), 2, 256)],
)
def test_b22_r027_a_tile_of_4_x_4_bytes_wastes_87_5_percent(system, row, moved):
    """Of a 32 x 32 patch, rows 32 bytes apart; with accesses of 128 bytes a tile across two of them wastes 93.75 %."""
    memory = CycleMemory(system)
    read(memory, [(BASE + (row + y) * 32 + 8, 4) for y in range(4)])
    counters = memory.counters.clients[NPU]
    assert (counters.bytes_asked, counters.bytes_moved) == (16, moved)
    assert 1 - counters.bytes_asked / counters.bytes_moved == {128: 0.875, 256: 0.9375}[moved]


def test_b22_a_whole_patch_tile_by_tile_moves_8192_bytes_for_1024():
    memory = CycleMemory(chained(EDGE))
    for tile in range(64):
        y, x = divmod(tile, 8)
        read(memory, [(BASE + (4 * y + row) * 32 + 4 * x, 4) for row in range(4)], at_ps=tile * 10**6)
    counters = memory.counters.clients[NPU]
    assert (counters.bytes_asked, counters.bytes_moved) == (1024, 8192)


def test_b23_random_blocks_of_4_kib_get_8_31():
    assert random_4k(EDGE) == pytest.approx(8.31, rel=0.05)


def test_bursts_of_64_bytes_get_14_1():
    assert random_4k(chained(EDGE, 2)) == pytest.approx(14.1, rel=0.05)


def test_bursts_of_128_bytes_get_11_percent_less_than_the_21_7_that_are_quoted():
    assert random_4k(chained(EDGE)) / 21.7 - 1 == pytest.approx(-0.114, abs=0.005)


def test_b42_with_background_traffic_they_get_7_9_and_in_chained_bursts_18_3():
    assert random_4k(EDGE, cpu=4) == pytest.approx(7.9, rel=0.10)
    assert random_4k(chained(EDGE), cpu=4) == pytest.approx(18.3, rel=0.10)


def test_r108_strides_of_all_banks_conflict_in_one_bank_unless_rows_are_mixed_in():
    period = EDGE.dram.page_bytes * EDGE.dram.banks * EDGE.dram.channels
    runs = [(BASE + i * period, 128) for i in range(500)]
    plain, mixed = CycleMemory(EDGE), CycleMemory(changed(EDGE, {"bank_xor": True}))
    slow, fast = read(plain, runs), read(mixed, runs)
    assert slow > 5 * fast
    assert plain.counters.channels[0].conflicts > 490
    assert sequential(EDGE) > 20 * 500 * 128 / slow * 1000


# One link and two clients: the NPU offers 0.40 flits a cycle, the CPU more and more in bursts of 8. The figures are those of a
# link alone, so there is no refresh here. With it all reads pause for 8 % of the time, and at 0.72 the NPU loses 41 %.

LINK = changed(EDGE, {"trefi_ns": 0.0})


def share_link(cpu_flits, priority=0, system=LINK):
    """Return the NPU's flits a cycle, occupancy of its port at the router where both meet (0 to 1), and the counters."""
    system = changed(system, clients={"npu_dma": {"priority": priority}})
    memory = with_cpu(system, cpu_flits * system.noc.link_bytes_per_second / 1e9)
    size = MIB
    read(memory, [(BASE, size)], pace_ps=round(size / (0.4 * system.noc.link_bytes_per_second) * 1e12))
    cycles = memory.counters.cycles
    return size / 32 / cycles, occupancy(memory, BACK, NPU, 0), memory


def occupancy(memory, direction, client, hop):
    """Credits in use at a port, as a part of all, on average."""
    port = memory.counters.ports[(direction * 8 + client) * 8 + hop]
    return port.occupancy / memory.counters.cycles / memory.system.noc.credits


def test_b24_r033_cpu_traffic_takes_a_quarter_to_a_third_of_the_npus_bandwidth_and_the_memory_is_not_saturated():
    flits, _, memory = share_link(0.72)
    assert -0.35 <= flits / 0.40 - 1 <= -0.25
    beats = sum(memory.counters.channels[i].data_ticks for i in range(4)) / 4
    assert beats / (memory.counters.cycles * EDGE.ticks_per_second // EDGE.noc.clock_hz) < 0.9
    assert share_link(0.72, system=EDGE)[0] / 0.40 - 1 == pytest.approx(-0.406, abs=0.005)  # beyond the range


def test_b25_r109_the_load_at_which_the_port_is_92_percent_full_costs_little_and_neighbours_show_their_own_load():
    load = min((0.56, 0.58, 0.60, 0.62), key=lambda load: abs(share_link(load)[1] - 0.92))
    flits, full, memory = share_link(load)
    assert full == pytest.approx(0.92, abs=0.03)
    assert flits / 0.40 - 1 == pytest.approx(-0.012, abs=0.005)  # 8 % are quoted: not met, see docs/silicon.md
    assert occupancy(memory, BACK, NPU, 1) == pytest.approx(
        flits, abs=0.03
    )  # of 16 credits, each flit has one for 16 cycles
    assert share_link(0.72)[1] > 0.98


def test_b26_r037_priority_gives_the_port_its_unloaded_41_percent_back():
    unloaded = share_link(0.0)[1]
    assert unloaded == pytest.approx(0.41, abs=0.03)
    for load in (0.62, 0.72):
        flits, full, _ = share_link(load, priority=7)
        assert full == pytest.approx(unloaded, abs=0.01)
        assert flits == pytest.approx(0.40, rel=0.01)


def test_r034_a_port_never_holds_more_than_its_16_credits_and_what_is_before_it_waits():
    _, _, memory = share_link(0.72)
    ports = [memory.counters.ports[i] for i in range(128)]
    assert max(port.most for port in ports) == 16
    gate = memory.counters.links[memory.links.index(("gate", "hub"))]
    assert gate.stall_arbitration > 0.2 * memory.counters.cycles


def test_r024_cpu_traffic_lowers_the_npus_bandwidth():
    alone, shared = sequential(EDGE), sequential(EDGE, cpu=20)
    assert 20 < shared < alone - 15


@pytest.mark.parametrize(
    ("change", "figure", "low", "high"),
    [
        ({"dram": {"transfers_per_second": 3_750_000_000}}, sequential, 0.5, 0.75),
        ({"dram": {"chained_bursts": 2}}, random_4k, 1.5, 1.8),
        ({"noc": {"credits": 8}}, sequential, 0.5, 0.7),
    ],
)
def test_halves_and_doubles_move_the_predictions(change, figure, low, high):
    assert low < figure(changed(EDGE, **change)) / figure(EDGE) < high
