"""Rows on the compiler that are a command or an option: operators, levels, single passes, weights in their file, two ways compared, a run step by step."""

import re

import numpy as np
import onnx
import pytest
from npu_model.profile import load_profile
from onnx import TensorProto, helper, numpy_helper

from libnpu.compiler.layouts import LAYOUTS, layout_of

CHAIN_WEIGHTS = 6 * 64 * 64 * 9 * 2  # bytes of all weights of the chain
CHAIN_VALUE = 64 * 12 * 12 * 2  # bytes of a value between its layers


def test_every_operator_of_onnx_is_listed_with_what_becomes_of_it(npu, npu_json):
    """E073."""
    found = {(row["domain"], row["name"]): row["way"] for row in npu_json("compile", "--list-ops")}
    standard = {s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}
    assert standard <= {name for domain, name in found if not domain}
    ways = {"Conv": "handler", "RMSNormalization": "body", "Shape": "folded", "Loop": "unrolled", "NonZero": "host"}
    assert {name: found["", name] for name in ways} == ways
    assert found["com.microsoft", "MatMulNBits"] == "handler"
    assert re.search(r"ai.onnx +Softmax +NPU", npu("compile", "--list-ops")[1])


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (b'<?xml version="1.0"?><net/>', "OpenVINO IR"),
        (b"\x1c\0\0\0TFL3\0", "TensorFlow Lite"),
        (b"\x89HDF", "Keras"),
    ],
)
def test_files_of_other_formats_are_named(npu, tmp_path, start, name):
    """E076."""
    path = tmp_path / "m.xml"
    path.write_bytes(start)
    for command in ("compile", "mem-analyze"):
        status, out, err = npu(command, path)
        assert (status, out) == (1, "")
        assert "UNSUPPORTED_FORMAT" in err and name in err


def test_the_decomposed_attention_is_five_operations_with_their_engines(npu, models):
    """E028: the scale is the PPE's."""
    status, out, _ = npu("compile", models["attention"], "--attention", "decompose", "--dump-ir", "-o", "/dev/null")
    assert status == 0
    lines = [line for line in out.splitlines() if re.search(r"MatMul|scale 0|= add|Softmax", line)]
    tags = [re.match(r"\[(.*?)\]", line)[1].split()[:2] for line in lines]
    assert [" ".join(tag) for tag in tags[:-1]] == ["DPU", "DPU PPE", "DPU", "SHAVE"]
    assert tags[-1][0] == "DPU"


def test_the_regions_of_vertical_fusion_are_smaller_in_a_small_cmx(npu, models):
    """E047, E050."""

    def regions(*options):
        out = npu("compile", models["chain"], "--dump-pass", "PipeliningVFScheduling", "-o", "/dev/null", *options)[1]
        return [len(line.split(", ")) for line in out.splitlines() if line.startswith("region: ")]

    whole = regions()
    assert whole == [7]
    assert max(regions("--cmx", "24K", "--tiles", "1"), default=0) < 7


def test_bytes_of_each_tensor_in_ddr_are_what_the_device_counts(npu_json, models):
    """E033."""
    report = npu_json("run", models["attention"], "--bytes-per-tensor", "--no-cmx-residency")
    lines = [
        re.fullmatch(r"(\w+ [\w.]+): (\d+) bytes read, (\d+) written", line) for line in report["bytes_per_tensor"]
    ]
    found = {line[1]: (int(line[2]), int(line[3])) for line in lines}
    assert found["scratch scaled"] == found["scratch p"] == (2048, 2048)  # scores, probabilities
    assert sum(read for read, _ in found.values()) == report["counters"]["DMA_DDR_READ"]
    assert sum(written for _, written in found.values()) == report["counters"]["DMA_DDR_WRITE"]


def test_what_is_handed_on_in_cmx_saves_twice_its_bytes(npu_json, models, tmp_path):
    """E048, E050: and no launch, as one blob is one launch either way. What a side-car says of it does not count."""
    car = tmp_path / "car.json"
    car.write_text('{"cmx_residency": false}')
    found = npu_json("compare", "--vf", "on,off", models["chain"], "--side-car", car)
    assert found["saved"] == [{"against": "off", "launches": 0, "ddr_bytes": 2 * 7 * CHAIN_VALUE}]
    assert len(found["between"]) == 7
    assert found["max_abs_diff"] == {"r5": 0.0}


def test_resident_weights_cross_once_for_many_inferences(npu, npu_json, models):
    """E005: of the small CMX they come in each inference, of one with room for all they stay."""
    found = npu_json("compare", "--mode", "streaming,resident", models["chain"], "--cmx", "192K", "-O1")
    streaming, resident = (run["ddr_bytes"] for run in found["runs"])
    assert (
        resident == 2 * 2 * CHAIN_VALUE + 1024
    )  # input and output, twice as wide; arguments of SHAVE tasks, as measured
    assert streaming - resident >= CHAIN_WEIGHTS
    assert found["max_abs_diff"] == {"r5": 0.0}


def test_a_model_whose_weights_do_not_stay_has_no_resident_baseline(npu, maker, tmp_path):
    """E005."""
    make = maker()
    make.weights("w", 2048, 2048)
    make.node("MatMul", ["x", "w"], "y")
    onnx.save(make.model({"x": [1, 2048]}, {"y": [1, 2048]}), tmp_path / "big.onnx")
    status, _, err = npu("compare", "--mode", "streaming,resident", tmp_path / "big.onnx", "-O1")
    assert status == 1
    assert re.search(r"--mode resident: \d+ bytes of weights", err)


def test_exported_weights_are_aligned(npu, npu_json, models, tmp_path):
    """R044, R045, R098, R099."""
    target = tmp_path / "aligned.onnx"
    before = npu_json("mem-analyze", models["attention"])
    assert before["unaligned_share"] > 0
    assert npu("export", models["attention"], "--align", "128", "-o", target)[0] == 0
    after = npu_json("mem-analyze", target)
    assert (len(after["weights"]), after["unaligned"]) == (len(before["weights"]), 0)
    data = (tmp_path / "aligned.onnx.data").read_bytes()
    (mask,) = (w for w in after["weights"] if w["name"] == "mask")
    model = onnx.load(models["attention"])
    (wanted,) = (numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "mask")
    assert data[mask["offset"] :][: mask["size_bytes"]] == wanted.tobytes()
    (old,) = (w for w in before["weights"] if w["name"] == "mask")
    with open(models["attention"], "rb") as file:
        file.seek(old["offset"])
        assert file.read(old["size_bytes"]) == wanted.tobytes()
    status, out, _ = npu("run", target, "--check")
    assert status == 0 and ": passed" in out


@pytest.fixture
def loop_path(tmp_path):
    """A loop of three steps, in which a product does not change; beside it a sum of constants and a node that nobody needs."""
    vi = helper.make_tensor_value_info
    matrix = ("FLOAT", [8, 8])
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["a", "w"], ["product"]),
            helper.make_node("Relu", ["product"], ["positive"]),
            helper.make_node("Add", ["s", "positive"], ["s2"]),
            helper.make_node("Identity", ["c"], ["c2"]),
        ],
        "body",
        [vi(n, getattr(TensorProto, t), s) for n, t, s in (("i", "INT64", []), ("c", "BOOL", []), ("s", *matrix))],
        [vi("c2", TensorProto.BOOL, []), vi("s2", TensorProto.FLOAT, [8, 8])],
        [numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")],
    )
    nodes = [
        helper.make_node("Loop", ["n", "t", "x"], ["sum"], body=body),
        helper.make_node("Neg", ["x"], ["dead"]),
        helper.make_node("Add", ["k1", "k2"], ["k"]),
        helper.make_node("Mul", ["sum", "k"], ["y"]),
    ]
    constants = {"n": np.array(3), "t": np.array(True), "k1": np.float32(2), "k2": np.float32(3)}
    ends = ([vi(n, TensorProto.FLOAT, [8, 8]) for n in names] for names in ("xa", "y"))
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "loop", *ends, tensors), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(model, tmp_path / "loop.onnx")
    return tmp_path / "loop.onnx"


def test_single_passes_fold_hoist_and_leave_out(npu, loop_path):
    """N009."""
    plain = npu("opt", loop_path)[1]
    assert [plain.count(word) for word in ("MatMul(", "neg(")] == [3, 1]
    assert [npu("opt", loop_path, "--licm")[1].count(word) for word in ("MatMul(", "relu(", "neg(")] == [1, 1, 1]
    status, out, _ = npu("opt", loop_path, "--dce", "--fold", "--licm")
    assert status == 0
    assert [out.count(word) for word in ("MatMul(", "relu(", "neg(", "add(")] == [1, 1, 0, 3]
    assert npu("run", loop_path, "--check")[0] == 0


def test_five_levels_lead_to_a_blob(npu, loop_path, tmp_path):
    """N011, N018: and it is the blob of npu compile."""
    target, other = tmp_path / "l.blob", tmp_path / "c.blob"
    assert npu("opt", loop_path, "--dump-all", tmp_path, "--npu-lower", "-o", target) == (0, "", "")
    files = sorted(tmp_path.glob("[1-5]-*.txt"))
    assert [file.stem for file in files] == ["1-semantics", "2-data-flow", "3-loops", "4-memory", "5-instructions"]
    starts = ("graph loop", "graph loop", "program loop", "schedule: ", 'blob "loop"')
    for file, start in zip(files, starts, strict=True):
        assert file.read_text().startswith(start), file
    assert npu("compile", loop_path, "-o", other)[0] == 0
    assert target.read_bytes() == other.read_bytes()


def test_a_run_step_by_step(npu, npu_json, chain_blob, tmp_path):
    """E019: what runs, which barriers have retired, serial and pipelined time."""
    trace = tmp_path / "t.json"
    assert npu("run", chain_blob, "--no-compute", "--trace", trace)[0] == 0
    first, later = (npu_json("timeline", trace, "--step", n) for n in (0, 20))
    assert (first["time_ps"], first["done"], first["barriers_retired"]) == (0, 0, 0)
    assert first["running"] and later["done"] > 0 and later["barriers_retired"] > 0
    last = npu_json("timeline", trace, "--step", first["steps"])
    assert (last["time_ps"], last["done"], last["running"]) == (last["pipelined_ps"], last["tasks"], [])
    assert last["speed_up"] > 1
    status, out, _ = npu("timeline", trace, "--step", 20)
    assert status == 0
    assert re.search(r"^DPU 0 +\|.*[=:].*\|$", out, re.M) and re.search(r"serial .*, pipelined .* times as fast", out)
    status, _, err = npu("timeline", trace, "--step", 10_000)
    assert status == 1 and f"steps 0 to {first['steps']}" in err


def test_a_blocked_layout_wastes_less_of_bursts_and_changes_no_value(npu, models, tmp_path):
    """R029, K045: the matrix engine takes what the inverse gives back."""
    x = np.random.default_rng(3).standard_normal((1, 64, 12, 12)).astype(np.float32)
    found, waste = {}, {}
    for name in LAYOUTS:
        layout = layout_of(name, load_profile("npu-37xx"))
        given = layout.pack(x) if layout else x
        np.savez(tmp_path / "x.npz", x=given)
        command = ("compile", models["chain"], "--layout", name, "--cmx", "64K", "--tiles", "1", "-O1")
        status, out, _ = npu(*command, "--dump-pass", "bursts", "-o", tmp_path / "m.blob")
        assert status == 0
        waste[name] = float(re.search(r"^input x: .* waste ([\d.]+)%$", out, re.M)[1])
        files = ("--inputs", tmp_path / "x.npz", "--outputs", tmp_path / "y.npz")
        assert npu("run", tmp_path / "m.blob", *files)[0] == 0
        with np.load(tmp_path / "y.npz") as file:
            found[name] = layout.unpack(file["r5"], 64, 12) if layout else file["r5"]
        if layout:
            np.testing.assert_array_equal(layout.unpack(given, 64, 12), x)
    assert waste["nchw"] > 40 and waste["nchw4"] == waste["nc1hwc0"] == 0
    for name in LAYOUTS[1:]:
        np.testing.assert_array_equal(found[name], found["nchw"])
    assert layout_of("nchw4", load_profile("npu-37xx")).pack(x[:, :3, :, :5]).shape == (1, 1, 12, 8, 4)


def test_a_side_car_changes_times_and_no_value(npu, npu_json, models, tmp_path):
    """E074: the command line counts."""
    car = tmp_path / "car.json"
    car.write_text('{"cmx_bytes": 98304, "pingpong": false, "tiles": 1, "optimisation": 1}')
    plain, small = (npu_json("run", models["attention"], "-O1", *more) for more in ((), ("--side-car", car)))
    assert small["latency_ps"] > plain["latency_ps"]
    assert small["outputs"] == plain["outputs"]
    assert npu_json("run", models["attention"], "--side-car", car, "--tiles", "2")["latency_ps"] != small["latency_ps"]
    car.write_text('{"precision": "fp32"}')
    status, _, err = npu("run", models["attention"], "--side-car", car)
    assert status == 1 and "'precision': 'fp32'; it may have tiles (int)" in err


def test_tiles_of_shaves_have_their_elements_in_one_run(npu, maker, tmp_path):
    """E046: along rows by choice; along columns DMA, or the program, brings the elements together."""
    make = maker()
    make.node("Softmax", ["x"], "y", axis=-1)
    onnx.save(make.model({"x": [256, 128]}, {"y": [256, 128]}), tmp_path / "m.onnx")
    out = npu(
        "compile", tmp_path / "m.onnx", "-o", "/dev/null", "--cmx", "64K", "--dump-pass", "TileActShaveKernelTask"
    )[1]
    assert {int(n) for n in re.findall(r"strided (\d+)", out)} == {0}
    assert out.count("strided 0") > 4


def test_another_batch_is_refused_and_compiles_to_another_blob(npu, npu_json, tmp_path, model_of_batch):
    """E066."""
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 8), np.float32))
    blobs = []
    for batch in (1, 2):
        blobs.append(tmp_path / f"{batch}.blob")
        assert npu("compile", model_of_batch, "--shape", f"x={batch},8", "-o", blobs[-1])[0] == 0
    status, _, err = npu("run", blobs[0], "--inputs", tmp_path / "x.npz")
    assert status == 1 and "SHAPE_MISMATCH" in err
    assert npu("run", blobs[1], "--inputs", tmp_path / "x.npz")[0] == 0


@pytest.fixture
def model_of_batch(tmp_path):
    """A model whose batch is open."""
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 8]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_projection_rotation_and_attention_are_a_region(npu, tmp_path):
    """E047, E049: what rotates reads what the projection wrote, and attention what was rotated, where it lies in CMX."""
    rng = np.random.default_rng(6)
    weights = {f"w{n}": rng.standard_normal((32, 32)).astype(np.float32) / 6 for n in "qkv"}
    tables = {n: rng.standard_normal((16, 8)).astype(np.float32) for n in ("cos", "sin")}
    nodes = [helper.make_node("MatMul", ["x", f"w{n}"], [f"{n}_rows"], name=n) for n in "qkv"]
    for n in "qk":
        attrs = {"num_heads": 2, "name": f"{n}_rope"}
        nodes.append(helper.make_node("RotaryEmbedding", [f"{n}_rows", "cos", "sin", "ids"], [f"{n}_turned"], **attrs))
    nodes.append(
        helper.make_node(
            "Attention", ["q_turned", "k_turned", "v_rows"], ["y"], name="sdpa", q_num_heads=2, kv_num_heads=2
        )
    )
    ends = ([helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 16, 32])] for n in "xy")
    tensors = [numpy_helper.from_array(a, n) for n, a in (weights | tables | {"ids": np.arange(16)[None]}).items()]
    model = helper.make_model(
        helper.make_graph(nodes, "g", *ends, tensors), opset_imports=[helper.make_opsetid("", 23)], ir_version=10
    )
    onnx.save(model, tmp_path / "m.onnx")
    out = npu(
        "compile", tmp_path / "m.onnx", "-O1", "--dump-pass", "PipeliningVFScheduling", "-o", tmp_path / "m.blob"
    )[1]
    (region,) = re.findall(r"^region: (.*): \d+ bytes", out, re.M)
    assert {name.split("/")[0] for name in region.split(", ")} == {"x", *"qkv", "q_rope", "k_rope", "sdpa"}
    for maker, reader in (("q", "q_rope"), ("q_rope", "sdpa"), ("k_rope", "sdpa"), ("v", "sdpa")):
        assert re.search(rf"^  {maker}\b(/\w+)? -> {reader}/", out, re.M), (maker, reader)
