"""npu compile --plan-only, npu objdump --weights-by-layer, npu info --peak."""

import json

import pytest


@pytest.fixture(scope="module")
def plan_path(npu, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("plan") / "resnet.blob")
    assert npu("compile", "--model", "resnet50-shape", "--plan-only", "--precision", "int8", "-o", path) == (0, "", "")
    return path


def test_r001_the_peak_is_units_times_macs_times_two_times_clock(npu):
    status, out, err = npu("info", "--profile", "aie-like", "--peak", "--json")
    assert (status, err) == (0, "")
    peaks = json.loads(out)["operations_per_second"]
    assert (peaks["i8"], peaks["f16"]) == (30 * 10**12, 15 * 10**12)
    _, out, _ = npu("info", "--profile", "aie-like", "--peak")
    assert "1 x 12288 MAC x 2 x 1220703125 Hz" in out
    assert "--peak goes with --profile" in npu("info", "--peak")[2]


def test_the_weights_of_a_plan_have_a_size_by_layer_and_no_bytes(npu, plan_path):
    _, out, _ = npu("objdump", plan_path)
    assert "not in the file: a plan" in out
    _, out, _ = npu("objdump", plan_path, "--weights-by-layer")
    assert f"stage4.2/conv2 {9 * 512 * 512 + 16 * 512}" in " ".join(out.split())
    _, out, _ = npu("objdump", plan_path, "--weights-by-layer", "--depth", "1")
    assert "stage4.2/conv2" not in out
    assert "stage4.2" in out
    assert "--depth goes with --weights-by-layer" in npu("objdump", plan_path, "--depth", "1")[2]
    assert npu("objdump", plan_path, "--verify")[0] == 0


def test_a_plan_runs_for_its_time_alone(npu, plan_path):
    status, out, err = npu("roofline", plan_path, "--json")
    assert (status, err, json.loads(out)["type"]) == (0, "", "i8")
    status, _, err = npu("run", plan_path)
    assert (status, "is a plan" in err) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a model, or one by name with --model"),
        (("m.onnx", "--model", "resnet50-shape"), "give a model, or one by name with --model"),
        (("--model", "resnet50-shape"), "--model resnet50-shape: has no weights; give --plan-only"),
    ],
)
def test_a_model_by_name_is_for_plans(npu, arguments, message):
    status, _, err = npu("compile", *arguments)
    assert status
    assert message in err


def test_int8_is_for_plans(npu, model_path):
    status, _, err = npu("compile", model_path, "--shape", "x=1,3,8,8", "--precision", "int8")
    assert status
    assert "precision 'int8' needs plan_only" in err
