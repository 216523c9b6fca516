"""The judge of whole models: what it takes for right, and a topology through it that has no file of outputs."""

import numpy as np
import pytest

from benchmarks.model_values import Case, _half, row, topology, wrong


def case(expected, of_one=(), steps=False):
    return Case("model", None, {}, {}, expected, frozenset(of_one), steps)


@pytest.mark.parametrize(
    ("precision", "steps", "error", "right"),
    [
        ("fp32", False, 5e-5, True),
        ("fp32", False, 5e-4, False),
        ("fp32", True, 5e-4, True),
        ("fp16", False, 5e-3, True),
        ("fp16", False, 5e-2, False),
        ("fp16", False, np.nan, False),
    ],
)
def test_errors_are_held_to_the_limit_of_the_policy(precision, steps, error, right):
    want = np.linspace(-4, 4, 9, dtype=np.float32)
    got = want + np.float32(4 * error) * (want == 0)
    assert (not wrong(case({"y": want}, steps=steps), precision, {"y": got})[0]) == right


def test_a_model_that_makes_more_of_float16_than_most_may_be_off_by_twice_that():
    want = np.linspace(-4, 4, 9, dtype=np.float32)
    model = Case("model", None, {}, {}, {"y": want}, frozenset(), False, {"y": 0.02})
    for error, right in ((0.039, True), (0.041, False)):
        got = want + np.float32(4 * error) * (want == 0)
        assert (not wrong(model, "fp16", {"y": got})[0]) == right


def test_nothing_for_every_score_is_wrong_though_their_sigmoid_is_right():
    scores = np.full(9, -20, np.float32)
    judged = case({"y": 1 / (1 + np.exp(-scores)), "scores": scores}, of_one=["y"])
    nothing = np.zeros(9, np.float32)
    assert wrong(judged, "fp32", {"y": nothing, "scores": nothing})[0].startswith("scores: error 1")
    assert not wrong(judged, "fp32", {"y": nothing, "scores": scores})[0]


def test_integers_are_equal_and_types_are_those_of_the_model():
    want = np.arange(4, dtype=np.int32)
    assert wrong(case({"y": want}), "fp16", {"y": want + (want == 3)})[0] == "1 of 4 integers of y"
    assert wrong(case({"y": want}), "fp16", {"y": want.astype(np.int64)})[0].startswith(
        "y is int64(4,), expected int32"
    )


@pytest.mark.models
def test_squeezenet_is_right_and_its_scores_are_judged():
    judged = topology("squeezenet")
    assert len(judged.expected) == 2
    cells, right = row(judged, "fp16", run=True)
    assert right and cells[2] == "yes"


def test_a_number_without_axes_stays_an_array():
    half = _half(np.float32(1.0001).reshape(()))
    assert isinstance(half, np.ndarray)
    assert (half.shape, half.dtype, float(half)) == ((), np.float32, 1.0)
