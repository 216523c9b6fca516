"""Capture of streams: what becomes a node, and what makes a capture invalid."""

import numpy as np
import pytest
from npu_abi import C

from libnpu.runtime.graph import CaptureStatus
from tests.runtime.graphs import first


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
