"""Graphs whose launches fail, and what is left when graphs, memory, models, streams or contexts end."""

import gc

import pytest
from npu_abi import C

from libnpu.errors import NpuError
from tests.runtime.graphs import first, fork


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
