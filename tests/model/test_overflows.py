"""Counting what fp16 does not hold: C and NumPy agree, and the limits are those of rounding to nearest even."""

import numpy as np
import pytest
from npu_model import casts
from npu_model.native import load


@pytest.mark.parametrize("helper", [load(), None], ids=["c", "numpy"])
@pytest.mark.parametrize("size", [0, 1, 7, 33, 70_000])
def test_infinities_are_counted_and_nan_is_none(helper, size):
    bits = np.random.default_rng(size).integers(0, 65536, size).astype(np.uint16)
    bits[: size // 2] = np.resize(np.array([0x7C00, 0xFC00, 0x7C01, 0x7BFF, 0xFFFF], np.uint16), size // 2)
    expected = sum(int(b) in (0x7C00, 0xFC00) for b in bits)
    assert casts.f16_infinities(bits, helper) == expected


def test_more_infinities_than_16_bits_count():
    assert casts.f16_infinities(np.full(200_000, 0x7C00, np.uint16)) == 200_000


def test_finite_values_overflow_from_half_way_to_the_next_power_of_two():
    below, above = np.nextafter(np.float32(65520), np.float32(0)), np.float32(65520)
    values = np.array([65504, below, above, -above, 1e38, np.inf, -np.inf, np.nan, 0], np.float32)
    assert casts.f16_overflows(values) == 3
    assert np.isinf(casts.f16_to_f32(casts.f32_to_f16(values))).tolist() == [0, 0, 1, 1, 1, 1, 1, 0, 0]
