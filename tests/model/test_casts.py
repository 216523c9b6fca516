"""Conversions of 16-bit floats: every fp16 value, chosen edges, and C against NumPy bit by bit."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from npu_model import casts, native


@pytest.fixture(params=["c", "c without avx2", "numpy"])
def helper(request):
    if request.param == "numpy":
        return None
    found = native.load()
    if found is None:
        pytest.skip("no gcc, or the native helpers are turned off")
    return found if request.param == "c" else native.Native(found.ffi, found.lib, 0)


ALL = np.arange(65536, dtype=np.uint32).astype(np.uint16)


def random_f32():
    bits = np.random.default_rng(7).integers(0, 1 << 32, 200_001, dtype=np.uint64).astype(np.uint32)
    near_f16 = (np.random.default_rng(8).integers(0x33000000, 0x47900000, 200_000)).astype(np.uint32)
    ties = (ALL[:0x7C00].astype(np.uint32) << 13) + np.uint32(0x38001000)
    return np.concatenate([bits, near_f16, near_f16 | np.uint32(1 << 31), ties]).view(np.float32)


def test_fp16_to_f32_keeps_every_value_and_quiets_nan(helper):
    got = casts.f16_to_f32(ALL, helper)
    finite = (ALL & 0x7FFF) <= 0x7C00
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(
            got.view(np.uint32)[finite], ALL.view(np.float16)[finite].astype(np.float32).view(np.uint32)
        )
    payload = ALL[~finite].astype(np.uint32)
    np.testing.assert_array_equal(
        got.view(np.uint32)[~finite], (payload >> 15 << 31) | 0x7FC00000 | (payload & 0x3FF) << 13
    )


def test_fp16_to_f64_is_fp16_to_f32_widened(helper):
    got, via = casts.f16_to_f64(ALL, helper), casts.f16_to_f32(ALL, helper).astype(np.float64)
    np.testing.assert_array_equal(got.view(np.uint64), via.view(np.uint64))


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (65504.0, 0x7BFF),
        (65519.996, 0x7BFF),
        (65520.0, 0x7C00),  # half way to the value after the largest: to even, which is infinity
        (1e30, 0x7C00),
        (-np.inf, 0xFC00),
        (2.0**-24, 0x0001),
        (2.0**-25, 0x0000),  # tie with zero goes to even
        (np.nextafter(np.float32(2.0**-25), np.float32(1)), 0x0001),
        (3 * 2.0**-25, 0x0002),
        (1 + 2.0**-11, 0x3C00),
        (1 + 3 * 2.0**-11, 0x3C02),
        (-0.0, 0x8000),
        (1e-45, 0x0000),
    ],
)
def test_f32_to_fp16_rounds_to_nearest_even(helper, value, bits):
    assert casts.f32_to_f16(np.array([value] * 9, np.float32), helper).tolist() == [bits] * 9


@pytest.mark.parametrize(
    ("bits32", "bits"),
    [
        (0x3F808000, 0x3F80),
        (0x3F818000, 0x3F82),
        (0x3F808001, 0x3F81),
        (0x7F7FFFFF, 0x7F80),  # overflow
        (0x7F800001, 0x7FC0),  # a signalling NaN whose payload would vanish
        (0xFFFFFFFF, 0xFFFF),
        (0x00000001, 0x0000),
        (0x00018000, 0x0002),
    ],
)
def test_f32_to_bf16_rounds_to_nearest_even(helper, bits32, bits):
    assert casts.f32_to_bf16(np.array([bits32], np.uint32).view(np.float32), helper).tolist() == [bits]


def test_narrowing_agrees_with_numpy_and_ml_dtypes_on_random_values(helper):
    values = random_f32()
    number = ~np.isnan(values)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(
            casts.f32_to_f16(values, helper)[number], values[number].astype(np.float16).view(np.uint16)
        )
        np.testing.assert_array_equal(
            casts.f32_to_bf16(values, helper)[number], values[number].astype(ml_dtypes.bfloat16).view(np.uint16)
        )
    assert np.isnan(casts.f32_to_f16(values[~number], helper).view(np.float16)).all()


def test_c_and_numpy_agree_on_every_bit(helper):
    values = random_f32()
    for cast, operand in (
        (casts.f16_to_f32, ALL),
        (casts.f16_to_f64, ALL),
        (casts.bf16_to_f32, ALL),
        (casts.f32_to_f16, values),
        (casts.f32_to_bf16, values),
    ):
        got, want = cast(operand, helper), cast(operand, None)
        np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8), err_msg=cast.__name__)


def test_any_layout_is_taken(helper):
    grid = ALL[:600].reshape(20, 30)
    np.testing.assert_array_equal(casts.f16_to_f32(grid[::2, ::-3], helper), casts.f16_to_f32(grid, helper)[::2, ::-3])
    odd = np.frombuffer(b"\0" + ALL[:100].tobytes(), np.uint8)[1:].view(np.uint16)
    np.testing.assert_array_equal(casts.f16_to_f32(odd, helper), casts.f16_to_f32(ALL[:100], helper))
    assert casts.f16_to_f32(np.array(0x3C00, np.uint16), helper).shape == ()


def test_wrong_element_type_is_refused(helper):
    with pytest.raises(TypeError, match="expected an array of uint16, got float16"):
        casts.f16_to_f32(np.zeros(3, np.float16), helper)


def test_helpers_are_absent_without_a_compiler(tmp_path):
    assert native.build_and_load(tmp_path, compiler=str(tmp_path / "no-such-gcc")) is None
    assert list(tmp_path.iterdir()) == []


def test_helpers_are_absent_when_the_compiler_fails(tmp_path):
    assert native.build_and_load(tmp_path, compiler="/bin/false") is None


def test_helpers_are_not_kept_where_others_can_write(tmp_path):
    tmp_path.chmod(0o777)
    assert native.build_and_load(tmp_path) is None


def test_a_damaged_cache_is_built_again_and_builders_do_not_meet(tmp_path):
    if native.load() is None:
        pytest.skip("no gcc, or the native helpers are turned off")
    (tmp_path / "gcc").write_text('#!/bin/sh\nexec gcc "$@" -O0\n')  # how fast the code is does not matter here
    (tmp_path / "gcc").chmod(0o755)
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    (folder / f"native-{native._key()}.so").write_bytes(b"half a file")
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: native.build_and_load(folder, str(tmp_path / "gcc")), range(2)))
    assert all(one is not None for one in found)
    assert len(list(folder.iterdir())) == 1  # no temporary file is left


@pytest.mark.skipif(os.environ.get("LIBNPU_NATIVE") == "0", reason="the native helpers are turned off")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_helpers_build_wherever_there_is_a_compiler():
    assert native.load() is not None


def test_environment_turns_the_helpers_off(monkeypatch):
    monkeypatch.setenv("LIBNPU_NATIVE", "0")
    assert native.load.__wrapped__() is None
