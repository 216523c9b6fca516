"""Command lists and graphs."""

from __future__ import annotations

import numpy as np

import libnpu
from libnpu.runtime.graph import CaptureStatus, Graph
from tests.coverage.expect import blob, expect, open_device, take_all

HOST = np.zeros(64, np.uint8)


def stale_stream(device: libnpu.Device) -> libnpu.Stream:
    stream = device.create_stream()
    stream.close()
    return stream


def command_lists() -> None:
    device = open_device()
    context = device.primary
    library, copy = device.load(blob("library")), device.load(blob("copy"))["copy"]
    spin, parts = library["spin"], device.load(blob("parts"))["parts"]
    memory, freed = context.alloc(4096), context.alloc(64)
    freed.free()
    there = device.create_context()
    elsewhere = there.alloc(64)
    x, y = memory.at(0, 64), memory.at(64, 64)
    closed, commands = context.create_command_list(), context.create_command_list()
    with expect("BAD_STATE"):
        closed.submit()
    closed.close()
    with expect("BAD_STATE"):
        closed.close()
    commands.append_fill(x, 0x3F)
    commands.append(copy, x, y)
    commands.append_copy(memory.at(128, 64), y)
    for operation, wrong in (
        (lambda: commands.append(copy, x), "ARG_COUNT"),
        (lambda: commands.append(parts, x, memory.at(64, 64)), "NOT_SUPPORTED"),
        (lambda: commands.append(copy, x, 7), "ARG_KIND"),
        (lambda: commands.append(copy, x, memory.at(64, 63)), "ARG_SIZE"),
        (lambda: commands.append(copy, x, memory.at(68, 64)), "MISALIGNED"),
        (lambda: commands.append(copy, x, freed), "STALE_HANDLE"),
        (lambda: commands.append(copy, x, elsewhere), "WRONG_CONTEXT"),
        (lambda: commands.append(copy, x, y, grid=2), "INVALID_VALUE"),
        (lambda: closed.append(copy, x, y), "BAD_STATE"),
        (lambda: commands.append_copy(bytes(64), x), "INVALID_VALUE"),
        (lambda: commands.append_copy(memory.at(0, 63), y), "OUT_OF_RANGE"),
        (lambda: commands.append_copy(x, freed), "STALE_HANDLE"),
        (lambda: commands.append_copy(x, memory.at(16, 64)), "OVERLAP"),
        (lambda: commands.append_copy(x, elsewhere), "WRONG_CONTEXT"),
        (lambda: commands.append_copy(x, HOST), "NOT_SUPPORTED"),
        (lambda: closed.append_copy(x, y), "BAD_STATE"),
        (lambda: commands.append_fill(freed, 1), "STALE_HANDLE"),
        (lambda: commands.append_fill(elsewhere, 1), "WRONG_CONTEXT"),
        (lambda: closed.append_fill(x, 1), "BAD_STATE"),
    ):
        with expect(wrong):
            operation()
    commands.close()
    commands.submit()
    context.synchronize()
    assert memory.read()[128 + 63] == 0x3F
    with expect("IN_USE"):
        copy.module.unload()

    slow = context.create_command_list()
    slow.append(spin)
    slow.close()
    first, second = device.create_stream(), device.create_stream()
    slow.submit(first)
    with expect("IN_USE"):
        slow.submit(second)
    with expect("IN_USE"):
        slow.reset()
    first.synchronize()
    with expect("WRONG_CONTEXT"):
        slow.submit(there.create_stream())
    with expect("STALE_HANDLE"):
        slow.submit(stale_stream(device))
    slow.reset()
    slow.destroy()
    slow.destroy()  # twice is allowed
    for call in (
        lambda: slow.append(spin),
        lambda: slow.append_copy(x, y),
        lambda: slow.append_fill(x, 1),
        slow.close,
        slow.reset,
        slow.submit,
    ):
        with expect("STALE_HANDLE"):
            call()
    device.close()


def full_list_and_graph() -> None:
    device = open_device()
    context, stream = device.primary, device.create_stream()
    spin = device.load(blob("library"))["spin"]
    commands = context.create_command_list()
    memory = [context.alloc(64) for _ in range(4098)]
    pairs = list(zip(memory[::2], memory[1::2], strict=True))
    with expect("OUT_OF_RESOURCES"):
        for one, other in pairs:
            commands.append_copy(one, other)
    with expect("OUT_OF_RESOURCES"):
        for one in memory[-4:]:
            commands.append_fill(one, 1)
    with expect("OUT_OF_RESOURCES"):
        commands.append(spin)
    commands.destroy()
    with stream.capture() as capture:
        for one, other in pairs:
            stream.copy(one, other)
    with expect("OUT_OF_RESOURCES"):
        capture.graph.instantiate()
    device.close()


def captured_fill(stream: libnpu.Stream, memory: object, value: int) -> Graph:
    stream.capture()
    stream.fill(memory, value)
    return stream.end_capture()


def captures() -> None:
    device = open_device()
    stream, other = device.create_stream(), device.create_stream()
    memory = device.alloc(4096)
    fork, join = device.create_event(), device.create_event()
    assert stream.capture_status is CaptureStatus.NONE
    with expect("BAD_STATE"):
        stream.end_capture()
    with expect("CAPTURE_UNSUPPORTED"):
        device.default_stream.capture()
    with expect("STALE_HANDLE"):
        stale_stream(device).capture()
    with expect("STALE_HANDLE"):
        stale_stream(device).end_capture()
    stream.capture()
    with expect("BAD_STATE"):
        stream.capture()
    stream.fill(memory.at(0, 64), 1)
    fork.record(stream)
    other.wait_event(fork)
    assert other.capture_status is CaptureStatus.ACTIVE
    other.fill(memory.at(64, 64), 2)
    join.record(other)
    stream.wait_event(join)
    graph = stream.end_capture()
    assert len(graph.nodes) >= 2
    stream.capture()
    with expect("CAPTURE_UNSUPPORTED"):
        stream.synchronize()
    assert stream.capture_status is CaptureStatus.INVALID
    with expect("CAPTURE_INVALIDATED"):
        stream.end_capture()
    graph.destroy()
    graph.destroy()  # twice is allowed
    with expect("STALE_HANDLE"):
        graph.instantiate()
    device.close()


def launches() -> None:
    device = open_device()
    stream, memory, gone = device.create_stream(), device.alloc(64), device.alloc(64)
    spin = device.load(blob("library"))["spin"]
    first, second = captured_fill(stream, memory, 1), captured_fill(stream, memory, 2)
    of_gone = captured_fill(stream, gone, 1)
    stream.capture()
    spin.launch(stream)
    other = stream.end_capture()
    executable, exec_of_gone = first.instantiate(), of_gone.instantiate()
    executable.launch(stream)
    stream.synchronize()
    assert memory.read()[63] == 1
    executable.update(second)
    executable.launch(stream)
    stream.synchronize()
    assert memory.read()[63] == 2
    with expect("INVALID_VALUE"):
        executable.update(other)
    slow = other.instantiate()
    slow.launch(stream)
    with expect("IN_USE"):
        slow.update(other)
    stream.synchronize()
    with expect("WRONG_CONTEXT"):
        executable.launch(device.create_context().create_stream())
    gone.free()
    with expect("STALE_HANDLE"):
        exec_of_gone.launch(stream)
    with expect("STALE_HANDLE"):
        of_gone.instantiate()
    second.destroy()
    with expect("STALE_HANDLE"):
        executable.update(second)
    executable.destroy()
    executable.destroy()  # twice is allowed
    with expect("STALE_HANDLE"):
        executable.launch(stream)
    device.close()


def no_memory() -> None:
    device = open_device()
    copy, stream = device.load(blob("copy"))["copy"], device.create_stream()
    x, y = device.alloc(64), device.alloc(64)
    with stream.capture() as capture:
        for _ in range(64):
            copy.launch(stream, x, y)
    memory = take_all(device)
    with expect("OUT_OF_DEVICE_MEMORY"):
        capture.graph.instantiate()
    del memory
    device.close()


command_lists()
full_list_and_graph()
captures()
launches()
no_memory()
