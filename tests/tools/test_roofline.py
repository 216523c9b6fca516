"""npu roofline: operations and bytes that were executed, roofs per type, ridge, bound and idle; pictures."""

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from npu_model.profile import load_profile

import libnpu
from libnpu.blob import verify
from libnpu.blob.shave_tasks import INVOCATIONS, ShaveTasks
from libnpu.tools import session, values, work
from libnpu.tools.scalar_add import scalar_add
from libnpu.tools.source import read_blob
from libnpu.tools.svg import Axis, Picture


def answer(npu, *arguments):
    status, out, err = npu("roofline", *arguments, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


@pytest.fixture(scope="module")
def vadd(npu):
    return answer(npu, "--op", "vadd", "--size", "65536")


def test_b12_r009_adding_fp32_vectors_does_one_operation_per_12_bytes(vadd):
    assert (vadd["whole"]["flop"], vadd["whole"]["ddr_bytes"]) == (65536, 12 * 65536)
    assert vadd["whole"]["intensity"] == vadd["ideal_intensity"] == 1 / 12


def test_r021_idle_is_what_is_missing_to_the_ridge(vadd):
    assert vadd["whole"]["bound"] == "memory"
    assert vadd["ridge"] == vadd["roofs"][vadd["type"]] / vadd["memory_bytes_per_second"]
    assert vadd["whole"]["idle"] == pytest.approx(1 - (1 / 12) / vadd["ridge"], rel=1e-12)


def test_r012_each_type_has_a_roof_of_twice_its_macs(vadd):
    dpu = load_profile("npu-37xx").dpu
    assert vadd["roofs"]["i8"] == 2 * vadd["roofs"]["f16"] == 2 * 2 * 1024 * 2 * dpu.clock_hz
    assert vadd["memory_bytes_per_second"] == 27 * 10**9


def test_b13_r010_the_table_has_170_67(npu):
    status, out, _ = npu("roofline", "--op", "matmul", "--mnk", "1024")
    assert (status, "170.67 if all moved once" in out) == (0, True)


@pytest.mark.parametrize(
    ("size", "ideal"),
    [
        ("1024", 1024 / 6),
        ("64,3072,768", 29.0),
        ("64,64,64", 64 / 6),
    ],  # B13; B14: a layer of BERT, its products of 64 rows
)
def test_b13_b14_ideal_intensities_of_matrix_products(npu, size, ideal):
    found = answer(npu, "--op", "matmul", "--size", size)
    assert found["ideal_intensity"] == pytest.approx(ideal, rel=0.001)
    assert found["whole"]["intensity"] <= found["ideal_intensity"]
    m, n, k = map(int, size.split(",")) if "," in size else (int(size),) * 3
    assert found["whole"]["flop"] == 2 * m * n * k


def test_b14_softmax_does_about_one_operation_per_byte(npu):
    assert answer(npu, "--op", "softmax", "--size", "96,64")["whole"]["intensity"] < 10


def test_r008_operations_of_the_tasks_are_those_that_the_device_counted(blob_path):
    data, image = read_blob(blob_path)
    seen = session.execute(data, image, "npu-37xx", lambda tensors: values.random_inputs(tensors, 0), compute=False)
    done = work.operations(image, load_profile("npu-37xx"))
    tasks = ShaveTasks(image, load_profile("npu-37xx"))
    moved = sum(tasks.run(n).lane_moves for n in range(len(image.tasks[INVOCATIONS])))
    assert moved > 0
    assert sum(flop for flop, kind in done.values() if kind == work.VECTOR) == seen.counters["SHAVE_LANE_OPS"] - moved
    assert sum(flop for flop, kind in done.values() if kind != work.VECTOR) == 2 * seen.counters["DPU_MACS"]
    layers = work.by_layer(image, done, seen.slices)
    assert sum(layer.flop for layer in layers) == sum(flop for flop, _ in done.values())
    assert sum(layer.ddr_bytes for layer in layers) == seen.counters["DMA_DDR_READ"] + seen.counters["DMA_DDR_WRITE"]


def test_r007_the_picture_has_a_curve_for_each_roof_and_a_point_for_each_layer(npu, blob_path, tmp_path):
    svg, page = tmp_path / "r.svg", tmp_path / "r.html"
    found = answer(npu, blob_path, "--svg", svg, "--html", page)
    root = ElementTree.fromstring(svg.read_text())
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}polyline")) == len(set(found["roofs"].values()))
    drawn = [p for p in found["layers"] if p["flop"] and p["ddr_bytes"]]
    assert len(root.findall(f"{space}circle")) == len(drawn) + 1
    html = page.read_text()
    assert svg.read_text() in html
    assert html.count("<tr>") == len(found["layers"]) + 2
    assert "src=" not in html and "href=" not in html  # one file


BERT = ("--model", "bert-layer", "--seq", "64", "--dtype", "fp32")


@pytest.mark.slow
def test_b14_r011_r022_intensities_of_the_operations_of_a_bert_layer(npu):
    """Hidden 768, 64 rows: the feed-forward network is at 29, a head's products at 10.7, what normalises rows below 2."""
    found = answer(npu, *BERT)
    alone = {one["name"]: one for one in found["operations"]}
    for name in ("ffn_up_product", "ffn_down_product"):
        assert alone[name]["flop"] == 2 * 64 * 768 * 3072
        assert alone[name]["intensity"] == pytest.approx(29.0, rel=0.01)
    for name in ("q_product", "k_product", "v_product", "projection_product"):
        assert alone[name]["flop"] == 2 * 64 * 768**2
        assert (
            alone[name]["ideal_bytes"] == 4 * (2 * 64 * 768 + 768**2) + 16 * 768
        )  # a bias is an entry of the weight table
    for name in ("scores", "context"):
        assert alone[name]["ideal_intensity"] == pytest.approx(64 / 6, rel=1e-12)
    assert 0.5 < alone["softmax"]["intensity"] <= alone["softmax"]["ideal_intensity"] < 2
    assert all(one["intensity"] <= one["ideal_intensity"] for one in found["operations"])
    assert sum(one["flop"] for one in found["operations"]) == pytest.approx(found["whole"]["flop"], rel=0.01)


@pytest.mark.slow
def test_b14_a_projection_of_one_token_does_half_an_operation_per_byte(npu):
    found = answer(npu, "--model", "bert-layer", "--seq", "1")
    (one,) = [one for one in found["operations"] if one["name"] == "q_product"]
    assert one["intensity"] == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize(
    ("op", "dtype", "load_bytes"),
    [("vadd-scalar", "fp32", 4), ("vadd-scalar", "fp16", 2), ("softmax", "fp32", 16)],  # 16: four lanes of 32 bits
)
def test_b19_r019_a_line_for_each_load_counts_64_bytes_for_what_the_load_is(npu, op, dtype, load_bytes):
    status, out, err = npu("roofline", "--op", op, "--dtype", dtype, "--bytes", "cacheline", "--json")
    found = json.loads(out)
    counted, whole = found["accesses"], found["whole"]
    assert status == 0
    assert counted["over_count"] == 64 / load_bytes
    assert counted["bytes"] == load_bytes * (counted["loads"] + counted["stores"])
    assert whole["line_bytes"] == 64 * (counted["loads"] + counted["stores"])
    assert whole["intensity"] == whole["flop"] / whole["line_bytes"]
    assert whole["ddr_bytes"] == pytest.approx(counted["bytes"], rel=0.02)  # and arguments
    assert err.startswith(f"npu: warning: --bytes cacheline over-counts {64 / load_bytes:.2f} times: each of ")


def test_r019_both_counts_are_in_the_table_and_what_has_no_loads_is_said_to_have_none(npu):
    status, out, _ = npu("roofline", "--op", "vadd-scalar", "--bytes", "cacheline")
    assert status == 0
    for words in ("between device and DDR", "(loads + stores) x 64", "8192, 4096", "4 bytes each"):
        assert words in out
    status, _, err = npu("roofline", "--op", "vadd", "--size", "4096", "--bytes", "cacheline")  # the DPU's
    assert (status, "counts nothing: there is no load and no store" in err) == (0, True)


def test_the_scalar_program_is_a_correct_blob_and_adds():
    profile = load_profile("npu-37xx")
    data, image = scalar_add(profile, 100, "fp32")
    assert verify(image, profile) == []
    a, b = np.arange(100, dtype=np.float32), np.full(100, 0.5, np.float32)
    with libnpu.open("npu-37xx") as device, device.load(data) as blob:
        np.testing.assert_array_equal(blob.run({"a": a, "b": b})["y"], a + b)


def test_r007_a_run_that_was_kept_is_shown_again_and_beside_a_later_one(npu, blob_path, tmp_path):
    kept, later = tmp_path / "run.json", answer(npu, "--op", "vadd", "--size", "4096")
    kept.write_text(json.dumps(later))
    assert answer(npu, kept) == later
    svg = tmp_path / "o.svg"
    found = answer(npu, blob_path, "--before", kept, "--svg", svg)
    assert found["before"] == later
    root = ElementTree.fromstring(svg.read_text())
    large = [c for c in root.findall("{http://www.w3.org/2000/svg}circle") if c.get("r") == "6"]
    assert [c[0].text for c in large] == ["small", "before: vadd fp32"]
    status, out, _ = npu("roofline", blob_path, "--before", kept)
    assert (status, "before, and now" in out) == (0, True)


def test_what_does_not_fit_a_run_that_was_kept_is_named(npu, tmp_path):
    kept, other = tmp_path / "run.json", tmp_path / "other.json"
    kept.write_text(json.dumps(answer(npu, "--op", "vadd", "--size", "4096")))
    other.write_text('{"name": "x"}')
    for arguments, message in (
        ([kept, "--profile", "npu-40xx"], f"--profile: {kept} is a run that was kept"),
        ([kept, "--bytes", "cacheline"], f"--bytes cacheline: {kept} was kept without it"),
        ([kept, "--svg", kept], f"--svg {kept}: is the same file as the model"),
        (["--op", "vadd", "--profile", "npu-40xx", "--before", kept], "is of npu-37xx, and this run of npu-40xx"),
        ([other], f"{other}: not what npu roofline --json wrote: 'profile' is missing"),
    ):
        status, _, err = npu("roofline", *arguments)
        assert (status, message in err) == (1, True), err


def test_places_on_a_logarithmic_axis():
    axis = Axis("x", 0.1, 1000.0, log=True)
    assert [axis.place(v) for v in (0.01, 0.1, 10, 1000, 1e9)] == pytest.approx([0, 0, 0.5, 1, 1])
    assert axis.ticks() == pytest.approx([0.1, 1, 10, 100, 1000])
    plot = Picture("a < b & c", axis, Axis("y", 0.0, 1.0))
    plot.point("<p>", 1, 0.5, large=True)
    assert ElementTree.fromstring(plot.text()) is not None


def test_the_table_names_ridge_and_bound(npu):
    status, out, _ = npu("roofline", "--op", "vadd", "--size", "4096", "--dtype", "fp16")
    assert status == 0
    for words in ("ridge, FLOP/B", "bound by", "memory", "engines idle, at best", "1 - intensity / ridge"):
        assert words in out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 1, "give a model or a blob, an operation with --op, or a model by name with --model"),
        (["x.onnx", "--op", "vadd"], 1, "give a model or a blob, an operation with --op"),
        (["--op", "vadd", "--model", "bert-layer"], 1, "give a model or a blob, an operation with --op"),
        (["x.onnx", "--size", "4"], 1, "--size is of --op"),
        (["x.onnx", "--dtype", "fp32"], 1, "--dtype is of --op and --model"),
        (["--op", "matmul", "--seq", "4"], 1, "--seq is of --model"),
        (["--model", "bert-layer", "--seq", "5000"], 1, "--seq 5000: a sequence has 1 to 4096 rows"),
        (["--model", "gpt"], 2, "invalid choice: 'gpt'"),
        (["--op", "vadd-scalar", "--size", "9000"], 1, "--size 9000: vadd-scalar takes 1 to 8192 elements"),
        (["--op", "vadd-scalar", "--size", "9,9"], 1, "--size 9,9: vadd-scalar is one program, of N elements"),
        (["--op", "vadd-scalar", "--operations"], 1, "--operations: vadd-scalar is one program"),
        (["--op", "vadd", "--bytes", "lines"], 2, "invalid choice: 'lines'"),
        (["--op", "matmul", "--size", "1,2"], 1, "--size 1,2: expected N or M,N,K for matmul"),
        (["--op", "vadd", "--size", "0"], 2, "expected a number, 1 or more"),
        (["--op", "vadd", "--size", str(1 << 40)], 1, f"a tensor of {1 << 40} elements"),
        (["--op", "fft"], 2, "invalid choice: 'fft'"),
    ],
)
def test_wrong_arguments_are_named(npu, arguments, status, message):
    found, out, err = npu("roofline", *arguments)
    assert (found, out) == (status, "")
    assert message in err


@pytest.fixture(scope="module")
def resnet(npu):
    return answer(npu, "--model", "resnet50-shape", "--profile", "aie-like")


@pytest.mark.slow
def test_b10_r002_resnet_50_in_int8_does_171_to_223_operations_a_byte_and_stays_below_40_percent_of_30e12(resnet):
    assert resnet["type"] == "i8"
    assert resnet["roofs"]["i8"] == 30 * 10**12
    assert resnet["whole"]["flop"] == pytest.approx(8.18e9, rel=0.01)
    assert 171 <= resnet["whole"]["intensity"] <= 223
    assert resnet["utilisation"] == resnet["whole"]["flop_per_second"] / 30e12
    assert 0 < resnet["utilisation"] < min(0.40, resnet["whole"]["intensity"] / resnet["ridge"])


@pytest.mark.slow
def test_a_model_of_shapes_takes_a_type(npu):
    half = answer(npu, "--model", "resnet50-shape", "--profile", "aie-like", "--dtype", "fp16")
    assert (half["type"], half["roofs"]["f16"]) == ("f16", 15 * 10**12)


def test_a_model_of_shapes_has_one_length_and_types_of_its_own(npu):
    for arguments, message in (
        (("--model", "resnet50-shape", "--seq", "4"), "--seq: resnet50-shape has one length and no weights"),
        (("--model", "bert-layer", "--dtype", "int8"), "--dtype int8 is of --model resnet50-shape, llama7b-shape"),
    ):
        status, _, err = npu("roofline", *arguments)
        assert status == 2 or status == 1
        assert message in err
