"""npu roofline: operations and bytes that were executed, roofs per type, ridge, bound and idle; pictures."""

import json
import xml.etree.ElementTree as ElementTree

import pytest
from npu_model.profile import load_profile

from libnpu.tools import session, values, work
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
    assert sum(flop for flop, kind in done.values() if kind == work.VECTOR) == seen.counters["SHAVE_LANE_OPS"]
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
        ([], 1, "give a model or a blob, or an operation with --op"),
        (["x.onnx", "--op", "vadd"], 1, "give a model or a blob, or an operation with --op"),
        (["x.onnx", "--size", "4"], 1, "--size and --dtype are of --op"),
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
