"""Handles of memory and events: between contexts, and between processes at the daemon."""

from __future__ import annotations

import os
import subprocess
import sys

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


def test_two_processes_hand_memory_to_and_fro(daemon):
    environment = os.environ | {"NPU_DEVICE": daemon.where}
    producer = subprocess.Popen(
        [sys.executable, "-c", PRODUCER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with libnpu.open("unit", where=daemon.where) as npu:
        memory, full, empty = (bytes.fromhex(text) for text in producer.stdout.readline().split())
        memory = npu.open_ipc_memory(memory)
        full, empty = npu.open_ipc_event(full), npu.open_ipc_event(empty)
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
