"""Records of operations and calls, host times, trace files and text timelines."""

import json
from itertools import pairwise

from npu_abi import C

import libnpu


def parts(memory):
    return memory.at(0, 4096), memory.at(4096, 4096), memory.at(8192, 4096)


def test_records_say_what_was_enqueued_where_and_how_it_went(device, context, add, memory):
    stream = context.create_stream()
    add.launch(stream, *parts(memory), 1024)
    context.profiler.start()
    add.launch(stream, *parts(memory), 1024, grid=2)
    stream.copy(memory.at(16384, 100), memory.at(0, 100))
    stream.fill(memory.at(32768, 40), 3)
    event = context.create_event()
    event.record(stream)
    stream.synchronize()
    context.profiler.stop()
    stream.fill(memory, 0)
    records = context.profiler.records
    assert [(r.op_id, r.kind, r.name, r.bytes, r.blocks) for r in records] == [
        (2, C.NPU_OP_KERNEL, "add", 32, 2),
        (3, C.NPU_OP_MEMCPY, "copy device to device", 100, 0),
        (4, C.NPU_OP_MEMSET, "fill with 0x03", 40, 0),
        (5, C.NPU_OP_EVENT_RECORD, "event record", 0, 0),
    ]
    assert all(r.result == C.NPU_SUCCESS and r.stream_id == stream.id for r in records)
    assert all("test_profiler.py:" in r.enqueue_site for r in records)
    kernel = records[0]
    assert kernel.enqueue_ps < kernel.enqueued_ps <= records[1].enqueue_ps
    assert kernel.enqueue_ps + kernel.pack_ps + kernel.submit_ps == kernel.enqueued_ps
    assert kernel.start_ps + kernel.schedule_ps + kernel.load_ps + kernel.execute_ps <= kernel.end_ps
    assert min(kernel.pack_ps, kernel.submit_ps, kernel.schedule_ps, kernel.execute_ps) > 0
    assert kernel.units.bit_count() == 2
    assert all(a.end_ps <= b.start_ps for a, b in pairwise(records))
    copy = records[1]
    assert (copy.pack_ps, copy.submit_ps, copy.schedule_ps, copy.load_ps, copy.execute_ps, copy.units) == (0,) * 6


def test_failures_and_work_in_flight_have_results_too(context, blob_bytes, refused):
    module = context.load(blob_bytes(nbytes=64, deadlock=True, name="stuck"))
    a, b = context.alloc(64), context.alloc(64)
    context.profiler.start()
    module["stuck"].launch(None, a, b)
    assert [r.result for r in context.profiler.records] == [C.NPU_NOT_READY]
    refused(C.NPU_ERROR_BARRIER_DEADLOCK, context.synchronize)
    (record,) = context.profiler.records
    assert (record.kind, record.result, record.name) == (C.NPU_OP_MODEL, C.NPU_ERROR_BARRIER_DEADLOCK, "stuck")


def test_lists_graphs_host_functions_and_notifies_are_one_record_each(context, add, memory):
    stream, other = context.create_stream(), context.create_stream()
    commands = context.create_command_list()
    commands.append(add, *parts(memory), 1024)
    commands.append_fill(memory.at(32768, 40), 3)
    commands.close()
    with stream.capture() as capture:
        add.launch(stream, *parts(memory), 1024)
        stream.fill(memory.at(32768, 4), 3)
    graph = capture.graph.instantiate()
    notify, event = context.create_notify(), context.create_event()
    context.profiler.start()
    commands.submit(stream)
    graph.launch(stream)
    stream.add_host_function(lambda: None)
    event.record(stream)
    other.wait_event(event)
    notify.record(stream)
    notify.wait(other)
    memory.free_async(other)
    context.synchronize()
    assert [(r.kind, r.bytes) for r in context.profiler.records] == [
        (C.NPU_OP_CMDLIST, 72),
        (C.NPU_OP_GRAPH, 36),
        (C.NPU_OP_HOST_FUNCTION, 0),
        (C.NPU_OP_EVENT_RECORD, 0),
        (C.NPU_OP_EVENT_WAIT, 0),
        (C.NPU_OP_NOTIFY_RECORD, 0),
        (C.NPU_OP_NOTIFY_WAIT, 0),
        (C.NPU_OP_FREE, 0),
    ]


def test_take_forgets_the_oldest_and_start_forgets_all(context, memory, refused):
    stream, profiler = context.create_stream(), context.profiler
    refused(C.NPU_ERROR_BAD_STATE, profiler.stop)
    profiler.start()
    refused(C.NPU_ERROR_BAD_STATE, profiler.start)
    for _ in range(3):
        stream.fill(memory, 0)
    stream.synchronize()
    profiler.stop()
    assert [r.op_id for r in profiler.take(2)] == [1, 2]
    assert [r.op_id for r in profiler.take()] == [3]
    assert profiler.take() == ()
    profiler.start()
    stream.fill(memory, 0)
    profiler.stop()
    profiler.start()
    assert len(profiler) == 0
    assert profiler.calls == ()


def test_blocked_time_is_the_time_in_waits(device, context, add, memory):
    """P036, P021: synchronous use blocks the host for what the device does; work of the host meanwhile is not blocked."""
    stream = context.create_stream()
    busy, blocked = device.host_times()
    assert busy + blocked == device.now_ps
    device.host_delay(1000)
    assert device.host_times() == (busy + 1_000_000, blocked)
    job = add.launch(stream, *parts(memory), 1024)
    enqueued_ps, before = device.now_ps, device.host_times()
    assert before[1] == blocked
    stream.synchronize()
    after = device.host_times()
    api_ps = context.api_ps
    assert after[0] - before[0] == api_ps
    assert after[1] - before[1] == device.now_ps - enqueued_ps - api_ps
    assert device.now_ps > job.end_ps
    device.host_delay(1_000_000)
    add.launch(stream, *parts(memory), 1024)
    device.host_delay(1_000_000)  # longer than the kernel
    before = device.host_times()
    stream.synchronize()
    assert device.host_times()[1] - before[1] < 2_000_000  # what the ioctl costs


def test_calls_are_noted_with_their_blocked_part(device, context, add, memory):
    stream = context.create_stream()
    context.profiler.start()
    begin_ps = device.now_ps
    add.launch(stream, *parts(memory), 1024)
    launched_ps = device.now_ps
    stream.synchronize()
    context.profiler.stop()
    launch, wait = context.profiler.calls  # begin and end of records are not calls that count
    assert (launch.thread, launch.name) == (0, "Kernel.launch")
    assert (launch.begin_ps, launch.end_ps, launch.blocked_ps) == (begin_ps, launched_ps, 0)
    assert (wait.name, wait.begin_ps) == ("Stream.synchronize", launched_ps)
    assert wait.end_ps - wait.begin_ps == wait.blocked_ps + context.api_ps
    assert context.profiler.host_times() == {0: (wait.end_ps - begin_ps - wait.blocked_ps, wait.blocked_ps)}
    stream.fill(memory, 0)
    assert len(context.profiler.calls) == 2


def events_of(path):
    document = json.loads(path.read_bytes())
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    return document["otherData"], [(names[e["pid"], e["tid"]], e) for e in document["traceEvents"] if e["ph"] == "X"]


def run_two_streams(path):
    with libnpu.open(trace=True) as device:
        context, add = device.primary, device.kernel("add")
        memory = device.alloc(1 << 16)
        one, two = device.create_stream(), device.create_stream()
        context.profiler.start()
        add.launch(one, *parts(memory), 1024, grid=1)
        add.launch(two, *parts(memory), 1024, grid=1)
        one.fill(memory.at(32768), 1)
        context.synchronize()
        device.export_trace(str(path))
        return [r.start_ps for r in context.profiler.records]


def test_a_trace_file_has_lanes_for_threads_streams_and_engines(tmp_path):
    starts = run_two_streams(tmp_path / "trace.json")
    about, events = events_of(tmp_path / "trace.json")
    assert about == {"profile": "npu-37xx", "reproducible": True, "times_meaningful": True}
    lanes = {lane: [e["name"] for name, e in events if name == lane] for lane, _ in events}
    assert lanes["thread 0"] == ["Kernel.launch", "Kernel.launch", "Stream.fill", "Context.synchronize", "blocked"]
    assert lanes["stream 1"] == ["add", "fill with 0x01"]
    assert lanes["stream 2"] == ["add"]
    assert sum(names.count("add") for lane, names in lanes.items() if lane.startswith("SHAVE")) == 2
    assert any(lane.startswith("DMA") for lane in lanes)
    first = next(e for lane, e in events if lane == "stream 1")
    assert round(first["ts"] * 1_000_000) == starts[0]
    assert first["args"]["op_id"] == 1
    assert first["args"]["result"] == "NPU_SUCCESS"


def test_two_runs_write_the_same_bytes(tmp_path):
    for name in "ab":
        run_two_streams(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_trace_file_that_cannot_be_written(device, tmp_path, refused):
    error = refused(C.NPU_ERROR_FILE, device.export_trace, str(tmp_path / "none" / "x.json"))
    assert "No such file or directory" in str(error)


def test_a_timeline_in_text(device, context, add, memory):
    one, two = context.create_stream(), context.create_stream()
    assert libnpu.timeline(context) == "nothing was recorded: context.profiler.start() begins\n"
    add.launch(one, *parts(memory), 1024, grid=1)
    context.synchronize()
    context.profiler.start()
    add.launch(one, *parts(memory), 1024, grid=1)
    add.launch(two, *parts(memory), 1024, grid=1)
    device.host_delay(2000)
    context.synchronize()
    context.profiler.stop()
    text = libnpu.timeline(context)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    bars = {(line[:33].rstrip(), number): line[34:] for number, line in enumerate(lines[1:])}
    assert sorted(name for name, _ in bars) == [
        "host       Context.synchronize",
        "host       Device.host_delay",
        "host       Kernel.launch",
        "host       Kernel.launch",
        "stream 1   add",
        "stream 2   add",
    ]
    assert [bar.index(bar.lstrip("| ")[0]) for bar in bars.values()] == sorted(
        bar.index(bar.lstrip("| ")[0]) for bar in bars.values()
    )  # in the order of time
    for (name, _), bar in bars.items():
        assert ("=" in bar) is name.startswith("stream")
        assert ("....." in bar) is name.endswith("synchronize")
    assert text == libnpu.timeline(context)


def test_a_context_that_ends_stops_its_profiler(device):
    context = device.create_context()
    context.profiler.start()
    context.create_stream()
    context.destroy(force=True)
    device.primary.profiler.start()
    device.primary.profiler.stop()
    assert not context.profiler.is_active
