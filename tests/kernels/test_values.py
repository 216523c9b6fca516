"""Values of the built-in kernels against NumPy, for sizes of one, odd ones, tails, and more than CMX holds.

Tolerances are absolute, for operands of unit variance, unless said otherwise.
"""

import numpy as np
import pytest

from tests.kernels import reference

COUNTS = [1, 5, 1000, 16384, 16385, 100001]
GRIDS = [1, 4]
ROWS = [(1, 1), (3, 5), (100, 77), (1000, 64), (5, 16384), (2, 16385), (1, 100000)]
MATRICES = [(1, 1, 1), (3, 5, 7), (17, 33, 65), (100, 64, 1000), (1, 3000, 10), (600, 128, 600)]  # m, k, n
CONVOLUTIONS = [  # (n, c, h, w), k, kernel, stride, pad, groups
    ((1, 1, 1, 1), 1, (1, 1), (1, 1), (0, 0), 1),
    ((1, 3, 8, 8), 4, (3, 3), (1, 1), (1, 1), 1),
    ((2, 16, 17, 13), 24, (3, 5), (2, 1), (1, 2), 1),
    ((1, 64, 28, 28), 64, (3, 3), (1, 1), (1, 1), 1),
    ((1, 8, 10, 10), 8, (3, 3), (1, 1), (1, 1), 8),
    ((2, 12, 9, 7), 18, (1, 1), (1, 1), (0, 0), 3),
    ((1, 3, 224, 224), 16, (7, 7), (2, 2), (3, 3), 1),
    ((1, 300, 9, 9), 520, (3, 3), (1, 1), (1, 1), 1),
    ((3, 4, 5, 6), 5, (2, 2), (3, 4), (0, 0), 1),
    ((1, 2, 3, 3), 2, (5, 5), (1, 1), (2, 2), 1),
    ((1, 2000, 4, 4), 8, (3, 3), (1, 1), (1, 1), 1),
    ((1, 200, 6, 300), 10, (3, 5), (1, 2), (1, 2), 1),  # columns are cut, too
]
POOLS = [  # (n, c, h, w), kernel, stride, pad
    ((1, 1, 1, 1), (1, 1), (1, 1), (0, 0)),
    ((1, 3, 8, 8), (2, 2), (2, 2), (0, 0)),
    ((2, 16, 17, 13), (3, 2), (2, 1), (1, 1)),
    ((1, 64, 56, 56), (3, 3), (2, 2), (1, 1)),
    ((1, 2, 300, 700), (3, 3), (1, 1), (1, 1)),
    ((1, 5, 7, 7), (7, 7), (1, 1), (0, 0)),
    ((2, 3, 9, 9), (2, 3), (4, 5), (1, 0)),
]


def empty(*shape, dtype=np.float32):
    """Return a buffer that shows what was not written."""
    return np.full(shape, np.nan, dtype)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("count", COUNTS)
def test_elementwise_kernels_are_exact(npu, rng, count, grid):
    x, y = rng.standard_normal((2, count), np.float32)
    assert np.array_equal(npu.compute("relu", x, empty(count), count, grid=grid)[1], np.maximum(x, 0))
    assert np.array_equal(npu.compute("add", x, y, empty(count), count, grid=grid)[2], x + y)
    assert np.array_equal(npu.compute("mul", x, y, empty(count), count, grid=grid)[2], x * y)
    assert np.array_equal(npu.compute("copy", x, empty(count), count, grid=grid)[1], x)
    assert np.array_equal(
        npu.compute("fill", empty(count), 1.25, count, grid=grid)[0], np.full(count, 1.25, np.float32)
    )


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("count", COUNTS)
def test_scale_add_adds_scale_times_input_to_the_output(npu, rng, count, grid):
    x, y = rng.standard_normal((2, count), np.float32)
    found = npu.compute("scale_add", x, y, 2.5, count, grid=grid)[1]
    assert np.abs(found - (2.5 * x.astype(np.float64) + y)).max() < 1e-6


def test_nothing_beyond_the_count_is_written(npu, rng):
    x = rng.standard_normal(1000, np.float32)
    for name, rest in (("relu", ()), ("copy", ())):
        found = npu.compute(name, x, empty(1000), *rest, 777)[1]
        assert np.isnan(found[777:]).all() and not np.isnan(found[:777]).any()
    assert np.isnan(npu.compute("fill", empty(5000), 0.0, 4097)[0][4097:]).all()


def test_values_that_are_no_numbers_survive(npu):
    x = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)
    found = npu.compute("relu", x, empty(4), 4)[1]
    assert np.isnan(found[0]) and found[1:].tolist() == [np.inf, 0, 0]
    found = npu.compute("pool2d", x, empty(1), 1, 1, 1, 4, 1, 4, 1, 4, 0, 0, 0)[1]
    assert np.isnan(found[0])


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("rows", "cols"), ROWS)
def test_row_kernels(npu, rng, rows, cols, grid):
    x = 3 * rng.standard_normal((rows, cols), np.float32)
    gamma, beta = rng.standard_normal((2, cols), np.float32)
    found = npu.compute("softmax", x, empty(rows, cols), rows, cols, grid=grid)[1]
    assert np.abs(found - reference.softmax(x)).max() < 1e-6
    found = npu.compute("layernorm", x, gamma, beta, empty(rows, cols), rows, cols, 1e-5, grid=grid)[3]
    assert np.abs(found - reference.layernorm(x, gamma, beta, 1e-5)).max() < 1e-5
    found = npu.compute("layernorm", x, None, None, empty(rows, cols), rows, cols, 1e-5, grid=grid)[1]
    assert np.abs(found - reference.layernorm(x, 1, 0, 1e-5)).max() < 1e-5
    found = npu.compute("reduce_sum", x, empty(rows), rows, cols, grid=grid)[1]
    assert np.abs(found - x.sum(axis=-1, dtype=np.float64)).max() < 3e-7 * np.abs(x).sum(axis=-1).max() + 1e-6


@pytest.mark.parametrize("cols", [4, 20000])
def test_softmax_of_large_and_infinite_values(npu, cols):
    x = np.full((1, cols), -np.inf, np.float32)
    x[0, -2:] = 1e30, 1e30
    assert npu.compute("softmax", x, empty(1, cols), 1, cols)[1][0, -3:].tolist() == [0, 0.5, 0.5]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("m", "k", "n"), MATRICES)
def test_fully_connected(npu, rng, m, k, n, grid):
    x, weights, bias = (rng.standard_normal(shape, np.float32) for shape in ((m, k), (n, k), (n,)))
    expected = x.astype(np.float64) @ weights.T
    found = npu.compute("fully_connected", x, weights, bias, empty(m, n), m, k, n, 1, grid=grid)[3]
    assert np.abs(found - np.maximum(expected + bias, 0)).max() < 1e-4
    found = npu.compute("fully_connected", x, weights, None, empty(m, n), m, k, n, 0, grid=grid)[2]
    assert np.abs(found - expected).max() < 1e-4


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("m", "k", "n"), MATRICES[:-1])
def test_matmul(npu, rng, batch, m, k, n, grid):
    x, y = rng.standard_normal((batch, m, k), np.float32), rng.standard_normal((batch, k, n), np.float32)
    found = npu.compute("matmul", x, y, empty(batch, m, n), batch, m, k, n, grid=grid)[2]
    assert np.abs(found - x.astype(np.float64) @ y).max() < 1e-4


def convolve(npu, x, weights, bias, stride, pad, groups, activation, expected_shape, grid, name="conv2d"):
    (n, c, h, w), k, kernel = x.shape, len(weights), weights.shape[2:]
    out = empty(*expected_shape, dtype=x.dtype)
    args = (n, c, h, w, k, *kernel, *stride, *pad, groups, activation)
    return npu.compute(name, x, weights, bias, out, *args, grid=grid)[-1]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("shape", "k", "kernel", "stride", "pad", "groups"), CONVOLUTIONS)
def test_conv2d(npu, rng, shape, k, kernel, stride, pad, groups, grid):
    fan_in = shape[1] // groups * kernel[0] * kernel[1]
    x = rng.standard_normal(shape, np.float32)
    weights = rng.standard_normal((k, shape[1] // groups, *kernel), np.float32) / np.float32(fan_in) ** 0.5
    bias = rng.standard_normal(k, np.float32)
    expected = reference.conv2d(x, weights, bias, stride, pad, groups)
    found = convolve(npu, x, weights, bias, stride, pad, groups, 0, expected.shape, grid)
    assert np.abs(found - expected).max() < 1e-5
    expected = np.maximum(reference.conv2d(x, weights, None, stride, pad, groups), 0)
    found = convolve(npu, x, weights, None, stride, pad, groups, 1, expected.shape, grid)
    assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("shape", "kernel", "stride", "pad"), POOLS)
def test_pool2d(npu, rng, shape, kernel, stride, pad, grid):
    x = rng.standard_normal(shape, np.float32)
    sizes = (*shape, *kernel, *stride, *pad)
    expected = reference.max_pool(x, kernel, stride, pad)
    assert np.array_equal(npu.compute("pool2d", x, empty(*expected.shape), *sizes, 0, grid=grid)[1], expected)
    expected = reference.average_pool(x, kernel, stride, pad)
    found = npu.compute("pool2d", x, empty(*expected.shape), *sizes, 1, grid=grid)[1]
    assert np.abs(found - expected).max() < 1e-6


def test_an_average_is_infinite_where_its_sum_is(npu):
    x = np.full((1, 2, 1, 2), 3e38, np.float32)
    x[0, 1] = [3e38, -3e38]
    assert npu.compute("pool2d", x, empty(1, 2, 1, 1), *x.shape, 1, 2, 1, 2, 0, 0, 1)[1].ravel().tolist() == [np.inf, 0]
    half = np.full((1, 1, 200, 200), 65504, np.float16)
    sizes = (*half.shape, 200, 200, 1, 1, 0, 0, 1)
    assert npu.compute("pool2d.f16", half, empty(1, 1, 1, 1, dtype=np.float16), *sizes)[1].item() == 65504


@pytest.mark.parametrize(("rows", "cols"), [(200, 3), (20, 1000), (2, 40000)])
@pytest.mark.parametrize("name", ["layernorm", "layernorm.f16"])
def test_layernorm_of_a_row_of_equal_elements_is_beta(npu, rng, name, rows, cols):
    kind = np.float16 if name.endswith("f16") else np.float32
    x = np.repeat(rng.standard_normal((rows, 1)).astype(kind), cols, axis=1)
    gamma, beta = rng.standard_normal((2, cols)).astype(kind)
    found = npu.compute(name, x, gamma, beta, empty(rows, cols, dtype=kind), rows, cols, 1e-5)[3]
    assert np.array_equal(found, np.broadcast_to(beta, (rows, cols)))


def test_layernorm_where_the_first_element_is_far_from_the_others(npu, rng):
    x = rng.standard_normal((20, 1000), np.float32)
    x[:, 0] = 1e4  # results are of the size of 30, fp32 has 2e-6 there
    found = npu.compute("layernorm", x, None, None, empty(20, 1000), 20, 1000, 1e-5)[1]
    assert np.abs(found - reference.layernorm(x, 1, 0, 1e-5)).max() < 5e-6


LARGE_POOLS = [
    ((1, 2, 40, 37), (33, 30), (2, 3), (5, 4)),
    ((2, 3, 30, 30), (30, 30), (1, 1), (0, 0)),
    ((1, 1, 5, 200), (3, 199), (1, 1), (1, 20)),
    ((1, 1, 126, 126), (126, 126), (1, 1), (1, 1)),
    ((1, 1, 224, 224), (224, 224), (1, 1), (0, 0)),
]


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize(("shape", "kernel", "stride", "pad"), LARGE_POOLS)
def test_pool2d_with_a_window_that_takes_columns_first(npu, rng, shape, kernel, stride, pad, dtype):
    name, kind = ("pool2d", np.float32) if dtype == "f32" else ("pool2d.f16", np.float16)
    x = rng.standard_normal(shape, np.float32).astype(kind)
    sizes = (*shape, *kernel, *stride, *pad)
    expected = reference.max_pool(x, kernel, stride, pad)
    for grid in (1, 3):
        assert np.array_equal(
            npu.compute(name, x, empty(*expected.shape, dtype=kind), *sizes, 0, grid=grid)[1], expected
        )
    # Means of some hundred values: fp32 sums, and one rounding to fp16.
    expected = reference.average_pool(x.astype(np.float64), kernel, stride, pad)
    found = npu.compute(name, x, empty(*expected.shape, dtype=kind), *sizes, 1, grid=2)[1]
    assert np.abs(found - expected).max() < (1e-6 if dtype == "f32" else 2e-4)


def test_pool2d_with_a_large_window_in_32_kib(small, rng):
    x = rng.standard_normal((1, 2, 70, 70), np.float32)
    expected = reference.max_pool(x, (60, 60), (3, 2), (0, 0))
    found = small.compute("pool2d", x, empty(*expected.shape), *x.shape, 60, 60, 3, 2, 0, 0, 0)[1]
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("grid", [2, 5])
def test_a_block_with_32_kib_of_cmx_computes_the_same(small, rng, grid):
    x, y = rng.standard_normal((2, 30000), np.float32)
    assert np.array_equal(small.compute("add", x, y, empty(30000), 30000, grid=grid)[2], x + y)
    rows = x[:20000].reshape(2, 10000)
    found = small.compute("softmax", rows, empty(2, 10000), 2, 10000, grid=grid)[1]
    assert np.abs(found - reference.softmax(rows)).max() < 1e-6
    a, b = x[:6000].reshape(60, 100), y[:6000].reshape(100, 60)
    found = small.compute("matmul", a, b, empty(60, 60), 1, 60, 100, 60, grid=grid)[2]
    assert np.abs(found - a.astype(np.float64) @ b).max() < 1e-4
    image, weights = x[:16384].reshape(1, 16, 32, 32), y[:4608].reshape(32, 16, 3, 3)
    expected = reference.conv2d(image, weights, None, (1, 1), (1, 1))
    found = convolve(small, image, weights, None, (1, 1), (1, 1), 1, 0, expected.shape, grid)
    assert np.abs(found - expected).max() < 1e-4
    expected = reference.max_pool(image, (3, 3), (2, 2), (1, 1))
    found = small.compute("pool2d", image, empty(*expected.shape), *image.shape, 3, 3, 2, 2, 1, 1, 0, grid=grid)[1]
    assert np.array_equal(found, expected)


def test_fp16_kernels_round_where_they_store(npu, rng):
    # Tolerance: half a unit in the last place of fp16 for results below 8, and fp32 sums of few terms.
    x, y = rng.standard_normal((2, 4096)).astype(np.float16)
    half = np.float16
    assert np.array_equal(npu.compute("relu.f16", x, empty(4096, dtype=half), 4096)[1], np.maximum(x, half(0)))
    assert np.array_equal(npu.compute("add.f16", x, y, empty(4096, dtype=half), 4096)[2], x + y)
    assert np.array_equal(npu.compute("mul.f16", x, y, empty(4096, dtype=half), 4096)[2], x * y)
    assert np.array_equal(npu.compute("copy.f16", x, empty(4096, dtype=half), 4096)[1], x)
    assert np.array_equal(npu.compute("fill.f16", empty(99, dtype=half), 1 / 3, 99)[0], np.full(99, half(1 / 3)))
    expected = 0.5 * x.astype(np.float64) + y
    assert np.abs(npu.compute("scale_add.f16", x, y, 0.5, 4096)[1] - expected).max() < 2e-3
    rows = x.reshape(64, 64)
    wide = rows.astype(np.float64)
    found = npu.compute("softmax.f16", rows, empty(64, 64, dtype=half), 64, 64)[1]
    assert np.abs(found - reference.softmax(wide)).max() < 5e-4
    found = npu.compute("layernorm.f16", rows, x[:64], y[:64], empty(64, 64, dtype=half), 64, 64, 1e-5)[3]
    assert np.abs(found - reference.layernorm(wide, x[:64], y[:64].astype(np.float64), 1e-5)).max() < 4e-3
    found = npu.compute("reduce_sum.f16", rows, empty(64, dtype=half), 64, 64)[1]
    assert np.abs(found - wide.sum(axis=1)).max() < 2e-2
    weights, bias = y.reshape(64, 64), x[64:128]
    expected = wide @ weights.T.astype(np.float64)
    found = npu.compute("fully_connected.f16", rows, weights, bias, empty(64, 64, dtype=half), 64, 64, 64, 0)[3]
    assert np.abs(found - (expected + bias)).max() < 2e-2
    found = npu.compute("matmul.f16", rows, np.ascontiguousarray(weights.T), empty(64, 64, dtype=half), 1, 64, 64, 64)[
        2
    ]
    assert np.abs(found - expected).max() < 2e-2
    image, filters = x.reshape(1, 16, 16, 16), y[:2304].reshape(16, 16, 3, 3)
    expected = reference.conv2d(image, filters.astype(np.float64), None, (1, 1), (1, 1))
    found = convolve(npu, image, filters, None, (1, 1), (1, 1), 1, 0, expected.shape, 4, "conv2d.f16")
    assert np.abs(found - expected).max() < 4e-2
    expected = reference.average_pool(image, (2, 2), (2, 2), (0, 0))
    found = npu.compute("pool2d.f16", image, empty(*expected.shape, dtype=half), *image.shape, 2, 2, 2, 2, 0, 0, 1)[1]
    assert np.abs(found - expected).max() < 2e-3
