"""Rows on the compiler: CMX as a scratchpad, prefetch, spilling, tiling, and which engine does what."""

import json
import re

import numpy as np
import onnx
import pytest
from npu_abi import C
from npu_model.profile import load_profile

import libnpu
from libnpu import blob

PROFILE = load_profile("npu-37xx")


@pytest.fixture
def compiled(npu, tmp_path):
    """Return a function that compiles a model or a path: (path of the blob, its JSON)."""

    def make(model, *options):
        path = model
        if not isinstance(model, str):
            path = tmp_path / "model.onnx"
            onnx.save(model, path)
        target = tmp_path / "model.blob"
        status, _, err = npu("compile", path, "-o", target, *options)
        assert status == 0, err
        return target, json.loads(npu("objdump", target, "--json")[1])

    return make


def layers(dump, section):
    """Return the records of a task list by the layer that they belong to."""
    names = dump["debug"]["tasks"]
    found = {}
    for task in dump["tasks"].get(section, []):
        found.setdefault(names[task["task_id"]]["layer"], []).append(task)
    return found


INVARIANTS, SHAVES = ".npu.tasks.dpu_invariant", ".npu.tasks.shave_invocation"


def test_an_operation_that_exceeds_cmx_is_a_compile_error_with_its_name_and_bytes(npu, models):
    """E003."""
    status, out, err = npu("compile", models["attention"], "--cmx", "1K", "-o", "/dev/null")
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert re.search(r"(scores|masked|p|y|q|k|v)\b.* \d+ bytes", err)


def test_a_copy_beyond_cmx_is_refused_before_the_job_starts(copy_blob):
    """E003: its destination ends 512 bytes behind the last byte of the job's tile."""
    end = C.NPU_CMX_BASE + PROFILE.cmx.workspace_bytes - 512
    with libnpu.open() as device:
        loaded = device.load(copy_blob(("transaction_dst=0x2e000000", f"transaction_dst={end:#x}")))
        with pytest.raises(libnpu.NpuError, match="NPU_PARSE_BAD_DMA"):
            loaded.run({"x": np.zeros(1024, np.uint8)})


def test_a_program_s_access_beyond_cmx_is_a_fault_of_the_device(copy_blob, program_blob):
    """E003: only the running program knows the address."""
    end = C.NPU_CMX_BASE + PROFILE.cmx.workspace_bytes
    code = ["li r2, 1", "li r3, 16", "setvl r2, r3", "viota.i32 v0", f"li r4, {end - 60}", "li r5, 4", "li r6, 64"]
    code += ["vst.i32 v0, r4, r6, r5, 0", "halt"]
    values = np.arange(1024).astype(np.uint8)
    with libnpu.open() as device:
        with pytest.raises(libnpu.NpuError) as caught:
            device.load(program_blob(code)).run({})
        assert caught.value.result in (C.NPU_ERROR_DEVICE_PAGE_FAULT, C.NPU_ERROR_KERNEL_FAULT)
        assert "task 0" in str(caught.value) or f"{end:#x}" in str(caught.value)
        with pytest.raises(libnpu.NpuError, match="NPU_MMU_EVT_CMX_RANGE"):
            device.alloc(1)
        device.reset()
        assert device.load(copy_blob()).run({"x": values})["y"].tolist() == values.tolist()


def test_weights_stream_through_a_cmx_that_is_smaller_than_they_are(npu, chain_blob):
    """E004: 442,368 bytes of weights, 196,608 bytes of CMX."""
    status, out, _ = npu("objdump", chain_blob, "--cmx-live")
    assert status == 0
    most, weights = map(int, re.search(r"most at once: (\d+) bytes .* weights: (\d+) bytes", out).groups())
    assert most <= 192 << 10 < weights
    assert weights >= 6 * 64 * 64 * 9 * 2


def test_the_scheduler_lists_its_four_decisions(npu, models):
    """E020: alloc and prefetch always, ping-pong where tiles alternate, spill where CMX is short."""
    kinds = set()
    for model, cmx in (("chain", "96K"), ("skips", "52K")):
        status, out, _ = npu(
            *("compile", models[model], "--tiles", "1", "--cmx", cmx, "-o", "/dev/null"),
            *("--dump-pass", "FeasibleMemoryScheduler"),
        )
        assert status == 0
        kinds |= {word for word in ("alloc", "prefetch", "spill", "ping-pong") if re.search(rf"\b{word} ", out)}
    assert kinds == {"alloc", "prefetch", "spill", "ping-pong"}


@pytest.mark.parametrize(("model", "cmx"), [("chain", 96), ("chain", 192), ("skips", 52), ("attention", 24)])
def test_live_buffers_never_overlap_and_never_exceed_cmx(compiled, models, model, cmx):
    """E021."""
    _, dump = compiled(models[model], "--cmx", f"{cmx}K")
    entries = [(address % C.NPU_CMX_BASE, size, first, last) for _, address, size, first, last in dump["debug"]["cmx"]]
    assert len(entries) > 5
    for n, (address, size, first, last) in enumerate(entries):
        assert address % C.NPU_CMX_TILE_STRIDE + size <= cmx << 10
        for other, other_size, other_first, other_last in entries[:n]:
            if first <= other_last and other_first <= last:
                assert address + size <= other or other + other_size <= address
    for now in range(max(last for *_, last in entries) + 1):
        for tile in range(PROFILE.tiles):
            here = [entry for entry in entries if entry[0] // C.NPU_CMX_TILE_STRIDE == tile]
            assert sum(size for _, size, first, last in here if first <= now <= last) <= cmx << 10


def test_loads_that_run_further_ahead_hide_more_latency_until_nothing_is_left_to_hide(npu, npu_json, models):
    """E022: latency falls, then stays; peak CMX does not fall; the bytes of DDR are the same."""
    points = npu_json("sweep", models["small chain"], "--tiles", "1", "--prefetchingLevelLimit", "0..4")
    assert [p["prefetching_level_limit"] for p in points] == [0, 1, 2, 3, 4]
    predicted = [p["predicted_ps"] for p in points]
    assert predicted == sorted(predicted, reverse=True)
    assert points[1]["latency_ps"] < 0.8 * points[0]["latency_ps"]
    assert max(p["latency_ps"] for p in points[2:]) < points[1]["latency_ps"]
    peaks = [p["peak_cmx_bytes"] for p in points]
    assert peaks == sorted(peaks)
    assert len({(p["ddr_read_bytes"], p["ddr_write_bytes"]) for p in points}) == 1
    status, out, _ = npu("sweep", models["small chain"], "--prefetchingLevelLimit", "0,2")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()[3:5]] == ["0", "2"]


def test_a_small_cmx_spills_as_much_as_it_brings_back_and_changes_no_value(npu, npu_json, models, tmp_path):
    """E023."""
    target = tmp_path / "s.blob"
    stats = npu_json("compile", models["skips"], "--tiles", "1", "--cmx", "52K", "-o", target)
    assert stats["spill_out_bytes"] == stats["spill_in_bytes"] > 0
    kinds = [task["kind"] for task in npu_json("objdump", target)["debug"]["tasks"]]
    assert kinds.count("spill_out") == kinds.count("spill_in") > 0
    assert npu_json("compile", models["skips"], "-o", target)["spill_out_bytes"] == 0
    report = npu_json("run", models["skips"], "--cmx", "52K", "--compare-untiled")
    assert report["untiled"]["max_abs_diff"] == {"s0": 0.0}


@pytest.mark.parametrize(
    ("shape", "filters", "cmx", "axis"),
    [([1, 16, 256, 16], [16, 16, 3, 3], "64K", "out_y"), ([1, 256, 4, 4], [512, 256, 1, 1], "96K", "out_z")],
    ids=["rows", "channels"],
)
def test_a_layer_that_exceeds_cmx_is_cut_along_rows_or_channels(compiled, maker, shape, filters, cmx, axis):
    """E041."""
    make = maker()
    make.weights("w", *filters)
    pads = [filters[2] // 2] * 4
    make.node("Conv", ["x", "w"], "y", pads=pads)
    model = make.model({"x": shape}, {"y": [1, filters[0], *shape[2:]]})
    _, whole = compiled(model)
    _, cut = compiled(model, "--cmx", cmx)
    full = {"out_y": shape[2], "out_z": filters[0]}
    tiles = cut["tasks"][INVARIANTS]
    assert len(tiles) > len(whole["tasks"][INVARIANTS])
    assert max(t[axis] for t in tiles) < full[axis]
    assert sum(t["out_x"] * t["out_y"] * t["out_z"] for t in tiles) == shape[3] * full["out_y"] * full["out_z"]


def test_tiles_fit_are_aligned_and_become_fewer_when_cmx_grows(compiled, models):
    """E043, E092: channels and addresses are multiples of what the profile asks for."""
    counts = []
    for kib in (96, 128, 256, 512):
        _, dump = compiled(models["chain"], "--cmx", f"{kib}K")
        assert dump["cmx_bytes"] <= kib << 10
        counts.append(len(dump["tasks"][INVARIANTS]))
        for tiles in layers(dump, INVARIANTS).values():
            assert [t["out_z"] for t in tiles[:-1] if t["out_z"] % PROFILE.channel_alignment] == []
            for tile in tiles:
                for field in ("act_addr", "wt_addr", "out_addr"):
                    assert tile[field] % PROFILE.channel_alignment == 0
        for _, address, *_ in dump["debug"]["cmx"]:
            assert address % PROFILE.cmx.alignment_bytes == 0
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize(("model", "cmx"), [("chain", "96K"), ("attention", "24K")])
def test_tiled_equals_untiled(npu_json, models, model, cmx, precision):
    """E044: bit for bit, so the largest difference is 0."""
    report = npu_json("run", models[model], "--cmx", cmx, "--compare-untiled", "--precision", precision)
    assert set(report["untiled"]["max_abs_diff"].values()) == {0.0}


def test_the_tiler_says_how_it_cut_each_layer(npu, models):
    """E043."""
    status, out, _ = npu("compile", models["chain"], "--cmx", "96K", "-o", "/dev/null", "--dump-pass", "DpuTiler")
    assert status == 0
    assert all(f"c{n}" in out for n in range(6))


def test_vector_work_is_split_into_tasks_for_the_shaves(npu, compiled, maker, tmp_path):
    """E045: a value larger than CMX in pieces, on every SHAVE of the tile."""
    make = maker()
    make.node("Sin", ["x"], "y")
    _, dump = compiled(make.model({"x": [1, 64, 64, 16]}, {"y": [1, 64, 64, 16]}), "--cmx", "64K")
    tasks = dump["tasks"][SHAVES]
    assert len(tasks) > 4
    assert {t["shave"] for t in tasks} == set(range(PROFILE.shaves_per_tile))
    status, out, _ = npu("compile", tmp_path / "model.onnx", "-o", "/dev/null", "--dump-pass", "TileActShaveKernelTask")
    assert status == 0
    assert "y" in out


def test_matmul_runs_on_the_dpu_and_softmax_on_a_shave(compiled, models):
    """E029, E032."""
    _, dump = compiled(models["attention"])
    engines = layers(dump, INVARIANTS)
    assert {name for name, tasks in engines.items() if tasks[0]["op"] == C.NPU_DPU_MATMUL} == {"scores", "y"}
    assert "p" not in engines
    assert "p" in layers(dump, SHAVES)


def test_the_dpu_refuses_an_operation_that_it_does_not_have(compiled, models):
    """E029: a softmax for instance; nothing runs, and the device goes on."""
    path, _ = compiled(models["attention"])
    image = blob.read(path.read_bytes())
    image.tasks[INVARIANTS]["op"][0] = C.NPU_DPU_ELTWISE_MUL + 1
    assert blob.verify(image) != []
    feeds = {name: np.ones((32, 32), np.float32) for name in "qkv"}
    with libnpu.open() as device:
        with pytest.raises(libnpu.NpuError, match="NPU_JOB_PARSING_ERR"):
            device.load(blob.write(image)).run(feeds)
        assert np.isfinite(device.load(path).run(feeds)["y"]).all()


def matmul(maker, *, scale=None, bias=None):
    make = maker()
    last = make.node("MatMul", ["a", "b"], "m" if scale is not None or bias is not None else "y")
    if scale is not None:
        make.weights("scale", values=scale)
        last = make.node("Mul", [last, "scale"], "y")
    if bias is not None:
        make.weights("bias", *bias.shape, values=bias)
        last = make.node("Add", [last, "bias"], "y")
    return make.model({"a": [32, 64], "b": [64, 32]}, {"y": [32, 32]})


def test_a_scale_behind_a_matmul_is_the_ppe_s_and_costs_nothing(npu_json, compiled, maker):
    """E030: no task, no byte, no picosecond more."""
    plain_path, plain = compiled(matmul(maker))
    plain_run = npu_json("run", plain_path, "--no-compute")
    scaled_path, scaled = compiled(matmul(maker, scale=0.125))
    scaled_run = npu_json("run", scaled_path, "--no-compute")
    assert {t["ppe_scale"] for t in plain["tasks"][INVARIANTS]} == {1.0}
    assert {t["ppe_scale"] for t in scaled["tasks"][INVARIANTS]} == {0.125}
    assert {n: len(t) for n, t in scaled["tasks"].items()} == {n: len(t) for n, t in plain["tasks"].items()}
    for field in ("ddr_read_bytes", "ddr_write_bytes", "latency_ps"):
        assert scaled_run[field] == plain_run[field]


def test_a_bias_per_channel_is_the_ppe_s_and_a_mask_is_added_by_a_task(compiled, maker):
    """E031: the PPE adds a constant per channel; [rows, columns] is not one."""
    rng = np.random.default_rng(5)
    _, plain = compiled(matmul(maker))
    _, biased = compiled(matmul(maker, bias=rng.standard_normal(32)))
    assert all(t["wt_table_addr"] for t in biased["tasks"][INVARIANTS])
    assert not any(t["wt_table_addr"] for t in plain["tasks"][INVARIANTS])
    assert len(biased["tasks"][SHAVES]) == len(plain["tasks"][SHAVES])
    _, masked = compiled(matmul(maker, bias=rng.standard_normal((32, 32))))
    assert not any(t["wt_table_addr"] for t in masked["tasks"][INVARIANTS])
    assert {t["op"] for t in plain["tasks"][INVARIANTS]} == {C.NPU_DPU_MATMUL}
    assert {t["op"] for t in layers(masked, INVARIANTS)["y"]} == {C.NPU_DPU_ELTWISE_ADD}


@pytest.mark.parametrize(("precision", "error"), [("fp16", 1e-3), ("fp32", 1e-6)])
def test_softmax_is_stable_and_right(npu, maker, tmp_path, precision, error):
    """E032: against NumPy in float64, with logits whose exponential exceeds fp16 by far."""
    make = maker()
    make.node("Softmax", ["x"], "y", axis=-1)
    onnx.save(make.model({"x": [32, 100]}, {"y": [32, 100]}), tmp_path / "softmax.onnx")
    x = np.random.default_rng(4).uniform(-30, 30, (32, 100)).astype(np.float16).astype(np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    command = ("run", tmp_path / "softmax.onnx", "--precision", precision)
    assert npu(*command, "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz")[0] == 0
    with np.load(tmp_path / "out.npz") as file:
        found = file["y"].astype(np.float64)
    wide = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    assert np.abs(found - wide / wide.sum(-1, keepdims=True)).max() < error
