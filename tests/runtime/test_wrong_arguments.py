"""Arguments of wrong types and values: the error names them, nothing changes, and the device is not lost."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from npu_abi import C

import libnpu


@pytest.fixture
def used(device):
    """A device on which work has run, that the library has not looked for: (device, stream, memory)."""
    stream, memory = device.create_stream(), device.alloc(64)
    stream.fill(memory, 1)
    device.host_delay(1e6)
    return device, stream, memory


def executable(device, stream, memory):
    with stream.capture() as capture:
        stream.fill(memory, 1)
    return capture.graph.instantiate()


def closed_list(device):
    commands = device.create_command_list()
    commands.close()
    return commands


def recorded(device, stream):
    event = device.create_event()
    event.record(stream)
    return event


def enter(device, rank):
    with device.team(1) as team:
        team.enter(rank)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("nbytes", lambda d, s, m: d.alloc("4")),
        ("nbytes", lambda d, s, m: d.alloc_host(1.5)),
        ("flags", lambda d, s, m: d.alloc_host(4, [])),
        ("nbytes", lambda d, s, m: d.primary.alloc_async(1.5)),
        ("stream", lambda d, s, m: d.primary.alloc_async(4, 5)),
        ("size", lambda d, s, m: d.copy(m, bytes(4), 1.5)),
        ("size", lambda d, s, m: s.copy(m, m[8:], "x")),
        ("height", lambda d, s, m: s.copy_2d(m, 4, m[32:], 4, 4, 1.5)),
        ("dst_pitch", lambda d, s, m: s.copy_2d(m, None, m[32:], 4, 4, 2)),
        ("value", lambda d, s, m: d.primary.fill(m, 1.5)),
        ("value", lambda d, s, m: d.create_command_list().append_fill(m, 1.5)),
        ("offset", lambda d, s, m: m.read(offset=1.5)),
        ("shape", lambda d, s, m: m.read(shape=(1.5, 2))),
        ("offset", lambda d, s, m: m.write(b"a", 1.5)),
        ("size", lambda d, s, m: m.read_bytes(0, 1.5)),
        ("offset", lambda d, s, m: m.map(offset="a")),
        ("stream", lambda d, s, m: m.free_async(5)),
        ("address", lambda d, s, m: d.primary.find(None)),
        ("tensor", lambda d, s, m: d.primary.from_dlpack(5)),
        ("grid", lambda d, s, m: d.kernel("copy").launch(s, m, m, 1, grid=1.5)),
        ("stream", lambda d, s, m: d.kernel("copy").launch(5, m, m, 1)),
        ("name", lambda d, s, m: d.kernel([])),
        ("name", lambda d, s, m: d.kernel("copy").module[5]),
        ("priority", lambda d, s, m: d.create_stream(priority=1.5)),
        ("priority", lambda d, s, m: d.create_stream(priority=None)),
        ("event", lambda d, s, m: s.wait_event(5)),
        ("module", lambda d, s, m: s.launch(None, {}, {})),
        ("module", lambda d, s, m: s.launch_addresses(5, [0])),
        ("job", lambda d, s, m: s.wait(None)),
        ("job", lambda d, s, m: s.query_job(5)),
        ("job", lambda d, s, m: s.synchronize_to(5)),
        ("a time-out", lambda d, s, m: s.synchronize("1")),
        ("a time-out", lambda d, s, m: d.primary.synchronize("1")),
        ("a time-out", lambda d, s, m: recorded(d, s).synchronize("1")),
        ("a delay", lambda d, s, m: d.host_delay(None)),
        ("stream", lambda d, s, m: d.create_event().record(5)),
        ("end", lambda d, s, m: recorded(d, s).elapsed_ns(5)),
        ("stream", lambda d, s, m: d.create_notify().record(5)),
        ("stream", lambda d, s, m: d.create_notify().wait(5)),
        ("kernel", lambda d, s, m: d.create_command_list().append(5)),
        ("module", lambda d, s, m: d.create_command_list().append_launch(5, {}, {})),
        ("stream", lambda d, s, m: closed_list(d).submit(5)),
        ("stream", lambda d, s, m: executable(d, s, m).launch(5)),
        ("graph", lambda d, s, m: executable(d, s, m).update(5)),
        ("count", lambda d, s, m: d.profiler.take(1.5)),
        ("seed", lambda d, s, m: d.set_schedule(seed=1.5)),
        ("count", lambda d, s, m: d.team("a")),
        ("rank", lambda d, s, m: enter(d, "a")),
        ("PathLike", lambda d, s, m: d.export_trace(None)),
        ("PathLike", lambda d, s, m: d.export_trace(5.5)),
        ("value", lambda d, s, m: s.fill(m, np.array([3]))),
        ("size", lambda d, s, m: d.register(4096, "x")),
        ("size", lambda d, s, m: d.register(np.zeros(4096, np.uint8), 1.5)),
        ("offset", lambda d, s, m: m.map().flush("x")),
        ("size", lambda d, s, m: m.map().invalidate(0, [])),
        ("handle", lambda d, s, m: d.open_ipc_memory("x")),
        ("handle", lambda d, s, m: d.open_ipc_event(1 << 40)),
        ("a delay", lambda d, s, m: d.host_delay(np.array([3]))),
        ("a time-out", lambda d, s, m: s.synchronize(np.array([1, 2]))),
        ("a slice of memory", lambda d, s, m: m["a":]),
        ("a slice of memory", lambda d, s, m: m[np.array([3]) :]),
    ],
)
def test_a_wrong_type_is_named_and_changes_nothing(used, name, call):
    device, stream, memory = used
    _ = device.kernel("copy"), device.default_stream
    free, jobs, operations = device.memory_info(), len(stream.jobs), device.primary.operation_count
    with pytest.raises(TypeError, match=rf"\b{name}\b"):
        call(device, stream, memory)
    assert device.memory_info()[1] == free[1]
    assert device.primary.operation_count - operations <= 1  # what `recorded` enqueues
    assert len(stream.jobs) <= jobs + 1
    device.synchronize()
    assert memory.read().tolist() == [1] * 64


@pytest.mark.parametrize(
    "call",
    [
        lambda d, s, m: s.set_failure_mode("STOP"),
        lambda d, s, m: s.set_failure_mode(None),
        lambda d, s, m: s.synchronize_to(d.default_stream.fill(m, 1)),
        lambda d, s, m: s.query_job(d.default_stream.fill(m, 1)),
        lambda d, s, m: d.profiler.take(-1),
        lambda d, s, m: d.set_schedule([]),
        lambda d, s, m: d.create_stream(priority=1 << 40),
        lambda d, s, m: d.to_device([[1], [1, 2]]),
        lambda d, s, m: d.to_device([None]),
    ],
)
def test_a_wrong_value_is_refused(used, refused, call):
    refused(C.NPU_ERROR_INVALID_VALUE, call, *used)
    used[0].synchronize()


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("nbytes", lambda d, s, m, n: d.alloc(n)),
        ("nbytes", lambda d, s, m, n: d.alloc_host(n)),
        ("value", lambda d, s, m, n: s.fill(m, n)),
        ("value", lambda d, s, m, n: d.primary.fill(m, n)),
        ("offset", lambda d, s, m, n: m.write(b"a", n)),
        ("size", lambda d, s, m, n: d.copy(m, bytes(4), n)),
        ("address", lambda d, s, m, n: d.primary.find(n)),
        ("memory", lambda d, s, m, n: d.register(n, 4096)),
        ("grid", lambda d, s, m, n: d.kernel("copy").launch(s, m, m, 1, grid=n)),
        ("priority", lambda d, s, m, n: d.create_stream(priority=n)),
        ("seed", lambda d, s, m, n: d.set_schedule(seed=n)),
        ("count", lambda d, s, m, n: d.team(n)),
        ("delay", lambda d, s, m, n: d.host_delay(n)),
        ("count", lambda d, s, m, n: d.kernel("copy").launch(s, m, m, n)),
        ("value", lambda d, s, m, n: d.kernel("fill").launch(s, m, n, 1)),
    ],
)
@pytest.mark.parametrize(("digits", "bits"), [(400, 1329), (5000, 16610)])
def test_an_integer_beyond_all_limits_is_named_with_its_length(used, refused, name, call, digits, bits):
    device, _, memory = used
    error = refused(C.NPU_ERROR_INVALID_VALUE, call, *used, 10**digits)
    assert name in error.message
    assert f"a number of {bits} bits" in error.message
    device.synchronize()
    assert memory.read().tolist() == [1] * 64


@pytest.mark.parametrize("value", [np.array([3]), np.array([1.5]), np.array([1, 2]), 1.5, "3", None, [3], b"3"])
def test_what_is_no_integer_for_a_kernel_is_named(used, refused, value):
    device, stream, memory = used
    error = refused(C.NPU_ERROR_ARG_KIND, device.kernel("copy").launch, stream, memory, memory, value)
    assert error.message == f"argument 'count' of 'copy' is an integer, not {type(value).__name__}"


def test_a_built_in_kernel_that_is_missing_is_told_with_those_that_are_there(used, refused):
    device, _, _ = used
    message = refused(C.NPU_ERROR_INVALID_VALUE, device.kernel, "nope").message
    assert message.startswith("there is no built-in kernel 'nope'; there are 'conv2d', 'conv2d.f16', ")
    assert "module" not in message


def test_an_array_is_no_float(used, refused):
    device, stream, memory = used
    fill = device.kernel("fill")
    error = refused(C.NPU_ERROR_ARG_KIND, fill.launch, stream, memory, np.array([1.0, 2.0]), 3)
    assert "argument 'value' of 'fill' is a float, not ndarray" in error.message


@pytest.mark.parametrize("time", [-1, float("nan"), float("-inf")])
def test_time_outs_are_looked_at_when_there_is_nothing_to_wait_for(device, refused, time):
    stream, memory, event = device.create_stream(), device.alloc(64), device.create_event()
    refused(C.NPU_ERROR_INVALID_VALUE, event.synchronize, time)
    job = stream.fill(memory, 1)
    event.record(stream)
    stream.synchronize()
    for wait in (stream.synchronize, device.primary.synchronize, job.wait, event.synchronize):
        refused(C.NPU_ERROR_INVALID_VALUE, wait, time)


def test_what_is_refused_in_a_capture_is_named(device, refused):
    stream = device.create_stream()
    stream.capture()
    assert (
        "not in a capture: the abort of a stream of it"
        in refused(C.NPU_ERROR_CAPTURE_UNSUPPORTED, stream.abort).message
    )
    refused(C.NPU_ERROR_CAPTURE_INVALIDATED, stream.end_capture)
    stream.capture()
    error = refused(C.NPU_ERROR_CAPTURE_UNSUPPORTED, stream.set_failure_mode, libnpu.FailureMode.STOP)
    assert "the failure mode of a stream of it" in error.message


class Asked:
    """An integer that does something when it is asked for its value."""

    def __init__(self, action):
        self.action = action

    def __index__(self):
        self.action()
        return 4


def test_an_argument_that_raises_does_not_lose_the_device(used):
    device, stream, memory = used

    def fail():
        device.memory_info()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stream.copy(memory, memory[8:], Asked(fail))
    device.synchronize()


def test_a_signal_s_handler_that_raises_loses_the_device_whatever_it_raises(used, refused):
    device, stream, memory = used

    def handler(number, frame):
        raise ValueError("from a handler")

    def interrupted():
        device.memory_info()
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(ValueError, match="from a handler"):
            stream.copy(memory, memory[8:], Asked(interrupted))
    finally:
        signal.signal(signal.SIGUSR1, before)
    refused(C.NPU_ERROR_DEVICE_LOST, device.alloc, 4)
    device.reset()
    device.alloc(4)
