"""Rows on execution: the management core, barriers, fences, engines side by side, and that nothing is left to chance."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from npu_abi import C

import libnpu
from libnpu import blob
from libnpu.tools import timeline
from libnpu.trace.chrome import DEVICE
from libnpu.trace.slices import Slice
from samples.python.pipeline import pipeline, run

ROOT = Path(__file__).parents[2]
STAGES = (2, 3, 1)


@pytest.fixture(scope="module")
def chain_run(chain_blob):
    """(image, trace records) of one run of the chain."""
    image = blob.read(Path(chain_blob).read_bytes())
    with libnpu.open(compute=False, trace=True) as device:
        loaded, buffers = device.load(chain_blob), {}
        for tensor in (*loaded.inputs, *loaded.outputs):
            buffers[tensor.name] = device.alloc(tensor.size_bytes)
        stream = device.create_stream()
        ins, outs = ({t.name: buffers[t.name] for t in tensors} for tensors in (loaded.inputs, loaded.outputs))
        stream.launch(loaded, ins, outs)
        stream.synchronize()
        return image, device.trace()


def lists(image):
    """Return the task ids of each list of the blob."""
    return [array["task_id"].tolist() for array in image.tasks.values() if "task_id" in array.dtype.names]


def times(records, kind):
    """Return task id -> time of a kind of record."""
    mine = records[records["kind"] == kind]
    return dict(zip(mine["task_id"].tolist(), mine["time_ps"].tolist(), strict=True))


def test_the_core_fetches_every_descriptor_once_in_the_order_of_its_list(chain_run):
    """E010: with a cost per descriptor."""
    image, records = chain_run
    fetched = records[records["kind"] == C.NPU_TRACE_FETCH]
    assert sorted(fetched["task_id"].tolist()) == sorted(task for tasks in lists(image) for task in tasks)
    position = {task: n for n, task in enumerate(fetched["task_id"].tolist())}
    for tasks in lists(image):
        assert [position[t] for t in tasks] == sorted(position[t] for t in tasks)
    cycles = np.diff(fetched["time_ps"].astype(np.int64))
    assert cycles.min() > 0


def test_the_trace_file_of_a_run_has_a_fetch_per_task(npu, tmp_path, chain_blob):
    """E010, E012: and the last thing that the core does is to write the fence, as the job ends and before the interrupt."""
    assert npu("run", chain_blob, "--no-compute", "--trace", tmp_path / "t.json")[0] == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    tracks = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name" and e["pid"] == DEVICE}
    core = [e for e in events if e["ph"] == "i" and e["tid"] == tracks["core"]]
    names = [e["name"].rsplit(" ", 1)[0] for e in core]
    image = blob.read(Path(chain_blob).read_bytes())
    assert names.count("fetch") == sum(map(len, lists(image)))
    assert core[-1]["name"] == "fence_write value=1"
    assert names.count("fence_write") == 1
    (job,) = [e for e in events if e["ph"] == "X" and e["pid"] == DEVICE and e["tid"] == tracks["jobs"]]
    assert round(job["ts"] + job["dur"], 6) == core[-1]["ts"]
    interrupts = [e["ts"] for e in events if e["ph"] == "i" and e["tid"] == tracks["interrupts"]]
    assert interrupts[-1] > core[-1]["ts"]


def test_a_task_starts_after_the_barriers_that_it_waits_for_and_enters_a_fifo_after_start_after(chain_run):
    """E011: dispatch waits for the retirement that the descriptor names, the engine for the barriers."""
    image, records = chain_run
    start, dispatch = times(records, C.NPU_TRACE_START), times(records, C.NPU_TRACE_DISPATCH)
    ready, retired = {}, {}
    barriers = image.tasks[".npu.barriers"]
    for kind, found in ((C.NPU_TRACE_BARRIER_READY, ready), (C.NPU_TRACE_BARRIER_RETIRE, retired)):
        found |= times(records, kind)
    assert len(retired) == len(barriers)
    checked = 0
    for array in image.tasks.values():
        if "barriers_wait_mask" not in array.dtype.names:
            continue
        for task in array:
            after, number = int(task["sched_start_after"]), int(task["task_id"])
            if after != C.NPU_BARRIER_NONE:
                assert dispatch[number] >= max(retired[k] for k in range(after + 1))
            for bit in range(64):
                if not int(task["barriers_wait_mask"]) >> bit & 1:
                    continue
                mine = [k for k in range(len(barriers)) if barriers["real_id"][k] == bit]
                # the virtual barrier that was on the id when the task started: the last that was ready by then
                loaded = [k for k in mine if ready.get(k, 1 << 62) <= start[number] <= retired[k]]
                assert loaded, (number, bit)
                checked += 1
    assert checked > 20


def test_a_full_fifo_holds_the_core_back(chain_run):
    """E011: back-pressure. No unit ever has more tasks waiting than its FIFO holds, and one is full at times."""
    _, records = chain_run
    with libnpu.open() as device:
        depth = device.profile.core.fifo_depth
    starts = records[records["kind"] == C.NPU_TRACE_START]
    unit_of = {int(r["task_id"]): (int(r["engine"]), int(r["unit"])) for r in starts}
    waiting, most = {}, 0
    for kind, task in zip(records["kind"].tolist(), records["task_id"].tolist(), strict=True):
        if kind in (C.NPU_TRACE_DISPATCH, C.NPU_TRACE_START):
            unit = unit_of[task]
            waiting[unit] = waiting.get(unit, 0) + (1 if kind == C.NPU_TRACE_DISPATCH else -1)
            most = max(most, waiting[unit])
    assert most == depth
    assert {*waiting.values()} == {0}


def test_the_fence_value_is_in_memory_after_a_wait_and_after_polling(copy_blob):
    """E012: one host sleeps until the interrupt, one asks again and again."""
    values = np.arange(1024).astype(np.uint8)
    for wait in ("interrupt", "poll"):
        with libnpu.open(trace=True) as device:
            loaded, x, y = device.load(copy_blob()), device.alloc(1024), device.alloc(1024)
            x.write(values)
            stream = device.create_stream()
            stream.launch(loaded, {"x": x}, {"y": y})
            assert not stream.query()
            assert stream.fence == 0
            if wait == "interrupt":
                stream.synchronize()
            else:
                while not stream.query():
                    pass
            assert stream.fence == 1
            assert y.read().tolist() == values.tolist()
            records = device.trace()
        fence = records[records["kind"] == C.NPU_TRACE_FENCE_WRITE]
        assert fence["value"].tolist() == [1]
        ends = records[records["kind"] == C.NPU_TRACE_END]["time_ps"]
        assert fence["time_ps"][0] > ends.max()


def test_three_engines_work_at_the_same_time_and_the_timeline_says_how_long(npu, npu_json, tmp_path, models):
    """E016."""
    path = tmp_path / "t.json"
    report = npu_json("run", models["attention"], "--no-compute", "--cmx", "24K", "--trace", path)
    status, out, _ = npu("timeline", path, "--overlap")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines() if "engines busy" in line] == ["0", "1", "2", "3"]
    assert npu_json("timeline", path)["overlap"] == report["overlap"]
    _, spans, *_ = run(pipeline(4, STAGES, 2, 2))
    slices = [Slice(e, "", "", a, b) for e, found in spans.items() for a, b in found]
    by_count = timeline.overlap(slices, 0, 15)
    # 0011.22.33..... DMA
    # ..000111222333. DPU
    # .....0..1..2..3 SHAVE: columns 5 and 8 have all three, 2, 3, 6, 9 and 11 have two
    assert [round(15 * share) for share in timeline.overlap_by_count(by_count)] == [0, 8, 5, 2]


def intersect(a, b):
    return max(a[0], b[0]) < min(a[1], b[1])


def test_a_copy_runs_ahead_of_the_layer_that_computes():
    """E017: with two input buffers, DMA[n+1] with DPU[n], and DMA[n+2] with SHAVE[n] when the stages allow."""
    _, spans, *_ = run(pipeline(4, STAGES, 2, 2))
    assert all(intersect(spans["DMA"][n + 1], spans["DPU"][n]) for n in range(3))
    _, spans, *_ = run(pipeline(4, (2, 2, 2), 2, 2))
    assert all(intersect(spans["DMA"][n + 2], spans["SHAVE"][n]) for n in range(2))
    _, spans, *_ = run(pipeline(4, STAGES, 1, 2))
    assert not any(intersect(spans["DMA"][n + 1], spans["DPU"][n]) for n in range(3))


@pytest.mark.parametrize(
    ("inputs", "outputs", "serial", "units"),
    [(1, 1, True, 24), (1, 2, False, 21), (2, 1, False, 18), (2, 2, False, 15)],
)
def test_four_layers_take_as_long_as_their_buffers_allow(inputs, outputs, serial, units):
    """E024: ping-pong on both sides 15 units, without it 21."""
    assert run(pipeline(4, STAGES, inputs, outputs, serial))[0] == units


def test_the_pipeline_sample_prints_what_was_recorded():
    """E024."""
    found = subprocess.run(
        [sys.executable, ROOT / "samples/python/pipeline.py"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    lines = found.stdout.partition("\nthe last one")[0]  # tests/samples compares the rest
    assert (
        lines
        == """\
one after the other: 24 units
  DMA   00....11....22....33....
  DPU   ..000...111...222...333.
  SHAVE .....0.....1.....2.....3
one input buffer, two output buffers: 21 units
  DMA   00...11...22...33....
  DPU   ..000..111..222..333.
  SHAVE .....0....1....2....3
two input buffers, one output buffer: 18 units
  DMA   0011.22..33.......
  DPU   ..000.111.222.333.
  SHAVE .....0...1...2...3
two of each: ping-pong: 15 units
  DMA   0011.22.33.....
  DPU   ..000111222333.
  SHAVE .....0..1..2..3
"""
    )


def test_without_pingpong_the_compiler_s_schedule_is_slower(npu_json, models):
    """E024."""
    with_it, without = (
        npu_json("run", models["chain"], "--no-compute", *options) for options in ((), ("--no-pingpong",))
    )
    assert with_it["latency_ps"] < without["latency_ps"]


def test_a_barrier_that_nothing_can_produce_is_a_deadlock_report_with_its_id(copy_blob):
    """E018: the producer stands behind the consumer in one list."""
    with libnpu.open() as device:
        stuck = device.load(
            copy_blob(
                ("barriers_wait_mask=0x1 ", "barriers_later_mask "),
                ("barriers_post_mask=0x1", "barriers_wait_mask=0x1"),
                ("barriers_later_mask ", "barriers_post_mask=0x1 "),
            )
        )
        with pytest.raises(libnpu.NpuError, match="NPU_JOB_DEADLOCK, barrier 0") as caught:
            stuck.run({"x": np.zeros(1024, np.uint8)})
        assert caught.value.result == C.NPU_ERROR_BARRIER_DEADLOCK
        values = np.arange(1024).astype(np.uint8)
        assert device.load(copy_blob()).run({"x": values})["y"].tolist() == values.tolist()


def test_counts_that_do_not_match_the_masks_are_refused_before_the_job_starts(copy_blob):
    """E018: a producer is missing from the lists."""
    with libnpu.open() as device:
        stuck = device.load(copy_blob(("producer_count=1", "producer_count=2")))
        with pytest.raises(libnpu.NpuError, match="NPU_PARSE_BAD_BARRIER"):
            stuck.run({"x": np.zeros(1024, np.uint8)})


def test_a_barrier_that_is_posted_too_early_is_an_underflow(copy_blob):
    """E018: two tasks post one id; the second was meant for the next barrier on it, which is not loaded yet."""
    twice = "next_same_id=1 producer_count=1 consumer_count=1\n  1: next_same_id=none producer_count=1 consumer_count=1"
    lines = [line for line in copy_blob.text.splitlines() if line.startswith(("  0: transaction", "  1: transaction"))]
    store = lines[1].replace("  1:", "  2:").replace("task_id=1", "task_id=2")
    again = lines[1].replace("  1:", "  3:").replace("task_id=1", "task_id=3")
    load = lines[0].replace("  0:", "  1:") + " task_id=1"
    with libnpu.open() as device:
        loaded = device.load(
            copy_blob(
                (lines[1], f"{load}\n{store}\n{again}"),
                ("next_same_id=none producer_count=1 consumer_count=1", twice),
            )
        )
        with pytest.raises(libnpu.NpuError, match="barrier 0") as caught:
            loaded.run({"x": np.zeros(1024, np.uint8)})
        assert caught.value.result == C.NPU_ERROR_BARRIER_UNDERFLOW


def test_physical_barriers_are_used_again_after_they_retire(chain_run, models, npu_json, tmp_path):
    """E018: more virtual barriers than the device has ids, and each retires before the next on its id is loaded."""
    image, records = chain_run
    barriers = image.tasks[".npu.barriers"]
    path = tmp_path / "b.blob"
    stats = npu_json("compile", models["chain"], "--tiles", "1", "--cmx", "96K", "-o", path)
    assert stats["barriers"] > stats["barrier_ids"]
    assert npu_json("run", path, "--no-compute")["latency_ps"] > 0
    loads, retires = times(records, C.NPU_TRACE_BARRIER_LOAD), times(records, C.NPU_TRACE_BARRIER_RETIRE)
    for k, following in enumerate(barriers["next_same_id"].tolist()):
        if following != C.NPU_BARRIER_NONE:
            assert loads[following] >= retires[k]


def test_ten_runs_print_the_same_statistics_and_trace(npu, tmp_path, chain_blob):
    """E025: to the picosecond, whatever the data is."""
    digests = set()
    for _ in range(10):
        status, out, _ = npu("run", chain_blob, "--no-compute", "--stats", "-", "--trace", tmp_path / "t.json")
        assert status == 0
        digests.add(hashlib.sha256(out.encode() + (tmp_path / "t.json").read_bytes()).hexdigest())
    assert len(digests) == 1
    latencies = {json.loads(npu("run", chain_blob, "--seed", s, "--stats", "-")[1])["latency_ps"] for s in range(3)}
    assert len(latencies) == 1


def test_every_task_runs_where_and_when_the_blob_says(chain_run):
    """E025: no choice at run time. The order on each queue is the order of its list."""
    image, records = chain_run
    for section, engine, unit in (
        (".npu.tasks.dma0", C.NPU_ENGINE_DMA, 0),
        (".npu.tasks.dma1", C.NPU_ENGINE_DMA, 1),
        (".npu.tasks.dpu_invariant", C.NPU_ENGINE_DPU, 0),
        (".npu.tasks.dpu_invariant", C.NPU_ENGINE_DPU, 1),
    ):
        mine = records[
            (records["kind"] == C.NPU_TRACE_START) & (records["engine"] == engine) & (records["unit"] == unit)
        ]
        listed = image.tasks[section]
        if engine == C.NPU_ENGINE_DPU:
            listed = listed[listed["tile"] == unit]
        assert mine["task_id"].tolist() == listed["task_id"].tolist()
