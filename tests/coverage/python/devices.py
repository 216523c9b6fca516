"""Devices, contexts, virtual time, schedules and host threads."""

from __future__ import annotations

import threading

import libnpu
from tests.coverage.expect import blob, expect, open_device


def opening() -> None:
    with expect("INVALID_VALUE"):
        libnpu.open("no-such-profile")
    with expect("INVALID_VALUE"):
        libnpu.open(semantics="opencl")
    device = open_device("cuda")
    assert device.semantics.name == "cuda"
    assert device.info().tiles == 2
    assert libnpu.__version__
    memory = device.alloc(64)
    device.reset()
    with expect("STALE_HANDLE"):
        memory.read()
    device.synchronize()
    device.close()


def contexts() -> None:
    device = open_device()
    context = device.create_context()
    memory = context.alloc(64)
    context.synchronize()
    with expect("IN_USE"):
        context.destroy()
    memory.free()
    context.destroy()
    context.destroy()  # twice is allowed
    many = []
    with expect("OUT_OF_RESOURCES"):
        while len(many) < 256:
            many.append(device.create_context())
    device.close()


def clock() -> None:
    device = open_device()
    before = device.now_ps
    device.host_delay(1000)
    assert device.now_ps >= before + 1_000_000
    with expect("INVALID_VALUE"):
        device.host_delay(-1)
    spin = device.load(blob("library"))["spin"]
    spin.launch(None)
    device.default_stream.synchronize()
    busy, blocked = device.host_times()
    assert busy >= 1_000_000
    assert blocked > 0
    for schedule in ("eager", "lazy", "newest-first", "seed:42", "timed"):
        device.set_schedule(schedule)
    with expect("INVALID_VALUE"):
        device.set_schedule("random")
    assert device.reproducible
    with device.suspend_host_thread():
        pass
    device.close()


def teams() -> None:
    device = open_device()
    before = device.now_ps
    with expect("INVALID_VALUE"):
        device.team(0)
    team = device.team(2)
    with expect("BAD_STATE"):
        device.team(1)
    inside, done = threading.Barrier(3), threading.Barrier(3)
    failures: list[BaseException] = []

    def member(rank: int) -> None:
        try:
            with expect("BAD_STATE"):
                team.leave()
            with expect("INVALID_VALUE"):
                team.enter(2)
            team.enter(rank)
            with expect("BAD_STATE"):
                team.enter(1 - rank)
        except BaseException as error:
            failures.append(error)
        inside.wait(10)
        done.wait(10)
        device.host_delay(1000 * (rank + 1))
        team.leave()

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(10)
    with expect("BAD_STATE"):
        team.end()
    done.wait(10)
    for thread in threads:
        thread.join()
    team.end()
    assert not failures, failures
    assert device.now_ps >= before + 2_000_000
    device.close()


opening()
contexts()
clock()
teams()
