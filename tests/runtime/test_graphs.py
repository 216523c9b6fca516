"""Graphs: capture of streams, and launches of what was captured."""

import gc
from itertools import pairwise

import numpy as np
import pytest
from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.graph import CaptureStatus


def first(buffer):
    return float(buffer.read(np.float32)[0])


def fork(context, add, x, y, out_a, out_b, out):
    """Captures out = (x + y) + (y + y), the sums in two streams. Returns (graph, streams)."""
    one, two = context.create_stream(), context.create_stream()
    begin, joined = context.create_event(), context.create_event()
    with one.capture() as capture:
        begin.record(one)
        two.wait_event(begin)
        add.launch(one, x, y, out_a, 256, grid=1)
        add.launch(two, y, y, out_b, 256, grid=1)
        joined.record(two)
        one.wait_event(joined)
        add.launch(one, out_a, out_b, out, 256, grid=1)
    return capture.graph, (one, two)


def test_nothing_runs_while_it_is_captured(device, context, add, floats):
    x, y, z = floats(1.0), floats(2.0), floats(7.0)
    stream = context.create_stream()
    assert stream.capture_status is CaptureStatus.NONE
    before = device.counters()["DOORBELLS"]
    with stream.capture() as capture:
        assert stream.capture_status is CaptureStatus.ACTIVE
        add.launch(stream, x, y, z, 256)
        stream.copy(x, z)
        stream.fill(y, 0)
    assert stream.capture_status is CaptureStatus.NONE
    assert [(n.kind, n.name, n.branch) for n in capture.graph.nodes] == [
        ("kernel", "add", 0),
        ("memcpy", "copy device to device", 0),
        ("memset", "fill with 0x00", 0),
    ]
    stream.synchronize()
    assert device.counters()["DOORBELLS"] == before
    assert (first(x), first(y), first(z)) == (1.0, 2.0, 7.0)


def test_a_launch_runs_all_and_reads_memory_anew(context, add, floats):
    x, y, z = floats(1.0), floats(2.0), floats()
    stream = context.create_stream()
    with stream.capture() as capture:
        add.launch(stream, x, y, z, 256)
        stream.copy(x, z)
    with capture.graph.instantiate() as graph:
        capture.graph.destroy()  # is not needed any more
        graph.launch(stream).wait()
        assert (first(x), first(z)) == (3.0, 3.0)
        graph.launch(stream)
        graph.launch(stream)
        stream.synchronize()
        assert (first(x), first(z)) == (7.0, 7.0)
        y.write(np.full(256, 100.0, np.float32))
        graph.launch().wait()
        assert first(z) == 107.0


def test_streams_join_by_events_and_become_branches(context, add, floats):
    x, y, a, b, out = floats(1.0), floats(10.0), floats(), floats(), floats()
    graph, _ = fork(context, add, x, y, a, b, out)
    assert [(n.branch, n.kind, n.source) for n in graph.nodes] == [
        (0, "event_record", None),
        (1, "event_wait", 0),
        (0, "kernel", None),
        (1, "kernel", None),
        (1, "event_record", None),
        (0, "event_wait", 4),
        (0, "kernel", None),
    ]
    graph.instantiate().launch().wait()
    assert (first(a), first(b), first(out)) == (11.0, 20.0, 31.0)


def test_branches_overlap_on_the_device(device, context, add, floats):
    x, y, a, b, out = floats(1.0), floats(10.0), floats(), floats(), floats()
    graph, _ = fork(context, add, x, y, a, b, out)
    executable = graph.instantiate()
    executable.launch().wait()  # loads the instructions
    device.trace()
    executable.launch().wait()
    records = device.trace()
    shave = records[records["engine"] == C.NPU_ENGINE_SHAVE]
    starts = shave[shave["kind"] == C.NPU_TRACE_START]
    ends = shave[shave["kind"] == C.NPU_TRACE_END]
    assert len(starts) == len(ends) == 3
    assert starts["time_ps"][1] < ends["time_ps"][0]  # two run at the same time
    assert starts["time_ps"][2] > ends["time_ps"][1]  # the third when both have ended
    assert starts["unit"][0] != starts["unit"][1]


def test_launches_of_one_executable_run_one_after_the_other(context, add, floats):
    x, one, two = floats(), context.create_stream(), context.create_stream()
    step = floats(1.0)
    with one.capture() as capture:
        add.launch(one, x, step, x, 256)
        add.launch(one, x, x, x, 256)
    executable = capture.graph.instantiate()
    jobs = [executable.launch(stream) for stream in (one, two, one, two)]
    context.synchronize()
    assert first(x) == 30.0  # ((((0 + 1) * 2 + 1) * 2 + 1) * 2 + 1) * 2
    assert all(a.end_ps <= b.end_ps for a, b in pairwise(jobs))


def test_many_launches_with_branches_in_flight(context, add, floats):
    x, y, a, b, out = floats(1.0), floats(10.0), floats(), floats(), floats()
    graph, (one, two) = fork(context, add, x, y, a, b, out)
    executable = graph.instantiate()
    for i in range(40):
        executable.launch((one, two)[i % 2])
    context.synchronize()
    assert first(out) == 31.0


def test_a_graph_launch_costs_one_submit_instead_of_twenty(device, context, add, floats):
    x, step = floats(), floats(1.0)
    stream = context.create_stream()

    def body():
        for _ in range(20):
            add.launch(stream, x, step, x, 256, grid=1)

    begin_ps, doorbells = device.now_ps, device.counters()["DOORBELLS"]
    body()
    single_ps, single = device.now_ps - begin_ps, device.counters()["DOORBELLS"] - doorbells
    stream.synchronize()
    with stream.capture() as capture:
        body()
    executable = capture.graph.instantiate()
    begin_ps, doorbells = device.now_ps, device.counters()["DOORBELLS"]
    executable.launch(stream)
    graph_ps, graph = device.now_ps - begin_ps, device.counters()["DOORBELLS"] - doorbells
    stream.synchronize()
    assert (single, graph) == (20, 1)
    assert first(x) == 40.0
    assert graph_ps * 10 < single_ps, (graph_ps, single_ps)


def test_update_gives_new_addresses_to_an_executable(context, add, floats, refused):
    x, y, z, other = floats(1.0), floats(2.0), floats(), floats()
    stream = context.create_stream()

    def graph_of(*arguments, kernel=add):
        with stream.capture() as capture:
            kernel.launch(stream, *arguments)
        return capture.graph

    executable = graph_of(x, y, z, 256).instantiate()
    executable.update(graph_of(y, y, other, 256))
    executable.launch(stream).wait()
    assert (first(z), first(other)) == (0.0, 4.0)
    error = refused(C.NPU_ERROR_INVALID_VALUE, executable.update, graph_of(y, y, z, 256, kernel=context.kernel("mul")))
    assert "from node 0 on: kernel, kernel" in str(error)
    with stream.capture() as capture:
        add.launch(stream, x, y, z, 256)
        stream.fill(z, 0)
    error = refused(C.NPU_ERROR_INVALID_VALUE, executable.update, capture.graph)
    assert "from node 1 on: none, memset" in str(error)
    executable.launch(stream)
    refused(C.NPU_ERROR_IN_USE, executable.update, graph_of(x, x, z, 256))
    stream.synchronize()
    assert (first(z), first(other)) == (0.0, 4.0)


def test_models_are_nodes_with_task_lists_of_their_own(context, blob_bytes, refused):
    module = context.load(blob_bytes(nbytes=64))
    stream = context.create_stream()
    a, b, c = (context.alloc(64) for _ in range(3))
    a.write(np.full(64, 9, np.uint8))
    with stream.capture() as capture:
        stream.launch(module, {"x": a}, {"y": b})
        stream.launch(module, {"x": b}, {"y": c})
    graph = capture.graph
    assert [n.kind for n in graph.nodes] == ["model", "model"]
    executable = graph.instantiate()
    graph.destroy()
    refused(C.NPU_ERROR_IN_USE, module.unload)
    stream.launch(module, {"x": c}, {"y": b}).wait()
    executable.launch(stream).wait()
    assert int(c.read()[0]) == 9
    executable.destroy()
    executable.destroy()
    refused(C.NPU_ERROR_STALE_HANDLE, executable.launch, stream)
    module.unload()


def test_host_functions_split_a_branch(context, add, floats):
    x, step = floats(), floats(1.0)
    stream = context.create_stream()
    seen = []
    with stream.capture() as capture:
        add.launch(stream, x, step, x, 256)
        stream.add_host_function(lambda text: seen.append(text), "between")
        add.launch(stream, x, step, x, 256)
        stream.add_host_function(lambda text: seen.append(text), "behind")
    assert seen == []
    assert [n.kind for n in capture.graph.nodes] == ["kernel", "host_function", "kernel", "host_function"]
    executable = capture.graph.instantiate()
    executable.launch(stream).wait()
    assert seen == ["between", "behind"]
    assert first(x) == 2.0
    executable.launch(stream)
    stream.synchronize()
    assert seen == ["between", "behind"] * 2


def test_events_of_a_graph_are_recorded_by_each_launch(context, add, floats, refused):
    x = floats(1.0)
    stream, event = context.create_stream(), context.create_event()
    start = context.create_event()
    with stream.capture() as capture:
        start.record(stream)
        add.launch(stream, x, x, x, 256)
        event.record(stream)
    refused(C.NPU_ERROR_NOT_RECORDED, lambda: event.timestamp_ps)  # the capture recorded nothing
    executable = capture.graph.instantiate()
    executable.launch(stream)
    event.synchronize()
    times = event.timestamp_ps
    assert start.timestamp_ps < times
    executable.launch(stream)
    other = context.create_stream()
    other.wait_event(event)
    other.copy(floats(), x)
    other.synchronize()
    assert event.timestamp_ps > times


def test_a_wait_for_an_outside_event_is_a_node(context, add, floats):
    x, y = floats(1.0), floats(5.0)
    stream, other, event = context.create_stream(), context.create_stream(), context.create_event()
    with stream.capture() as capture:
        stream.wait_event(event)
        stream.copy(x, y)
    assert [(n.kind, n.source) for n in capture.graph.nodes] == [("event_wait", None), ("memcpy", None)]
    executable = capture.graph.instantiate()
    executable.launch(stream).wait()  # nothing recorded, nothing to wait for
    assert first(x) == 5.0
    add.launch(other, y, y, y, 256)
    event.record(other)
    executable.launch(stream).wait()
    assert first(x) == 10.0


@pytest.mark.parametrize(
    "call",
    [
        lambda context, stream, x: stream.synchronize(),
        lambda context, stream, x: stream.query(),
        lambda context, stream, x: stream.copy(x, np.zeros(4, np.float32)),
        lambda context, stream, x: context.create_notify().record(stream),
        lambda context, stream, x: context.create_notify().wait(stream),
        lambda context, stream, x: context.synchronize(),
        lambda context, stream, x: x.free(),
        lambda context, stream, x: stream.abort(),
    ],
    ids=["synchronize", "query", "pageable", "notify", "wait_notify", "context", "free", "abort"],
)
def test_what_cannot_be_captured_invalidates(context, add, floats, call, refused):
    x = floats(1.0)
    stream = context.create_stream()
    capture = stream.capture()
    add.launch(stream, x, x, x, 256)
    refused(C.NPU_ERROR_CAPTURE_UNSUPPORTED, call, context, stream, x)
    assert stream.capture_status is CaptureStatus.INVALID
    refused(C.NPU_ERROR_CAPTURE_INVALIDATED, add.launch, stream, x, x, x, 256)
    refused(C.NPU_ERROR_CAPTURE_INVALIDATED, stream.end_capture)
    refused(C.NPU_ERROR_CAPTURE_INVALIDATED, lambda: capture.graph)
    assert stream.capture_status is CaptureStatus.NONE
    add.launch(stream, x, x, x, 256)  # as before
    stream.synchronize()
    assert first(x) == 2.0


def test_events_in_a_capture_cannot_be_asked(context, refused):
    stream, event = context.create_stream(), context.create_event()
    for ask in (event.query, event.synchronize):
        stream.capture()
        event.record(stream)
        refused(C.NPU_ERROR_CAPTURE_UNSUPPORTED, ask)
        refused(C.NPU_ERROR_CAPTURE_INVALIDATED, stream.end_capture)
    assert event.query()  # never recorded


def test_a_job_of_a_capture_is_none_that_runs(context, add, floats, refused):
    x, stream = floats(), context.create_stream()
    with stream.capture() as capture:
        job = add.launch(stream, x, x, x, 256)
    error = refused(C.NPU_ERROR_CAPTURE_UNSUPPORTED, job.wait)
    assert "'add' was captured: it is a node of a graph and no job of its own" in str(error)
    assert len(capture.graph.nodes) == 1


def test_a_stream_that_is_not_joined_back_invalidates(context, add, floats, refused):
    x, y = floats(), floats()
    one, two, event = context.create_stream(), context.create_stream(), context.create_event()
    one.capture()
    event.record(one)
    two.wait_event(event)
    add.launch(two, x, y, y, 256)
    assert two.capture_status is CaptureStatus.ACTIVE
    error = refused(C.NPU_ERROR_CAPTURE_INVALIDATED, one.end_capture)
    assert f"'add' in stream {two.id} was not joined back" in str(error)
    assert one.capture_status is two.capture_status is CaptureStatus.NONE
    two.synchronize()


def test_who_may_begin_and_end(context, refused):
    one, two, event = context.create_stream(), context.create_stream(), context.create_event()
    refused(C.NPU_ERROR_CAPTURE_UNSUPPORTED, context.default_stream.capture)
    refused(C.NPU_ERROR_BAD_STATE, one.end_capture)
    capture = one.capture()
    refused(C.NPU_ERROR_BAD_STATE, one.capture)
    refused(C.NPU_ERROR_BAD_STATE, lambda: capture.graph)
    event.record(one)
    two.wait_event(event)
    refused(C.NPU_ERROR_BAD_STATE, two.end_capture)
    refused(C.NPU_ERROR_BAD_STATE, two.capture)
    event.record(two)
    one.wait_event(event)
    assert len(one.end_capture().nodes) == 4


def test_an_exception_in_the_block_ends_the_capture(context, refused):
    stream = context.create_stream()
    with pytest.raises(ZeroDivisionError), stream.capture() as capture:
        raise ZeroDivisionError
    assert stream.capture_status is CaptureStatus.NONE
    refused(C.NPU_ERROR_CAPTURE_INVALIDATED, lambda: capture.graph)


def test_freed_memory_is_refused_by_instantiate_and_launch_and_nothing_is_enqueued(
    device, context, add, floats, refused
):
    x, y, a, b, out = floats(1.0), floats(10.0), floats(), floats(), floats()
    graph, _ = fork(context, add, x, y, a, b, out)
    executable = graph.instantiate()
    out.free()
    before = device.counters()["DOORBELLS"]
    refused(C.NPU_ERROR_STALE_HANDLE, executable.launch)
    refused(C.NPU_ERROR_STALE_HANDLE, graph.instantiate)
    context.synchronize()
    assert device.counters()["DOORBELLS"] == before
    assert (first(a), first(b)) == (0.0, 0.0)


def test_a_branch_that_fails_fails_the_launch(context, blob_bytes, refused):
    stuck = context.load(blob_bytes(nbytes=64, deadlock=True, name="stuck"))
    a, b = context.alloc(64), context.alloc(64)
    one, two, event = context.create_stream(), context.create_stream(), context.create_event()
    with one.capture() as capture:
        event.record(one)
        two.wait_event(event)
        stuck["stuck"].launch(two, a, b)
        event.record(two)
        one.wait_event(event)
    executable = capture.graph.instantiate()
    executable.launch(one)
    error = refused(C.NPU_ERROR_BARRIER_DEADLOCK, one.synchronize)
    assert error.operation == "graph branch 1"
    context.synchronize()  # it was reported
    assert one.query()


def test_a_foreign_stream_or_a_captured_one_cannot_launch(device, context, floats, refused):
    x, stream = floats(), context.create_stream()
    with stream.capture() as capture:
        stream.fill(x, 1)
    executable = capture.graph.instantiate()
    with device.create_context() as other:
        refused(C.NPU_ERROR_WRONG_CONTEXT, executable.launch, other.create_stream())
    stream.capture()
    refused(C.NPU_ERROR_CAPTURE_UNSUPPORTED, executable.launch, stream)
    refused(C.NPU_ERROR_CAPTURE_INVALIDATED, stream.end_capture)


def test_an_empty_graph_and_a_graph_in_pieces(context):
    stream = context.create_stream()
    with stream.capture() as capture:
        pass
    executable = capture.graph.instantiate()
    executable.launch(stream).wait()
    executable.launch(stream)
    executable.destroy()
    stream.synchronize()


def test_destroying_in_flight_lets_launches_end(context, add, floats):
    x, y, a, b, out = floats(1.0), floats(10.0), floats(), floats(), floats()
    graph, (one, _) = fork(context, add, x, y, a, b, out)
    executable = graph.instantiate()
    executable.launch(one)
    executable.destroy()
    one.synchronize()
    assert first(out) == 31.0


def test_abort_of_the_launching_stream_does_not_hang_the_branches(context, add, floats, refused):
    x, y, a, b, out = floats(1.0), floats(10.0), floats(), floats(), floats()
    graph, (one, _) = fork(context, add, x, y, a, b, out)
    executable = graph.instantiate()
    executable.launch(one)
    one.abort()
    refused(C.NPU_ERROR_ABORTED_BY_PRIOR_ERROR, one.synchronize)
    context.synchronize()
    executable.launch(one).wait()
    assert first(out) == 31.0


def test_the_end_of_the_context_ends_captures_and_graphs(device):
    context = device.create_context()
    stream = context.create_stream()
    memory = context.alloc(64)
    with stream.capture() as capture:
        stream.fill(memory, 1)
    executable = capture.graph.instantiate()
    executable.launch(stream)
    other = context.create_stream()
    other.capture()
    context.destroy(force=True)
    for call in (executable.launch, capture.graph.instantiate, other.end_capture):
        with pytest.raises(NpuError):
            call()
    executable.destroy()
    gc.collect()
    device.synchronize()


@pytest.mark.parametrize("schedule", ["eager", "lazy", "newest-first", "seed:7"])
def test_graphs_give_the_same_bytes_under_all_schedules(device, context, add, floats, schedule):
    x, y, a, b, out = floats(1.0), floats(10.0), floats(), floats(), floats()
    graph, (one, two) = fork(context, add, x, y, a, b, out)
    executable = graph.instantiate()
    device.set_schedule(schedule)
    executable.launch(one)
    add.launch(one, out, out, x, 256)  # 62
    executable.launch(two)  # does not wait for `one`, but for the launch before
    event = context.create_event()
    event.record(two)
    two.synchronize()
    one.synchronize()
    assert first(x) == 62.0
    executable.launch(one).wait()
    assert (first(a), first(b), first(out)) == (72.0, 20.0, 92.0)


def test_a_launch_that_breaks_off_leaves_nothing_that_waits(context, add, floats, monkeypatch, refused):
    x, y, a, b, out = floats(1.0), floats(10.0), floats(), floats(), floats()
    graph, (one, _) = fork(context, add, x, y, a, b, out)
    executable = graph.instantiate()
    stream = type(one)
    enqueue = stream.enqueue

    def refuse(self, operation, **options):
        if operation.name == "graph branch 1":
            raise NpuError(C.NPU_ERROR_OUT_OF_RESOURCES, "no room")
        return enqueue(self, operation, **options)

    monkeypatch.setattr(stream, "enqueue", refuse)
    refused(C.NPU_ERROR_OUT_OF_RESOURCES, executable.launch, one)
    monkeypatch.undo()
    one.synchronize()
    executable.launch(one).wait()
    assert first(out) == 31.0


def test_a_stream_that_is_captured_stays(context, refused):
    stream = context.create_stream()
    stream.capture()
    refused(C.NPU_ERROR_CAPTURE_UNSUPPORTED, stream.close)
    refused(C.NPU_ERROR_CAPTURE_INVALIDATED, stream.end_capture)
    stream.close()


def test_a_capture_that_waits_for_another_capture_is_invalid(context, refused):
    one, two, event = context.create_stream(), context.create_stream(), context.create_event()
    one.capture()
    two.capture()
    event.record(one)
    refused(C.NPU_ERROR_CAPTURE_UNSUPPORTED, two.wait_event, event)
    invalid = [s for s in (one, two) if s.capture_status is CaptureStatus.INVALID]
    assert invalid
    for stream in invalid:
        refused(C.NPU_ERROR_CAPTURE_INVALIDATED, stream.end_capture)


def test_graphs_can_be_destroyed_on_a_lost_device(device, context, add, floats, image, refused):
    from libnpu.blob import write

    x, y, a, b, out = floats(1.0), floats(10.0), floats(), floats(), floats()
    graph, (one, _) = fork(context, add, x, y, a, b, out)
    executable = graph.instantiate()
    executable.launch(one)
    far = context.load(write(image(nbytes=64, addend=1 << 40, name="far")))
    far["far"].launch(one, x, y)
    refused(C.NPU_ERROR_DEVICE_PAGE_FAULT, one.synchronize)
    executable.destroy()
    graph.destroy()


def test_graphs_give_back_memory_fences_and_queues(device, context, add, floats):
    x, y, a, b, out = floats(1.0), floats(10.0), floats(), floats(), floats()

    def use():
        graph, streams = fork(context, add, x, y, a, b, out)
        with graph, graph.instantiate() as executable:
            executable.launch(streams[0])
        for stream in streams:
            stream.synchronize()
            stream.close()

    use()
    free, cells = device.memory_info()[0], context.fences.in_use
    for _ in range(90):  # three queues each, and there are 255
        use()
    assert device.memory_info()[0] == free
    assert context.fences.in_use == cells


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("schedule", ["timed", "newest-first"])
def test_random_graphs_keep_the_order_of_their_events(device, context, add, seed, schedule):
    """Sums of what is surely before, in random streams with random events; the expected values are Python's."""
    rng = np.random.default_rng(seed)
    device.set_schedule(schedule)
    streams = [context.create_stream() for _ in range(4)]
    memory = context.alloc(64 * 16)
    memory.write(np.zeros(256, np.float32))
    cells = [memory.at(64 * i, 64) for i in range(16)]
    cells[0].write(np.full(16, 1.0, np.float32))
    values = [1.0]
    before = [{0}, None, None, None]  # by stream: cells that are surely written; None: not joined

    def order(a, b):
        event = context.create_event()
        event.record(streams[a])
        streams[b].wait_event(event)
        before[b] = (before[b] or set()) | before[a]

    with streams[0].capture() as capture:
        for number in range(1, 16):
            joined = [i for i in range(4) if before[i] is not None]
            if rng.random() < 0.6:
                order(int(rng.choice(joined)), int(rng.integers(4)))
            stream = int(rng.choice([i for i in range(4) if before[i] is not None]))
            x, y = (int(i) for i in rng.choice(sorted(before[stream]), 2))
            add.launch(streams[stream], cells[x], cells[y], cells[number], 16, grid=1)
            values.append(values[x] + values[y])
            before[stream] = before[stream] | {number}
            if rng.random() < 0.15:
                streams[stream].add_host_function(lambda: None)
        for other in range(1, 4):
            if before[other] is not None:
                order(other, 0)
    executable = capture.graph.instantiate()
    for _ in range(2):
        for cell in cells[1:]:
            cell.write(np.full(16, np.nan, np.float32))
        executable.launch(streams[int(rng.integers(4))]).wait()
        assert memory.read(np.float32)[::16].tolist() == values


def test_executables_that_are_forgotten_leave_no_queues(context, add, floats):
    x, y, a, b, out = floats(1.0), floats(10.0), floats(), floats(), floats()
    graph, (one, _) = fork(context, add, x, y, a, b, out)
    cells = context.fences.in_use
    for _ in range(300):  # more than there are queues
        graph.instantiate()
    graph.instantiate().launch(one)  # goes on
    one.synchronize()
    assert first(out) == 31.0
    context.create_stream().close()
    assert context.fences.in_use == cells


def test_a_model_that_is_gone_is_refused(context, blob_bytes, refused):
    stream = context.create_stream()
    a, b = context.alloc(64), context.alloc(64)
    commands = context.create_command_list()
    with pytest.raises(ZeroDivisionError), context.load(blob_bytes(nbytes=64)) as module:
        with stream.capture() as capture:
            stream.launch(module, {"x": a}, {"y": b})
        executable = capture.graph.instantiate()
        commands.append(module["copy"], a, b)
        commands.close()
        raise ZeroDivisionError
    refused(C.NPU_ERROR_STALE_HANDLE, executable.launch, stream)
    refused(C.NPU_ERROR_STALE_HANDLE, capture.graph.instantiate)
    refused(C.NPU_ERROR_STALE_HANDLE, commands.submit, stream)
    stream.synchronize()


def test_a_launch_costs_one_submit_per_branch(device, context, add, floats):
    x, y, a, b, out = floats(1.0), floats(10.0), floats(), floats(), floats()
    graph, (one, _) = fork(context, add, x, y, a, b, out)
    executable = graph.instantiate()
    before = device.counters()["DOORBELLS"]
    executable.launch(one).wait()
    assert device.counters()["DOORBELLS"] - before == 2
