"""What each SHAVE instruction computes, on a small memory; expected values are written out or from an independent library."""

import math
import struct

import numpy as np
import pytest
from npu_model.profile import load_profile
from npu_model.shave_decode import translate
from npu_model.shave_isa import ShaveFault, ShaveFaultCode, assemble
from npu_model.shave_machine import Machine

SHAVE = load_profile("npu-40xx").shave
BASE = 0x2E000000


class Memory:
    def __init__(self, data=b"", size=4096):
        self.bytes = np.zeros(size, np.uint8)
        self.bytes[: len(data)] = np.frombuffer(data, np.uint8)

    def view(self, addr, nbytes, write):
        assert addr >= BASE and addr + nbytes <= BASE + len(self.bytes)
        return self.bytes[addr - BASE : addr - BASE + nbytes]


def run(text, data=b"", size=4096):
    machine = Machine(BASE, Memory(data, size), SHAVE, compute=True)
    machine.run(translate(assemble(text + "\nhalt")))
    return machine


def scalar(text):
    return run(text).r[5]


LOAD = "li r2, {rows}\nli r3, {cols}\nsetvl r2, r3\nli r4, 4\nmul r6, r4, r3\n"


def vector(body, *arrays, result="v5"):
    """Run `body` with v0, v1, ... loaded from [R, C] arrays of 32-bit elements; return register v5."""
    rows, cols = arrays[0].shape
    text = LOAD.format(rows=rows, cols=cols)
    for index, array in enumerate(arrays):
        kind = "i32" if array.dtype == np.int32 else "f32"
        text += f"vld.{kind} v{index}, r1, r6, r4, {index * arrays[0].nbytes}\n"
    machine = run(text + body, b"".join(array.tobytes() for array in arrays), 1 << 18)
    return machine.v[int(result[1:])]


def f32(*values):
    return np.array([values], np.float32)


def s32(*values):
    return np.array([values], np.int32)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("li r5, -9223372036854775808", -(2**63)),
        ("li r4, 7\nmov r5, r4", 7),
        ("li r4, 9223372036854775807\naddi r5, r4, 1", -(2**63)),
        ("li r4, 3\nli r6, 5\nsub r5, r4, r6", -2),
        ("li r4, 4294967296\nmul r5, r4, r4", 0),
        ("li r4, -7\nmuli r5, r4, 3", -21),
        ("li r4, -7\nli r6, 2\ndiv r5, r4, r6", -3),
        ("li r4, -7\nli r6, 2\nrem r5, r4, r6", -1),
        ("li r4, -9223372036854775808\nli r6, -1\ndiv r5, r4, r6", -(2**63)),
        ("li r4, -7\nli r6, 2\nmin r5, r4, r6", -7),
        ("li r4, -7\nli r6, 2\nmax r5, r4, r6", 2),
        ("li r4, 12\nli r6, 10\nand r5, r4, r6", 8),
        ("li r4, 12\nli r6, 10\nor r5, r4, r6", 14),
        ("li r4, 12\nli r6, 10\nxor r5, r4, r6", 6),
        ("li r4, 1\nli r6, 63\nshl r5, r4, r6", -(2**63)),
        ("li r4, -8\nli r6, 1\nshr r5, r4, r6", -4),
        ("li r0, 9\nmov r5, r0", 0),
        ("fli f1, -2.75\nftoi r5, f1", -2),
        ("fli f1, inf\nftoi r5, f1", 2**63 - 1),
        ("fli f1, 0x7fc00000\nftoi r5, f1", 0),
        ("li r4, 16777217\nitof f1, r4\nftoi r5, f1", 16777216),
        ("li r4, -2\nst.i16 r4, r1, 8\nld.u16 r5, r1, 8", 65534),
        ("li r4, -2\nst.i16 r4, r1, 8\nld.i16 r5, r1, 8", -2),
        ("li r4, 256\nst.bool r4, r1, 8\nld.u8 r5, r1, 8", 1),
        ("li r5, 1\nli r4, 5\nbeq r4, r4, skip\nli r5, 2\nskip:", 1),
        ("li r5, 1\nli r4, 5\nbne r4, r4, skip\nli r5, 2\nskip:", 2),
        ("li r5, 1\nli r4, -5\nblt r4, r0, skip\nli r5, 2\nskip:", 1),
        ("li r5, 1\nli r4, -5\nbge r4, r0, skip\nli r5, 2\nskip:", 2),
        ("li r5, 1\njmp skip\nli r5, 2\nskip:\nnop", 1),
    ],
)
def test_scalar_integers(text, value):
    assert scalar(text) == value


def test_ldm_loads_words_into_consecutive_registers_and_keeps_r0_zero():
    machine = run("ldm r0, r1, 8, 3", struct.pack("<4q", 1, 2, 3, -4))
    assert machine.r[0:3] == [0, 3, -4]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("fadd f3, f1, f2", 1.75),
        ("fsub f3, f1, f2", 1.25),
        ("fmul f3, f1, f2", 0.375),
        ("fdiv f3, f1, f2", 6.0),
        ("fmin f3, f1, f2", 0.25),
        ("fmax f3, f1, f2", 1.5),
        ("fmov f3, f1", 1.5),
        ("fst.f16 f1, r1, 64\nfld.f16 f3, r1, 64", 1.5),
        ("fst.bf16 f1, r1, 64\nfld.bf16 f3, r1, 64", 1.5),
    ],
)
def test_scalar_floats(text, value):
    machine = run("fli f1, 1.5\nfli f2, 0.25\n" + text)
    assert machine.f[3] == np.float32(value)


UNARY = {
    "vsqrt": math.sqrt,
    "vrsqrt": lambda x: 1 / math.sqrt(x),
    "vrcp": lambda x: 1 / x,
    "vexp": math.exp,
    "vlog": math.log,
    "vtanh": math.tanh,
    "verf": math.erf,
    "vsin": math.sin,
    "vcos": math.cos,
    "vfloor": math.floor,
    "vceil": math.ceil,
    "vround": round,
    "vneg": lambda x: -x,
    "vabs": abs,
}


@pytest.mark.parametrize("name", sorted(UNARY))
def test_a_special_function_is_its_float64_value_rounded_once(name):
    x = np.random.default_rng(3).uniform(0.01, 6.0, (4, 250)).astype(np.float32)
    got = vector(f"{name}.f32 v5, v0", x)
    expected = np.array([[np.float32(UNARY[name](float(v))) for v in row] for row in x])
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", ["vsqrt", "vexp", "vtanh", "verf", "vsin", "vneg", "vabs", "vsign", "vfloor", "vrcp"])
def test_nan_survives_a_function_of_one_operand(name):
    assert np.isnan(vector(f"{name}.f32 v5, v0", f32(math.nan))).all()


def test_erf_reaches_one_at_the_ends():
    np.testing.assert_array_equal(vector("verf.f32 v5, v0", f32(-math.inf, -4, 0, 4, 50)), f32(-1, -1, 0, 1, 1))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vadd", (4.0, 0.0)),
        ("vsub", (-1.0, -5.0)),
        ("vmul", (3.75, -6.25)),
        ("vdiv", (0.6, -1.0)),
        ("vmin", (1.5, -2.5)),
        ("vmax", (2.5, 2.5)),
        ("vmod", (1.5, -0.0)),
        ("vpow", (1.5**2.5, math.nan)),
    ],
)
def test_float_vectors_of_two_operands(name, expected):
    got = vector(f"{name}.f32 v5, v0, v1", f32(1.5, -2.5), f32(2.5, 2.5))
    np.testing.assert_array_equal(got, f32(*expected))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vadd", (-4, -(2**31))),
        ("vsub", (-10, 2**31 - 2)),
        ("vmul", (-21, 2**31 - 1)),
        ("vdiv", (-2, 2**31 - 1)),
        ("vmin", (-7, 1)),
        ("vmax", (3, 2**31 - 1)),
        ("vmod", (2, 0)),
        ("vand", (1, 1)),
        ("vor", (-5, 2**31 - 1)),
        ("vxor", (-6, 2**31 - 2)),
        ("vshl", (-56, -2)),
        ("vshr", (-1, 2**30 - 1)),
    ],
)
def test_integer_vectors_wrap(name, expected):
    got = vector(f"{name}.i32 v5, v0, v1", s32(-7, 2**31 - 1), s32(3, 1))
    np.testing.assert_array_equal(got, s32(*expected))


def test_smallest_integer_over_minus_one_wraps():
    np.testing.assert_array_equal(vector("vdiv.i32 v5, v0, v1", s32(-(2**31)), s32(-1)), s32(-(2**31)))


@pytest.mark.parametrize("name", ["vmin", "vmax", "vadd", "vmul"])
@pytest.mark.parametrize("order", ["v0, v1", "v1, v0"])
def test_nan_survives_two_operands(name, order):
    assert np.isnan(vector(f"{name}.f32 v5, {order}", f32(math.nan), f32(1.0))).all()


def test_scalar_operands_and_reverse():
    x = f32(1.0, 2.0)
    np.testing.assert_array_equal(vector("fli f1, 3.0\nvsub.f32.s v5, v0, f1", x), f32(-2.0, -1.0))
    np.testing.assert_array_equal(vector("fli f1, 3.0\nvsub.f32.s.rev v5, v0, f1", x), f32(2.0, 1.0))
    np.testing.assert_array_equal(vector("li r9, 4294967297\nvadd.i32.s v5, v0, r9", s32(1, 2)), s32(2, 3))


def test_f16_results_round_to_nearest_even_and_overflow_to_infinity():
    got = vector("vadd.f16 v5, v0, v1", f32(2048, 2048, 65504), f32(1, 3, 32))
    np.testing.assert_array_equal(got, f32(2048, 2052, np.inf))


def test_comparisons_give_zero_or_one_and_are_false_for_nan():
    x, y = f32(1, 2, math.nan), f32(2, 2, 1)
    for name, expected in {"veq": (0, 1, 0), "vne": (1, 0, 1), "vlt": (1, 0, 0), "vge": (0, 1, 0)}.items():
        np.testing.assert_array_equal(vector(f"{name}.f32 v5, v0, v1", x, y), s32(*expected))


def test_select_takes_b_where_the_condition_is_not_zero():
    got = vector("vsel v5, v0, v1, v2", s32(0, 5), s32(1, 2), s32(3, 4))
    np.testing.assert_array_equal(got, s32(3, 2))


def test_fma_keeps_the_product_exact():
    x = f32(1 + 2**-23)
    got = vector("vfma.f32 v5, v0, v1, v2", x, x, f32(-1 - 2**-22))
    np.testing.assert_array_equal(got, f32(2**-46))


def test_conversions_truncate_saturate_and_round():
    got = vector("vcvt.i32 v5, v0", f32(2.9, -2.9, 3e9, -3e9, math.nan))
    np.testing.assert_array_equal(got, s32(2, -2, 2**31 - 1, -(2**31), 0))
    np.testing.assert_array_equal(vector("vcvt.f32 v5, v0", s32(16777217, -3)), f32(16777216, -3))
    np.testing.assert_array_equal(vector("vcvt.f16 v5, v0", f32(2049, 70000)), f32(2048, np.inf))
    np.testing.assert_array_equal(vector("vcvt.bf16 v5, v0", f32(257, 259)), f32(256, 260))


def test_rows_and_columns_broadcast():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    body = "vld.f32.row v2, r1, r6, r4, 0\nvld.f32.col v3, r1, r6, r4, 0\nvadd.f32 v5, v2, v3"
    np.testing.assert_array_equal(vector(body, x), np.array([[0, 1, 2], [3, 4, 5]], np.float32))


def test_reductions_name_the_shape_of_their_result():
    x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    np.testing.assert_array_equal(vector("vrsum.f32.col v5, v0", x), [[6], [15]])
    np.testing.assert_array_equal(vector("vrsum.f32.row v5, v0", x), [[5, 7, 9]])
    np.testing.assert_array_equal(vector("vrmax.f32.col v5, v0", x), [[3], [6]])
    np.testing.assert_array_equal(vector("vrmin.f32.row v5, v0", x), [[1, 2, 3]])
    np.testing.assert_array_equal(vector("vrprod.f32.col v5, v0", x), [[6], [120]])
    np.testing.assert_array_equal(vector("vargmax.f32.row v5, v0", x), [[1, 1, 1]])
    np.testing.assert_array_equal(vector("vtrans v5, v0", x).view(np.float32), x.T)


def test_a_sum_is_exact_before_it_is_rounded():
    np.testing.assert_array_equal(vector("vrsum.f32.col v5, v0", f32(1e8, 1, -1e8)), [[1]])


def test_integer_sums_and_products_wrap():
    np.testing.assert_array_equal(vector("vrsum.i32.col v5, v0", s32(2**31 - 1, 1)), [[-(2**31)]])
    np.testing.assert_array_equal(vector("vrprod.i32.col v5, v0", s32(65536, 65536)), [[0]])


def test_argmax_takes_the_first_and_nan_wins():
    np.testing.assert_array_equal(vector("vargmax.f32.col v5, v0", f32(1, 3, 3)), [[1]])
    np.testing.assert_array_equal(vector("vargmax.f32.col v5, v0", f32(9, math.nan, 3)), [[1]])


def test_iota_splat_extract_and_broadcast():
    x = np.zeros((2, 3), np.int32)
    np.testing.assert_array_equal(vector("viota.i32 v5", x), [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(vector("viota.i32.row v5", x), [[0, 1, 2]])
    np.testing.assert_array_equal(vector("viota.i32.col v5", x), [[0], [1]])
    body = "viota.i32 v1\nli r7, 1\nli r8, 2\nvext.i32 r9, v1, r7, r8\nvsplat.i32.s v2, r9\nvbcast v5, v2"
    np.testing.assert_array_equal(vector(body, x), np.full((2, 3), 5))


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("i8", np.array([-1, 127], np.int8), s32(-1, 127)),
        ("u8", np.array([255, 1], np.uint8), s32(255, 1)),
        ("i16", np.array([-300, 1], np.int16), s32(-300, 1)),
        ("u16", np.array([65535, 1], np.uint16), s32(65535, 1)),
        ("u32", np.array([2**32 - 1, 1], np.uint32), s32(2**31 - 1, 1)),
        ("i64", np.array([-(2**40), 1], np.int64), s32(-(2**31), 1)),
        ("bool", np.array([7, 0], np.uint8), s32(1, 0)),
        ("f16", np.array([1.5, np.inf], np.float16), f32(1.5, np.inf)),
        ("bf16", np.array([0x3FC0, 0xFF80], np.uint16), f32(1.5, -np.inf)),
        ("u8.f", np.array([255, 1], np.uint8), f32(255, 1)),
        ("i64.f", np.array([2**40 + 1, 1], np.int64), f32(2**40, 1)),
    ],
)
def test_loads_convert(kind, values, expected):
    text = f"li r2, 1\nli r3, 2\nsetvl r2, r3\nli r4, {values.itemsize}\nvld.{kind} v5, r1, r0, r4, 0"
    got = run(text, values.tobytes()).v[5]
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("f16", f32(2049, 70000, math.nan), np.array([2048, np.inf, math.nan], np.float16)),
        ("u8.f", f32(2.5, 300, -1), np.array([2, 255, 0], np.uint8)),
        ("i8.f", f32(3.5, -300, math.nan), np.array([4, -128, 0], np.int8)),
        ("i64.f", f32(1e30, -1e30, 2), np.array([2**63 - 1, -(2**63), 2], np.int64)),
        ("bool.f", f32(0.0, -0.5, math.nan), np.array([0, 1, 1], np.uint8)),
        ("u8", s32(-1, 256, 7), np.array([0, 255, 7], np.uint8)),
        ("i64", s32(-1, 256, 7), np.array([-1, 256, 7], np.int64)),
        ("bool", s32(-1, 0, 7), np.array([1, 0, 1], np.uint8)),
    ],
)
def test_stores_round_and_saturate(kind, values, expected):
    source = "i32" if values.dtype == np.int32 else "f32"
    text = f"li r2, 1\nli r3, 3\nsetvl r2, r3\nli r4, 4\nli r5, {expected.itemsize}\nvld.{source} v0, r1, r0, r4, 0\n"
    machine = run(text + f"vst.{kind} v0, r1, r0, r5, 64", values.tobytes())
    got = machine.memory.bytes[64 : 64 + expected.nbytes].view(expected.dtype)
    np.testing.assert_array_equal(got, expected)


def test_loads_and_stores_follow_strides_in_both_directions():
    data = np.arange(12, dtype=np.int32)
    text = "li r2, 3\nli r3, 4\nsetvl r2, r3\nli r4, 4\nli r6, 12\nli r7, -16\nli r8, -4\n"
    text += "vld.i32 v0, r1, r4, r6, 0\n"  # transposed: rows 4 bytes apart, columns 12
    text += "vst.i32 v0, r1, r7, r8, 300"  # back to front
    machine = run(text, data.tobytes())
    np.testing.assert_array_equal(machine.v[0], data.reshape(4, 3).T)
    stored = machine.memory.bytes[300 - 44 : 304].view(np.int32)
    np.testing.assert_array_equal(stored, data.reshape(4, 3).T.ravel()[::-1])


def test_gather_takes_rows_by_a_column_of_indices_and_scatter_puts_them():
    table = np.arange(12, dtype=np.int32).reshape(4, 3)
    text = "li r2, 2\nli r3, 3\nsetvl r2, r3\nli r4, 4\nli r6, 12\nli r7, 4\nli r8, 2\nli r9, 1024\nadd r9, r9, r1\n"
    text += "viota.i32.col v1\nvmul.i32.s v1, v1, r8\nvgather.i32 v5, v1, r1, r7, r6, r4\n"
    text += "vscatter.i32 v5, v1, r9, r7, r6, r4"
    machine = run(text, table.tobytes())
    np.testing.assert_array_equal(machine.v[5], table[[0, 2]])
    np.testing.assert_array_equal(machine.memory.bytes[1024:1072].view(np.int32).reshape(4, 3)[[0, 2]], table[[0, 2]])


def test_an_index_outside_its_limit_faults():
    text = "li r2, 5\nli r3, 1\nsetvl r2, r3\nli r4, 4\nviota.i32.col v1\nvgather.i32 v5, v1, r1, r4, r4, r4"
    with pytest.raises(ShaveFault) as fault:
        run(text)
    assert (fault.value.code, fault.value.pc) == (ShaveFaultCode.INDEX, 5 * 16)


def test_a_float_sum_depends_on_its_length_only():
    x = np.random.default_rng(5).standard_normal((12, 1300)).astype(np.float32)
    sums = vector("vrsum.f32.col v5, v0", x)
    np.testing.assert_array_equal(vector("vrsum.f32.row v5, v0", np.ascontiguousarray(x.T)).T, sums)
    np.testing.assert_array_equal(vector("vrsum.f32.col v5, v0", x[7:8]), sums[7:8])


NANS = np.array([[0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7FE12345]], np.uint32).view(np.float32)


@pytest.mark.parametrize(("kind", "nan"), [("f32", 0x7FC00000), ("f16", 0x7E00), ("bf16", 0x7FC0)])
def test_every_nan_is_stored_as_the_one_of_its_type(kind, nan):
    size = 4 if kind == "f32" else 2
    text = LOAD.format(rows=1, cols=5) + f"vld.f32 v0, r1, r6, r4, 0\nli r7, {size}\nvst.{kind} v0, r1, r6, r7, 64\n"
    stored = run(text, NANS.tobytes()).memory.bytes[64 : 64 + 5 * size].view(f"<u{size}")
    assert stored.tolist() == [nan] * 5


@pytest.mark.parametrize("columns", [1, 3, 4, 5, 8, 17])
@pytest.mark.parametrize("order", ["v0, v1", "v1, v0"])
def test_minus_zero_is_less_than_zero_at_every_place(columns, order):
    zeros, negative = np.zeros((1, columns), np.float32), np.full((1, columns), -0.0, np.float32)
    assert np.signbit(vector(f"vmin.f32 v5, {order}", zeros, negative)).all()
    assert not np.signbit(vector(f"vmax.f32 v5, {order}", zeros, negative)).any()


@pytest.mark.parametrize("place", range(9))
def test_minus_zero_is_less_than_zero_in_reductions(place):
    zeros = np.zeros((1, 9), np.float32)
    zeros[0, place] = -0.0
    assert np.signbit(vector("vrmin.f32.col v5, v0", zeros)).all()
    assert not np.signbit(vector("vrmax.f32.col v5, v0", zeros)).any()
    assert not np.signbit(vector("vrmax.f32.col v5, v0", -zeros)).any()
    assert np.signbit(vector("vrmin.f32.col v5, v0", -zeros)).all()


@pytest.mark.parametrize("scalar", [0.0, -0.0])
def test_minus_zero_is_less_than_a_zero_of_a_scalar_register(scalar):
    values = f32(0.0, -0.0, -1.0, 1.0, math.nan)
    least = vector(f"fli f1, {scalar}\nvmin.f32.s v5, v0, f1", values)
    most = vector(f"fli f1, {scalar}\nvmax.f32.s v5, v0, f1", values)
    assert np.signbit(least[0, :3]).tolist() == [math.copysign(1, scalar) < 0, True, True]
    assert np.signbit(most[0, :3]).tolist() == [False, math.copysign(1, scalar) < 0, math.copysign(1, scalar) < 0]
    assert np.isnan([least[0, 4], most[0, 4]]).all()


@pytest.mark.parametrize(
    ("text", "loads", "stores", "nbytes"),
    [
        ("fld.f32 f1, r1, 0\nfst.f32 f1, r1, 4", 1, 1, 8),
        ("ldm r2, r1, 0, 4", 0, 0, 0),  # the argument block is no data
        (LOAD.format(rows=1, cols=40) + "vld.f32 v0, r1, r6, r4, 0", 3, 0, 160),  # 16 lanes: pieces of 64 bytes
        (LOAD.format(rows=2, cols=4) + "li r6, 32\nvld.f32 v0, r1, r6, r4, 0", 2, 0, 32),  # two runs
        (LOAD.format(rows=1, cols=4) + "li r4, 8\nvld.f32 v0, r1, r6, r4, 0", 4, 0, 16),  # each element alone
        (LOAD.format(rows=4, cols=4) + "li r4, 64\nli r6, 4\nvld.f32 v0, r1, r6, r4, 0", 16, 0, 64),
        ("vld.f32 v0, r1, r0, r0, 0\nli r2, 3\nli r5, 1\nli r4, 4\nsetvl r2, r5\nvsplat.i32.s v1, r5\n"
         "vbcast v1, v1\nli r6, 9\nvgather.f32 v2, v1, r1, r6, r4, r4", 4, 0, 16),
    ],
)  # fmt: skip
def test_loads_and_stores_are_of_a_register_of_lanes_at_most(text, loads, stores, nbytes):
    machine = run(text)
    assert (machine.loads, machine.stores, machine.accessed_bytes) == (loads, stores, nbytes)
