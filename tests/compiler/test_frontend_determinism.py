"""What the compiler computes itself does not depend on the processor that it runs on, which BLAS and NumPy pick kernels for."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from libnpu.compiler.frontend import load
from libnpu.compiler.products import convolve, matmul
from libnpu.compiler.reference import run_reference

FUNCTIONS = ("Exp", "Sin", "Cos", "Tanh", "Sigmoid", "Erf", "Elu", "Softplus")
CORES = ("Haswell", "Prescott")  # with and without fused multiplications, blocks of different lengths
# Prints a digest of every constant of the imported model, and one of a product by BLAS.
PROGRAM = """
import hashlib, sys, numpy as np
from libnpu.compiler.frontend import load
graph = load(sys.argv[1], precision="fp32")
digest = hashlib.sha256()
for node in graph.nodes:
    for value in node.inputs:
        if value is not None and value.const is not None:
            digest.update(value.name.encode() + value.const.tobytes())
rng = np.random.default_rng(0)
a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((256, 300), (300, 64)))
print(digest.hexdigest(), hashlib.sha256((a @ b).tobytes()).hexdigest())
"""


def save(path, nodes, x_shape, constants):
    infos = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x_shape)]
    outputs = [onnx.ValueInfoProto(name=node[2][0]) for node in nodes if node[2][0].startswith("y")]
    protos = [helper.make_node(op, ins, outs, name=outs[0], **attrs) for op, ins, outs, attrs in nodes]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(protos, "g", infos, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(model)
    del model.graph.output[:]
    model.graph.output.extend(inferred.graph.output)
    onnx.save(model, path)


@pytest.fixture
def folding_model(tmp_path, rng):
    """A model whose constants come from every operator that BLAS would add up, in float32."""

    def floats(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    nodes = [
        ("MatMul", ["a", "b"], ["m"], {}),
        ("Gemm", ["a", "b", "bias"], ["g"], {"alpha": 0.3, "beta": 0.7}),
        ("Conv", ["image", "taps"], ["conv"], {"pads": [1, 1, 1, 1]}),
        ("Conv", ["image", "taps"], ["same"], {"auto_pad": "SAME_UPPER"}),
        ("ConvTranspose", ["image", "back"], ["up"], {"strides": [2, 2]}),
        ("ReduceMean", ["a"], ["mean"], {"axes": [0, 1]}),
        ("Einsum", ["a", "b"], ["e"], {"equation": "ij,jk->ik"}),
    ]
    nodes += [(op, ["c"], [op], {}) for op in FUNCTIONS]
    nodes += [("Softmax", ["a"], ["soft"], {}), ("Pow", ["p", "c"], ["pow"], {})]
    nodes += [
        ("Add", [name, "x"], [f"y_{name}"], {})
        for name in ("m", "g", "conv", "same", "up", "mean", "e", "soft", "pow", *FUNCTIONS)
    ]
    constants = {"a": floats(64, 300), "b": floats(300, 48), "c": floats(4800)}
    constants["bias"] = constants["c"][:48]
    constants["p"] = np.abs(constants["c"])
    constants |= {"image": floats(1, 40, 12, 12), "taps": floats(16, 40, 3, 3), "back": floats(40, 8, 3, 3)}
    path = tmp_path / "folding.onnx"
    save(path, nodes, (1,), constants)
    return path, constants


def digests(path, **variables):
    environment = os.environ | variables
    command = [sys.executable, "-c", PROGRAM, str(path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    return result.stdout.split()


def test_constants_do_not_depend_on_the_blas_kernel(folding_model):
    path, _ = folding_model
    found = [digests(path, OPENBLAS_CORETYPE=core, OPENBLAS_NUM_THREADS="1") for core in CORES]
    if found[0][1] == found[1][1]:
        pytest.skip("this NumPy's BLAS does not choose its kernel by OPENBLAS_CORETYPE")
    assert found[0][0] == found[1][0]


def test_constants_do_not_depend_on_the_vector_instructions_of_the_processor(folding_model):
    path, _ = folding_model
    extensions = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    if not extensions:
        pytest.skip("this processor has nothing that NumPy picks a kernel for")
    plain = digests(path, NPY_DISABLE_CPU_FEATURES=" ".join(extensions))
    assert plain[0] == digests(path)[0]


def test_folded_products_are_the_exact_sums_rounded_once(folding_model):
    path, constants = folding_model
    known = {}
    for node in load(str(path), precision="fp32").nodes:
        known |= {value.name: value.const for value in node.inputs if value is not None and value.const is not None}
    a, b, c = (constants[name].astype(np.longdouble) for name in ("a", "b", "bias"))
    expected = {"m": a @ b, "g": np.longdouble(np.float32(0.3)) * (a @ b) + np.longdouble(np.float32(0.7)) * c}
    for name, exact in expected.items():
        assert np.all(np.abs(known[name] - exact) <= 0.51 * np.spacing(np.abs(exact).astype(np.float32)))


def test_product_adds_in_order_of_k():
    # 1 is lost beside 2^53, so the result tells the order: ((2^53 + 1) + 1) - 2^53 = 0, any other gives 1 or 2.
    assert matmul(np.array([[2.0**53, 1, 1, -(2.0**53)]]), np.ones((4, 1))).tolist() == [[0.0]]


def test_product_takes_the_ranks_of_numpy(rng):
    for left, right in (((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((5, 1, 2, 3), (4, 3, 2)), ((2, 0), (0, 3))):
        a, b = rng.integers(-9, 9, left), rng.integers(-9, 9, right)
        np.testing.assert_array_equal(matmul(a, b), a @ b, strict=False)
        assert matmul(a, b).shape == (a @ b).shape


def test_product_of_shapes_that_do_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(2, 3\)"):
        matmul(np.ones((2, 3)), np.ones((2, 3)))


def test_convolution_in_three_dimensions_with_groups_strides_and_dilations():
    x = np.arange(2 * 1 * 5 * 1, dtype=np.float32).reshape(1, 2, 1, 5, 1)
    taps = np.array([[[[[1], [10]]]], [[[[2], [0]]]]], np.float32)  # [2, 1, 1, 2, 1]
    window = {"pads": [0, 1, 0, 0, 0, 0], "strides": [1, 2, 1], "dilations": [1, 2, 1]}
    # Padded rows: 0 0 1 2 3 4 and 0 5 6 7 8 9; pixels read places 0 2, and 2 4.
    assert convolve(x, taps, window, 2).reshape(2, 2).tolist() == [[10.0, 31.0], [0.0, 12.0]]


def test_a_determinant_of_constants_is_the_handlers_and_not_blas(tmp_path):
    path = tmp_path / "det.onnx"
    square = np.array([[[0, 2, 1], [3, 1, 0], [1, 1, 4]]], np.float32)
    save(path, [("Det", ["square"], ["d"], {}), ("Add", ["d", "x"], ["y"], {})], (1,), {"square": square})
    graph = load(str(path), precision="fp32")
    assert [node.op for node in graph.nodes] == ["Elementwise"]  # the determinant is known
    np.testing.assert_allclose(run_reference(graph, {"x": np.zeros(1, np.float32)})["y"], [-22], rtol=1e-6)
