"""Attention and rotary embedding of com.microsoft and of onnx, through the front end and by every path, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from libnpu.compiler import CompileOptions, compile_model
from libnpu.compiler.frontend import load
from libnpu.errors import Unimplemented

MS = {"domain": "com.microsoft"}


def f32(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def make_model(make_model):
    """Return as the fixture that it stands for, with float as the type of outputs that no schema knows."""

    def make(*arguments):
        model = make_model(*arguments)
        for output in model.graph.output:
            if not output.type.tensor_type.elem_type:
                output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        return model

    return make


@pytest.fixture
def agree(make_model, oracle, check, run_on_device):
    """Return agree(nodes, feeds, outputs, constants): the front end is right in both policies, the device by all paths."""

    def compare(nodes, feeds, outputs=("y",), constants=None, opset=17):
        expected = oracle(make_model(nodes, feeds, outputs, constants, opset), feeds)
        graph = check(nodes, feeds, outputs, constants, opset, expected=expected)
        model = make_model(nodes, feeds, outputs, constants, opset)
        for path in ("flash", "incremental"):
            found = run_on_device(model, feeds, attention=path)
            for name in outputs:
                np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=3e-5)
        return graph

    return compare


@pytest.fixture(scope="module")
def run_on_device():
    import libnpu

    with libnpu.open("npu-37xx") as device:

        def run(model, feeds, **options):
            compiled = compile_model(model, CompileOptions(precision="fp32", **options))
            assert [choice["path"] for choice in compiled.report.get("attention", [])] in ([], [options["attention"]])
            with device.load(compiled.blob) as module:
                return module.run(feeds)

        yield run


@pytest.mark.parametrize("mask", ["none", "keys", "lengths", "causal", "bias"])
def test_multi_head_attention(mask, agree):
    feeds = {"q": f32(1, 2, 5, 12), "k": f32(2, 2, 7, 12), "v": f32(3, 2, 7, 12)}
    names, attrs = ["q", "k", "v", "", "", ""], {"num_heads": 3, **MS}
    if mask == "keys":
        feeds["m"], names[4] = np.array([[1, 1, 1, 1, 0, 0, 0], [1] * 6 + [0]], np.int32), "m"
    elif mask == "lengths":
        feeds["m"], names[4] = np.array([4, 7], np.int32), "m"
    elif mask == "bias":
        feeds["m"], names[5] = f32(4, 1, 3, 5, 7), "m"
    elif mask == "causal":
        feeds["k"], feeds["v"] = feeds["k"][:, :5], feeds["v"][:, :5]
        attrs["unidirectional"] = 1
    agree([("MultiHeadAttention", names, ["y"], attrs)], feeds)


def test_multi_head_attention_with_a_cache_and_a_bias(agree):
    feeds = {"q": f32(1, 1, 1, 8), "k": f32(2, 1, 1, 8), "v": f32(3, 1, 1, 8), "b": f32(4, 24)}
    feeds |= {"pk": f32(5, 1, 2, 6, 4), "pv": f32(6, 1, 2, 6, 4)}
    names = ["q", "k", "v", "b", "", "", "pk", "pv"]
    agree([("MultiHeadAttention", names, ["y", "nk", "nv"], {"num_heads": 2, **MS})], feeds, ("y", "nk", "nv"))


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_of_one_product(past, causal, agree):
    feeds = {"x": f32(1, 2, 4, 6)}
    constants = {"w": f32(2, 6, 24) / 2, "b": f32(3, 24)}
    names, outputs = ["x", "w", "b"], ["y"]
    if past:
        feeds["p"], names, outputs = f32(4, 2, 2, 2, 3, 4), [*names, "", "p"], ["y", "n"]
    attrs = {"num_heads": 2, "unidirectional": causal, **MS}
    agree([("Attention", names, outputs, attrs)], feeds, outputs, constants)


@pytest.mark.parametrize("rotary", ["no", "halves", "interleaved"])
@pytest.mark.parametrize("past", [0, 5])
def test_group_query_attention(rotary, past, agree):
    count, new = 4, 3
    feeds = {"q": f32(1, 1, new, count * 16), "k": f32(2, 1, new, 32), "v": f32(3, 1, new, 32)}
    feeds |= {"pk": f32(4, 1, 2, past, 16), "pv": f32(5, 1, 2, past, 16)} if past else {}
    constants = {"last": np.array([past + new - 1], np.int32), "total": np.array(past + new, np.int32)}
    names = ["q", "k", "v", "pk" if past else "", "pv" if past else "", "last", "total"]
    attrs = {"num_heads": count, "kv_num_heads": 2, "softcap": 5.0, **MS}
    if rotary != "no":
        angles = np.arange(16)[:, None] * 0.7 ** np.arange(8)
        constants |= {"c": np.cos(angles).astype(np.float32), "s": np.sin(angles).astype(np.float32)}
        names, attrs = [*names, "c", "s"], attrs | {"do_rotary": 1, "rotary_interleaved": int(rotary == "interleaved")}
    agree([("GroupQueryAttention", names, ["y", "nk", "nv"], attrs)], feeds, ("y", "nk", "nv"), constants)


def test_group_query_attention_sees_a_window_only(agree):
    feeds = {"q": f32(1, 1, 9, 16), "k": f32(2, 1, 9, 8), "v": f32(3, 1, 9, 8)}
    constants = {"last": np.array([8], np.int32), "total": np.array(9, np.int32)}
    attrs = {"num_heads": 2, "kv_num_heads": 1, "local_window_size": 4, **MS}
    names = ["q", "k", "v", "", "", "last", "total"]
    agree([("GroupQueryAttention", names, ["y", "nk", "nv"], attrs)], feeds, ("y", "nk", "nv"), constants)


@pytest.mark.parametrize("more", ["sink", "smooth", "norms", "both ways"])
def test_group_query_attention_with_what_newer_models_have(more, check, make_model, oracle):
    feeds = {"q": f32(1, 1, 5, 32), "k": f32(2, 1, 5, 16), "v": f32(3, 1, 5, 16)}
    constants = {"last": np.array([4], np.int32), "total": np.array(5, np.int32)}
    names, attrs = ["q", "k", "v", "", "", "last", "total", *[""] * 9], {"num_heads": 4, "kv_num_heads": 2, **MS}
    if more == "sink":
        constants["sink"], names[11] = f32(4, 4), "sink"
    elif more == "norms":
        constants |= {"qn": f32(5, 8), "kn": f32(6, 8)}
        names[14:], attrs["qk_norm_epsilon"] = ["qn", "kn"], 1e-3
    else:
        attrs |= {"smooth_softmax": 1} if more == "smooth" else {"causal": 0}
    outputs, expected = ("y", "nk", "nv"), None
    if more == "norms":  # which onnxruntime does not have on this processor
        plain = [("GroupQueryAttention", [*names[:7]], list(outputs), {"num_heads": 4, "kv_num_heads": 2, **MS})]
        normal = feeds | {name: by_head(feeds[name], constants[f"{name}n"]) for name in "qk"}
        expected = oracle(make_model(plain, normal, outputs, constants), normal)
    check([("GroupQueryAttention", names, list(outputs), attrs)], feeds, outputs, constants, expected=expected)


def by_head(x, weight):
    heads = x.reshape(*x.shape[:2], -1, len(weight))
    return (heads / np.sqrt(np.square(heads).mean(axis=-1, keepdims=True) + 1e-3) * weight).reshape(x.shape)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("positions", ["start", "each"])
def test_rotary_embedding_of_microsoft(interleaved, rank, positions, check):
    x = f32(1, 2, 5, 24) if rank == 3 else f32(1, 2, 3, 5, 8)
    ids = np.array([2]) if positions == "start" else np.array([[4, 0, 1, 2, 3], [9, 8, 7, 6, 5]])
    angles = np.arange(12)[:, None] * np.array([1.0, 0.3, 0.1, 0.03])
    constants = {"c": np.cos(angles).astype(np.float32), "s": np.sin(angles).astype(np.float32)}
    nodes = [("RotaryEmbedding", ["x", "p", "c", "s"], ["y"], {"interleaved": interleaved, **MS})]
    check(nodes, {"x": x, "p": ids}, constants=constants)


def test_a_cache_of_which_not_all_rows_count_is_refused(make_model):
    feeds = {"q": f32(1, 1, 1, 8), "k": f32(2, 1, 1, 8), "v": f32(3, 1, 1, 8), "pk": f32(4, 1, 1, 5, 8)}
    feeds["pv"] = f32(5, 1, 1, 5, 8)
    constants = {"last": np.array([3], np.int32), "total": np.array(4, np.int32)}
    names = ["q", "k", "v", "pk", "pv", "last", "total"]
    attrs = {"num_heads": 1, "kv_num_heads": 1, **MS}
    model = make_model([("GroupQueryAttention", names, ["y"], attrs)], feeds, ["y"], constants)
    with pytest.raises(Unimplemented, match="4 rows that count of 5 in the cache and 1 new ones"):
        load(model)


def angles(count, width, repeat):
    turns = np.arange(count)[:, None] * 0.7 ** np.arange(width)
    turns = {"halves": np.tile(turns, 2), "by turns": np.repeat(turns, 2, axis=1), "half": turns}[repeat]
    return {"c": np.cos(turns).astype(np.float32), "s": np.sin(turns).astype(np.float32)}


def halves(x):
    """Return the nodes of the usual spelling for pairs of halves."""
    return [
        ("Split", [x, "sizes"], ["first", "second"], {"axis": -1}),
        ("Neg", ["second"], ["minus"], {}),
        ("Concat", ["minus", "first"], ["turned"], {"axis": -1}),
        ("Mul", [x, "c"], ["straight"], {}),
        ("Mul", ["turned", "s"], ["across"], {}),
        ("Add", ["straight", "across"], ["y"], {}),
    ]


def by_turns(x):
    """Return the nodes of the usual spelling for pairs of neighbours."""
    bounds = {"e": ["zero", "end"], "o": ["one", "end"]}
    return [
        *(("Slice", [x, *bounds[n], "axis", "two"], [n], {}) for n in "eo"),
        ("Neg", ["o"], ["minus"], {}),
        ("Unsqueeze", ["minus", "axis"], ["minus_"], {}),
        ("Unsqueeze", ["e", "axis"], ["e_"], {}),
        ("Concat", ["minus_", "e_"], ["pairs"], {"axis": -1}),
        ("Reshape", ["pairs", "shape"], ["turned"], {}),
        ("Mul", [x, "c"], ["straight"], {}),
        ("Mul", ["turned", "s"], ["across"], {}),
        ("Add", ["straight", "across"], ["y"], {}),
    ]


def ops(graph):
    return [node.op for node in graph.nodes]


@pytest.mark.parametrize("layout", ["halves", "by turns"])
def test_e053_rope_is_one_node_and_one_task_a_core(layout, check, make_model, run_on_device):
    feeds = {"x": f32(1, 2, 3, 5, 8)}
    constants = angles(5, 4, layout)
    if layout == "halves":
        nodes, constants = halves("x"), constants | {"sizes": np.array([4, 4])}
    else:
        ends = {"zero": [0], "one": [1], "end": [8], "axis": [-1], "two": [2], "shape": [2, 3, 5, 8]}
        nodes, constants = by_turns("x"), constants | {k: np.array(v) for k, v in ends.items()}
    graph = check(nodes, feeds, constants=constants)
    assert ops(graph) == ["RoPE"]
    assert graph.nodes[0].attrs == {"interleaved": layout == "by turns"}
    found = run_on_device(make_model(nodes, feeds, ["y"], constants), feeds, attention="auto")
    x, c, s = feeds["x"].astype(np.float64), constants["c"], constants["s"]
    turned = np.concatenate([-x[..., 4:], x[..., :4]], axis=-1)
    if layout == "by turns":
        turned = np.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape)
    np.testing.assert_allclose(found["y"], x * c + turned * s, rtol=0, atol=1e-6)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_rotary_embedding_of_onnx_is_one_node(interleaved, precision, make_model):
    import libnpu

    feeds = {"x": f32(1, 2, 3, 5, 8), "p": np.array([[4, 0, 1, 2, 3], [9, 8, 7, 6, 5]])}
    constants = angles(12, 4, "half")
    nodes = [("RotaryEmbedding", ["x", "c", "s", "p"], ["y"], {"interleaved": interleaved})]
    model = make_model(nodes, feeds, ["y"], constants, 23)
    assert ops(load(model, precision=precision)).count("RoPE") == 1
    expected = ReferenceEvaluator(model).run(None, feeds)[0]
    with libnpu.open("npu-37xx") as device, device.load(compile_model(model, CompileOptions(precision)).blob) as module:
        found = module.run(feeds)["y"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 if precision == "fp32" else 5e-3)


def test_what_only_looks_like_rope_stays_as_it_is(check):
    nodes = [
        node if node[0] != "Concat" else ("Concat", ["first", "minus"], ["turned"], {"axis": -1})
        for node in halves("x")
    ]
    constants = angles(5, 4, "halves") | {"sizes": np.array([4, 4])}
    graph = check(nodes, {"x": f32(1, 2, 3, 5, 8)}, constants=constants)
    assert "RoPE" not in ops(graph)
