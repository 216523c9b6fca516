"""Contexts: what is made in one is its own, and a fault ends one only."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from npu_abi import C

import libnpu
from libnpu.syscalls import Node

FAR = 1 << 40  # an address that no context maps


def run_copy(context, blob, value):
    x, y = context.alloc(1024), context.alloc(1024)
    x.write(np.full(1024, value, np.uint8))
    stream = context.create_stream()
    stream.launch(blob, {"x": x}, {"y": y})
    stream.synchronize()
    return y.read()[0]


def test_the_device_s_own_methods_are_the_primary_context_s(device, blob_bytes):
    assert device.load(blob_bytes()).context is device.primary
    assert device.alloc(64).context is device.primary
    assert device.default_stream.context is device.primary
    assert device.primary.device is device


def test_contexts_on_one_machine_share_the_clock_and_nothing_else(device, blob_bytes):
    first, second = device.create_context(), device.create_context()
    a, b = first.alloc(4096), second.alloc(4096)
    assert a.device_address == b.device_address  # address spaces of their own
    a.write(np.full(4096, 1, np.uint8))
    b.write(np.full(4096, 2, np.uint8))
    assert (a.read()[0], b.read()[0]) == (1, 2)
    assert first.node.now_ps == second.node.now_ps == device.now_ps
    assert run_copy(first, first.load(blob_bytes()), 3) == 3
    assert run_copy(second, second.load(blob_bytes()), 4) == 4


def test_objects_of_one_context_are_refused_by_another(device, blob_bytes, refused):
    other = device.create_context()
    mine, theirs = device.load(blob_bytes()), other.load(blob_bytes())
    x, y, z = device.alloc(1024), device.alloc(1024), other.alloc(1024)
    stream, event, notify = device.create_stream(), other.create_event(), other.create_notify()
    before = device.counters()["DOORBELLS"]
    wrong = C.NPU_ERROR_WRONG_CONTEXT
    refused(wrong, lambda: stream.launch(theirs, {"x": x}, {"y": y}))
    refused(wrong, lambda: stream.launch(mine, {"x": x}, {"y": z}))
    refused(wrong, lambda: mine["copy"].launch(stream, x, z))
    refused(wrong, lambda: theirs["copy"].launch(stream, x, y))
    refused(wrong, lambda: event.record(stream))
    refused(wrong, lambda: stream.wait_event(event))
    refused(wrong, lambda: notify.record(stream))
    refused(wrong, lambda: notify.wait(stream))
    refused(wrong, lambda: device.create_event().elapsed_ns(event))
    assert device.counters()["DOORBELLS"] == before


def test_a_context_lost_by_a_fault_does_not_harm_its_sibling(device, image, blob_bytes, refused):
    from libnpu.blob import write

    good = device.create_context()
    broken = device.load(write(image(addend=FAR)))
    x, y = device.alloc(1024), device.alloc(1024)
    fine = good.load(blob_bytes())
    source, target = good.alloc(1024), good.alloc(1024)
    source.write(np.full(1024, 7, np.uint8))
    healthy = good.create_stream()
    job = healthy.launch(fine, {"x": source}, {"y": target})
    device.default_stream.launch(broken, {"x": x}, {"y": y})
    refused(C.NPU_ERROR_DEVICE_PAGE_FAULT, device.default_stream.synchronize)
    refused(C.NPU_ERROR_DEVICE_LOST, lambda: device.alloc(4096))
    job.wait()
    assert target.read()[0] == 7
    assert run_copy(good, fine, 9) == 9
    device.primary.destroy(force=True)
    assert run_copy(device, device.load(blob_bytes()), 5) == 5  # the device's next primary context
    assert run_copy(good, fine, 10) == 10


@pytest.mark.parametrize("child", ["alloc", "load", "stream", "event", "notify"])
def test_destroy_with_live_children_is_refused_unless_forced(device, blob_bytes, child, refused):
    context = device.create_context()
    kept = {
        "alloc": lambda: context.alloc(64),
        "load": lambda: context.load(blob_bytes()),
        "stream": context.create_stream,
        "event": context.create_event,
        "notify": context.create_notify,
    }[child]()
    error = refused(C.NPU_ERROR_IN_USE, context.destroy)
    assert "the context still has 1 " in error.message
    assert context.is_alive
    context.destroy(force=True)
    context.destroy()  # twice is allowed
    stale = {
        "alloc": lambda: kept.read(),
        "load": lambda: kept.run({}),
        "stream": lambda: kept.synchronize(),
        "event": lambda: kept.record(),
        "notify": lambda: kept.record(),
    }[child]
    refused(C.NPU_ERROR_STALE_HANDLE, stale)
    refused(C.NPU_ERROR_STALE_HANDLE, lambda: context.alloc(64))


def test_a_context_without_children_is_destroyed_and_its_memory_comes_back(device, blob_bytes):
    free = device.memory_info()[0]
    context = device.create_context()
    with context.load(blob_bytes()) as module, context.create_stream() as stream:
        x, y = context.alloc(1024), context.alloc(1024)
        stream.launch(module, {"x": x}, {"y": y}).wait()
        assert device.memory_info()[0] < free
    x.free()
    y.free()
    context.destroy()
    assert device.memory_info()[0] == free


def test_a_with_block_ends_a_context_with_all_that_is_in_it(device, refused):
    with device.create_context() as context:
        buffer = context.alloc(64)
    refused(C.NPU_ERROR_STALE_HANDLE, buffer.read)


def test_reset_ends_all_contexts_of_the_device(device, refused):
    context = device.create_context()
    mine, theirs = device.alloc(64), context.alloc(64)
    device.reset()
    refused(C.NPU_ERROR_STALE_HANDLE, mine.read)
    refused(C.NPU_ERROR_STALE_HANDLE, theirs.read)
    refused(C.NPU_ERROR_STALE_HANDLE, context.create_stream)
    assert device.alloc(64).size == 64


def test_synchronising_the_device_waits_for_all_contexts(device, blob_bytes):
    contexts = [device.primary, device.create_context()]
    jobs = []
    for context in contexts:
        x, y = context.alloc(1 << 20), context.alloc(1 << 20)
        jobs.append(context.create_stream().launch(context.load(blob_bytes(nbytes=1 << 20)), {"x": x}, {"y": y}))
    assert [job.done for job in jobs] == [False, False]
    device.synchronize()
    assert [job.done for job in jobs] == [True, True]


def test_all_contexts_of_the_device_can_be_used_and_come_back(device, refused):
    contexts = []
    error = refused(C.NPU_ERROR_OUT_OF_RESOURCES, lambda: contexts.extend(iter(device.create_context, None)))
    assert "all 64 contexts are in use" in error.message
    contexts = list(device._contexts)
    assert len(contexts) == 63  # and the primary one
    contexts[7].destroy()
    again = device.create_context()
    assert again.alloc(64).size == 64
    again.destroy(force=True)


def test_a_context_that_finds_no_memory_leaves_nothing_behind(device, monkeypatch, refused):
    before = device.memory_info()[0]
    with monkeypatch.context() as patch:
        patch.setattr("libnpu.runtime.context.CommandPool", refuse_memory)
        refused(C.NPU_ERROR_OUT_OF_DEVICE_MEMORY, device.create_context)
    gc.collect()  # the exception's frames hold a view of the memory
    assert device.memory_info()[0] == before
    device.create_context().destroy()


def refuse_memory(node):
    raise libnpu.NpuError(C.NPU_ERROR_OUT_OF_DEVICE_MEMORY, "no memory")


@pytest.mark.parametrize("how", ["reset", "destroy"])
def test_the_primary_context_is_stale_after_its_end_and_takes_no_memory(device, how, refused):
    free, old = device.memory_info()[0], device.primary
    kernel, commands, event, notify = (
        old.kernel("copy"),
        old.create_command_list(),
        old.create_event(),
        old.create_notify(),
    )
    stream, memory = old.create_stream(), old.alloc(64)
    with stream.capture() as capture:
        stream.fill(memory, 1)
    executable = capture.graph.instantiate()
    if how == "reset":
        device.reset()
    else:
        old.destroy(force=True)
    assert device.primary is not old
    for call in (
        lambda: old.alloc(64),
        lambda: old.to_device(b"abc"),
        lambda: old.fill(memory, 1),
        lambda: old.default_stream,
        old.create_stream,
        old.create_event,
        old.create_notify,
        old.create_command_list,
        old.synchronize,
        old.overflows,
        old.profiler.start,
        lambda: old.kernel("copy"),
        lambda: kernel.launch(None, None, None, 1),
        lambda: commands.append_fill(memory, 1),
        commands.close,
        commands.submit,
        event.query,
        event.record,
        notify.record,
        notify.wait,
        capture.graph.instantiate,
        executable.launch,
        lambda: stream.fill(memory, 1),
        stream.synchronize,
        memory.read,
    ):
        refused(C.NPU_ERROR_STALE_HANDLE, call)
    old.destroy(force=True)
    for thing in (memory, commands, executable, event, notify):
        getattr(thing, "free", getattr(thing, "destroy", None))()
    stream.close()
    assert device.memory_info()[0] == free
    device.primary.fill(device.alloc(64), 1)


def test_a_device_ends_all_its_contexts_also_when_the_end_of_one_fails(monkeypatch):
    device = libnpu.open("unit")
    contexts = [device.primary, *(device.create_context() for _ in range(3))]
    real = Node.close

    def close(node):
        real(node)
        if node is contexts[1].node:
            raise libnpu.NpuError(C.NPU_ERROR_DEVICE_LOST, "the device was unplugged")

    monkeypatch.setattr(Node, "close", close)
    with pytest.raises(libnpu.NpuError, match="unplugged"):
        device.close()
    assert [context.is_alive for context in contexts] == [False] * 4
    assert not device.node.is_open
