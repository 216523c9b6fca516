"""The instruction cache by itself: two sets of two lines of 64 bytes."""

import msgspec
import pytest
from npu_device.instruction_cache import InstructionCache
from npu_model.profile import load_profile

SSID = 2
SHAVE = msgspec.structs.replace(load_profile("npu-37xx").shave, icache_sets=2, icache_ways=2)


@pytest.fixture
def cache():
    return InstructionCache(SHAVE)


def load(cache, va, nbytes, ssid=SSID):
    """Look a program up and fill what is missing; return the addresses of the lines that were missing."""
    lines = cache.look_up(ssid, va, nbytes)
    missing = [at for at, line in zip(cache.span(va, nbytes), lines, strict=True) if line is None]
    for at in missing:
        cache.fill(ssid, at, at.to_bytes(64, "little"))
    assert all(
        line == at.to_bytes(64, "little") for at, line in zip(cache.span(va, nbytes), lines, strict=True) if line
    )
    return missing


def test_lines_that_fit_stay(cache):
    assert load(cache, 0, 256) == [0, 64, 128, 192]
    assert load(cache, 0, 256) == []
    assert cache.held_lines(SSID, 0, 256) == 4


def test_the_line_of_a_set_that_was_used_least_recently_goes(cache):
    load(cache, 0, 256)  # set 0: 0, 128; set 1: 64, 192
    load(cache, 0, 64)  # 0 is younger than 128 now
    assert load(cache, 256, 64) == [256]  # set 0
    assert load(cache, 0, 64) == []
    assert load(cache, 64, 64) == []
    assert load(cache, 128, 64) == [128]


def test_a_program_one_set_too_large_pushes_itself_out(cache):
    every = [0, 64, 128, 192, 256, 320]
    assert load(cache, 0, 384) == every
    assert load(cache, 0, 384) == every


def test_a_program_need_not_begin_with_a_line(cache):
    assert load(cache, 48, 32) == [0, 64]
    assert cache.held_lines(SSID, 48, 32) == 2
    assert cache.held_lines(SSID, 0, 16) == 1
    assert cache.held_lines(SSID, 112, 32) == 1


def test_contexts_have_their_own_lines_and_lose_them_alone(cache):
    load(cache, 0, 64)
    assert load(cache, 0, 64, SSID + 1) == [0]
    cache.drop(SSID)
    assert load(cache, 0, 64, SSID + 1) == []
    assert load(cache, 0, 64) == [0]


def test_a_line_that_was_dropped_while_its_bytes_were_on_their_way_stays_dropped(cache):
    cache.look_up(SSID, 0, 64)
    cache.drop(SSID)
    cache.fill(SSID, 0, bytes(64))
    assert load(cache, 0, 64) == [0]


def test_a_fill_that_is_broken_off_leaves_what_was_there(cache):
    load(cache, 0, 64)
    cache.look_up(SSID, 0, 128)
    cache.abandon(SSID, 0, 128)
    assert load(cache, 0, 128) == [64]
