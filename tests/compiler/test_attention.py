"""Attention by its three paths, against NumPy in float64: values, tiles, masks, and what crosses to and from DDR."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import libnpu
from libnpu.compiler import CompileOptions, compile_model
from libnpu.compiler.attention import select_path
from libnpu.compiler.options import BadOption
from libnpu.errors import Unsupported

PATHS = ("decompose", "flash", "incremental")
TOLERANCE = {"fp32": 2e-6, "fp16": 4e-3}


def attention(q, k, v, mask=0.0, scale=None):
    """Return attention in float64; fewer heads of keys are shared by neighbours."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    with np.errstate(invalid="ignore"):
        scores = np.einsum("bhmd,bhsd->bhms", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale) + mask
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.einsum("bhms,bhse->bhme", weights / weights.sum(axis=-1, keepdims=True), v)


def model_of(nodes, feeds, outputs=("y",), constants=None, opset=23):
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", infos, [onnx.ValueInfoProto(name=name) for name in outputs], tensors)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def operator(feeds, **attributes):
    """Return a model of one Attention of onnx."""
    names = ["q", "k", "v", "mask" if "mask" in feeds else "", *[n for n in ("past_k", "past_v") if n in feeds]]
    outputs = ["y", "present_k", "present_v"] if "past_k" in feeds else ["y"]
    while not names[-1]:
        names.pop()
    return model_of([helper.make_node("Attention", names, outputs, **attributes)], feeds, outputs)


def heads(seed, batch, count, kv_count, queries, keys, size):
    rng = np.random.default_rng(seed)
    shapes = ((batch, count, queries, size), (batch, kv_count, keys, size), (batch, kv_count, keys, size))
    return {name: rng.standard_normal(shape, np.float32) for name, shape in zip("qkv", shapes, strict=True)}


@pytest.fixture(scope="module")
def device():
    with libnpu.open("npu-37xx") as opened:
        yield opened


@pytest.fixture
def run(device):
    def execute(model, feeds, path, precision="fp32", **options):
        compiled = compile_model(model, CompileOptions(precision=precision, attention=path, **options))
        with device.load(compiled.blob) as module:
            return module.run(feeds), compiled

    return execute


@pytest.mark.parametrize(
    ("phase_is_prefill", "is_long", "is_supported", "path"),
    [
        (True, True, True, "flash"),
        (True, True, False, "decompose"),
        (True, False, True, "decompose"),
        (True, False, False, "decompose"),
        (False, True, True, "incremental"),
        (False, False, True, "incremental"),
        (False, True, False, "decompose"),
        (False, False, False, "decompose"),
    ],
)
def test_e027_the_path_by_phase_length_and_what_the_kernel_can_do(phase_is_prefill, is_long, is_supported, path):
    assert select_path(phase_is_prefill, is_long, is_supported) == path


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("shape", "causal"),
    [((1, 2, 2, 24, 40, 16), 0), ((2, 4, 2, 20, 20, 8), 1), ((1, 4, 2, 1, 70, 16), 0)],
    ids=["prefill", "causal, shared heads", "decode, shared heads"],
)
def test_the_three_paths_give_the_same(run, shape, causal, path, precision):
    feeds = heads(1, *shape)
    queries, keys = shape[3:5]
    mask = np.where(np.tri(queries, keys, dtype=bool), 0.0, -np.inf) if causal else 0.0
    found, compiled = run(operator(feeds, is_causal=causal), feeds, path, precision)
    np.testing.assert_allclose(found["y"], attention(**feeds, mask=mask), rtol=0, atol=TOLERANCE[precision])
    assert [choice["path"] for choice in compiled.report["attention"]] == [path]


@pytest.mark.parametrize("path", ["flash", "incremental"])
def test_small_tiles_give_what_large_ones_give(run, path):
    feeds = heads(2, 1, 2, 1, 40, 150, 16)
    whole, _ = run(operator(feeds), feeds, path)
    cut, compiled = run(operator(feeds), feeds, path, cmx_bytes=48 << 10, tiles=1, dump=("UnrollFlashSDPA",))
    np.testing.assert_allclose(cut["y"], whole["y"], rtol=0, atol=1e-6)
    if path == "flash":
        assert ": 1 tile," not in compiled.report["dumps"]["UnrollFlashSDPA"]


@pytest.mark.parametrize("path", PATHS)
def test_e035_scores_of_ten_thousand_stay_finite(run, path):
    rng = np.random.default_rng(3)
    feeds = {name: rng.integers(-8, 9, (1, 1, 12, 16)).astype(np.float32) for name in "qkv"}
    feeds["q"] *= 40.0
    feeds["k"] *= 10.0
    scores = feeds["q"] @ feeds["k"].swapaxes(-1, -2)
    assert np.abs(scores).max() > 1e4 * 4
    for precision in ("fp32", "fp16"):
        found, _ = run(operator(feeds, scale=0.25), feeds, path, precision)
        assert np.isfinite(found["y"]).all()
        np.testing.assert_allclose(found["y"], attention(**feeds, scale=0.25), rtol=0, atol=1e-2)


MASKS = {
    "boolean": lambda rng: rng.random((9, 21)) < 0.6,
    "additive": lambda rng: rng.standard_normal((1, 1, 9, 21), np.float32),
    "by head": lambda rng: np.where(rng.random((1, 4, 9, 21)) < 0.5, np.float32(-np.inf), np.float32(0)),
    "by key": lambda rng: np.where(np.arange(21) < 13, np.float32(0), np.float32(-1e9)).reshape(1, 1, 1, 21),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("constant", [False, True])
def test_masks(run, path, kind, constant):
    feeds = heads(4, 1, 4, 2, 9, 21, 8)
    mask = MASKS[kind](np.random.default_rng(5))
    mask[..., 0] = True if mask.dtype == bool else 0.0
    nodes = [helper.make_node("Attention", ["q", "k", "v", "mask"], ["y"], softcap=3.0)]
    if constant:
        model = model_of(nodes, feeds, constants={"mask": mask})
    else:
        model = model_of(nodes, {**feeds, "mask": mask})
    found, _ = run(model, feeds if constant else {**feeds, "mask": mask}, path)
    q, k, v = feeds["q"].astype(np.float64), *(np.repeat(feeds[n], 2, axis=1).astype(np.float64) for n in "kv")
    scores = 3.0 * np.tanh(q @ k.swapaxes(-1, -2) * 8**-0.5 / 3.0)
    scores = scores + (np.where(mask, 0.0, -np.inf) if mask.dtype == bool else mask)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(found["y"], weights / weights.sum(axis=-1, keepdims=True) @ v, rtol=0, atol=2e-6)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("constant", [False, True])
def test_a_row_that_is_masked_as_a_whole_is_zero_as_onnx_says(run, path, constant):
    feeds = heads(6, 1, 1, 1, 6, 10, 8)
    mask = np.ones((6, 10), bool)
    mask[2], mask[4, 5:] = False, False
    nodes = [helper.make_node("Attention", ["q", "k", "v", "mask"], ["y"])]
    model = model_of(nodes, feeds, constants={"mask": mask}) if constant else model_of(nodes, {**feeds, "mask": mask})
    found, _ = run(model, feeds if constant else {**feeds, "mask": mask}, path)
    reference = ReferenceEvaluator(model).run(None, feeds if constant else {**feeds, "mask": mask})[0]
    np.testing.assert_array_equal(found["y"][0, 0, 2], np.zeros(8))
    np.testing.assert_allclose(found["y"], reference, rtol=0, atol=1e-6)


@pytest.mark.parametrize("path", PATHS)
def test_a_plain_softmax_of_nothing_but_minus_infinity_is_not_a_number(run, path):
    feeds = {**heads(7, 1, 1, 1, 5, 9, 8), "mask": np.zeros((5, 9), np.float32)}
    feeds["mask"][3] = -np.inf
    found, _ = run(spelled(feeds), feeds, path)
    assert np.isnan(found["y"][0, 0, 3]).all()
    assert np.isfinite(np.delete(found["y"], 3, axis=2)).all()


def spelled(feeds):
    """Return a model that spells attention as exporters do."""
    nodes = [
        helper.make_node("Transpose", ["k"], ["columns"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "columns"], ["product"]),
        helper.make_node("Mul", ["product", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "mask"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["y"]),
    ]
    return model_of(nodes, feeds, constants={"scale": np.float32(8**-0.5)}, opset=17)


@pytest.mark.parametrize("path", PATHS)
def test_keys_of_a_cache_are_read_where_they_are(run, path):
    feeds = heads(8, 1, 2, 2, 1, 1, 8)
    past = heads(9, 1, 2, 2, 1, 33, 8)
    feeds |= {"past_k": past["k"], "past_v": past["v"]}
    found, _ = run(operator(feeds), feeds, path)
    k, v = (np.concatenate([feeds[f"past_{name}"], feeds[name]], axis=2) for name in "kv")
    np.testing.assert_allclose(found["y"], attention(feeds["q"], k, v), rtol=0, atol=2e-6)
    np.testing.assert_array_equal(found["present_k"], k)


@pytest.mark.parametrize(("past", "tasks"), [(70, 8 + 2), (2, 2)], ids=["of many keys", "of few keys"])
def test_heads_of_few_keys_share_transfers_and_tasks(run, past, tasks):
    """The new rows of all heads come at once, and one task of each batch index takes those of four heads; so it does with few keys."""
    feeds, cache = heads(13, 2, 4, 4, 1, 1, 8), heads(14, 2, 4, 4, 1, past, 8)
    feeds |= {"past_k": cache["k"], "past_v": cache["v"]}
    found, compiled = run(operator(feeds), feeds, "incremental", dump=("schedule",))
    k, v = (np.concatenate([feeds[f"past_{name}"], feeds[name]], axis=2) for name in "kv")
    np.testing.assert_allclose(found["y"], attention(feeds["q"], k, v), rtol=0, atol=2e-6)
    assert len(compiled.image.tasks[".npu.tasks.shave_invocation"]) == tasks
    loads = [name for name in names_of(compiled) if ".load.keys" in name]
    assert len(loads) == 2  # of the cache, which is small too, and of the new rows


def names_of(compiled):
    return [line.split()[3] for line in compiled.report["dumps"]["schedule"].splitlines()[1:]]


def test_e033_e034_flash_has_no_scores_in_ddr_and_decompose_has(run):
    feeds = heads(10, 1, 1, 1, 192, 192, 16)
    moved = {}
    for path in ("decompose", "flash"):
        found, compiled = run(operator(feeds), feeds, path, cmx_bytes=128 << 10, tiles=1, dump=("bytes-per-tensor",))
        np.testing.assert_allclose(found["y"], attention(**feeds), rtol=0, atol=2e-6)
        lines = compiled.report["dumps"]["bytes-per-tensor"].splitlines()
        scratch = [line.split(": ") for line in lines if line.startswith("scratch")]
        moved[path] = {name.split()[1]: int(text.split()[0]) for name, text in scratch}
    scores = 192 * 192 * 4
    assert moved["decompose"]["QKAttnWeight"] == moved["decompose"]["AttnWeightSoftmax"] == scores
    assert sum(moved["flash"].values()) < scores / 2
    assert not any("Attn" in name for name in moved["flash"])


def test_e038_the_cycles_of_incremental_attention_grow_with_the_keys(run):
    busy = []
    for keys in (512, 1024, 2048):
        feeds = heads(11, 1, 1, 1, 1, keys, 32)
        _, compiled = run(operator(feeds), feeds, "incremental")
        busy.append(compiled.report["predicted_busy_ps"]["shave"])
    assert (busy[2] - busy[1]) / (busy[1] - busy[0]) == pytest.approx(2, rel=0.1)


def test_a_causal_mask_halves_the_work_of_flash():
    feeds = heads(12, 1, 1, 1, 256, 256, 16)
    shaves = {}
    for causal in (0, 1):
        options = CompileOptions(attention="flash", cmx_bytes=150 << 10, tiles=1)
        report = compile_model(operator(feeds, is_causal=causal), options).report
        shaves[causal] = report["predicted_busy_ps"]["shave"]
    assert shaves[1] < 0.75 * shaves[0]


def test_auto_says_what_it_chose_and_why():
    long = compile_model(operator(heads(13, 1, 2, 2, 128, 128, 16)), CompileOptions(cmx_bytes=128 << 10, tiles=1))
    (choice,) = long.report["attention"]
    assert (choice["path"], choice["reason"]) == (
        "flash",
        "prefill of 128 queries, 65536 bytes of scores do not live in 131072 bytes of CMX",
    )
    short = compile_model(operator(heads(13, 1, 2, 2, 16, 16, 16)), CompileOptions(dump=("SelectAttentionPath",)))
    assert short.report["attention"][0]["path"] == "decompose"
    assert short.report["dumps"]["SelectAttentionPath"].splitlines()[1:] == [
        "  QK^T: DPU",
        "  scale: DPU PPE",
        "  mask: DPU or SHAVE",
        "  softmax: SHAVE",
        "  PV: DPU",
    ]
    decode = compile_model(operator(heads(13, 1, 2, 2, 1, 16, 16)), CompileOptions())
    assert decode.report["attention"][0] == {
        "layer": "Attention_1/Softmax_58",
        "path": "incremental",
        "reason": "decode of one query",
    }


def test_e036_e037_the_tile_follows_the_room_in_cmx():
    keys = []
    for room in (128 << 10, 64 << 10):
        feeds = heads(14, 1, 1, 1, 16, 1024, 32)
        options = CompileOptions(attention="flash", cmx_bytes=room, tiles=1, dump=("UnrollFlashSDPA",))
        lines = compile_model(operator(feeds), options).report["dumps"]["UnrollFlashSDPA"].splitlines()
        count = int(lines[0].split(": ")[2].split()[0])
        tile = int(lines[1].split("keys 0:")[1].split(",")[0])
        assert count == -(-1024 // tile)
        keys.append(tile)
    assert keys[1] <= keys[0] / 2


def test_a_path_that_does_not_exist_or_cannot_be_gone_is_refused():
    with pytest.raises(BadOption, match="attention 'fast'; one of auto, decompose, flash, incremental"):
        CompileOptions(attention="fast")
    feeds = heads(15, 1, 1, 1, 2, 2, 20000)
    with pytest.raises(Unsupported, match="heads of 20000 elements, of which a SHAVE's register holds 16384"):
        compile_model(operator(feeds), CompileOptions(attention="flash"))
    assert compile_model(operator(feeds), CompileOptions()).report["attention"][0]["path"] == "decompose"


def test_what_something_else_reads_stays_as_it_is():
    feeds = {**heads(16, 1, 1, 1, 5, 9, 8), "mask": np.zeros((5, 9), np.float32)}
    model = spelled(feeds)
    model.graph.output.append(helper.make_tensor_value_info("weights", onnx.TensorProto.FLOAT, (1, 1, 5, 9)))
    assert "attention" not in compile_model(model, CompileOptions(attention="flash")).report
