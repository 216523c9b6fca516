"""Rows on the blob: what is in it, how it gets into the device, and what happens when it is not right."""

import json
import subprocess
from pathlib import Path

import npu_abi
import numpy as np
import onnx
import pytest
from npu_abi import C

import libnpu
from libnpu import blob
from libnpu.syscalls import Node

VALUES = np.arange(1024).astype(np.uint8)


def test_one_flat_list_names_every_task_once_and_one_submit_runs_it(npu, npu_json, chain_blob):
    """E006: no layer boundary, no loop, one doorbell."""
    status, out, _ = npu("objdump", chain_blob, "--tasks", "--check-flat")
    assert status == 0
    assert " tasks in 4 lists, each once" in out
    assert npu_json("run", chain_blob, "--no-compute")["submits"] == 1
    fields = {f for s in blob.TASK_SECTIONS.values() for f in npu_abi.dtype(s).names}
    assert not [f for f in fields if "loop" in f or "branch" in f or "jump" in f]


@pytest.mark.slow
def test_thirty_two_transformer_layers_are_one_flat_list(npu, npu_json, maker, tmp_path):
    """E006: hundreds of tasks of all three engines, one submit."""
    make, last = maker(), "x"
    for n in range(32):
        for name in ("q", "k", "v", "o"):
            make.weights(f"{name}w{n}", 16, 16)
        for name in ("q", "k", "v"):
            make.node("MatMul", [last, f"{name}w{n}"], f"{name}{n}")
        make.node("Transpose", [f"k{n}"], f"t{n}", perm=[1, 0])
        make.node("MatMul", [f"q{n}", f"t{n}"], f"s{n}")
        make.node("Softmax", [f"s{n}"], f"p{n}", axis=-1)
        make.node("MatMul", [f"p{n}", f"v{n}"], f"a{n}")
        make.node("MatMul", [f"a{n}", f"ow{n}"], f"o{n}")
        last = make.node("Add", [last, f"o{n}"], f"r{n}")
    onnx.save(make.model({"x": [16, 16]}, {last: [16, 16]}, "layers"), tmp_path / "m32.onnx")
    target = tmp_path / "m32.blob"
    tasks = npu_json("compile", tmp_path / "m32.onnx", "-o", target)["tasks"]
    assert min(tasks.values()) >= 32 and sum(tasks.values()) >= 400
    status, out, _ = npu("objdump", target, "--check-flat")
    assert (status, out) == (0, f"{target}: flat, {sum(tasks.values())} tasks in 4 lists, each once\n")
    report = npu_json("run", target, "--no-compute")
    assert (report["submits"], report["counters"]["TASKS"]) == (1, sum(tasks.values()))


def test_a_list_that_names_a_task_twice_is_not_flat(npu, tmp_path, copy_blob):
    """E006."""
    path = tmp_path / "twice.blob"
    path.write_bytes(copy_blob(("task_id=1", "task_id=0")))
    status, out, err = npu("objdump", path, "--check-flat")
    assert status == 1
    assert ".npu.tasks.dma0[1]: task 0 is .npu.tasks.dma0[0] too (flat)" in out
    assert err.count("\n") == 1


def test_the_bytes_of_a_loaded_blob_are_at_the_device_addresses_of_its_relocations(monkeypatch):
    """E008: loading allocates objects that the device's MMU maps, copies into them and applies relocations."""
    text = """
blob "constants" abi=1.0
profile "npu-37xx"
resources tiles=1 cmx_bytes=64 barriers=1 scratch_bytes=0 macs=0
output "y" u8 [64]
section .npu.tasks.dma0
  0: transaction_src=@.data.weights+0x40 transaction_dst=0x2e000000 {0} barriers_post_mask=0x1 sched_start_after=none
  1: transaction_src=0x2e000000 transaction_dst=@"out:y" {0} barriers_wait_mask=0x1 sched_start_after=none task_id=1
section .npu.barriers
  0: next_same_id=none producer_count=1 consumer_count=1
""".format("transaction_length=64 transaction_num_planes=1 transaction_src_width=64 transaction_dst_width=64")
    image = blob.assemble(text)
    image.weights = bytes(range(128))
    created = []
    original = Node.ioctl

    def ioctl(node, request, segments=()):
        answer = original(node, request, segments)
        if request.name.startswith("BO_CREATE"):
            created.append((request.arg.npu_va, request.arg.size))
        return answer

    monkeypatch.setattr(Node, "ioctl", ioctl)
    with libnpu.open() as device:
        loaded = device.load(blob.write(image))
        assert [va % 4096 for va, _ in created] == [0] * len(created)
        assert len(created) >= 2  # constants, task lists
        assert loaded.run({})["y"].tolist() == list(range(64, 128))


def test_an_access_to_what_is_not_mapped_faults(copy_blob):
    """E008."""
    with libnpu.open() as device:
        bad = device.load(copy_blob(('@"in:x"', '@"in:x"+0x1000000')))
        with pytest.raises(libnpu.NpuError, match="NPU_JOB_CTX_VIOLATION, address") as caught:
            bad.run({"x": VALUES})
    assert caught.value.result == C.NPU_ERROR_DEVICE_PAGE_FAULT


def test_objdump_shows_the_mapped_inference_whose_structure_is_in_the_header(npu, npu_json, chain_blob):
    """E009."""
    found = npu_json("objdump", chain_blob, "--mapped-inference")["mapped_inference"]
    fields = {*npu_abi.dtype("npu_mapped_inference").names}
    assert {"api_version", "tile_count", "barrier_count"} < fields
    assert {f"{name}_va" for name in found if name not in ("api_version", "tile_count", "barrier_count")} < fields
    assert found["invariants"] > 0 and found["barrier_configs"] > 0
    status, out, _ = npu("objdump", chain_blob, "--mapped-inference")
    assert status == 0
    assert "MappedInference: tiles 2" in out


@pytest.mark.parametrize(
    ("field", "value"), [("api_version", 0x00020000), ("tile_count", 3), ("barrier_count", 65), ("reserved0", 1)]
)
def test_the_firmware_refuses_a_mapped_inference_with_a_wrong_field(monkeypatch, copy_blob, field, value):
    """E009: the loader placed a good one; a program that overwrites a field in device memory is told which job failed."""
    from libnpu.runtime.buffer_object import BufferObject

    places = []
    original = BufferObject.__init__

    def init(self, *arguments):
        original(self, *arguments)
        places.append(self)

    with libnpu.open() as device:
        monkeypatch.setattr(BufferObject, "__init__", init)
        loaded = device.load(copy_blob())
        monkeypatch.undo()
        layout = npu_abi.offsetof("npu_mapped_inference", field)
        pattern = C.NPU_MI_API_VERSION.to_bytes(4, "little") + (1).to_bytes(4, "little") * 2
        (found,) = [(bo, at) for bo in places if (at := bytes(bo.view).find(pattern)) >= 0]
        bo, at = found
        bo.view[at + layout : at + layout + 4] = value.to_bytes(4, "little")
        with pytest.raises(libnpu.NpuError) as caught:
            loaded.run({"x": VALUES})
        assert "NPU_JOB_" in str(caught.value)
        assert caught.value.result != C.NPU_ERROR_INTERNAL
        assert device.load(copy_blob()).run({"x": VALUES})["y"].tolist() == VALUES.tolist()


def test_the_text_of_a_blob_makes_the_same_bytes(npu, npu_json, chain_blob):
    """E014."""
    _, text, _ = npu("objdump", chain_blob, "--text")
    assert blob.write(blob.assemble(text)) == Path(chain_blob).read_bytes()
    task = npu_json("objdump", chain_blob, "--tasks")["tasks"][".npu.tasks.dma0"][0]
    assert {"transaction_src", "transaction_dst", "barriers_wait_mask", "barriers_post_mask", "sched_start_after"} < {
        *task
    }


def test_readelf_lists_the_sections_and_warns_of_nothing(chain_blob):
    """E015."""
    found = subprocess.run(["readelf", "-aW", chain_blob], capture_output=True, text=True, check=True)
    assert found.stderr == ""
    for section in (".text.shave", ".data.weights", ".npu.tasks.dma0", ".npu.tasks.dpu_invariant", ".npu.barriers"):
        assert f" {section} " in found.stdout
    assert "Warning" not in found.stdout
    assert "MappedInference" in found.stdout


def test_an_invariant_has_several_variants_that_cover_its_output(npu, npu_json, maker, tmp_path):
    """E042."""
    blob, model, make = tmp_path / "wide.blob", tmp_path / "wide.onnx", maker()
    make.node("Conv", ["x", make.weights("w", 400, 16, 1, 1)], "y")
    onnx.save(make.model({"x": [1, 16, 12, 12]}, {"y": [1, 400, 12, 12]}), model)
    assert npu("compile", model, "--tiles", "1", "-o", blob)[0] == 0
    status, out, _ = npu("objdump", blob, "--dpu")
    assert status == 0
    assert ", 2 variants" in out
    tasks = npu_json("objdump", blob)["tasks"]
    variants = tasks[".npu.tasks.dpu_variant"]
    counts = []
    for number, invariant in enumerate(tasks[".npu.tasks.dpu_invariant"]):
        mine = [v for v in variants if v["invariant_index"] == number]
        counts.append(len(mine))
        covered = sum(v["size_x"] * v["size_y"] * v["size_z"] for v in mine)
        assert covered == invariant["out_x"] * invariant["out_y"] * invariant["out_z"]
    assert max(counts) > 1


def test_the_shape_is_in_the_blob_and_another_one_is_refused(npu, npu_json, tmp_path, chain_blob):
    """E095: the shape is static; arrays of another one never reach the device."""
    assert npu_json("objdump", chain_blob)["inputs"][0]["shape"] == [1, 64, 12, 12]
    np.savez(tmp_path / "in.npz", x=np.zeros((1, 64, 12, 13), np.float32))
    status, _, err = npu("run", chain_blob, "--inputs", tmp_path / "in.npz")
    assert status == 1
    assert "'x' is float32 [1, 64, 12, 13]; the model expects float32 [1, 64, 12, 12]" in err
    with libnpu.open() as device:
        loaded = device.load(chain_blob)
        with pytest.raises(libnpu.NpuError, match=r"shape \(1, 64, 12, 13\), the blob expects \(1, 64, 12, 12\)"):
            loaded.run({"x": np.zeros((1, 64, 12, 13), np.float32)})
    assert npu("run", chain_blob, "--shape", "x=1,64,8,8")[0] == 1


def test_a_blob_is_immutable(npu, tmp_path, chain_blob):
    """E095: any changed byte of its content is noticed."""
    data = bytearray(Path(chain_blob).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "changed.blob").write_bytes(data)
    status, _, err = npu("run", tmp_path / "changed.blob")
    assert status == 1
    assert ".npu.digest" in err


def test_running_changes_neither_the_file_nor_its_result(npu_json, chain_blob):
    """E095."""
    before = Path(chain_blob).read_bytes()
    first, second = (json.dumps(npu_json("run", chain_blob, "--no-compute")) for _ in range(2))
    assert first == second
    assert Path(chain_blob).read_bytes() == before
