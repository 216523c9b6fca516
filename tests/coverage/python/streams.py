"""Streams, events and notifies."""

from __future__ import annotations

import libnpu
from libnpu import FailureMode
from tests.coverage.expect import blob, equal, expect, open_device


def spin_of(device: libnpu.Device) -> libnpu.Kernel:
    return device.load(blob("library"))["spin"]


def streams() -> None:
    device = open_device()
    spin, stream = spin_of(device), device.create_stream(blocking=False, priority=3)
    with expect("INVALID_VALUE"):
        device.create_stream(priority=99)
    many = []
    with expect("OUT_OF_RESOURCES"):
        while len(many) < 4096:
            many.append(device.create_stream())
    with expect("OUT_OF_RESOURCES"):
        device.create_stream(priority=1)
    for one in many:
        one.close()
    spin.launch(stream)
    assert equal(stream.query(), False)
    with expect("TIMEOUT"):
        stream.synchronize(10)
    stream.synchronize()
    stream.synchronize(10)
    assert equal(stream.query(), True)
    called: list[int] = []
    stream.add_host_function(called.append, 7)
    stream.synchronize()
    assert called == [7]
    stream.close()
    stream.close()  # twice is allowed
    for call in (
        stream.synchronize,
        lambda: stream.synchronize(10),
        stream.query,
        stream.abort,
        lambda: stream.add_host_function(called.append, 7),
        lambda: stream.set_failure_mode(FailureMode.STOP),
    ):
        with expect("STALE_HANDLE"):
            call()
    device.close()


def failure_modes() -> None:
    device = open_device()
    spin, stream = spin_of(device), device.create_stream()
    spin.launch(stream)
    with expect("IN_USE"):
        stream.set_failure_mode(FailureMode.STOP)
    stream.synchronize()
    stream.set_failure_mode(FailureMode.STOP)
    with expect("BAD_STATE"):
        stream.set_failure_mode(FailureMode.CONTINUE)
    spin.launch(stream)
    stream.abort()
    with expect("ABORTED_BY_PRIOR_ERROR"):
        stream.synchronize()
    device.close()


def events() -> None:
    device = open_device()
    spin, stream = spin_of(device), device.create_stream()
    first, second, never = (device.create_event() for _ in range(3))
    silent = device.create_event(timing=False)
    assert equal(never.query(), True)
    never.synchronize()
    stream.wait_event(never)
    first.record(stream)
    spin.launch(stream)
    second.record(stream)
    silent.record(stream)
    device.default_stream.wait_event(second)
    assert equal(second.query(), False)
    with expect("TIMEOUT"):
        second.synchronize(10)
    with expect("NOT_READY"):
        first.elapsed_ns(second)
    with expect("NOT_READY"):
        _ = second.timestamp_ps
    second.synchronize()
    second.synchronize(10)
    assert equal(second.query(), True)
    assert first.elapsed_ns(second) > 0
    assert second.timestamp_ps > 0
    with expect("NOT_RECORDED"):
        first.elapsed_ns(never)
    with expect("NO_TIMING"):
        first.elapsed_ns(silent)
    with expect("NOT_RECORDED"):
        _ = never.timestamp_ps
    with expect("NO_TIMING"):
        _ = silent.timestamp_ps
    second.reset()
    with expect("NOT_RECORDED"):
        _ = second.timestamp_ps
    other = device.create_context()
    there, event_there = other.create_stream(), other.create_event()
    for call in (
        lambda: first.record(there),
        lambda: there.wait_event(first),
        lambda: first.elapsed_ns(event_there),
    ):
        with expect("WRONG_CONTEXT"):
            call()
    second.destroy()
    second.destroy()  # twice is allowed
    for call in (
        second.record,
        lambda: stream.wait_event(second),
        second.reset,
        second.synchronize,
        lambda: second.synchronize(10),
        second.query,
        lambda: first.elapsed_ns(second),
        lambda: second.timestamp_ps,
    ):
        with expect("STALE_HANDLE"):
            call()
    device.close()


def notifies() -> None:
    device = open_device()
    notify, stream = device.create_notify(), device.create_stream()
    notify.wait(stream)
    with expect("IN_USE"):
        notify.destroy()
    notify.record()
    stream.synchronize()
    there = device.create_context().create_stream()
    with expect("WRONG_CONTEXT"):
        notify.record(there)
    with expect("WRONG_CONTEXT"):
        notify.wait(there)
    with expect("OUT_OF_RESOURCES"):
        for _ in range(20000):
            notify.record()
    device.synchronize()
    notify.destroy()
    with expect("STALE_HANDLE"):
        notify.record()
    with expect("STALE_HANDLE"):
        notify.wait()
    device.close()


def strict() -> None:
    device = open_device("strict")
    spin, stream, event = spin_of(device), device.create_stream(), device.create_event()
    with expect("NOT_RECORDED"):
        stream.wait_event(event)
    with expect("NOT_RECORDED"):
        event.synchronize()
    with expect("NOT_RECORDED"):
        event.synchronize(10)
    with expect("NOT_RECORDED"):
        event.query()
    spin.launch(stream)
    with expect("IN_USE"):
        stream.close()
    device.close()


streams()
failure_modes()
events()
notifies()
strict()
