"""The compiled memory path against a slow one written again in Python: every count and every time, exactly."""

from __future__ import annotations

from hypothesis import given, settings

from tests.memory.workloads import backgrounds, changes, run_compiled, run_reference, submissions, systems

UNTIL_PS = 2 * 10**6


@settings(max_examples=25)
@given(system=systems(), submissions=submissions(cancels=True), background=backgrounds(), changes=changes())
def test_compiled_model_and_reference_agree_on_every_count_and_time(system, submissions, background, changes):
    ends, counters, _ = run_compiled(system, submissions, background, UNTIL_PS, changes)
    expected_ends, expected = run_reference(system, submissions, background, UNTIL_PS, changes)
    assert ends == expected_ends
    assert counters == expected
