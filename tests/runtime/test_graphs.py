"""Launches of graphs: branches, updates, what the nodes can be, and what a launch costs."""

from itertools import pairwise

import numpy as np
import pytest
from npu_abi import C

from tests.runtime.graphs import first, fork


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


def test_an_empty_graph_and_a_graph_in_pieces(context):
    stream = context.create_stream()
    with stream.capture() as capture:
        pass
    executable = capture.graph.instantiate()
    executable.launch(stream).wait()
    executable.launch(stream)
    executable.destroy()
    stream.synchronize()


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


def test_a_launch_costs_one_submit_per_branch(device, context, add, floats):
    x, y, a, b, out = floats(1.0), floats(10.0), floats(), floats(), floats()
    graph, (one, _) = fork(context, add, x, y, a, b, out)
    executable = graph.instantiate()
    before = device.counters()["DOORBELLS"]
    executable.launch(one).wait()
    assert device.counters()["DOORBELLS"] - before == 2
