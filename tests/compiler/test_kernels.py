"""SHAVE kernels against NumPy: values, broadcasting, strides, special values, and that cost and device agree."""

import math
import re

import numpy as np
import pytest
from npu_model import dtypes
from npu_model.profile import load_profile
from npu_model.shave_decode import ProgramCache
from npu_model.shave_isa import ShaveFault, assemble, disassemble

from libnpu.compiler.ir import EXPR_OPS
from libnpu.compiler.kernels import (
    ArgsTemplate,
    Operand,
    Program,
    Unsupported,
    argmax,
    convert,
    cost_cycles,
    elementwise,
    gather,
    reduce,
    softmax,
    unary,
)

PROFILE = load_profile("npu-40xx")
CMX, ARGS = 0x2E000000, 0x80000000
CACHE = ProgramCache()
F16, F32, I32, I64, BOOL, U8 = dtypes.F16, dtypes.F32, dtypes.I32, dtypes.I64, dtypes.BOOL, dtypes.U8


class Memory:
    def __init__(self, cmx, args):
        self.cmx, self.args = cmx, np.frombuffer(args, np.uint8)

    def view(self, addr, nbytes, write):
        part, base = (self.args, ARGS) if addr >= ARGS else (self.cmx, CMX)
        assert base <= addr and addr + nbytes <= base + len(part)
        return part[addr - base : addr - base + nbytes]


def code_of(array):
    return dtypes.code_of_numpy(array.dtype)


def dense(dims, itemsize):
    strides = []
    for n in reversed(dims):
        strides.insert(0, itemsize)
        itemsize *= n
    return tuple(strides)


def execute(program, arrays, out_dims, out_dtype, dims=None):
    """Run `program` on `arrays` (broadcast to `dims` when given) into a dense output, checking the predicted cycles."""
    out_dtype = np.dtype(out_dtype)
    operands, chunks, addresses, offset = [], [], [], 0
    for index, array in enumerate(arrays):
        seen = array if dims is None else np.broadcast_to(array, dims)
        root = array if array.flags.c_contiguous else array.base
        shift = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
        operands.append(Operand(index, code_of(array), seen.shape, seen.strides))
        chunks.append(root.tobytes())
        addresses.append(CMX + offset + shift)
        offset += -(-len(chunks[-1]) // 64) * 64
    operands.append(
        Operand(len(arrays), code_of(np.empty(0, out_dtype)), out_dims, dense(out_dims, out_dtype.itemsize))
    )
    addresses.append(CMX + offset)
    size = math.prod(out_dims) * out_dtype.itemsize
    cmx = np.full(offset + size, 0xFF, np.uint8)
    position = 0
    for chunk in chunks:
        cmx[position : position + len(chunk)] = np.frombuffer(chunk, np.uint8)
        position += -(-len(chunk) // 64) * 64
    template = program.args(operands)
    result = CACHE.run(program.code, ARGS, Memory(cmx, template(addresses)), PROFILE.shave, True)
    assert cost_cycles(program, template, PROFILE) == result.cycles
    return cmx[offset:].view(out_dtype).reshape(out_dims)


def apply(expr, *arrays, out=np.float32):
    dims = np.broadcast_shapes(*(array.shape for array in arrays))
    program = elementwise(expr, tuple(code_of(array) for array in arrays), code_of(np.empty(0, out)))
    return execute(program, list(arrays), dims, out, dims)


X, Y, Z = ("in", 0), ("in", 1), ("in", 2)


def samples(*shape, low=-6.0, high=6.0, dtype=np.float32, seed=1):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(dtype)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


UNARY = {
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf),
    "sin": np.sin,
    "cos": np.cos,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "sign": np.sign,
    "not": lambda x: (x == 0) * 1.0,
    "sigmoid": sigmoid,
    "relu": lambda x: np.maximum(x, 0),
    "is_nan": np.isnan,
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "cast_f32": lambda x: x,
    "cast_i32": np.trunc,
    "cast_bool": lambda x: (x != 0) * 1.0,
}
BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "mod": np.mod,
    "fmod": np.fmod,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "leaky_relu": lambda x, y: np.where(x < 0, x * y, x),
    "prelu": lambda x, y: np.where(x < 0, x * y, x),
}
BITS = {
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
    "shl": lambda x, y: np.left_shift(x, y % 32),
    "shr": lambda x, y: np.right_shift(x, y % 32),
}


def test_every_operator_of_the_graph_has_a_test():
    assert set(UNARY) | {"bit_not", "bits_i32", "bits_f32"} == set(EXPR_OPS[1])
    assert set(BINARY) | set(BITS) == set(EXPR_OPS[2])
    assert EXPR_OPS[3] == ["where", "clip", "hard_sigmoid"]


@pytest.mark.parametrize("name", sorted(UNARY))
def test_unary_operators(name):
    low = 0.05 if name in ("sqrt", "rsqrt", "log", "reciprocal") else -6.0
    x = samples(13, 77, low=low)
    np.testing.assert_allclose(apply((name, X), x), UNARY[name](x.astype(np.float64)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", sorted(BINARY))
def test_binary_operators(name):
    x, y = samples(13, 77, low=0.1 if name == "pow" else -6.0), np.rint(samples(13, 77, seed=2))
    y[y == 0] = 1 if name in ("div", "mod", "fmod") else 0
    expected = BINARY[name](x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(apply((name, X, Y), x, y), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", sorted(BITS))
def test_operators_of_bits(name):
    rng = np.random.default_rng(3)
    x = rng.integers(-(2**31), 2**31, (13, 77), np.int32)
    y = rng.integers(-40, 40, (13, 77), np.int32)
    np.testing.assert_array_equal(apply((name, X, Y), x, y, out=np.int32), BITS[name](x, y))
    with pytest.raises(Unsupported, match=f"{name} of floats"):
        elementwise((name, X, Y), (F32, I32), I32)


def test_bits_of_floats_and_floats_of_bits():
    x = np.array([[1.5, -0.0, np.inf, 1e-42]], np.float32)
    np.testing.assert_array_equal(apply(("bits_i32", X), x, out=np.int32), x.view(np.int32))
    np.testing.assert_array_equal(apply(("bits_f32", X), x.view(np.int32)), x)
    sign_off = ("bits_f32", ("bit_and", ("bits_i32", X), ("const", 2**31 - 1)))
    np.testing.assert_array_equal(apply(sign_off, -x), np.abs(x))


def test_the_complement_of_bits():
    x = np.array([[0, -1, 5, -(2**31)]], np.int32)
    np.testing.assert_array_equal(apply(("bit_not", X), x, out=np.int32), ~x)


def test_unsigned_words_are_their_lower_32_bits():
    words = np.array([[0, 5, 2**31, 2**32 - 1]], np.uint32)
    wide = words.astype(np.uint64)
    for source in (words, wide):
        np.testing.assert_array_equal(apply(X, source, out=np.uint32), words)
        np.testing.assert_array_equal(apply(X, source, out=np.uint64), wide)
        np.testing.assert_array_equal(apply(("add", X, ("const", 1)), source, out=np.uint64), [[1, 6, 2**31 + 1, 0]])


def test_float64_is_loaded_and_stored_rounded_to_float32():
    x = np.array([[1 / 3, -0.0, 1e300, np.nan, 1e-46, 2.0**24 + 1]])
    expected = np.array([[np.float32(1 / 3), -0.0, np.inf, np.nan, 0, 2.0**24]])
    got = apply(X, x, out=np.float64)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "max", "min", "mod", "fmod", "lt", "eq", "pow"])
@pytest.mark.parametrize("order", [(X, ("const", 2.5)), (("const", 2.5), X)])
def test_constants_on_either_side(name, order):
    x = np.abs(samples(100)) + np.float32(0.1)
    a, b = (x.astype(np.float64) if term == X else 2.5 for term in order)
    np.testing.assert_allclose(apply((name, *order), x), BINARY[name](a, b), rtol=1e-6, atol=1e-6)


def test_ternary_operators():
    x, y, z = samples(300), samples(300, seed=2), samples(300, seed=3)
    np.testing.assert_array_equal(apply(("where", ("gt", X, ("const", 0.0)), Y, Z), x, y, z), np.where(x > 0, y, z))
    np.testing.assert_array_equal(apply(("clip", X, ("const", -1.0), ("const", 2.0)), x), np.clip(x, -1, 2))
    hard = apply(("hard_sigmoid", X, ("const", 0.2), ("const", 0.5)), x)
    np.testing.assert_allclose(hard, np.clip(0.2 * x.astype(np.float64) + 0.5, 0, 1), rtol=1e-6, atol=1e-7)


def test_a_bool_condition_selects_between_floats():
    condition = samples(50) > 0
    x, y = samples(50, seed=2), samples(50, seed=3)
    np.testing.assert_array_equal(apply(("where", X, Y, Z), condition, x, y), np.where(condition, x, y))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "max", "min", "mod", "lt"])
def test_integers_compute_as_integers(name):
    x = np.array([-7, 7, 2**31 - 1, -5, 16777217], np.int32)
    y = np.array([2, -2, 1, 5, 3], np.int32)
    with np.errstate(over="ignore"):
        expected = {"div": lambda: np.trunc(x / y).astype(np.int32), "mod": lambda: np.mod(x, y)}.get(
            name, lambda: BINARY[name](x, y)
        )()
    np.testing.assert_array_equal(apply((name, X, Y), x, y, out=np.int32), expected)


def test_integers_and_floats_meet_in_fp32_and_whole_constants_stay_integers():
    x = np.array([1, 2, 3], np.int64)
    np.testing.assert_array_equal(apply(("mul", X, ("const", 0.5)), x), np.float32([0.5, 1.0, 1.5]))
    np.testing.assert_array_equal(apply(("div", X, ("const", 2)), x, out=np.int64), [0, 1, 1])
    np.testing.assert_array_equal(apply(("pow", X, ("const", 3)), x, out=np.int64), [1, 8, 27])
    np.testing.assert_array_equal(apply(("div", ("cast_f32", X), ("const", 2)), x), np.float32([0.5, 1.0, 1.5]))


def test_integer_powers_are_exact_and_wrap():
    base = np.array([7, 3, -3, 2, 2, -1, -1, 1, 0, 0, 5, 2], np.int32)
    exponent = np.array([10, 19, 19, 31, 32, -2, -3, -7, 0, 4, -1, 2**31 - 1], np.int32)
    expected = [282475249, 1162261467, -1162261467, -(2**31), 0, 1, -1, 1, 1, 0, 0, 0]
    np.testing.assert_array_equal(apply(("pow", X, Y), base, exponent, out=np.int32), expected)


@pytest.mark.parametrize(("exponent", "expected"), [(0, [1, 1]), (1, [-3, 7]), (9, [-19683, 40353607]), (-1, [0, 0])])
def test_integer_powers_with_a_known_exponent(exponent, expected):
    x = np.array([-3, 7], np.int32)
    np.testing.assert_array_equal(apply(("pow", X, ("const", exponent)), x, out=np.int32), expected)


def test_hard_swish_of_the_largest_number_is_itself():
    largest = np.array([np.finfo(np.float32).max], np.float32)
    np.testing.assert_array_equal(apply(("hard_swish", X), largest), largest)


def test_nan_and_infinity_pass_through():
    x = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)
    np.testing.assert_array_equal(apply(("relu", X), x), np.float32([np.nan, np.inf, 0, 0]))
    np.testing.assert_array_equal(apply(("sigmoid", X), x), np.float32([np.nan, 1, 0, 0.5]))
    np.testing.assert_array_equal(apply(("clip", X, ("const", 0.0), ("const", 6.0)), x), np.float32([np.nan, 6, 0, 0]))
    np.testing.assert_array_equal(apply(("is_nan", X), x, out=np.bool_), [True, False, False, False])
    assert np.isnan(apply(("hard_swish", X), x))[0]


def test_negative_zero_and_zero_are_different_constants():
    x = np.zeros(3, np.float32)
    got = [np.signbit(apply(("mul", ("const", c), ("add", X, ("const", 1.0))), x)).any() for c in (0.0, -0.0)]
    assert got == [False, True]


@pytest.mark.parametrize("name", ["hard_swish", "sigmoid", "erf", "exp", "tanh"])
def test_fp16_results_are_within_one_ulp(name):
    x = samples(40001, dtype=np.float16)
    got = apply((name, X), x, out=np.float16)
    expected = UNARY[name](x.astype(np.float64)).astype(np.float16)
    assert np.abs(got.view(np.int16).astype(int) - expected.view(np.int16).astype(int)).max() <= 1


def test_hard_swish_of_fp16_is_rounded_once():
    """Of all that are finite: 0 up to -3, the number itself from 3 on."""
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = x[np.isfinite(x)]
    exact = x.astype(np.float64) * np.clip(x.astype(np.float64) + 3, 0, 6) / 6
    got = apply(("hard_swish", X), x, out=np.float16)
    assert not got[x <= -3].any()
    np.testing.assert_array_equal(got[x >= 3], x[x >= 3])
    assert np.mean(got == exact.astype(np.float16)) > 0.9999


def test_gelu_computes_a_shared_operand_once():
    x = samples(1000)
    gelu = ("mul", ("mul", X, ("const", 0.5)), ("add", ("erf", ("div", X, ("const", 2**0.5))), ("const", 1.0)))
    expected = 0.5 * x.astype(np.float64) * (1 + np.vectorize(math.erf)(x.astype(np.float64) / 2**0.5))
    np.testing.assert_allclose(apply(gelu, x), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((1,), (1,)),
        ((7, 11), (11,)),
        ((7, 11), (7, 1)),
        ((2, 3, 5, 7), (3, 1, 1)),
        ((2, 3, 5, 7), (2, 1, 5, 1)),
        ((3, 1, 4, 1), (1, 5, 1, 6)),
        ((20000,), (1,)),
        ((3, 17000), (3, 1)),
        ((17000, 3), (3,)),
        ((2, 2, 40000), (2, 1, 1)),
        ((1, 1, 1, 1, 9), (9,)),
    ],
)
def test_operands_broadcast_as_in_numpy(a, b):
    x, y = samples(*a), samples(*b, seed=2)
    np.testing.assert_array_equal(apply(("sub", X, Y), x, y), x - y)


@pytest.mark.parametrize("axes", [(1, 0, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_convert_with_other_strides_is_a_transpose(axes):
    x = samples(3, 20, 7, 5, dtype=np.float16).transpose(axes)
    got = execute(convert(F16, F32), [x], x.shape, np.float32)
    np.testing.assert_array_equal(got, x.astype(np.float32))


@pytest.mark.parametrize("axes", [(0, 2, 3, 1), (3, 2, 1, 0), (2, 3, 1, 0)])
@pytest.mark.parametrize("shape", [(3, 20, 7, 5), (2, 3, 90, 130), (1, 2, 3, 3), (40, 2, 1, 3)])
def test_tiles_turned_in_registers_have_the_values_of_strided_loads(axes, shape):
    x = samples(*shape, dtype=np.float16).transpose(axes)
    strided, turning = (execute(program, [x], x.shape, np.float32) for program in unary(("relu", X), F16, F32))
    np.testing.assert_array_equal(turning, strided)


def test_turning_is_worth_it_for_the_channels_of_an_image():
    image, pixels = Operand(0, F32, (12544, 3), (4, 50176)), Operand(1, F16, (12544, 3), (6, 2))
    profile = load_profile("npu-37xx")
    strided, turned = (cost_cycles(p, p.args([image, pixels]), profile) - 3000 for p in unary(("in", 0), F32, F16))
    assert 12544 * 3 * 0.428 < turned < strided * 0.5  # 6 bytes of each element go through a port of 14 a cycle


def test_float_to_integer_truncates_and_saturates():
    x = np.array([2.9, -2.9, 300.0, np.nan], np.float32)
    np.testing.assert_array_equal(execute(convert(F32, U8), [x], (4,), np.uint8), [2, 0, 255, 0])
    np.testing.assert_array_equal(execute(convert(F32, BOOL), [x], (4,), np.bool_), [True] * 4)


def test_nine_inputs_use_arguments_where_registers_end():
    arrays = [samples(5, 6, seed=k) for k in range(9)]
    expr = ("in", 0)
    for k in range(1, 9):
        expr = ("add", expr, ("in", k))
    expected = arrays[0]
    for array in arrays[1:]:
        expected = expected + array
    np.testing.assert_array_equal(apply(expr, *arrays), expected)


def wide(depth, leaf):
    if depth == 0:
        return ("in", leaf)
    return ("add", wide(depth - 1, 2 * leaf), wide(depth - 1, 2 * leaf + 1))


def test_a_balanced_tree_of_sixteen_inputs_needs_five_registers():
    arrays = [samples(3, seed=k) for k in range(16)]
    np.testing.assert_allclose(apply(wide(4, 0), *arrays), sum(a.astype(np.float64) for a in arrays), rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: elementwise(("foo", X), (F32,), F32), "operator 'foo' with 1 operands"),
        (lambda: elementwise(("add", X), (F32,), F32), "operator 'add' with 1 operands"),
        (lambda: elementwise(("in", 3), (F32,), F32), "input 3 of 1"),
        (lambda: elementwise(X, (99,), F32), "the vector core has no type 99"),
        (lambda: reduce("median", F32, F32), "reduction 'median'"),
        (lambda: softmax(I32, F32), "softmax of integers"),
        (lambda: gather(F32, F32), "gather by f32"),
        (lambda: argmax(F32, F32), "argmax with a float output"),
    ],
)
def test_what_a_kernel_cannot_do_is_named(make, message):
    with pytest.raises(Unsupported, match=message):
        make()


def test_an_expression_that_needs_too_many_registers_is_named():
    terms = [("exp", ("add", X, ("const", float(k)))) for k in range(18)]
    total = terms[0]
    for term in terms[1:]:
        total = ("add", total, term)
    for term in reversed(terms):
        total = ("mul", total, term)
    with pytest.raises(Unsupported, match="no vector register left for"):
        elementwise(total, (F32,), F32)


def test_five_dims_that_do_not_merge_are_unsupported():
    dims = (2, 2, 2, 2, 2)
    operand = Operand(0, F32, dims, (1024, 256, 64, 16, 4))
    with pytest.raises(Unsupported, match="5 dims"):
        convert(F32, F32).args([operand, operand])


SHAPES = [(1, 1, 1), (3, 5, 7), (200, 1000, 1), (2, 3000, 5), (1, 999, 130), (40, 4, 1), (1, 16384, 1), (2, 40000, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min"])
def test_reduce(shape, kind):
    x = samples(*shape)
    got = execute(reduce(kind, F32, F32), [x], (shape[0], shape[2]), np.float32)
    expected = getattr(np, kind)(x.astype(np.float64), axis=1)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-8 * shape[1] + 1e-5)


def test_reduce_of_a_product_of_integers_and_of_nan():
    x = np.array([[[2], [3], [7]]], np.int32)
    np.testing.assert_array_equal(execute(reduce("prod", I32, I64), [x], (1, 1), np.int64), [[42]])
    np.testing.assert_array_equal(execute(reduce("mean", I32, I32), [-x], (1, 1), np.int32), [[-4]])
    y = np.array([[[1], [np.nan]]], np.float32)
    assert np.isnan(execute(reduce("max", F32, F32), [y], (1, 1), np.float32)).all()


def test_a_reduction_does_not_depend_on_the_other_dims():
    x = samples(6, 2500, 4)
    whole = execute(reduce("sum", F32, F32), [x], (6, 4), np.float32)
    for o in range(6):
        for i in range(4):
            part = np.ascontiguousarray(x[o : o + 1, :, i : i + 1])
            np.testing.assert_array_equal(
                execute(reduce("sum", F32, F32), [part], (1, 1), np.float32)[0, 0], whole[o, i]
            )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("log", [False, True])
def test_softmax(shape, log):
    x = samples(*shape)
    got = execute(softmax(F32, F32, log), [x], shape, np.float32)
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    expected = e / e.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(got, np.log(expected) if log else expected, rtol=1e-6, atol=1e-6)


def test_softmax_of_large_fp16_values_does_not_overflow():
    x = np.array([[[60000.0], [60000.0], [-60000.0]]], np.float16)
    got = execute(softmax(F16, F16), [x], (1, 3, 1), np.float16)
    np.testing.assert_array_equal(got, np.float16([[[0.5], [0.5], [0]]]))


@pytest.mark.parametrize("shape", SHAPES)
def test_argmax(shape):
    x = np.rint(samples(*shape))
    got = execute(argmax(F32, I64), [x], (shape[0], shape[2]), np.int64)
    np.testing.assert_array_equal(got, x.argmax(axis=1))


@pytest.mark.parametrize("shape", [(1, 10, 300), (3, 7, 1), (2, 5, 20000)])
def test_gather_takes_rows_and_counts_negative_indices_from_the_end(shape):
    x = samples(*shape)
    index = np.array([0, -1, 3, 2, -shape[1], 1], np.int64)
    got = execute(gather(F32, I64), [x, index], (shape[0], 6, shape[2]), np.float32)
    np.testing.assert_array_equal(got, x[:, index])


def test_a_gather_index_out_of_range_is_a_fault_of_the_core():
    x = samples(1, 4, 4)
    with pytest.raises(ShaveFault, match="index 4 with limit 4"):
        execute(gather(F32, I32), [x, np.array([4], np.int32)], (1, 1, 4), np.float32)


def test_a_contiguous_tensor_runs_in_tiles_of_the_register():
    n = 40000
    operands = [Operand(0, F16, (4, 100, 100), (20000, 200, 2)), Operand(1, F16, (4, 100, 100), (20000, 200, 2))]
    template = elementwise(("relu", X), (F16,), F16).args(operands)
    assert template.words[:6] == (1, 1, 1, n, 1, 16384)


def test_argmax_of_a_wide_row_prefers_the_first_maximum_and_nan():
    x = np.zeros((1, 50000, 1), np.float32)
    x[0, [20000, 40000], 0] = 5
    assert execute(argmax(F32, I64), [x], (1, 1), np.int64).item() == 20000
    x[0, [30000, 45000], 0] = np.nan
    assert execute(argmax(F32, I64), [x], (1, 1), np.int64).item() == 30000


def test_a_program_that_starts_operations_has_no_cost_of_its_own():
    program = Program(assemble("dmastart r1, 0, 0\ndmawait 0\nhalt"), "copy", lambda _: ArgsTemplate((0,), ()))
    with pytest.raises(Unsupported, match="NEEDS_ENGINES at pc 0x0"):
        cost_cycles(program, program.args([]), PROFILE)


@pytest.mark.parametrize(
    ("expr", "inputs", "out", "narrow"),
    [
        (("sigmoid", X), [dtypes.F16], dtypes.F16, True),
        (("div", X, Y), [dtypes.F16] * 2, dtypes.F16, True),
        (("div", ("const", 0.5), X), [dtypes.F16], dtypes.F16, True),
        (("div", ("const", 0.1), X), [dtypes.F16], dtypes.F16, False),  # 0.1 is another number in fp16
        (("div", X, ("const", 1e6)), [dtypes.F16], dtypes.F16, False),
        (("exp", X), [dtypes.F16], dtypes.F32, False),
        (("exp", X), [dtypes.F32], dtypes.F16, False),
        (("exp", ("neg", X)), [dtypes.F16], dtypes.F16, True),  # the operand has an fp16's bits still
        (("exp", ("add", X, X)), [dtypes.F16], dtypes.F16, False),  # its operand is a result in fp32
        (("mul", X, ("sigmoid", X)), [dtypes.F16], dtypes.F16, False),
        (("add", X, Y), [dtypes.F16] * 2, dtypes.F16, False),  # bound by memory anyway
    ],
)
def test_a_special_function_between_fp16_tensors_computes_in_fp16(expr, inputs, out, narrow):
    text = disassemble(elementwise(expr, tuple(inputs), out).code)
    assert (re.search(r"v(sigm|div|exp)\.f16", text) is not None) == narrow


@pytest.mark.parametrize("name", ["sqrt", "rsqrt", "reciprocal", "exp", "log", "tanh", "erf", "sin", "cos", "sigmoid"])
def test_fp16_functions_round_as_if_in_fp32(name):
    with np.errstate(all="ignore"):
        x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
        np.testing.assert_array_equal(
            apply((name, X), x, out=np.float16), apply((name, X), x.astype(np.float32), out=np.float16)
        )
