"""Analysis of traces, on records written by hand."""

import json

import npu_abi
import numpy as np
import pytest
from npu_abi import C

from libnpu.tools import steps, timeline
from libnpu.tools.console import ToolError, format_bytes, format_count, format_time
from libnpu.tools.perfetto import read_trace, write_trace
from libnpu.trace.slices import Instant, Slice, slices_of

START, END = C.NPU_TRACE_START, C.NPU_TRACE_END
DMA, DPU, SHAVE = C.NPU_ENGINE_DMA, C.NPU_ENGINE_DPU, C.NPU_ENGINE_SHAVE


def records(*rows):
    """rows: (time_ps, kind, engine, unit, task_id, value)"""
    array = np.zeros(len(rows), npu_abi.dtype("npu_trace_record"))
    for entry, row in zip(array, rows, strict=True):
        for field, value in zip(("time_ps", "kind", "engine", "unit", "task_id", "value"), row, strict=True):
            entry[field] = value
    return array


def slice_(track, start, end, layer="l", task_id=0):
    return Slice(track, f"{layer}.task", layer, start, end, task_id)


def test_a_slice_is_from_start_to_end_of_a_task_on_a_unit():
    trace = records(
        (0, START, DMA, 0, 0, 64),
        (5, START, DMA, 1, 1, 128),
        (10, END, DMA, 0, 0, 10),
        (10, START, SHAVE, 0x12, 2, 0),
        (20, END, DMA, 1, 1, 15),
        (30, END, SHAVE, 0x12, 2, 20),
    )
    tasks = [{"name": "load a", "layer": "conv"}, {"name": "load b"}]
    assert slices_of(trace, tasks) == [
        Slice("DMA 0", "load a", "conv", 0, 10, 0, 0, 64),
        Slice("DMA 1", "load b", "load b", 5, 20, 1, 0, 128),
        Slice("SHAVE 1.2", "task 2", "task 2", 10, 30, 2, 0, 0),
    ]


def test_a_task_without_its_end_is_left_out():
    trace = records((0, START, DPU, 0, 0, 0), (5, START, DPU, 0, 1, 0), (9, END, DPU, 0, 1, 4))
    assert [s.task_id for s in slices_of(trace)] == [1]


def test_usage_counts_every_unit_that_the_job_could_use():
    slices = [slice_("DMA 0", 0, 40), slice_("DMA 1", 0, 20), slice_("DPU 0", 50, 100)]
    found = timeline.usage(slices, 100, {"DMA": 2, "DPU": 1, "SHAVE": 4})
    assert [(u.name, u.units, u.tasks, u.busy_ps, u.utilisation) for u in found] == [
        ("DMA", 2, 2, 60, 0.3),
        ("DPU", 1, 1, 50, 0.5),
        ("SHAVE", 4, 0, 0, 0.0),
    ]


def test_overlap_is_over_kinds_of_engines_and_adds_up_to_the_span():
    slices = [slice_("DMA 0", 0, 40), slice_("DMA 1", 10, 20), slice_("DPU 0", 30, 70), slice_("SHAVE 0.0", 35, 38)]
    found = timeline.overlap(slices, 0, 100)
    assert found == {
        frozenset(): 30,
        frozenset({"DMA"}): 30,
        frozenset({"DPU"}): 30,
        frozenset({"DMA", "DPU"}): 7,
        frozenset({"DMA", "DPU", "SHAVE"}): 3,
    }
    assert timeline.overlap_by_count(found) == [0.3, 0.6, 0.07, 0.03]


def test_overlap_cuts_at_the_span():
    assert timeline.overlap([slice_("DMA 0", 0, 100)], 90, 120) == {frozenset({"DMA"}): 10, frozenset(): 20}


def test_a_unit_that_goes_on_at_once_has_no_gap():
    assert timeline.overlap([slice_("DPU 0", 0, 10), slice_("DPU 0", 10, 20)], 0, 20) == {frozenset({"DPU"}): 20}


def test_layers_add_up_per_engine_in_order_of_their_first_task():
    slices = [slice_("DPU 0", 30, 40, "b"), slice_("DMA 0", 0, 10, "a"), slice_("DMA 0", 10, 15, "b")]
    assert [(v.name, v.busy_ps, v.first_ps, v.last_ps) for v in timeline.layers(slices)] == [
        ("a", {"DMA": 10}, 0, 10),
        ("b", {"DPU": 10, "DMA": 5}, 10, 40),
    ]


def test_a_step_says_what_has_ended_what_runs_and_what_pipelining_gains():
    slices, retired_ps = [slice_("DMA 0", 10, 58, "a"), slice_("DPU 0", 34, 82, "b")], [70]
    assert steps.step_of(slices, retired_ps, 2) == {
        "step": 2,
        "steps": 3,
        "time_ps": 48,
        "serial_ps": 96,
        "pipelined_ps": 72,
        "speed_up": 1.333333,
        "done": 1,
        "tasks": 2,
        "running": [{"unit": "DPU 0", "task": "b.task", "layer": "b"}],
        "barriers_retired": 0,
        "barriers": 1,
    }
    dma, dpu, now = steps.step_text(slices, retired_ps, 2).splitlines()[2:5]  # a column is a picosecond
    assert dma == f"DMA 0 |{'=' * 48}{' ' * 12}:{' ' * 11}|"
    assert dpu == f"DPU 0 |{' ' * 24}{'#' * 48}|"
    assert now == f"{' ' * 7}{' ' * 48}^"
    with pytest.raises(ToolError, match="steps 0 to 3"):
        steps.step_of(slices, retired_ps, 4)


def test_a_trace_file_keeps_every_picosecond(tmp_path):
    path = str(tmp_path / "t.json")
    slices = [slice_("DMA 0", 1, 3), slice_("SHAVE 0.1", 10**15 + 1, 10**15 + 7, "x", 9)]
    instants, jobs = (
        [Instant("core", "fence_write value=1", 5), Instant("core", "barrier retire 3", 7)],
        [slice_("jobs", 0, 5)],
    )
    write_trace(path, slices, instants, jobs, [slice_("host", 0, 4)], {0: 64}, {"units": {"DMA": 2}})
    assert read_trace(path) == (slices, {"units": {"DMA": 2}}, [7])


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"traceEvents": [{"ph": "X"}], "otherData": {}}'])
def test_another_file_is_not_a_trace(tmp_path, text):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(ToolError, match="not a trace file"):
        read_trace(str(path))


def test_numbers_for_people():
    assert [format_time(ps) for ps in (0, 999, 1500, 2_198_000_000, 3 * 10**12)] == [
        "0 ps",
        "999 ps",
        "1.500 ns",
        "2.198 ms",
        "3.000 s",
    ]
    assert [format_bytes(n) for n in (5, 1536, 3 << 20)] == ["5 B", "1.50 KiB", "3.00 MiB"]
    assert format_count(4_089_000_000, "MAC") == "4.09 GMAC"


@pytest.fixture
def trace_path(tmp_path):
    path = tmp_path / "trace.json"
    slices = [slice_("DMA 0", 0, 40, task_id=1), slice_("DPU 0", 20, 100, task_id=2)]
    write_trace(path, slices, summary={"units": {"DMA": 2, "DPU": 1, "SHAVE": 2}})
    return str(path)


CONCEPTS = {
    "CMX": "shared memory",
    "DMA": "async memcpy",
    "barrier": "stream event, __syncthreads",
    "blob": "cubin",
    "management core": "warp scheduler",
    "DPU": "Tensor core",
    "SHAVE": "CUDA core",
}


def test_e087_what_the_parts_are_called_on_a_gpu(npu):
    status, out, err = npu("timeline", "--vocab", "gpu", "--json")
    assert (status, err) == (0, "")
    assert {ours: term["word"] for ours, term in json.loads(out)["vocabulary"]["terms"].items()} == CONCEPTS
    status, out, _ = npu("timeline", "--vocab", "gpu")
    assert status == 0
    assert all(word in out for word in (*CONCEPTS, *CONCEPTS.values()))


def test_e087_a_trace_in_the_words_of_a_gpu(npu, trace_path):
    plain, words = (json.loads(npu("timeline", trace_path, "--json", *more)[1]) for more in ((), ("--vocab", "gpu")))
    assert [engine["name"] for engine in words["engines"]] == ["async memcpy", "Tensor core", "CUDA core"]
    assert [e["busy_ps"] for e in words["engines"]] == [e["busy_ps"] for e in plain["engines"]] == [40, 80, 0]
    assert words["overlap"]["by_engines_ps"] == {"async memcpy": 20, "Tensor core": 60, "async memcpy+Tensor core": 20}
    assert words["layers"] == [{"name": "l", "busy_ps": {"async memcpy": 40, "Tensor core": 80}}]
    status, out, _ = npu("timeline", trace_path, "--vocab", "gpu", "--overlap", "--layers")
    assert (status, "DPU " in out.split("gpu: ")[0]) == (0, False)


def test_e087_a_vocabulary_of_ones_own(npu, trace_path, tmp_path):
    path = tmp_path / "words.json"
    term = {"word": "copy engine", "differs": ""}
    path.write_text(json.dumps({"name": "mine", "description": "d", "terms": {"DMA": term}, "sources": {}}))
    found = json.loads(npu("timeline", trace_path, "--vocab", path, "--json")[1])
    assert [engine["name"] for engine in found["engines"]] == ["copy engine", "DPU", "SHAVE"]
    path.write_text('{"name": "mine"}')
    status, _, err = npu("timeline", "--vocab", path)
    assert (status, err) == (1, "npu: error: words.json: Object missing required field `description`\n")
    for arguments, message in (
        ([], "give a trace file, or a vocabulary with --vocab"),
        (["--vocab", "cpu"], "no vocabulary named 'cpu'; there are gpu, or give a .json file"),
    ):
        status, _, err = npu("timeline", *arguments)
        assert (status, err) == (1, f"npu: error: {message}\n")
