"""What the watchdog counts for a block is never more than `bounds` says, and what a plan accepts never more than the watchdog allows."""

import math
import random

import numpy as np
import pytest
from npu_device.shave import ShaveEngine
from npu_model.profile import load_profile
from npu_model.shave_machine import MAX_STARTS, MAX_WORK

from libnpu.kernels.catalogue import BUILTINS
from libnpu.kernels.params import KernelArgumentError, Unit, plan
from tests.kernels.dry_run import spent

PROFILES = {name: load_profile(name) for name in ("npu-37xx", "npu-40xx", "unit")}
NPU = PROFILES["npu-37xx"]
LARGE = 1 << 25  # of work: from here on a bound is near what is counted
FEW = 8  # blocks, which are all run


def plan_of(name, numbers, profile=NPU):
    buffers = BUILTINS[name.partition(".")[0]].buffers
    return plan(name, (*[0] * len(buffers), *numbers), Unit.of(profile))


def run(name, numbers, grid, block, profile=NPU):
    return spent(name, numbers, profile, Unit.of(profile).cmx_bytes, grid, block)


@pytest.mark.parametrize(
    ("name", "shapes", "numbers"),
    [
        ("relu", [(50_000,)] * 2, (50_000,)),
        ("fill.f16", [(5000,)], (1.5, 5000)),
        ("softmax", [(50, 300)] * 2, (50, 300)),
        ("layernorm", [(2, 20_000), (20_000,), (20_000,), (2, 20_000)], (2, 20_000, 1e-5)),
        ("matmul.f16", [(2, 70, 90), (2, 90, 50), (2, 70, 50)], (2, 70, 90, 50)),
        ("conv2d", [(1, 8, 30, 30), (24, 4, 3, 3), (24,), (1, 24, 30, 30)], (1, 8, 30, 30, 24, 3, 3, 1, 1, 1, 1, 2, 0)),
        ("pool2d", [(1, 16, 30, 30), (1, 16, 15, 15)], (1, 16, 30, 30, 3, 3, 2, 2, 1, 1, 1)),
    ],
)
def test_a_dry_run_counts_what_the_device_counts(npu, monkeypatch, name, shapes, numbers):
    counted = {}
    monkeypatch.setattr(ShaveEngine, "count", lambda _, task, now: counted.update({task.slot.number: task.machine}))
    kind = np.float16 if name.endswith(".f16") else np.float32
    npu.compute(name, *(np.zeros(shape, kind) for shape in shapes), *numbers, grid=3)
    found = {block: (machine.total_work(), machine.starts) for block, machine in counted.items()}
    dry = [run(name, numbers, 3, block) for block in range(3)]
    assert found == {block: (used.work, used.starts) for block, used in enumerate(dry)}


def size(rng, high):
    """Return a size up to `high`, small ones as often as large ones."""
    return int(2 ** rng.uniform(0, math.log2(high)))


def some_numbers(rng, kernel):
    """Return the scalars of a launch."""
    if kernel in ("fill", "scale_add"):
        return 1.0, size(rng, 1 << 23)
    if kernel in ("relu", "add", "mul", "copy"):
        return (size(rng, 1 << 23),)
    if kernel in ("softmax", "reduce_sum"):
        return size(rng, 1000), size(rng, 100_000)
    if kernel == "layernorm":
        return size(rng, 1000), size(rng, 100_000), 1e-5
    if kernel == "matmul":
        return size(rng, 100), size(rng, 1000), size(rng, 50_000), size(rng, 1000)
    if kernel == "fully_connected":
        return size(rng, 1000), size(rng, 50_000), size(rng, 1000), 0
    n, c, h, w = size(rng, 4), size(rng, 200), size(rng, 300), size(rng, 300)
    high = rng.choice((7, 7, 255))
    kernels = size(rng, min(h, high)), size(rng, min(w, high))
    strides = kernels if rng.random() < 0.2 else (size(rng, 4), size(rng, 4))
    pads = tuple(rng.randrange(min(one, 4)) for one in kernels)
    if kernel == "pool2d":
        return n, c, h, w, *kernels, *strides, *pads, rng.randrange(2)
    groups = rng.choice((1, 1, c, size(rng, c)))
    return n, max(c // groups, 1) * groups, h, w, size(rng, 300) * groups, *kernels, *strides, *pads, groups, 0


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize("name", [name + dtype for name in BUILTINS for dtype in ("", ".f16")])
def test_no_block_does_more_than_its_bound(name, seed):
    rng = random.Random(f"{name} {seed}")
    budget = 1 << 27  # of what is run here
    while budget > 0:
        budget -= 1 << 20
        numbers, profile = some_numbers(rng, name.partition(".")[0]), PROFILES[rng.choice(list(PROFILES))]
        try:
            found = plan_of(name, numbers, profile)
        except KernelArgumentError:
            continue
        grid = min(max(found.grid, found.least_grid + rng.randrange(4)) * rng.choice((1, 1, 3, 20)), 1024)
        bound = found.bound(grid)
        assert bound.work <= MAX_WORK and bound.starts <= MAX_STARTS
        if bound.work > 1 << 26:
            continue
        blocks = range(grid) if grid <= FEW else {0, grid // 3, grid // 2, grid - 1}
        used = [run(name, numbers, grid, block, profile) for block in blocks]
        most = max(one.work for one in used)
        assert most <= bound.work and max(one.starts for one in used) <= bound.starts, (profile.name, numbers, grid)
        assert max(one.cycles for one in used) < bound.work / 2, "the limit of work must come before that of cycles"
        if grid <= FEW and most > LARGE:
            assert bound.work < 2.3 * most, (profile.name, numbers, grid)
        budget -= sum(one.work for one in used)


BEYOND_ESTIMATES = [  # fixed charges, tiles of uneven blocks, and weights that are turned one by one
    ("conv2d", (1, 256, 120, 120, 256, 3, 3, 1, 1, 1, 1, 256, 0)),
    ("conv2d", (1, 128, 240, 240, 128, 3, 3, 1, 1, 1, 1, 128, 0)),
    ("conv2d", (1, 3, 2000, 2000, 1, 1, 1, 1, 1, 0, 0, 1, 0)),
    ("conv2d", (1, 64, 48, 48, 16384, 48, 48, 48, 48, 0, 0, 64, 0)),
    ("conv2d", (1, 128, 48, 48, 16384, 3, 3, 48, 48, 0, 0, 64, 0)),
    ("matmul", (160, 1, 40_000, 1)),
    ("matmul.f16", (160, 1, 80_000, 1)),
    ("matmul", (1500, 1, 8000, 3)),
    ("relu", (100_000_000,)),
]


@pytest.mark.parametrize(("name", "numbers"), BEYOND_ESTIMATES)
def test_a_plan_has_so_many_blocks_that_the_watchdog_stops_none(name, numbers):
    found = plan_of(name, numbers)
    for grid in (found.grid, found.least_grid):
        assert found.excess(grid) is None
        bound = found.bound(grid)
        assert bound.work <= MAX_WORK and bound.starts <= MAX_STARTS
    if found.least_grid > 1:
        assert "in a block; the watchdog allows" in found.excess(found.least_grid - 1)


def within_limits(used):
    return used.work <= MAX_WORK and used.starts <= MAX_STARTS and used.cycles <= NPU.shave.max_cycles


@pytest.mark.parametrize(("name", "numbers"), BEYOND_ESTIMATES)
def test_the_blocks_of_a_plan_stay_within_the_limits(name, numbers):
    grid = plan_of(name, numbers).least_grid
    assert all(within_limits(run(name, numbers, grid, block)) for block in (0, grid // 2, grid - 1))


@pytest.mark.parametrize(
    "name", [name + dtype for name in ("softmax", "layernorm", "reduce_sum") for dtype in ("", ".f16")]
)
@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_the_longest_row_that_a_plan_accepts_stays_within_the_limits(name, profile):
    rest = (1e-5,) if name.startswith("layernorm") else ()
    with pytest.raises(KernelArgumentError, match="a block computes a whole row, of at most") as refused:
        plan_of(name, (1, 100_000_000, *rest), profile)
    longest = int(str(refused.value).split()[-4])
    assert plan_of(name, (1, longest, *rest), profile).least_grid == 1
    assert within_limits(run(name, (1, longest, *rest), 1, 0, profile))
