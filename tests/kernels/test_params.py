"""Arguments, buffers and blocks of the built-in kernels, as the host works them out."""

import numpy as np
import pytest
from npu_abi import C
from npu_model.profile import load_profile

from libnpu.kernels import params
from libnpu.kernels.params import KernelArgumentError, Unit, plan
from tests.kernels import reference
from tests.kernels.launcher import KERNELS
from tests.kernels.test_values import empty

NPU = Unit.of(load_profile("npu-37xx"))
SMALL = Unit.of(load_profile("unit"))
CONV = (0, 0, 0, 0, 1, 3, 8, 8, 4, 3, 3, 1, 1, 1, 1, 1, 0)  # n c h w k kernel stride pad groups activation


def changed(arguments, index, value):
    return (*arguments[:index], value, *arguments[index + 1 :])


def test_the_unit_of_a_profile():
    assert Unit(4, 991232) == NPU
    assert Unit(2, 32768) == SMALL


def test_buffers_of_a_convolution():
    found = plan("conv2d", CONV, NPU)
    assert [(b.name, b.size_bytes, b.direction, b.optional) for b in found.buffers] == [
        ("input", 768, C.NPU_ARG_IN, False),
        ("weights", 432, C.NPU_ARG_IN, False),
        ("bias", 16, C.NPU_ARG_IN, True),
        ("output", 1024, C.NPU_ARG_OUT, False),
    ]
    assert [b.size_bytes for b in plan("conv2d.f16", CONV, NPU).buffers] == [384, 216, 8, 512]


@pytest.mark.parametrize(
    ("name", "arguments", "sizes"),
    [
        ("relu", (0, 0, 10), [40, 40]),
        ("scale_add", (0, 0, 2.0, 10), [40, 40]),
        ("add", (0, 0, 0, 10), [40, 40, 40]),
        ("copy.f16", (0, 0, 10), [20, 20]),
        ("fill", (0, 1.0, 10), [40]),
        ("softmax", (0, 0, 3, 5), [60, 60]),
        ("layernorm", (0, 0, 0, 0, 3, 5, 1e-5), [60, 20, 20, 60]),
        ("reduce_sum", (0, 0, 3, 5), [60, 12]),
        ("matmul", (0, 0, 0, 2, 3, 4, 5), [96, 160, 120]),
        ("fully_connected", (0, 0, 0, 0, 3, 4, 5, 1), [48, 80, 20, 60]),
        ("pool2d", (0, 0, 1, 2, 7, 9, 3, 3, 2, 2, 1, 0, 1), [504, 128]),
    ],
)
def test_bytes_of_buffers(name, arguments, sizes):
    assert [b.size_bytes for b in plan(name, arguments, NPU).buffers] == sizes


def test_scale_add_reads_and_writes_its_output():
    assert [b.direction for b in plan("scale_add", (0, 0, 2.0, 10), NPU).buffers] == [C.NPU_ARG_IN, C.NPU_ARG_INOUT]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("conv3d", (), "'conv3d' is no built-in kernel; there are conv2d"),
        ("relu.f8", (0, 0, 1), "'relu.f8' is no built-in kernel"),
        ("relu", (0, 0), "relu: 2 arguments; expected 3"),
        ("relu", (0, 0, 0), "relu: count is 0; expected 1 to"),
        ("relu", (0, 0, 1 << 29), "relu: input has 2147483648 bytes; at most 2147483647 are possible"),
        ("softmax", (0, 0, 0, 5), "softmax: rows is 0"),
        ("softmax", (0, 0, 1, 5_000_000), "softmax: cols is 5000000; a block computes a whole row, of at most 3145728"),
        ("pool2d", (0, 0, 1, 1 << 28, 1, 1, 1, 1, 1, 1, 0, 0, 0), "with 1024 blocks, the most, [0-9]+ units of work in a block; the watchdog allows 268435456"),
        ("matmul", (0, 0, 0, 0, 3, 4, 5), "matmul: batch is 0"),
        ("matmul", (0, 0, 0, 1, 1, 70000, 1), "matmul: k is 70000; two rows of it, twice, do not fit in the 991232 bytes"),
        ("fully_connected", (0, 0, 0, 0, 3, 4, 5, 2), "fully_connected: activation is 2; expected 0 to 1"),
        ("pool2d", (0, 0, 1, 2, 7, 9, 3, 3, 2, 2, 3, 0, 1), "pool2d: pad_h is 3; expected 0 to 2"),
        ("pool2d", (0, 0, 1, 2, 7, 9, 3, 3, 2, 2, 1, 0, 2), "pool2d: average is 2"),
        ("pool2d", (0, 0, 1, 1, 1, 20000, 1, 1, 1, 1, 0, 0, 0), "pool2d: the output is 20000 wide; expected 1 to 16384"),
        ("pool2d", (0, 0, 1, 1, 99, 9999, 99, 1, 1, 1, 0, 0, 0), "pool2d: 99 rows of 9999 inputs do not fit"),
        ("conv2d", changed(CONV, 4, 0), "conv2d: n is 0"),
        ("conv2d", changed(CONV, 8, 0), "conv2d: k is 0"),
        ("conv2d", changed(CONV, 9, 256), "conv2d: kernel_h is 256; expected 1 to 255"),
        ("conv2d", changed(CONV, 9, 11), "conv2d: kernel_h is 11; h with its padding has 10"),
        ("conv2d", changed(CONV, 11, 0), "conv2d: stride_h is 0"),
        ("conv2d", changed(CONV, 14, -1), "conv2d: pad_w is -1; expected 0 to 2"),
        ("conv2d", changed(CONV, 15, 2), "conv2d: groups is 2; it must divide c 3 and k 4"),
        ("conv2d", changed(CONV, 15, 4), "conv2d: groups is 4; expected 1 to 3"),
        ("conv2d", changed(CONV, 16, 7), "conv2d: activation is 7"),
        ("conv2d", changed(CONV, 5, 10000), "a window of 3 by 3 inputs in 10000 channels, twice, and its 90000 weights do not fit"),
    ],
)  # fmt: skip
def test_arguments_that_are_refused(name, arguments, message):
    with pytest.raises(KernelArgumentError, match=message):
        plan(name, arguments, NPU)


@pytest.mark.parametrize(
    ("name", "arguments", "grid"),
    [
        ("relu", (0, 0, 1), 1),
        ("relu", (0, 0, 4097), 2),
        ("relu", (0, 0, 100_000), 4),  # the SHAVEs of the device
        ("relu", (0, 0, 100_000_000), 12),  # what the watchdog allows a block
        ("matmul", (0, 0, 0, 1, 64, 64, 64), 1),
        ("matmul", (0, 0, 0, 1, 512, 512, 512), 4),
        ("conv2d", CONV, 1),
        ("conv2d", changed(changed(CONV, 6, 224), 7, 224), 4),
    ],
)
def test_the_default_grid_follows_from_the_size(name, arguments, grid):
    assert plan(name, arguments, NPU).grid == grid


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("conv2d", (1, 2, 0, 3, 2, 3, 4, 5, 3, 3, 3, 1, 1, 1, 1, 1, 0)),
        ("pool2d", (1, 3, 2, 3, 4, 5, 2, 2, 2, 2, 0, 0, 0)),
        ("fully_connected", (1, 2, 0, 3, 2, 60, 60, 0)),
        ("relu", (1, 3, 120)),
        ("copy", (1, 3, 120)),
        ("add", (1, 2, 3, 120)),
        ("mul", (1, 2, 3, 120)),
        ("softmax", (1, 3, 24, 5)),
        ("layernorm", (1, 0, 0, 3, 24, 5, 1e-5)),
        ("reduce_sum", (1, 3, 24, 5)),
    ],
)
def test_arguments_of_kernel_params(name, expected):
    assert params.from_kernel_params(name, 1, 2, 3, 2, 3, 4, 5) == expected
    assert len(expected) == len(KERNELS[name].params)
    plan(name, expected, NPU)


@pytest.mark.parametrize("name", ["matmul", "fill", "scale_add"])
def test_kernels_that_do_not_take_kernel_params(name):
    with pytest.raises(KernelArgumentError, match=f"{name}: does not take kernel_params_t"):
        params.from_kernel_params(name, 1, 2, 3, 2, 3, 4, 5)


def test_a_dimension_of_zero_is_refused():
    with pytest.raises(KernelArgumentError, match="relu: H is 0; expected at least 1"):
        params.from_kernel_params("relu", 1, 2, 3, 2, 3, 0, 5)


def test_arguments_of_conv2d_params():
    found = params.from_conv2d_params((1, 2, 3, 4), (1, 3, 8, 9, 5, 3, 3, 2, 1, 1, 0), 1)
    assert found == (1, 2, 3, 4, 1, 3, 8, 9, 5, 3, 3, 2, 1, 1, 0, 1, 1)


def test_every_kernel_of_the_library_has_a_plan_of_its_parameters():
    for name, kernel in KERNELS.items():
        ones = tuple(1.0 if p.kind == C.NPU_ARG_FLOAT else 1 for p in kernel.params)
        ones = tuple(0 if p.name.startswith("pad_") else one for p, one in zip(kernel.params, ones, strict=True))
        found = plan(name, ones, NPU)
        buffers = [(p.name, p.direction) for p in kernel.params if p.kind == C.NPU_ARG_BUFFER]
        assert [(b.name, b.direction) for b in found.buffers] == buffers


@pytest.mark.parametrize("seed", range(12))
def test_what_a_plan_accepts_runs_and_what_it_refuses_for_lack_of_space_traps(small, seed):
    rng = np.random.default_rng(seed)
    n, c, h, w, k = (int(rng.integers(1, high)) for high in (3, 40, 20, 60, 20))
    kernel = [int(rng.integers(1, min(size, 5) + 1)) for size in (h, w)]
    stride = [int(rng.integers(1, 4)) for _ in range(2)]
    pad = [int(rng.integers(size)) for size in kernel]
    x = rng.standard_normal((n, c, h, w), np.float32)
    weights = rng.standard_normal((k, c, *kernel), np.float32) / np.float32(c * kernel[0] * kernel[1]) ** 0.5
    expected = reference.conv2d(x, weights, None, stride, pad)
    arguments = (n, c, h, w, k, *kernel, *stride, *pad, 1, 0)
    try:
        grid = plan("conv2d", (0, 0, 0, 0, *arguments), SMALL).grid
    except KernelArgumentError as error:
        assert "do not fit" in str(error)
        done, _ = small.run("conv2d", x, weights, None, empty(*expected.shape), *arguments)
        assert done.job_status == C.NPU_JOB_SHAVE_FAULT
        assert done.error_detail >> 32 == C.NPU_SHAVE_FAULT_TRAP
        return
    found = small.compute("conv2d", x, weights, None, empty(*expected.shape), *arguments, grid=grid)[-1]
    assert np.abs(found - expected).max() < 1e-5
