"""The compiled memory path against a slow one written again in Python: every count and every time, exactly."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from npu_model.memory import load_memory

from tests.memory.workloads import backgrounds, changed, changes, run_compiled, run_reference, submissions, systems

UNTIL_PS = 2 * 10**6


@settings(max_examples=25)
@given(system=systems(), submissions=submissions(cancels=True), background=backgrounds(), changes=changes())
def test_compiled_model_and_reference_agree_on_every_count_and_time(system, submissions, background, changes):
    ends, counters, _ = run_compiled(system, submissions, background, UNTIL_PS, changes)
    expected_ends, expected = run_reference(system, submissions, background, UNTIL_PS, changes)
    assert ends == expected_ends
    assert counters == expected


@pytest.mark.parametrize("size", [16, 1500])
def test_a_refresh_that_takes_no_time_takes_the_cycle_of_its_command(size):
    system = changed(load_memory("edge-soc"), {"trefi_ns": 100.0, "trfc_ns": 0.0, "trp_ns": 0.0})
    submissions = [(0, 0, [(0, size)], [], 0, "", 0)]
    ends, counters, _ = run_compiled(system, submissions, None, UNTIL_PS)
    assert (ends, counters) == run_reference(system, submissions, None, UNTIL_PS)
    for channel in counters["channels"]:
        assert channel["refreshes"] == channel["refresh_cycles"] > 0
