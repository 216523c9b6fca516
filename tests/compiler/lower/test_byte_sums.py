"""Which sums of bytes the matrix engine takes."""

import numpy as np
import pytest
from npu_abi import C

from libnpu.compiler.ir import Node, Value
from libnpu.compiler.lower.byte_sums import byte_sum

I8 = np.dtype(np.int8)


def mean(factor=0.5, other=0.5, zero=3.0):
    """Two tensors of int8, each with a factor of its own, and what their sum becomes."""
    a, b, out = (Value(name, (4,), I8) for name in ("a", "b", "out"))
    terms = (("mul", ("cast_f32", ("in", k)), ("const", by)) for k, by in enumerate((factor, other)))
    moved = ("add", ("round", ("add", *terms)), ("const", zero))
    expr = ("cast_i32", ("clip", moved, ("const", -128.0), ("const", 127.0)))
    return byte_sum(Node("Elementwise", "sum", [a, b], [out], {"expr": expr}))


def test_a_sum_with_one_factor_is_the_engines():
    _, fields = mean()
    known = {"op": C.NPU_DPU_ELTWISE_ADD, "ppe_scale": 0.5, "ppe_bias": 0.0, "out_zero_point": 3}
    assert {name: fields[name] for name in known} == known


@pytest.mark.parametrize(
    "odd", [{"other": 0.25}, {"zero": 0.5}, {"zero": 1e20}, {"zero": np.inf}, {"zero": np.nan}, {"factor": np.inf, "other": np.inf}]
)  # fmt: skip
def test_numbers_that_the_engine_has_no_place_for_leave_it_to_the_vector_cores(odd):
    assert mean(**odd) is None
