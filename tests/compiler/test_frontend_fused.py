"""What onnxruntime's optimiser and quantiser write into files, in com.microsoft and beside the standard, against onnxruntime."""

import numpy as np
import pytest
from onnx import helper

from libnpu.compiler.frontend import load
from libnpu.compiler.reference import run_reference

U8, I8, F32, I32 = (np.dtype(name) for name in ("uint8", "int8", "float32", "int32"))
MICROSOFT = "com.microsoft"
FLOATS = {"fp32": 1e-5, "fp16": 5e-3}
NARROW = {"gamma": (8,), "beta": (8,), "bias": (8,)}


@pytest.fixture
def agree(make_model, oracle):
    """Return agree(op, order, feeds, constants, outputs, version, tolerance, steps, **attrs) -> canonical graph, after both policies were right.

    Floats are right within a tolerance of the largest, integers within some steps.
    """

    def compare(
        op,
        order,
        feeds,
        constants=None,
        outputs=("y",),
        version=17,
        tolerance=FLOATS,
        steps=0,
        domain=MICROSOFT,
        **attrs,
    ):
        attrs |= {"domain": domain} if domain else {}
        names = [name if name in feeds or name in (constants or {}) else "" for name in order.split()]
        model = make_model(
            [(op, names, list(outputs), attrs)], feeds, [name for name in outputs if name], constants, version
        )
        expected = oracle(model, feeds)
        for output in model.graph.output:  # onnx knows none of foreign operators
            kind = helper.np_dtype_to_tensor_dtype(expected[output.name].dtype)
            output.CopyFrom(helper.make_tensor_value_info(output.name, kind, expected[output.name].shape))
        for precision in ("fp16", "fp32"):
            graph = load(model, precision=precision)
            found = run_reference(graph, feeds)
            for name, want in expected.items():
                assert (found[name].dtype, found[name].shape) == (want.dtype, want.shape)
                limit = tolerance[precision] * np.abs(want).max() if want.dtype.kind == "f" else steps
                np.testing.assert_allclose(
                    found[name].astype(float), want, rtol=0, atol=limit, err_msg=f"{precision} {name}"
                )
        return graph

    return compare


def drawn(rng, shapes):
    return {name: rng.standard_normal(shape).astype(F32) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("op", "order", "shapes", "fixed", "outputs", "attrs"),
    [
        ("Gelu", "x", {"x": (3, 8)}, {}, ["y"], {}),
        ("BiasGelu", "x bias", {"x": (3, 8)}, NARROW, ["y"], {}),
        ("FastGelu", "x bias", {"x": (3, 8)}, NARROW, ["y"], {}),
        ("QuickGelu", "x", {"x": (3, 8)}, {}, ["y"], {"alpha": 1.2}),
        ("FusedConv", "x w b z", {"x": (1, 4, 6, 5), "z": (1, 6, 6, 5)}, {"w": (6, 4, 3, 3), "b": (6,)}, ["y"],
         {"pads": [1] * 4, "activation": "Relu"}),
        ("FusedConv", "x w b", {"x": (1, 4, 7)}, {"w": (4, 1, 3), "b": (4,)}, ["y"],
         {"group": 4, "activation": "Clip", "activation_params": [-0.5, 1.0]}),
        ("FusedConv", "x w", {"x": (1, 4, 6, 5)}, {"w": (6, 4, 1, 1)}, ["y"],
         {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]}),
        ("FusedGemm", "a b c", {"a": (8, 3)}, {"b": (5, 8), "c": (5,)}, ["y"],
         {"transA": 1, "transB": 1, "alpha": 0.5, "activation": "LeakyRelu", "activation_alpha": 0.3}),
        ("FusedMatMul", "a b", {"a": (2, 3, 4, 5), "b": (2, 3, 4, 6)}, {}, ["y"], {"transA": 1, "alpha": 0.25}),
        ("FusedMatMul", "a b", {"a": (4, 2, 3, 5), "b": (6, 2, 3, 5)}, {}, ["y"], {"transBatchA": 1, "transBatchB": 1, "transB": 1}),
        ("TransposeMatMul", "a b", {"a": (5,), "b": (6, 5)}, {}, ["y"], {"transA": 1, "transB": 1}),
        ("SkipLayerNormalization", "x s gamma beta bias", {"x": (2, 3, 8), "s": (3, 8)}, NARROW, ["y", "", "", "sum"], {}),
        ("SkipSimplifiedLayerNormalization", "x s gamma bias", {"x": (2, 3, 8), "s": (2, 3, 8)}, NARROW, ["y", "", "", "sum"],
         {"epsilon": 1e-3}),
        ("SimplifiedLayerNormalization", "x gamma", {"x": (2, 3, 8)}, NARROW, ["y"], {"domain": "", "axis": -1}),
        ("LayerNormalization", "x gamma beta", {"x": (2, 3, 8)}, NARROW, ["y"], {"domain": "", "version": 12}),
    ],
)  # fmt: skip
def test_fused_operators(op, order, shapes, fixed, outputs, attrs, agree, rng):
    agree(
        op,
        order,
        drawn(rng, shapes),
        drawn(rng, {name: fixed[name] for name in fixed if name in order}),
        outputs,
        **attrs,
    )


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("with_all", [False, True])
def test_embeddings_are_looked_up_and_normalised(with_all, quantised, agree, rng):
    feeds = {"ids": rng.integers(0, 9, (2, 5)).astype(I32)}
    tables = {"words": (9, 8), "places": (7, 8), "kinds": (3, 8), "gamma": (8,), "beta": (8,)}
    order = f"ids segments {' '.join(tables)} mask"
    if with_all:
        feeds["segments"] = rng.integers(0, 3, (2, 5)).astype(I32)
        feeds["mask"] = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], I32)
    else:
        del tables["kinds"]
    if not quantised:
        constants, outputs = drawn(rng, tables), ["y", "lengths", "sum"]
        if with_all:
            feeds["positions"], order = rng.integers(0, 7, (2, 5)).astype(I32), f"{order} positions"
        agree("EmbedLayerNormalization", order, feeds, constants, outputs, epsilon=1e-5)
        return
    names = order.split()[2:7]
    constants = {name: rng.integers(0, 256, shape).astype(U8) for name, shape in tables.items()}
    constants |= {f"{name}_s": np.array(rng.uniform(0.01, 0.03), F32) for name in tables}
    constants |= {f"{name}_z": np.array(rng.integers(100, 150), U8) for name in tables}
    order = " ".join([order, *(f"{name}_{which}" for which in "sz" for name in names)])
    agree("QEmbedLayerNormalization", order, feeds, constants, ["y", "lengths"])


def whole(rng, dtype, *shape):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def ends(rng, dtype, *names):
    """Return a scale and a zero point for each name, s_ and z_ before it."""
    found = {f"s_{name}": np.array(rng.uniform(0.01, 0.05), F32) for name in names}
    return found | {f"z_{name}": np.array(rng.integers(-20, 20) + (128 if dtype == U8 else 0), dtype) for name in names}


@pytest.mark.parametrize("dtype", [U8, I8])
@pytest.mark.parametrize(
    ("op", "shape", "steps", "attrs"),
    [
        ("QLinearGlobalAveragePool", (2, 5, 7, 6), 0, {}),
        ("QLinearGlobalAveragePool", (2, 7, 6, 5), 0, {"channels_last": 1}),
        ("QLinearGlobalAveragePool", (1, 3, 300, 2), 0, {}),
        ("QLinearAveragePool", (2, 5, 7, 6), 1, {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}),
        ("QLinearAveragePool", (2, 7, 6, 5), 1, {"kernel_shape": [3, 3], "pads": [1] * 4, "channels_last": 1, "count_include_pad": 1}),
        ("QLinearAveragePool", (1, 2, 5, 4, 3), 1, {"kernel_shape": [3, 2, 2]}),
        ("QLinearSoftmax", (2, 5, 7), 2, {"axis": 1, "opset": 13}),
        ("QLinearSoftmax", (2, 5, 7), 2, {"axis": 1, "opset": 11}),
    ],
)  # fmt: skip
def test_pools_and_softmax_of_integers(op, shape, steps, attrs, dtype, agree, rng):
    constants = ends(rng, dtype, "x", "y")
    if op == "QLinearSoftmax":
        constants |= {"s_y": np.array(1 / 256, F32), "z_y": np.array(np.iinfo(dtype).min, dtype)}
    feeds = {"x": whole(rng, dtype, *shape)}
    graph = agree(op, "x s_x z_x s_y z_y", feeds, constants, steps=steps, **attrs)
    assert ("ConvInteger" in {node.op for node in graph.nodes}) == (
        "Pool" in op and len(shape) == 4 and 300 not in shape
    )


@pytest.mark.parametrize("dtype", [U8, I8])
def test_choice_and_concatenation_of_integers(dtype, agree, rng):
    constants = ends(rng, dtype, "a", "b", "y")
    feeds = {"c": rng.random((4, 1, 6)) < 0.5, "a": whole(rng, dtype, 4, 5, 6), "b": whole(rng, dtype, 5, 1)}
    agree("QLinearWhere", "c a s_a z_a b s_b z_b s_y z_y", feeds, constants)
    constants |= {"s_c": constants["s_y"], "z_c": constants["z_y"]}
    feeds = {name: whole(rng, dtype, 4, size, 6) for name, size in (("a", 2), ("b", 3), ("c", 1))}
    graph = agree("QLinearConcat", "s_y z_y a s_a z_a b s_b z_b c s_c z_c", feeds, constants, axis=1)
    assert [node.op for node in graph.nodes].count("Elementwise") == 2


def test_images_with_the_channels_last(agree, rng):
    feeds = {"x": whole(rng, U8, 1, 7, 6, 5)}
    agree("NhwcMaxPool", "x", feeds, kernel_shape=[3, 3], strides=[2, 1], pads=[1, 1, 1, 1])
    constants = ends(rng, U8, "x", "y") | {
        "w": whole(rng, I8, 4, 5, 3, 3),
        "s_w": np.array(0.01, F32),
        "z_w": np.array(3, I8),
    }
    order = "x s_x z_x w s_w z_w s_y z_y"
    agree("QLinearConv", order, feeds, constants, channels_last=1, pads=[1, 1, 1, 1])
