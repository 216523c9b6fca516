"""npu objdump: every part of a blob is shown; the text form makes the same file again."""

import json

import pytest

from libnpu import blob
from libnpu.tools import cmx_map


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ((), ["npu-37xx", "f32 [1, 3, 8, 8]", ".npu.mapped_inference", "MappedInference"]),
        (("--sections",), [".npu.digest", ".data.weights", "no bytes in the file"]),
        (("--tasks",), [".npu.tasks.dma0", "transaction_length=", "kernel_x=3", '@"in:x"']),
        (("--barriers",), ["virtual barriers", "producers", "physical ids"]),
        (("--mapped",), ["dma_tasks_0", "barrier_configs"]),
        (("--shave",), ["program 0", "halt"]),
        (("--cmx",), ["CMX of tile 0", "task 0", "buffers"]),
        (("--all",), ["program 0", "CMX of tile 0", "virtual barriers"]),
    ],
)
def test_parts(npu, blob_path, option, words):
    status, out, err = npu("objdump", blob_path, *option)
    assert (status, err) == (0, "")
    assert [word for word in words if word not in out] == []


def test_text_makes_the_same_file(npu, blob_path):
    _, out, _ = npu("objdump", blob_path, "--text")
    with open(blob_path, "rb") as file:
        assert blob.write(blob.assemble(out)) == file.read()


def test_json_has_every_task(npu, blob_path):
    found = json.loads(npu("objdump", blob_path, "--json", "--verify")[1])
    assert found["problems"] == []
    with open(blob_path, "rb") as file:
        image = blob.read(file.read())
    assert {name: len(rows) for name, rows in found["tasks"].items()} == {n: len(a) for n, a in image.tasks.items()}
    assert found["inputs"] == [{"name": "x", "dtype": "f32", "shape": [1, 3, 8, 8], "bytes": 768}]


def test_a_broken_rule_is_printed_and_fails(npu, tmp_path, blob_path):
    with open(blob_path, "rb") as file:
        image = blob.read(file.read())
    image.tasks[".npu.tasks.dpu_invariant"]["tile"] = 3
    path = tmp_path / "broken.blob"
    path.write_bytes(blob.write(image))
    status, out, err = npu("objdump", path, "--verify")
    assert status == 1
    assert "tile 3; expected below 2 (tile)" in out
    assert err.startswith("npu: error: ")


def test_a_missing_wait_is_named_with_both_tasks_and_the_edge(npu, tmp_path, model_path):
    blob_path = tmp_path / "right.blob"
    assert npu("compile", model_path, "--shape", "x=1,3,8,8", "--tiles", "1", "-O1", "-o", blob_path)[0] == 0
    assert npu("objdump", blob_path, "--verify")[0] == 0
    with open(blob_path, "rb") as file:
        image = blob.read(file.read())
    invariant = image.tasks[".npu.tasks.dpu_invariant"]
    assert invariant["barriers_wait_mask"] == 2
    invariant["barriers_wait_mask"] = 0
    image.tasks[".npu.barriers"]["consumer_count"][1] -= 1
    path = tmp_path / "race.blob"
    path.write_bytes(blob.write(image))
    status, out, err = npu("objdump", path, "--verify")
    assert status == 1
    assert ".npu.tasks.dpu_invariant[0]: nothing orders it after .npu.tasks.dma1[0]" in out
    assert "let it wait for virtual barrier 1 (id 1), which the other posts (missing-barrier)" in out
    assert err.startswith("npu: error: ")
    status, out, _ = npu("objdump", path, "--verify", "--json")
    assert status == 1
    problems = json.loads(out)["problems"]
    (problem,) = (p for p in problems if p["where"] == ".npu.tasks.dpu_invariant[0]" and "other" in p)
    assert {"rule", "kind", "where", "message", "other", "place", "first", "past"} == {*problem}
    assert (problem["kind"], problem["other"]) == ("missing barrier", ".npu.tasks.dma1[0]")


def test_the_cmx_map_draws_addresses_down_and_tasks_across():
    found = [
        cmx_map.Stay("a", 0, 0, 50, 0, 3),
        cmx_map.Stay("b", 0, 50, 50, 2, 5),
    ]
    assert cmx_map.draw(found, 100, columns=6, rows=2)[:2] == ["0x0000000 AAAA..", "0x0000032 ..BBBB"]
