"""B24, B25, B26: the queue model in which they were given, and that the memory path differs from it by what may wait.

The queue model shares no code with the memory path. Its room in front of the port is not given with the figures.
"""

import pytest
from npu_model.memory import load_memory

from benchmarks.queue_model import CREDITS, share
from benchmarks.silicon import changed, loss, loss_at_92, share_link

EDGE = load_memory("edge-soc")
NO_REFRESH = {"trefi_ns": 0.0}
ROOM = 2 * CREDITS


def test_alone_and_first_the_npu_holds_41_percent_of_its_credits():
    alone = share(0.40, 0.0, ROOM)
    assert alone.full == pytest.approx(0.41, abs=0.03)
    assert share(0.40, 0.72, ROOM, priority=True) == alone


@pytest.mark.parametrize("room", [16, ROOM, 64, None])
def test_b24_the_cpu_takes_30_percent_whatever_may_wait(room):
    found = share(0.40, 0.72, room)
    assert 0.27 <= 1 - found.flits / 0.40 <= 0.31
    assert found.full > 0.97


def test_b25_92_percent_full_is_a_loss_of_8_percent_where_two_sets_of_credits_may_wait():
    found = share(0.40, 0.62, ROOM)
    assert found.full == pytest.approx(0.92, abs=0.03)
    assert 1 - found.flits / 0.40 == pytest.approx(0.08, abs=0.03)


def test_the_more_may_wait_the_less_is_lost_at_the_same_load():
    losses = [1 - share(0.40, 0.60, room).flits / 0.40 for room in (0, 16, 32, 64, None)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 0.12 > 0.02 > losses[-1]


def test_b25_the_memory_path_gives_the_quoted_pair_too_where_less_is_outstanding():
    at, lost = loss_at_92(lambda cpu: share_link(changed(EDGE, dram=NO_REFRESH, npu={"requests": 10}), cpu))
    assert at == pytest.approx(0.615, abs=0.02)
    assert lost == pytest.approx(0.08, abs=0.03)


def test_b24_with_refresh_is_in_its_range_where_more_is_outstanding():
    assert 0.25 <= loss(changed(EDGE, npu={"requests": 32}), refresh=True) <= 0.35 < loss(EDGE, refresh=True)
