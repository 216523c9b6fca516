"""Handles of memory and events, between two contexts."""

from __future__ import annotations

from tests.coverage.expect import equal, expect, open_device, take_all


def memory() -> None:
    device = open_device()
    there = device.create_context()
    event = device.create_event(timing=False, interprocess=True)
    one, freed = device.alloc(4096), device.alloc(4096)
    handle, stale = one.ipc_handle(), freed.ipc_handle()
    freed.free()
    with expect("STALE_HANDLE"):
        freed.ipc_handle()
    with expect("INVALID_VALUE"):
        device.alloc_host(4096).ipc_handle()
    with expect("INVALID_VALUE"):
        there.open_ipc_memory(event.ipc_handle())
    with expect("INVALID_HANDLE"):
        there.open_ipc_memory(stale)
    view = there.open_ipc_memory(handle)
    with expect("INVALID_VALUE"):
        view.ipc_handle()
    view.write(b"seven")
    assert bytes(one.read()[:5]) == b"seven"
    one.free()
    assert bytes(view.read()[:5]) == b"seven"
    view.close()
    large = device.alloc(48 << 20)
    handle = large.ipc_handle()
    taken = take_all(device)
    with expect("OUT_OF_DEVICE_MEMORY"):
        there.open_ipc_memory(handle)
    for piece in taken:
        piece.free()
    there.open_ipc_memory(handle).close()
    device.close()


def strict() -> None:
    device = open_device("strict")
    there = device.create_context()
    view = there.open_ipc_memory(device.alloc(1 << 20).ipc_handle())
    there.default_stream.fill(view, 1)
    with expect("IN_USE"):
        view.close()
    there.synchronize()
    view.close()
    device.close()


def events() -> None:
    device = open_device()
    there = device.create_context()
    with expect("INVALID_VALUE"):
        device.create_event(interprocess=True)
    made = device.create_event(timing=False, interprocess=True)
    handle = made.ipc_handle()
    opened = there.open_ipc_event(handle)
    with expect("INVALID_VALUE"):
        opened.ipc_handle()
    with expect("INVALID_VALUE"):
        there.open_ipc_event(device.alloc(64).ipc_handle())
    device.default_stream.fill(device.alloc(4096), 1)
    made.record()
    assert equal(opened.query(), False)
    opened.synchronize()
    assert equal(made.query(), True)
    made.destroy()
    with expect("STALE_HANDLE"):
        made.ipc_handle()
    with expect("INVALID_HANDLE"):
        there.open_ipc_event(handle)
    device.close()


memory()
events()
strict()
