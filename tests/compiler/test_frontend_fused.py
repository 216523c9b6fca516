"""What onnxruntime's optimiser and quantiser write into files, in com.microsoft and beside the standard, against onnxruntime."""

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from libnpu.compiler.frontend import channel_blocks, load
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
        ("CDist", "a b", {"a": (4, 6), "b": (3, 6)}, {}, ["y"], {"metric": "euclidean"}),
        ("Trilu", "x", {"x": (2, 4, 5)}, {}, ["y"], {"upper": 0}),
        ("GridSample", "x g", {"x": (1, 2, 4, 5), "g": (1, 3, 3, 2)}, {}, ["y"], {"mode": "bilinear", "padding_mode": "border"}),
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


def test_operators_before_the_standard_had_them(agree, rng):
    feeds = drawn(rng, {"x": (2, 3, 4)})
    agree("Pad", "x pads", feeds, {"pads": np.array([0, 1, 0, 0, 0, 2])}, mode="reflect")
    agree("ExpandDims", "x axis", feeds, {"axis": np.array([-2], I32)})
    agree("GatherND", "x i", feeds, {"i": np.array([[1, 2], [0, 1]])})


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("Binarizer", {"threshold": 0.3}),
        ("Scaler", {"offset": [0.5, 1.0, -1.0], "scale": [2.0, 0.5, 1.5]}),
        ("Imputer", {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": float("nan")}),
        ("Imputer", {"imputed_value_int64s": [7], "replaced_value_int64": 2}),
        ("Normalizer", {"norm": "L1"}),
        ("Normalizer", {"norm": "L2"}),
        ("Normalizer", {"norm": "MAX"}),
        ("LinearRegressor", {"coefficients": [0.1, 0.2, 0.3, 1.0, 2.0, 3.0], "intercepts": [0.5, 0.25], "targets": 2}),
        ("FeatureVectorizer", {"inputdimensions": [3]}),
        ("ArrayFeatureExtractor", {}),
    ],
)
def test_features_of_tables(op, attrs, agree, rng):
    x = drawn(rng, {"x": (5, 3)})["x"]
    x[1, 1] = np.nan if op == "Imputer" else x[1, 1]
    x = np.arange(15).reshape(5, 3) % 4 if "imputed_value_int64s" in attrs else x
    constants = {"i": np.array([2, 0])} if op == "ArrayFeatureExtractor" else {}
    agree(op, "x i".removesuffix("" if constants else " i"), {"x": x}, constants, domain="ai.onnx.ml", **attrs)


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
        ("QLinearAveragePool", (2, 5, 7, 6), 0, {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}),
        ("QLinearAveragePool", (2, 7, 6, 5), 0, {"kernel_shape": [3, 3], "pads": [1] * 4, "channels_last": 1, "count_include_pad": 1}),
        ("QLinearAveragePool", (1, 2, 5, 4, 3), 0, {"kernel_shape": [3, 2, 2]}),
        ("QLinearSoftmax", (2, 5, 7), 1, {"axis": 1, "opset": 13}),
        ("QLinearSoftmax", (2, 5, 7), 1, {"axis": 1, "opset": 11}),
    ],
)  # fmt: skip
def test_pools_and_softmax_of_integers(op, shape, steps, attrs, dtype, agree, rng):
    """Pools to the bit. Floats below 8 are 2^-9 off in float16, shares of them 2^-10 and their own rounding: less than a step of 2^-8."""
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


@pytest.mark.parametrize(("each", "direction"), [(False, "forward"), (True, "bidirectional")])
def test_an_lstm_of_integers(each, direction, agree, rng):
    count, hidden = 2 if direction == "bidirectional" else 1, 5
    shape = (count, 4 * hidden) if each else (count,)
    constants = {"w": whole(rng, I8, count, 3, 4 * hidden), "r": whole(rng, I8, count, hidden, 4 * hidden)}
    constants |= drawn(rng, {"b": (count, 8 * hidden), "p": (count, 3 * hidden)})
    constants |= {f"s_{name}": rng.uniform(0.003, 0.006, shape).astype(F32) for name in "wr"}
    constants |= {f"z_{name}": np.zeros(shape, I8) if each else whole(rng, I8, *shape) // 8 for name in "wr"}
    feeds = drawn(rng, {"x": (4, 2, 3), "h": (count, 2, hidden)})
    order = "x w r b _ h _ p s_w z_w s_r z_r"
    attrs = {"hidden_size": hidden, "direction": direction}
    limits = {"fp32": 1e-4, "fp16": 2e-2}
    agree("DynamicQuantizeLSTM", order, feeds, constants, ["y", "last", "cell"], tolerance=limits, **attrs)


@pytest.mark.parametrize("past", [0, 2])
def test_attention_of_integers(past, agree, rng):
    constants = {
        "w": whole(rng, I8, 8, 24),
        "b": drawn(rng, {"b": 24})["b"],
        "s_x": np.array(0.02, F32),
        "z_x": np.array(120, U8),
    }
    constants |= {"s_w": rng.uniform(0.005, 0.01, 24).astype(F32), "z_w": np.zeros(24, I8)}
    feeds = {"x": whole(rng, U8, 2, 5, 8)}
    if past:
        constants["past"] = drawn(rng, {"past": (2, 2, 2, past, 4)})["past"]
    else:
        feeds["mask"] = np.array([4, 5, 0, 2], I32)
    order = "x w b s_x s_w mask z_x z_w past"
    outputs = ["y", "present"] if past else ["y"]
    agree("QAttention", order, feeds, constants, outputs, num_heads=2, unidirectional=int(past > 0))


@pytest.mark.parametrize(
    ("kind", "bits", "shape", "axis", "attrs"),
    [
        ("uint4", 4, (6, 40), 1, {}),
        ("int4", 4, (40, 6), 0, {"gather_axis": 1}),
        ("uint8", 4, (6, 20), 1, {}),
        ("uint8", 8, (6, 40), -1, {}),
    ],
)
@pytest.mark.parametrize("with_zeros", [False, True])
def test_rows_of_a_table_of_few_bits(kind, bits, shape, axis, attrs, with_zeros, agree, rng):
    per_byte = 8 // bits if kind == "uint8" else 1
    dtype = U8 if kind == "uint8" else np.dtype(getattr(ml_dtypes, kind))
    low, high = (-8, 8) if kind == "int4" else (0, 256 if kind == "uint8" else 16)
    blocks = [3 if place == axis % 2 else size for place, size in enumerate(shape)]
    zeros_shape = [*blocks[:-1], -(-blocks[-1] // per_byte)]
    constants = {"t": rng.integers(low, high, shape).astype(dtype), "s": rng.uniform(0.01, 0.1, blocks).astype(F32)}
    if with_zeros:
        constants["z"] = rng.integers(low, high, zeros_shape).astype(dtype)
    feeds = {"i": np.array([[0, -1, 5], [7, 2, -7]], np.int64)}
    attrs = attrs | {"quantize_axis": axis, "block_size": 16} | ({"bits": bits} if kind == "uint8" else {})
    agree("GatherBlockQuantized", "t i s z", feeds, constants, **attrs)


@pytest.mark.parametrize(("width", "mode"), [(12, "nearest"), (32, "linear")])
def test_channels_in_blocks(width, mode, make_model, oracle, rng, tmp_path):
    """Of the machine that runs the test, as onnxruntime's optimiser writes them."""
    shapes = {
        "w": (width, 3, 3, 3),
        "d": (width, 1, 3, 3),
        "p": (24, width, 1, 1),
        "q": (width, 24, 1, 1),
        "o": (width, width, 1, 1),
    }
    constants = {name: array / 8 for name, array in drawn(rng, shapes).items()} | {
        "b": drawn(rng, {"b": 24})["b"],
        "size": np.array([1, 1, 2, 2], F32),
    }
    nodes = [
        ("Conv", ["x", "w"], ["c"], {"pads": [1] * 4}),
        ("Relu", ["c"], ["r"], {}),
        ("MaxPool", ["r"], ["m"], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Conv", ["m", "d"], ["e"], {"group": width, "pads": [1] * 4}),
        ("Conv", ["e", "p", "b"], ["f"], {}),
        ("Conv", ["f", "q"], ["h"], {}),
        ("GlobalAveragePool", ["h"], ["means"], {}),
        ("Conv", ["means", "o"], ["gates"], {}),
        ("Sigmoid", ["gates"], ["gate"], {}),
        ("Mul", ["h", "gate"], ["i"], {}),
        ("Add", ["i", "e"], ["a"], {}),
        (
            "Resize",
            ["a", "", "size"],
            ["u"],
            {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        ),
        ("GlobalAveragePool", ["u"], ["g"], {}),
    ]
    feeds = drawn(rng, {"x": (1, 3, 10, 8)})
    model = make_model(nodes, feeds, ["u", "g"], constants)
    expected = oracle(model, feeds)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "optimised.onnx"), 4
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = run_reference(load(tmp_path / "optimised.onnx", precision="fp32"), feeds)
    for name, want in expected.items():
        np.testing.assert_allclose(found[name], want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize(
    ("padded", "channels", "block"), [(24, 24, 8), (16, 8, 16), (16, 12, 0), (64, 64, 0), (24, 8, 0)]
)
def test_the_block_of_channels_follows_from_those_that_are_filled_up(padded, channels, block, monkeypatch):
    domain = {"domain": channel_blocks.DOMAIN}
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], "n", **domain), helper.make_node("Sigmoid", ["c"], ["s"])]
    nodes.append(helper.make_node("ReorderOutput", ["s"], ["y"], channels=channels, **domain))
    weights = helper.make_tensor("w", TensorProto.FLOAT, [padded, 3, 1, 1], np.zeros(3 * padded, F32))
    graph = helper.make_graph(nodes, "g", [], [], [weights])
    assert channel_blocks.stated_block(graph) == block
    monkeypatch.setattr(channel_blocks, "machines_block", lambda: 8)
    marked = channel_blocks.mark_blocks(helper.make_model(graph))
    assert channel_blocks.mark_blocks(marked) is marked
    assert marked.graph.node[0].attribute[0].i == (block or 8)
    note = "node n: channels are taken for blocks of 8, as onnxruntime has them on this machine"
    assert channel_blocks.guess_of(marked.graph) == ([] if block else [note])
