"""npu explain npu-vs-gpu: three blocks with figures of a model that runs as one blob and as a launch for each operation."""

import json

import pytest

ONE, EACH, BETWEEN = "one blob", "a launch each", "a launch each, host in between"


@pytest.fixture(scope="module")
def explained(npu, model_path):
    status, out, err = npu("explain", "npu-vs-gpu", model_path, "--shape", "x=1,3,8,8", "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def figures(explained, block):
    return {what: dict(zip(explained["ways"], row, strict=True)) for what, row in explained[block]["figures"].items()}


def test_e086_the_host_interacts_once_or_for_each_operation(explained):
    found = figures(explained, "scheduling")
    launches = found["launches"]
    assert launches[ONE] == 1 < launches[EACH] == launches[BETWEEN]
    assert found["doorbells"] == found["interrupts"] == launches
    busy, wall = found["host busy, ps"], found["first launch to wake-up, ps"]
    assert busy[ONE] < busy[EACH] < busy[BETWEEN]
    assert wall[ONE] < wall[EACH] < wall[BETWEEN]
    core = found["management core busy, ps"]
    assert 0 < core[ONE] < core[EACH]


def test_e086_results_that_stay_in_the_scratchpad_do_not_move(explained):
    moved = figures(explained, "memory hierarchy")["between device and DDR, bytes"]
    assert moved[ONE] < moved[EACH] == moved[BETWEEN]


def test_e086_what_the_host_hands_over(explained):
    found = figures(explained, "programming interface")
    count = figures(explained, "scheduling")["launches"][EACH]
    assert found["files to load"] == {ONE: 1, EACH: count, BETWEEN: count}
    assert found["calls for an inference"] == {ONE: 2, EACH: count + 1, BETWEEN: 2 * count}
    assert explained["vocabulary"]["terms"]["management core"]["word"] == "warp scheduler"


@pytest.mark.slow
def test_e086_three_blocks_are_printed_without_a_model_of_ones_own(npu):
    status, out, err = npu("explain", "npu-vs-gpu")
    assert (status, err) == (0, "")
    for block in ("scheduling", "memory hierarchy", "programming interface"):
        assert f"\n{block}: bert-layer on npu-37xx" in out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "the following arguments are required: topic"),
        (["tpu"], 2, "invalid choice: 'tpu'"),
        (["npu-vs-gpu", "{blob}"], 1, "is a blob already; expected an ONNX model"),
    ],
)
def test_wrong_arguments_are_named(npu, blob_path, arguments, status, message):
    found, out, err = npu("explain", *(word.format(blob=blob_path) for word in arguments))
    assert (found, out) == (status, "")
    assert message in err


@pytest.mark.parametrize(
    ("arguments", "path", "scores"),
    [
        (["--phase", "decode", "--cap", "no"], "decompose", "else they go to DDR and come back"),
        (["--phase", "decode"], "incremental", "scores never leave the registers of a SHAVE"),
        ([], "flash", "scores never leave CMX"),
        (["--long", "no"], "decompose", "in CMX where they fit"),
    ],
)
def test_e040_attention_by_phase_and_capability(npu, arguments, path, scores):
    status, out, err = npu("explain", "attention", *arguments)
    assert (status, err) == (0, "")
    assert f": {path}" in out.splitlines()[0]
    assert scores in out
    status, out, _ = npu("explain", "attention", *arguments, "--json")
    assert (status, json.loads(out)["path"]) == (0, path)


def test_options_of_attention_are_refused_elsewhere_and_a_model_there(npu, model_path):
    assert npu("explain", "npu-vs-gpu", "--phase", "decode")[2] == "npu: error: --phase: is of the topic attention\n"
    assert "attention: takes no model" in npu("explain", "attention", model_path)[2]
