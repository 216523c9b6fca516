"""Stretched durations: reproducible integers, spread over three decades."""

from npu_abi import C
from npu_device.schedule import FACTORS, Schedule

DMA = C.NPU_ENGINE_DMA


def unit_that_is(slow, seed):
    schedule = Schedule(C.NPU_SCHEDULE_SEED, seed)
    return next(unit for unit in range(64) if schedule.is_slow(DMA, unit) == slow)


def drawn(seed, count=2000, cycles=10**6, slow=False):
    schedule, unit = Schedule(C.NPU_SCHEDULE_SEED, seed), unit_that_is(slow, seed)
    return [schedule.stretch(cycles, DMA, unit) for _ in range(count)]


def test_factors_are_powers_of_1000_rounded_down():
    assert len(FACTORS) == 65
    assert FACTORS[0] == 1 << 16
    assert FACTORS[64] == 1000 << 16
    for step, factor in enumerate(FACTORS):
        assert factor**64 <= 1000**step << 16 * 64 < (factor + 1) ** 64


def test_the_same_seed_gives_the_same_durations_and_another_one_others():
    assert drawn(3, 3) == drawn(3, 3) != drawn(4, 3)
    assert drawn(1, 4, 1000) == [678106, 1367, 215163, 4543]


def test_durations_are_one_to_a_thousand_times_as_long_a_third_in_each_decade():
    durations = drawn(7)
    assert 10**6 <= min(durations) < 2 * 10**6
    assert 5 * 10**8 < max(durations) < 10**9
    decades = [sum(10**k <= d < 10 ** (k + 1) for d in durations) for k in (6, 7, 8)]
    assert sum(decades) == 2000
    assert all(600 < count < 740 for count in decades)


def test_no_duration_is_zero():
    assert Schedule(C.NPU_SCHEDULE_SEED, 0).stretch(0, DMA, 0) >= 1


def test_a_slow_unit_takes_a_thousand_times_as_long():
    assert [d // 1000 for d in drawn(3, 20, slow=True)] == drawn(3, 20)


def test_about_half_of_the_jobs_are_held_for_100_us_to_100_ms_a_third_in_each_decade():
    schedule = Schedule(C.NPU_SCHEDULE_SEED, 7)
    held = [schedule.hold() for _ in range(4000)]
    delays = [delay for delay in held if delay]
    assert 1900 < len(delays) < 2100
    decades = [sum(10**k <= delay < 10 ** (k + 1) for delay in delays) for k in (8, 9, 10)]
    assert sum(decades) == len(delays)
    assert all(600 < count < 740 for count in decades)


def test_holds_leave_the_stretches_of_tasks_alone():
    schedule = Schedule(C.NPU_SCHEDULE_SEED, 1)
    found = []
    for _ in range(4):
        schedule.hold()
        found.append(schedule.stretch(1000, DMA, unit_that_is(False, 1)))
    assert found == [678106, 1367, 215163, 4543]


def test_seeds_make_different_halves_of_the_units_slow():
    units = [(kind, unit) for kind in (DMA, C.NPU_ENGINE_DPU, C.NPU_ENGINE_SHAVE) for unit in range(2)]
    slow = [tuple(Schedule(C.NPU_SCHEDULE_SEED, seed).is_slow(*u) for u in units) for seed in range(200)]
    assert len(set(slow)) > 50  # of 64
    assert 540 < sum(map(sum, slow)) < 660
