"""Handles of memory and events: between contexts, and between processes at the daemon."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from npu_abi import C

import libnpu


@pytest.fixture
def npu():
    with libnpu.open("unit", where="") as device:
        yield device


def result_of(call):
    with pytest.raises(libnpu.NpuError) as error:
        call()
    return error.value.result


def test_the_device_of_each_context_sees_the_same_memory(npu):
    other = npu.create_context()
    memory = npu.to_device(np.arange(16, dtype=np.float32))
    view = other.open_ipc_memory(memory.ipc_handle())
    assert view.size == 64
    kernel = other.kernel("scale_add")
    kernel.launch(other.default_stream, view, view, 9.0, 16)
    other.synchronize()
    assert memory.read(np.float32).tolist() == [10.0 * i for i in range(16)]
    memory.free()
    assert view.read(np.float32)[15] == 150
    view.close()
    view.close()
    other.destroy()


def test_memory_goes_with_the_last_who_has_it(npu):
    other, third = npu.create_context(), npu.create_context()
    warm = other.alloc(1 << 20)
    warm.free()
    before = npu.memory_info()[0]
    memory = npu.alloc(1 << 20)
    views = [context.open_ipc_memory(memory.ipc_handle()) for context in (other, third)]
    memory.free()
    assert npu.memory_info()[0] <= before - (1 << 20)
    views[0].close()
    assert npu.memory_info()[0] <= before - (1 << 20)
    third.destroy(force=True)
    assert npu.memory_info()[0] >= before


def test_what_may_not_be(npu):
    other = npu.create_context()
    memory = npu.alloc(64)
    handle = memory.ipc_handle()
    view = other.open_ipc_memory(handle)
    event = npu.create_event(timing=False, interprocess=True)
    assert len(handle) == C.NPU_IPC_HANDLE_BYTES == 64
    assert result_of(view.ipc_handle) == C.NPU_ERROR_INVALID_VALUE
    assert result_of(npu.alloc_host(64).ipc_handle) == C.NPU_ERROR_INVALID_VALUE
    for wrong in (b"", b"x" * 64, handle[:-1], handle[:-1] + b"\1", event.ipc_handle()):
        assert result_of(lambda wrong=wrong: other.open_ipc_memory(wrong)) == C.NPU_ERROR_INVALID_VALUE
    assert result_of(lambda: other.open_ipc_event(handle)) == C.NPU_ERROR_INVALID_VALUE
    longer = handle[:24] + (1 << 20).to_bytes(8, "little") + handle[32:]
    assert result_of(lambda: other.open_ipc_memory(longer)) == C.NPU_ERROR_INVALID_VALUE
    guessed = handle[:16] + bytes(7) + b"\1" + handle[24:]
    assert result_of(lambda: other.open_ipc_memory(guessed)) == C.NPU_ERROR_INVALID_HANDLE
    memory.free()
    assert result_of(lambda: other.open_ipc_memory(handle)) == C.NPU_ERROR_INVALID_HANDLE
    assert result_of(lambda: npu.create_event(interprocess=True)) == C.NPU_ERROR_INVALID_VALUE


@pytest.mark.parametrize("semantics", ["ascend", "cuda", "strict"])
def test_a_stream_of_another_context_waits_for_the_record(semantics):
    with libnpu.open("unit", where="", semantics=semantics) as npu:
        other = npu.create_context()
        made = npu.create_event(timing=False, interprocess=True)
        opened = other.open_ipc_event(made.ipc_handle())
        memory = npu.alloc(1 << 16)
        view = other.open_ipc_memory(memory.ipc_handle())
        result = other.alloc(1 << 16)
        writing, reading = npu.create_stream(blocking=False), other.create_stream(blocking=False)
        writing.fill(memory, 5)
        made.record(writing)
        reading.wait_event(opened)
        reading.copy(result, view)
        assert made.query() is False
        opened.synchronize()
        assert (made.query(), opened.query()) == (True, True)
        reading.synchronize()
        assert set(bytes(result.read())) == {5}


def test_records_of_both_sides_count_and_a_reset_forgets_them(npu):
    other = npu.create_context()
    made = npu.create_event(timing=False, interprocess=True)
    opened = other.open_ipc_event(made.ipc_handle())
    assert made.query() and opened.query()
    memory = other.alloc(1 << 16)
    stream = other.create_stream()
    stream.fill(memory, 1)
    opened.record(stream)
    assert made.query() is False
    assert result_of(lambda: made.synchronize(timeout_ns=1)) == C.NPU_TIMEOUT
    made.synchronize()
    assert opened.query() is True
    stream.fill(memory, 2)
    opened.record(stream)
    made.reset()
    assert opened.query() is True
    assert result_of(lambda: made.timestamp_ps) == C.NPU_ERROR_NO_TIMING
    assert result_of(opened.ipc_handle) == C.NPU_ERROR_INVALID_VALUE
    handle = made.ipc_handle()
    made.destroy()
    assert result_of(lambda: other.open_ipc_event(handle)) == C.NPU_ERROR_INVALID_HANDLE
    opened.record(stream)
    opened.synchronize()
    opened.destroy()
    npu.synchronize()


@pytest.mark.parametrize("semantics", ["ascend", "cuda", "strict"])
def test_time_outs_of_any_number_cost_what_those_of_other_events_do_and_leave_nothing(semantics):
    with libnpu.open("unit", where="", semantics=semantics) as npu:
        there = npu.create_context()
        stream, memory, token = npu.create_stream(blocking=False), npu.alloc(64), npu.create_notify()
        _ = npu.default_stream
        made = npu.create_event(timing=False, interprocess=True)
        opened, plain = there.open_ipc_event(made.ipc_handle()), npu.create_event()
        free, _ = npu.memory_info()
        token.wait(stream)
        stream.fill(memory, 1)
        made.record(stream)
        plain.record(stream)

        def cost_of_poll(event):
            before_ps = npu.now_ps
            assert result_of(lambda: event.synchronize(1)) == C.NPU_TIMEOUT
            return npu.now_ps - before_ps

        for event in (made, opened):
            cost_of_poll(event)
            costs = {cost_of_poll(event) for _ in range(300)}  # more than a context has jobs
            assert costs == {cost_of_poll(plain)}
        assert result_of(lambda: made.synchronize(5000)) == C.NPU_TIMEOUT
        there.synchronize()  # the pending wait is nobody's work
        token.record()
        opened.synchronize()
        stream.synchronize()
        assert made.query() and memory.read().tolist() == [1] * 64
        stream.fill(memory, 2)
        made.record(stream)
        made.synchronize()
        assert memory.read().tolist() == [2] * 64
        for event in (made, opened):
            event.destroy()
            event.destroy()
        stream.close()
        token.destroy()
        there.destroy()
        assert npu.memory_info()[0] >= free


@pytest.mark.parametrize("semantics", ["ascend", "cuda", "strict"])
def test_an_event_that_work_uses_and_was_asked_about_can_be_destroyed_at_once(semantics):
    with libnpu.open("unit", where="", semantics=semantics) as npu, npu.create_context() as mine:
        memory, token = mine.alloc(64), mine.create_notify()
        stream, other, third = (mine.create_stream() for _ in range(3))
        free, _ = npu.memory_info()
        event = mine.create_event(timing=False, interprocess=True)
        token.wait(stream)
        event.record(stream)
        other.wait_event(event)
        other.fill(memory, 1)
        assert result_of(lambda: event.synchronize(1)) == C.NPU_TIMEOUT
        before_ps = npu.now_ps
        event.destroy()
        assert npu.now_ps - before_ps < 20 * 10**6
        assert not stream.query() and not other.query()
        token.record(third)
        mine.synchronize()
        assert memory.read().tolist() == [1] * 64
        for end in (stream.close, other.close, third.close, token.destroy, memory.free):
            end()
        mine.destroy()
        assert npu.memory_info()[0] >= free


def test_who_waits_for_an_event_goes_on_when_it_is_destroyed(npu):
    stream, memory, token = npu.create_stream(), npu.alloc(64), npu.create_notify()
    event = npu.create_event(timing=False, interprocess=True)
    token.wait(stream)
    stream.fill(memory, 1)
    event.record(stream)
    seen = []

    def wait():
        team.enter(0)
        event.synchronize()
        seen.append(memory.read()[0])
        team.leave()

    def destroy():
        team.enter(1)
        npu.host_delay(1000)
        event.destroy()
        assert not stream.query()
        token.record()
        team.leave()

    with npu.team(2) as team:
        threads = [threading.Thread(target=work) for work in (wait, destroy)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen == [1]
    assert result_of(event.query) == C.NPU_ERROR_STALE_HANDLE
    npu.synchronize()


def test_records_end_in_any_order_and_the_last_one_counts(npu):
    there = npu.create_context()
    slow, fast, token = npu.create_stream(), npu.create_stream(), npu.create_notify()
    made = npu.create_event(timing=False, interprocess=True)
    opened = there.open_ipc_event(made.ipc_handle())
    token.wait(slow)
    made.record(slow)
    for event in (made, opened):
        assert result_of(lambda event=event: event.synchronize(1)) == C.NPU_TIMEOUT
    made.record(fast)
    for event in (made, opened):
        event.synchronize()  # not behind the wait for the record before
        assert event.query()
    token.record(fast)
    slow.synchronize()
    for event in (made, opened):
        assert event.query()
        event.synchronize()
        event.destroy()
    there.destroy()


@pytest.mark.parametrize("schedule", ["lazy", "newest-first", "eager"])
def test_a_process_hands_over_its_own_record_when_it_waits_for_it(npu, schedule):
    npu.set_schedule(schedule)
    one, two, memory = npu.create_stream(), npu.create_stream(), npu.alloc(64)
    event = npu.create_event(timing=False, interprocess=True)
    for value in (1, 2):
        one.fill(memory, value)
        event.record(one)
        two.wait_event(event)
        two.synchronize() if value == 1 else event.synchronize()
        assert memory.read().tolist() == [value] * 64
    one.fill(memory, 3)
    event.record(one)
    while not event.query():
        npu.host_delay(1000)
    assert memory.read().tolist() == [3] * 64


def test_an_event_and_its_waits_end_with_the_context(npu):
    mine = npu.create_context()
    stream, token, event = (
        mine.create_stream(),
        mine.create_notify(),
        mine.create_event(timing=False, interprocess=True),
    )
    token.wait(stream)
    event.record(stream)
    assert result_of(lambda: event.synchronize(1)) == C.NPU_TIMEOUT
    mine.destroy(force=True)
    assert result_of(lambda: event.synchronize(1)) == C.NPU_ERROR_STALE_HANDLE
    event.destroy()


PRODUCER = """
import sys
import numpy as np, libnpu
with libnpu.open() as npu:
    memory = npu.to_device(np.zeros(4096, np.float32))
    full, empty = (npu.create_event(timing=False, interprocess=True) for _ in range(2))
    stream, kernel = npu.create_stream(), npu.kernel("scale_add")
    one = npu.to_device(np.ones(4096, np.float32))
    print(memory.ipc_handle().hex(), full.ipc_handle().hex(), empty.ipc_handle().hex(), flush=True)
    for turn in range(20):
        sys.stdin.readline()            # the consumer has recorded `empty`
        stream.wait_event(empty)
        kernel.launch(stream, one, memory, 1.0, 4096)   # memory = one + memory
        full.record(stream)
        print("full", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("schedule", ["timed", "lazy", "newest-first"])
def test_two_processes_hand_memory_to_and_fro(daemon, schedule):
    environment = os.environ | {"NPU_DEVICE": daemon.where, "NPU_SCHEDULE": schedule}
    producer = subprocess.Popen(
        [sys.executable, "-c", PRODUCER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with libnpu.open("unit", where=daemon.where) as npu:
        memory, full, empty = (bytes.fromhex(text) for text in producer.stdout.readline().split())
        memory = npu.open_ipc_memory(memory)
        full, empty = npu.open_ipc_event(full), npu.open_ipc_event(empty)
        npu.set_schedule(schedule)
        stream, seen = npu.create_stream(), npu.alloc(4 * 4096)
        for turn in range(20):
            empty.record(stream)
            producer.stdin.write("\n")
            producer.stdin.flush()
            assert producer.stdout.readline() == "full\n"
            stream.wait_event(full)
            stream.copy(seen, memory)
            stream.synchronize()
            assert set(seen.read(np.float32)) == {turn + 1.0}
        producer.communicate("\n", timeout=30)
        assert producer.returncode == 0
        assert set(memory.read(np.float32)) == {20.0}  # it lives on with the last who has it
        assert set(memory.read(np.float32)) == {20.0}
        memory.close()


@pytest.mark.parametrize("waits", [True, False])
def test_what_another_process_may_have_waited_for_comes_before_its_records(daemon, waits):
    """The checker sees what this process does: its two streams are in order through the other process, or not at all."""
    environment = os.environ | {"NPU_DEVICE": daemon.where}
    producer = subprocess.Popen(
        [sys.executable, "-c", PRODUCER.replace("range(20)", "range(1)")], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    with libnpu.check() as checker, libnpu.open("unit", where=daemon.where) as npu:
        memory, full, empty = (bytes.fromhex(text) for text in producer.stdout.readline().split())
        memory = npu.open_ipc_memory(memory)
        full, empty = npu.open_ipc_event(full), npu.open_ipc_event(empty)
        one, two, seen = npu.create_stream(), npu.create_stream(), npu.alloc(4 * 4096)
        one.fill(memory, 0)
        empty.record(one)
        producer.stdin.write("\n")
        producer.stdin.flush()
        assert producer.stdout.readline() == "full\n"
        if waits:
            two.wait_event(full)
        two.copy(seen, memory)
        npu.synchronize()
        producer.communicate("\n", timeout=30)
        memory.close()
    assert [record["rule"] for record in checker.records()] == ["XS-RAW"] * (not waits)
