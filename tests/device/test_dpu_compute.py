"""DPU values against loops over single elements: float64 with one rounding, exact Python integers."""

import itertools
import os
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_abi import C
from npu_device import dpu_compute, dpu_native
from npu_device.dpu_rounding import Filters
from npu_device.dpu_work import Work
from npu_device.faults import MemoryFault
from npu_model import native
from npu_model.descriptors import DescriptorError
from npu_model.footprint import dpu_footprint, runs

from tests.device.dpu_case import BASE, FLOATS, OPS, SIZE, Case, assert_same_bits, over


@pytest.fixture(params=["c", "numpy"])
def helper(request):
    if request.param == "numpy":
        return None
    if os.environ.get("LIBNPU_NATIVE") == "0":
        pytest.skip("the native helpers are turned off")
    helpers = native.load()
    assert helpers is not None, "gcc is a prerequisite, yet the native helpers were not built"
    return helpers


U8, I8, I32 = C.NPU_DT_U8, C.NPU_DT_I8, C.NPU_DT_I32
F16, F32, BF16 = C.NPU_DT_F16, C.NPU_DT_F32, C.NPU_DT_BF16
CASES = {
    "conv 1x1": Case("conv", (4, 5, 6), out_z=7),
    "conv 3x3 padded": Case("conv", (5, 6, 3), out_z=4, kernel=(3, 3), pad=(1, 1, 1, 1)),
    "conv asymmetric padding and stride": Case("conv", (6, 7, 2), 3, (3, 2), (2, 3), pad=(1, 0, 0, 2)),
    "conv dilation": Case("conv", (8, 9, 2), 3, (3, 3), dilation=(2, 3), pad=(2, 2, 1, 1)),
    "conv groups": Case("conv", (4, 4, 6), 9, (3, 3), pad=(1, 1, 1, 1), groups=3),
    "conv stride larger than kernel": Case("conv", (9, 9, 2), 2, (1, 2), (4, 3)),
    "conv kernel wider than input": Case("conv", (2, 2, 2), 2, (5, 5), pad=(3, 3, 3, 3)),
    "conv bf16": Case("conv", (4, 4, 5), 3, (3, 3), pad=(1, 1, 1, 1), act=BF16, wt=BF16, out=BF16),
    "conv f32": Case("conv", (4, 4, 5), 3, (3, 3), pad=(1, 1, 1, 1), act=F32, wt=F32, out=F32),
    "conv table relu": Case("conv", (4, 4, 5), 3, table=True, fields={"ppe_fn": C.NPU_PPE_RELU}),
    "conv leaky relu and clamp": Case(
        "conv", (4, 4, 5), 3,
        fields={"ppe_fn": C.NPU_PPE_LRELU, "lrelu_slope": 0.1, "ppe_scale": 3.0, "ppe_bias": -0.5, "clamp_low": -0.25, "clamp_high": 2.0},
    ),
    "conv u8 i8": Case(
        "conv", (4, 5, 3), 4, (3, 3), pad=(1, 1, 1, 1), act=U8, wt=I8, out=I8, table=False,
        fields={"act_zero_point": 131, "out_zero_point": -3, "ppe_scale": 0.004},
    ),
    "conv u8 u8 to i32": Case(
        "conv", (3, 3, 300), 3, (3, 3), pad=(1, 1, 1, 1), act=U8, wt=U8, out=I32,
        fields={"act_zero_point": 255, "wt_zero_point": 0},
    ),
    "conv i8 groups to f32": Case("conv", (3, 3, 4), 4, groups=2, act=I8, wt=I8, out=F32, table=True),
    "conv i8 offsets that wrap": Case("conv", (3, 3, 300), 9, act=I8, wt=I8, out=I32, table=True, offset=2**31 - 1),
    "conv of 4 bits": Case("conv", (4, 5, 6), 5, (3, 3), pad=(1, 1, 1, 1), act=U8, wt=I8, out=I32, small=True, fields={"act_zero_point": 131}),
    "conv of 4 bits, groups": Case("conv", (3, 3, 20), 6, groups=2, act=I8, wt=U8, out=F32, table=True, small=True, fields={"wt_zero_point": 8}),
    "matmul of 4 bits": Case("matmul", (1, 5, 40), 7, act=I8, wt=I8, out=F32, table=True, small=True, fields={"wt_zero_point": -3}),
    "matmul of 4 bits, one row": Case("matmul", (1, 1, 66), 19, act=U8, wt=U8, out=I32, small=True, fields={"wt_zero_point": 7}),
    "dwconv": Case("dwconv", (6, 5, 7), kernel=(3, 3), pad=(1, 1, 1, 1)),
    "dwconv stride dilation": Case("dwconv", (9, 8, 3), kernel=(3, 2), stride=(2, 1), dilation=(1, 3), pad=(1, 2, 0, 1)),
    "dwconv f32": Case("dwconv", (5, 5, 3), kernel=(5, 5), pad=(2, 2, 2, 2), act=F32, wt=F32, out=F32),
    "dwconv u8": Case(
        "dwconv", (5, 5, 3), kernel=(3, 3), pad=(1, 1, 1, 1), act=U8, wt=U8, out=U8,
        fields={"act_zero_point": 128, "wt_zero_point": 127, "out_zero_point": 128, "ppe_scale": 0.003},
    ),
    "dwconv u8 offsets": Case("dwconv", (5, 5, 3), kernel=(3, 3), act=U8, wt=U8, out=F32, table=True, fields={"act_zero_point": 128}),
    "dwconv i8 offsets that wrap": Case("dwconv", (5, 5, 9), kernel=(3, 3), act=I8, wt=I8, out=I32, table=True, offset=2**31 - 1),
    "matmul": Case("matmul", (1, 9, 12), 5),
    "matmul one row": Case("matmul", (1, 1, 33), 17),
    "matmul i8": Case("matmul", (1, 5, 40), 6, act=I8, wt=I8, out=C.NPU_DT_I16, fields={"ppe_scale": 0.01}),
    "matmul i8 offsets": Case("matmul", (1, 5, 40), 6, act=I8, wt=I8, out=F32, table=True),
    "maxpool": Case("maxpool", (7, 6, 5), kernel=(3, 3), stride=(2, 2), pad=(1, 1, 1, 1)),
    "maxpool f32": Case("maxpool", (5, 5, 3), kernel=(2, 3), act=F32, out=F32),
    "maxpool u8": Case("maxpool", (5, 5, 3), kernel=(3, 3), pad=(1, 1, 1, 1), act=U8, out=U8, fields={"act_zero_point": 7, "out_zero_point": 7}),
    "maxpool i8 dilation": Case("maxpool", (6, 6, 3), kernel=(2, 2), dilation=(2, 2), pad=(1, 0, 1, 0), act=I8, out=I8),
    "avgpool": Case("avgpool", (6, 6, 4), kernel=(3, 3), stride=(2, 2), pad=(1, 1, 1, 1)),
    "avgpool counting padding": Case("avgpool", (6, 6, 4), kernel=(3, 3), pad=(1, 1, 1, 1), fields={"flags": 1}),
    "avgpool global": Case("avgpool", (7, 7, 9), kernel=(7, 7)),
    "avgpool u8": Case("avgpool", (4, 4, 4), kernel=(2, 2), act=U8, out=U8, fields={"act_zero_point": 9, "out_zero_point": 9}),
    "add": Case("add", (4, 5, 6)),
    "add bf16 relu": Case("add", (4, 5, 6), act=BF16, out=BF16, fields={"ppe_fn": C.NPU_PPE_RELU}),
    "mul f32": Case("mul", (4, 5, 6), act=F32, out=F32, table=True),
    "mul i8": Case("mul", (4, 5, 6), act=I8, out=C.NPU_DT_U16, fields={"act_zero_point": -100, "wt_zero_point": 50}),
    "add u8 to i8": Case("add", (2, 3, 4), act=U8, out=I8, fields={"act_zero_point": 128, "wt_zero_point": 128}),
    "add i8 table": Case("add", (4, 5, 6), act=I8, out=F32, table=True),
    "f16 to f32": Case("conv", (3, 3, 4), 3, out=F32),
    "f32 overflows f16": Case("conv", (3, 3, 4), 3, fields={"ppe_scale": 60000.0}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_value_is_the_rounded_exact_result(case, helper):
    with np.errstate(over="ignore"):
        assert_same_bits(CASES[case].run(helper), CASES[case].expected())


@pytest.mark.parametrize("case", CASES)
def test_footprint_is_what_execution_touches(case):
    one = CASES[case]
    memory = one.memory()
    block = (one.out_y // 2, one.out_y - one.out_y // 2, 0, one.out_x, one.out_z // 2, one.out_z - one.out_z // 2)
    variants = one.variants(block)
    touched = {True: set(), False: set()}

    def view(address, shape, strides, dtype, write):
        offsets = np.zeros(shape, np.int64)
        for axis, (count, stride) in enumerate(zip(shape, strides, strict=True)):
            offsets += (np.arange(count) * stride).reshape([-1 if i == axis else 1 for i in range(len(shape))])
        for byte in range(dtype.itemsize):
            touched[write].update((offsets.reshape(-1) + address + byte).tolist())
        return over(memory)(address, shape, strides, dtype, write)

    dpu_compute.execute(one.record(), variants, view, "exact", None)
    reads, writes = dpu_footprint(one.record(), variants)
    covered = [
        {a for box in boxes for first, end in runs(box).tolist() for a in range(first, end)}
        for boxes in (reads, writes)
    ]
    assert covered[1] == touched[True]
    gaps = one.stride[0] > one.kernel[0] or one.stride[1] > one.kernel[1] or max(one.dilation) > 1
    assert covered[0] <= touched[False] if gaps else covered[0] == touched[False]


def cuts(total, points):
    edges = sorted({0, total, *(p % total for p in points)})
    return list(itertools.pairwise(edges))


@st.composite
def tiled_cases(draw_):
    op = draw_(st.sampled_from(list(OPS)))
    window = op in ("conv", "dwconv", "maxpool", "avgpool")
    side = st.integers(1, 3) if window else st.just(1)
    kernel = (draw_(side), draw_(side))
    shape = (draw_(st.integers(3, 7)) if op != "matmul" else 1, draw_(st.integers(3, 9)), draw_(st.integers(1, 8)))
    groups = draw_(st.sampled_from([g for g in (1, 2, 4) if shape[2] % g == 0])) if op == "conv" else 1
    types = draw_(st.sampled_from([(d, d, d) for d in FLOATS] + [(U8, I8, U8), (I8, I8, I32), (U8, U8, F32)]))
    case = Case(
        op,
        shape,
        groups * draw_(st.integers(1, 20)) if op in ("conv", "matmul") else shape[2],
        kernel,
        (draw_(st.integers(1, 3)), draw_(st.integers(1, 3))) if window else (1, 1),
        pad=tuple(draw_(st.integers(0, kernel[1 - i // 2] - 1)) for i in range(4)) if window else (0, 0, 0, 0),
        groups=groups,
        act=types[0],
        wt=types[1],
        out=types[2],
        seed=draw_(st.integers(0, 99)),
        table=draw_(st.booleans()),
    )
    pieces = [cuts(n, draw_(st.lists(st.integers(0, 20), max_size=3))) for n in (case.out_y, case.out_x, case.out_z)]
    blocks = [(y, y2 - y, x, x2 - x, z, z2 - z) for y, y2 in pieces[0] for x, x2 in pieces[1] for z, z2 in pieces[2]]
    return case, draw_(st.permutations(blocks))


@settings(max_examples=100)
@given(tiled_cases())
def test_tiled_equals_untiled_and_c_equals_numpy_bit_for_bit(drawn):
    case, blocks = drawn
    whole = case.run(native.load())
    assert_same_bits(case.run(native.load(), blocks), whole)
    assert_same_bits(case.run(native.load(), blocks, apart=True), whole)
    assert_same_bits(case.run(None, blocks, apart=True), whole)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("fn", [C.NPU_PPE_NONE, C.NPU_PPE_RELU])
def test_poison_reaches_every_output_that_reads_it(op, dtype, fn, helper):
    kernel = (3, 3) if op in ("conv", "dwconv", "maxpool", "avgpool") else (1, 1)
    fields = {"ppe_fn": fn, "clamp_low": -1.0, "clamp_high": 1.0}
    case = Case(op, (1 if op == "matmul" else 5, 5, 3), 3, kernel, act=dtype, wt=dtype, out=dtype, fields=fields)
    case.act_values[0, 1, 2] = np.full(8, 0xFF, np.uint8).view(case.act_values.dtype)[0]
    got = np.isnan(case.run(helper).astype(np.float32))
    reaches = np.zeros(got.shape, bool)
    for y, x, z in np.ndindex(got.shape):
        channel = op in ("conv", "matmul") or z == 2
        reaches[y, x, z] = channel and any((iy, ix) == (0, 1) for _, _, iy, ix in case.taps(y, x))
    np.testing.assert_array_equal(got, reaches)


def test_nan_results_are_the_quiet_nan(helper):
    case = Case("add", (1, 1, 4))
    case.act_values[...] = np.full(8, 0xFF, np.uint8).view(np.float16)
    assert case.run(helper).view(np.uint16).tolist() == [[[0x7E00] * 4]]


def test_nan_becomes_zero_in_integer_results(helper):
    case = Case("add", (1, 1, 4), out=U8, fields={"ppe_bias": float("nan"), "out_zero_point": 3})
    assert case.run(helper).tolist() == [[[0, 0, 0, 0]]]


def test_integer_accumulators_wrap_at_32_bits(helper):
    case = Case("matmul", (1, 1, 40_000), 1, act=U8, wt=U8, out=F32)
    case.act_values[...], case.wt_values[...] = 255, 254
    assert case.run(helper).item() == np.float32(40_000 * 255 * 254 - 2**32)


def test_window_of_padding_alone_is_the_lowest_value(helper):
    case = Case("maxpool", (3, 3, 1), kernel=(1, 1), pad=(1, 1, 1, 1))
    assert case.run(helper)[0].tolist() == [[-np.inf]] * 5
    case = Case("maxpool", (3, 3, 1), kernel=(1, 1), pad=(1, 1, 1, 1), act=U8, out=U8)
    assert case.run(helper)[0].tolist() == [[0]] * 5


def test_fast_numerics_stay_near_exact(helper):
    case = Case("conv", (6, 6, 32), 8, (3, 3), pad=(1, 1, 1, 1), act=F32, wt=F32, out=F32)
    np.testing.assert_allclose(case.run(helper, numerics="fast"), case.run(helper), rtol=1e-4, atol=1e-4)


def test_eltwise_broadcasts_a_second_operand_without_strides(helper):
    case = Case("add", (3, 4, 5), fields={"act2_stride_x": 0, "act2_stride_y": 0})
    want = case.act_values.astype(np.float32) + case.act2_values[0, 0].astype(np.float32)
    assert_same_bits(case.run(helper), want.astype(np.float16))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"op": 9}, "op 9 is not in enum npu_dpu_op"),
        ({"act_dtype": C.NPU_DT_I64}, "act_dtype NPU_DT_I64 is not a DPU operand type"),
        ({"out_dtype": 77}, r"out_dtype npu_dtype\(0x4d\) is not a DPU result type"),
        ({"wt_dtype": C.NPU_DT_I8}, "wt_dtype NPU_DT_I8 does not go with act_dtype NPU_DT_F16"),
        ({"groups": 4}, "groups 4 does not divide in_z 6"),
        ({"groups": 0}, "groups 0 does not divide"),
        ({"stride_x": 0}, "stride_x is 0"),
        ({"ppe_fn": 5}, "ppe_fn 5"),
        ({"out_x": 3}, r"variant x \[0, \+4\) is not inside out_x 3"),
        ({"kernel_x": 2}, "needs 5 inputs along x, input and padding have 4"),
        ({"out_stride_x": 2}, "output stride 2 is smaller than the 12 bytes"),
        ({"act_dtype": U8, "wt_dtype": I8, "act_zero_point": 256}, r"act_zero_point 256 is not in \[0, 255\]"),
        ({"act_dtype": U8, "wt_dtype": I8, "wt_zero_point": -129}, r"wt_zero_point -129 is not in \[-128, 127\]"),
        (
            {"flags": C.NPU_DPU_FLAG_WEIGHTS_4BIT},
            "weights of 4 bits: NPU_DPU_CONV of NPU_DT_F16 with 6 weights a channel",
        ),
        (
            {"act_dtype": U8, "wt_dtype": I8, "flags": C.NPU_DPU_FLAG_WEIGHTS_4BIT, "groups": 2},
            "NPU_DPU_CONV of NPU_DT_U8 with 3 weights",
        ),
        (
            {"op": C.NPU_DPU_DWCONV, "act_dtype": U8, "wt_dtype": I8, "flags": C.NPU_DPU_FLAG_WEIGHTS_4BIT},
            "4 bits: NPU_DPU_DWCONV",
        ),
        ({"act_stride_y": 0}, "input stride 0 is smaller than the 12 bytes"),
    ],
)
def test_impossible_task_is_refused_by_name(fields, message):
    with pytest.raises(DescriptorError, match=message):
        Case("conv", (4, 4, 6), 6, fields=fields).run()


@pytest.mark.parametrize("name", ["act_addr", "wt_addr", "wt_table_addr", "out_addr"])
def test_operand_outside_memory_faults(name):
    case = Case("conv", (4, 4, 6), 6, fields={name: BASE + SIZE - 4})
    with pytest.raises(MemoryFault) as fault:
        case.run()
    assert fault.value.write == (name == "out_addr")


def product(helper, act, weights):
    """Return act [rows, depth] x weights [columns, depth] by the DPU, f32."""
    case = Case("matmul", (1, *act.shape), len(weights), act=F32, wt=F32, out=F32)
    case.act_values, case.wt_values = act[None], weights[:, None, None]
    return case.run(helper)[0]


@pytest.mark.parametrize(
    ("terms", "rounded"),
    [
        ([2.0**60, 1.0, -(2.0**60)], 1.0),
        ([1.0, 2.0**-24], 1.0),  # a tie goes to even
        ([1.0, 2.0**-24, 2.0**-90], 1 + 2.0**-23),  # just above the tie
        ([1 + 2.0**-23, 2.0**-24, -(2.0**-90)], 1 + 2.0**-23),  # just below
        ([-1.0, -(2.0**-24), -(2.0**-90)], -1 - 2.0**-23),
        ([2.0**127, 2.0**-149, -(2.0**127)], 2.0**-149),
        ([2.0**60, 3.0, -(2.0**60), -3.0], 0.0),
        ([2.0**127, 2.0**127], np.inf),
        ([2.0**-149, -(2.0**-149), 2.0**-149], 2.0**-149),
    ],
)
def test_float_sums_round_as_the_exact_sum(helper, terms, rounded):
    for order in itertools.islice(itertools.permutations(terms), 6):
        act = np.array([order], np.float32)
        assert product(helper, act, np.ones((2, len(order)), np.float32)).tolist() == [[rounded, rounded]]


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), depth=st.integers(1, 80), spread=st.integers(0, 60))
def test_float_sums_of_any_spread_round_as_the_exact_sum(seed, depth, spread):
    rng = np.random.default_rng(seed)
    values = [
        np.ldexp(rng.standard_normal((3, depth)), rng.integers(-spread, spread + 1, (3, depth))) for _ in range(2)
    ]
    act, weights = (np.ascontiguousarray(v, np.float32) for v in values)
    act = np.concatenate([act, -act], axis=1)  # cancels all but the last terms
    weights = np.concatenate([weights, np.where(rng.random((3, depth)) < 0.9, weights, 2 * weights)], axis=1)
    want = np.empty((3, 3), np.float32)
    for i, j in np.ndindex(3, 3):
        total = sum(Fraction(float(a)) * Fraction(float(w)) for a, w in zip(act[i], weights[j], strict=True))
        want[i, j] = nearest_f32(total)
    for helper in (native.load(), None):
        assert_same_bits(product(helper, act, weights), want)


def nearest_f32(exact):
    """Round a Fraction to the nearest float32, ties to even, by comparing with the neighbours."""
    guess = np.float32(float(exact))
    near = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(near, key=lambda v: (abs(Fraction(float(v)) - exact), int(v.view(np.uint32)) & 1))


GRID = [(0, 4, 0, 3, 0, 6), (0, 4, 3, 4, 0, 6), (4, 3, 0, 7, 0, 2), (4, 3, 0, 7, 2, 4)]


@pytest.mark.parametrize("op", ["conv", "maxpool", "avgpool", "add"])
def test_variants_that_tile_a_box_are_computed_as_one_with_the_same_bits(helper, op):
    kernel, pad = ((1, 1), (0, 0, 0, 0)) if op == "add" else ((3, 3), (1, 1, 1, 1))
    one = Case(op, (7, 7, 6), 6, kernel, pad=pad)
    one.memory()
    assert len(Work.decode(one.record(), one.variants(*GRID)).blocks) == 1
    np.testing.assert_array_equal(one.run(helper, GRID).view(np.uint16), one.expected().view(np.uint16))


@pytest.mark.parametrize(
    "blocks",
    [
        GRID[:3],  # a hole
        [(0, 4, 0, 7, 0, 6), (3, 4, 0, 7, 0, 6)],  # a row twice
        [(0, 2, 0, 2, 0, 2), (0, 2, 0, 2, 0, 2), (2, 2, 0, 2, 0, 2)],  # volumes add up: one twice, one hole
    ],
)
def test_variants_that_do_not_tile_a_box_stay_apart(blocks):
    one = Case("conv", (7, 7, 6), 6)
    one.memory()
    assert len(Work.decode(one.record(), one.variants(*blocks)).blocks) == len(blocks)


def test_variants_of_different_padding_stay_apart():
    one = Case("conv", (7, 7, 6), 6, (3, 3), pad=(1, 1, 1, 1))
    one.memory()
    variants = one.variants(*GRID)
    variants["pad_left"][0] = 2
    assert len(Work.decode(one.record(), variants).blocks) == 4


def test_rows_that_overlap_only_when_joined_stay_apart():
    one = Case("conv", (4, 4, 4), 4)
    one.memory()
    record = one.record()
    record["out_stride_y"] = 8  # a pixel: each variant writes one row
    blocks = [(0, 1, 0, 4, 0, 4), (1, 1, 0, 4, 0, 4)]
    assert len(Work.decode(record, one.variants(*blocks)).blocks) == 2


@pytest.mark.parametrize(
    ("shape", "out_z", "groups"),
    [((13, 11, 58), 70, 1), ((13, 11, 58), 70, 2), ((5, 6, 300), 12, 1), ((9, 40, 3), 20, 1)],
)
@pytest.mark.parametrize("types", [(F16, F16, F16), (BF16, BF16, F32), (F32, F32, F32), (U8, I8, I32), (U8, U8, U8)])
def test_c_and_numpy_agree_past_every_block_size(types, shape, out_z, groups):
    found = native.load() or pytest.skip("no gcc, or the native helpers are turned off")
    act, wt, out = types
    one = Case("conv", shape, out_z, (3, 3), pad=(1, 1, 1, 1), groups=groups, act=act, wt=wt, out=out, table=True)
    blocks = [(0, shape[0], 0, shape[1], 5, out_z - 6)]
    plain, narrow = native.Native(found.ffi, found.lib, 0), replace(found, avx512=0)
    results = [one.run(helper, blocks)[..., 5:-1].tobytes() for helper in (found, narrow, plain, None)]
    assert results == results[:1] * 4


@pytest.mark.skipif(native.load() is None or not native.load().avx512, reason="no AVX-512")
@pytest.mark.parametrize("out_z", [5, 16, 17, 40, 49])
@pytest.mark.parametrize("pixels", range(1, 14))
def test_fast_sums_do_not_depend_on_how_many_columns_a_vector_has(pixels, out_z):
    one = Case("conv", (1, pixels, 300), out_z)
    wide, narrow = (one.run(found, numerics="fast") for found in (native.load(), replace(native.load(), avx512=0)))
    assert wide.tobytes() == narrow.tobytes()


@pytest.mark.parametrize(
    ("dtype", "left", "right", "nearest"),
    [  # a quarter of a double's last bit above the neighbour of the middle between two float32 values
        (F32, [1 + 2**-23, 2**-24, -(2**-52), 2**-54], [1, 1, 1, 1], 1 + 2**-23),
        (F16, [1024, 2**-3, 2**-4, -(2**-16), 2**-17], [1024, 1, 1, 2**-16, 2**-17], 2**20 + 2**-3),
    ],
)
def test_sum_beside_the_middle_of_two_results_rounds_as_the_exact_one(dtype, left, right, nearest, helper):
    matrix, weights, out = np.array([left], np.float64), np.array([right], np.float64), np.empty((1, 1))
    Filters(weights, dtype, helper).product(matrix, out)
    assert np.float32(out[0, 0]) == nearest


@pytest.mark.skipif(native.load() is None, reason="no C helpers")
def test_kinds_of_sums_are_those_of_the_helpers():
    lib = native.load().lib
    assert (dpu_native.EXACT, dpu_native.FAST, dpu_native.INTEGER) == (lib.EXACT, lib.FAST, lib.INTEGER)
