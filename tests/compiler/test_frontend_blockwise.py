"""MatMulNBits of com.microsoft, through the front end, the reference and the device, against onnxruntime."""

import numpy as np
import pytest
from onnx import helper

from libnpu.compiler.frontend import load
from libnpu.compiler.frontend.source import ModelError
from libnpu.compiler.reference import run_reference
from libnpu.errors import Unimplemented, Unsupported

F16, F32, U8 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.uint8)
DEPTH, COLUMNS, BLOCK = 72, 10, 32  # three blocks, the last of 8
BLOCKS = -(-DEPTH // BLOCK)
ORDER = ("b", "s", "z", "g", "bias")  # of the operands behind A


def operands(rng, bits, dtype=F32, zeros=None):
    """Return B, scales and zero points: None, "packed" or "float"."""
    made = {"b": rng.integers(0, 256, (COLUMNS, BLOCKS, BLOCK * bits // 8)).astype(U8)}
    made["s"] = rng.uniform(0.01, 0.1, (COLUMNS, BLOCKS)).astype(dtype)
    if zeros == "packed":
        made["z"] = rng.integers(0, 256, (COLUMNS, -(-BLOCKS * bits // 8))).astype(U8)
    elif zeros == "float":
        made["z"] = rng.uniform(0, 1 << bits, (COLUMNS, BLOCKS)).astype(dtype)
    return made


@pytest.fixture
def product(make_model):
    """Return product(a, constants, computed, **attrs) -> model of one node."""

    def make(a, constants, computed=None, **attrs):
        feeds = {"a": a} | (computed or {})
        given = [name if name in constants or name in feeds else "" for name in ORDER]
        attrs = {"K": DEPTH, "N": COLUMNS, "block_size": BLOCK, "domain": "com.microsoft"} | attrs
        model = make_model([("MatMulNBits", ["a", *given], ["y"], attrs)], feeds, ["y"], constants)
        info = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(a.dtype), (*a.shape[:-1], COLUMNS))
        model.graph.output[0].CopyFrom(info)  # onnx knows none of foreign operators
        return model

    return make


@pytest.fixture
def compare(product, oracle, run_on_device):
    """Return compare(a, constants, computed, **attrs) -> products of the graph, after both policies were right by both paths."""

    def right(a, constants, computed=None, **attrs):
        model, feeds = product(a, constants, computed, **attrs), {"a": a} | (computed or {})
        want = oracle(model, feeds)["y"].astype(np.float64)
        for precision, tolerance in (("fp32", 1e-5), ("fp16", 5e-3)):
            tolerance = max(tolerance, 2e-3 if a.dtype == F16 else 0.0)
            graph = load(model, precision=precision)
            for found in (run_reference(graph, feeds)["y"], run_on_device(model, feeds, precision)["y"]):
                assert (found.dtype, found.shape) == (a.dtype, want.shape)
                np.testing.assert_allclose(found, want, rtol=0, atol=tolerance * np.abs(want).max())
        return [node for node in graph.nodes if node.op == "MatMul"]

    return right


@pytest.mark.parametrize(
    ("bits", "zeros"),
    [(bits, zeros) for bits in (2, 4, 8) for zeros in (None, "packed", "float") if (bits, zeros) != (8, "float")],
)
def test_weights_have_every_bit_of_onnxruntimes(product, oracle, rng, bits, zeros):
    a = np.eye(DEPTH, dtype=F32)
    model = product(a, operands(rng, bits, zeros=zeros), bits=bits)
    found = run_reference(load(model, precision="fp32"), {"a": a})["y"]
    np.testing.assert_array_equal(found, oracle(model, {"a": a})["y"])


@pytest.mark.parametrize("zeros", [None, "packed"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_a_batch_with_a_bias_is_one_product(compare, rng, bits, zeros, dtype):
    constants = operands(rng, bits, dtype, zeros) | {"bias": rng.standard_normal(COLUMNS).astype(dtype)}
    (node,) = compare(rng.standard_normal((2, 5, DEPTH)).astype(dtype), constants, bits=bits)
    assert node.inputs[2].const is not None


def test_a_computed_bias_is_added(compare, rng):
    computed = {"bias": rng.standard_normal(COLUMNS).astype(F32)}
    compare(rng.standard_normal((3, DEPTH)).astype(F32), operands(rng, 4), computed)


def test_one_row_without_a_dimension_for_it(product, rng):
    rows = rng.standard_normal((1, DEPTH)).astype(F32)
    constants = operands(rng, 4)
    one, row = (run_reference(load(product(a, constants), precision="fp32"), {"a": a})["y"] for a in (rows, rows[0]))
    np.testing.assert_array_equal(row, one[0])


@pytest.mark.parametrize("zeros", [None, "float"])
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_rows_by_g_idx(product, oracle, rng, dtype, zeros):
    constants = operands(rng, 4, dtype, zeros) | {"g": rng.integers(0, BLOCKS, DEPTH).astype(np.int32)}
    a = np.eye(DEPTH, dtype=dtype)
    model = product(a, constants)
    found = run_reference(load(model, precision="fp32"), {"a": a})["y"]
    np.testing.assert_array_equal(found, oracle(model, {"a": a})["y"])


def test_g_idx_with_packed_zero_points_is_named(product, rng):
    """onnxruntime leaves the zero points out there, against the operator's text."""
    constants = operands(rng, 4, zeros="packed") | {"g": np.zeros(DEPTH, np.int32)}
    with pytest.raises(Unimplemented, match="MatMulNBits with g_idx, unless for 4 bits without packed zero points"):
        load(product(np.zeros((1, DEPTH), F32), constants))


@pytest.mark.parametrize(
    ("name", "what"), [("b", "weights"), ("s", "weights' scales"), ("z", "weights' zero points")], ids=["b", "s", "z"]
)
def test_what_is_computed_is_named(product, rng, name, what):
    constants = operands(rng, 4, zeros="packed")
    computed = {name: constants.pop(name)}
    model = product(np.zeros((1, DEPTH), F32), constants, computed)
    with pytest.raises(
        Unsupported, match=rf"node MatMulNBits_0: the {what} of MatMulNBits \({name}\) is not a constant"
    ):
        load(model)


def test_what_does_not_fit_is_named(product, rng):
    a, constants = np.zeros((1, DEPTH), F32), operands(rng, 4, zeros="packed")
    with pytest.raises(Unimplemented, match="MatMulNBits with weights of 3 bits in layout 0"):
        load(product(a, constants, bits=3))
    with pytest.raises(ModelError, match=r"weights of MatMulNBits have shape \(10, 3, 16\), expected \(10, 96\)"):
        load(product(a, constants, bits=8))
    with pytest.raises(ModelError, match=r"scales of MatMulNBits have shape \(10, 2\), expected \(10, 3\)"):
        load(product(a, constants | {"s": constants["s"][:, :2]}))
    with pytest.raises(ModelError, match="g_idx of MatMulNBits names blocks for 72 rows, of 0 to 2"):
        load(product(a, operands(rng, 4) | {"g": np.full(DEPTH, BLOCKS, np.int32)}))
    with pytest.raises(ModelError, match="block_size 0"):
        load(product(a, constants, block_size=0))
