"""The file of the built-in library, and how its programs behave on the device beside their values."""

from pathlib import Path

import numpy as np
import pytest
from npu_abi import C

from libnpu.blob import KernelParam, KernelSource, kernel_library, read, verify
from libnpu.kernels import builtin_library
from libnpu.kernels.build import build
from tests.kernels import reference
from tests.kernels.launcher import KERNELS, Launcher
from tests.kernels.test_values import convolve, empty

NAMES = [
    "conv2d", "pool2d", "fully_connected", "matmul", "add", "mul", "relu", "softmax", "layernorm", "reduce_sum", "copy", "fill",
    "scale_add",
]  # fmt: skip


def test_the_file_is_what_its_sources_give():
    assert Path(builtin_library()).read_bytes() == build()


def test_the_library_has_every_kernel_in_fp32_and_fp16():
    assert sorted(KERNELS) == sorted([*NAMES, *(f"{name}.f16" for name in NAMES)])
    assert verify(read(build())) == []


def test_every_program_fits_in_an_instruction_cache_of_16_kib():
    assert max(kernel.code_bytes for kernel in KERNELS.values()) < 16384


@pytest.mark.parametrize("seed", [1, 2])
def test_values_do_not_depend_on_the_speed_of_the_engines(rng, seed):
    npu = Launcher("npu-37xx")
    npu.rig.device.set_schedule(C.NPU_SCHEDULE_SEED, seed)
    x, y = rng.standard_normal((2, 200_000), np.float32)
    assert np.array_equal(npu.compute("add", x, y, empty(200_000), 200_000)[2], x + y)
    a, b = x[:60000].reshape(200, 300), y[:120_000].reshape(300, 400)
    found = npu.compute("matmul", a, b, empty(200, 400), 1, 200, 300, 400)[2]
    assert np.abs(found - a.astype(np.float64) @ b).max() < 1e-4
    image, weights = x[:100_352].reshape(2, 64, 28, 28), y[:55296].reshape(96, 64, 3, 3)
    expected = reference.conv2d(image, weights, None, (1, 1), (1, 1))
    found = convolve(npu, image, weights, None, (1, 1), (1, 1), 1, 0, expected.shape, 4)
    assert np.abs(found - expected).max() < 2e-4  # sums of 576 terms of unit variance
    rows = x.reshape(2000, 100)
    assert np.abs(npu.compute("softmax", rows, empty(2000, 100), 2000, 100)[1] - reference.softmax(rows)).max() < 1e-6
    pooled = reference.max_pool(image, (3, 3), (2, 2), (1, 1))
    found = npu.compute("pool2d", image, empty(*pooled.shape), *image.shape, 3, 3, 2, 2, 1, 1, 0)[1]
    assert np.array_equal(found, pooled)


def test_more_blocks_than_work_are_no_harm(npu, rng):
    x = rng.standard_normal((3, 5), np.float32)
    assert np.abs(npu.compute("softmax", x, empty(3, 5), 3, 5, grid=64)[1] - reference.softmax(x)).max() < 1e-6
    assert np.array_equal(npu.compute("relu", x, empty(3, 5), 15, grid=64)[1], np.maximum(x, 0))
    assert np.array_equal(npu.compute("copy", x, empty(3, 5), 15, grid=64)[1], x)
    found = npu.compute("matmul", x, x.reshape(5, 3), empty(3, 3), 1, 3, 5, 3, grid=64)[2]
    assert np.abs(found - x.astype(np.float64) @ x.reshape(5, 3)).max() < 1e-5


@pytest.mark.parametrize(
    ("name", "sizes", "speedup"),
    [
        ("softmax", (4000, 250), 3.7),
        ("layernorm", (4000, 250), 3.0),
        ("pool2d", (1, 64, 112, 112, 3, 3, 2, 2, 1, 1, 0), 3.6),
    ],
)
def test_four_blocks_are_faster_than_one(npu, name, sizes, speedup):
    buffers = (
        [np.zeros(1_000_000, np.float32), None, None] if name == "layernorm" else [np.zeros(1_000_000, np.float32)]
    )
    arguments = [*buffers, np.zeros(1_000_000, np.float32), *sizes, *([1e-5] if name == "layernorm" else [])]
    times = []
    for grid in (1, 4):
        npu.compute(name, *arguments, grid=grid)
        times.append(npu.duration_ps)
    assert times[0] / times[1] > speedup, times


def test_loads_and_stores_overlap_with_compute(npu):
    # Of 1,000,000 elements: loads and stores of 8 bytes at 14 a cycle take 586 us at 975 MHz; moving 4 MB in and out, 256 us.
    x = np.zeros(1_000_000, np.float32)
    npu.compute("relu", x, x, x.size, grid=1)
    assert 586e6 < npu.duration_ps < 610e6


def test_a_kernel_of_a_user_runs_in_blocks():
    out = KernelParam("out", C.NPU_ARG_BUFFER, C.NPU_ARG_OUT, C.NPU_DT_I64)
    text = "ld.i64 r6, r1, 0\nmuli r7, r2, 8\nadd r6, r6, r7\nst.i64 r2, r6, 0\nhalt"
    npu = Launcher("unit", library=read(kernel_library("mine", {"number_blocks": KernelSource(text, (out,))})))
    assert npu.compute("number_blocks", np.full(5, -1), grid=5)[0].tolist() == [0, 1, 2, 3, 4]
