"""Public calls happen one at a time, and whole or not at all: threads, interrupts, exceptions in `with` blocks."""

from __future__ import annotations

import os
import signal
import sys
import threading

import numpy as np
import pytest
from npu_abi import C

import libnpu
from libnpu.blob import write

NBYTES = 1 << 20
ONES = np.ones(NBYTES, np.uint8)


def in_the_middle(device, monkeypatch, action):
    """Do `action` once inside the next wait for the device, in the middle of the simulator."""
    kernel = device.node.machine.syscall.__self__
    run = kernel.device.run_until_interrupt
    todo = [action]

    def run_until_interrupt(time_ps):
        if todo:
            todo.pop()()
        return run(time_ps)

    monkeypatch.setattr(kernel.device, "run_until_interrupt", run_until_interrupt)


def send_sigint():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def python_sigint():
    """SIGINT as Python has it at the start, put back afterwards."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def impatient():
    """Threads that change places often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("through_run", [False, True])
def test_threads_that_share_a_blob_get_their_own_outputs(device, blob_bytes, through_run):
    blob, wrong = device.load(blob_bytes(nbytes=64)), []

    def work(thread):
        try:
            with device.create_stream() as stream:
                x, y = device.alloc(64), device.alloc(64)
                for n in range(40):
                    value = np.full(64, 50 * thread + n, np.uint8)
                    if through_run:
                        got = blob.run({"x": value}, stream)["y"]
                    else:
                        x.write(value)
                        stream.launch(blob, {"x": x}, {"y": y})
                        stream.synchronize()
                        got = y.read()
                    if not np.array_equal(got, value):
                        wrong.append((thread, n, got[0]))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.usefixtures("python_sigint")
def test_an_interrupt_comes_out_after_the_call_and_the_device_goes_on(blob_bytes, monkeypatch):
    with libnpu.open() as device:
        blob = device.load(blob_bytes(nbytes=NBYTES))
        blob.run({"x": ONES})
        in_the_middle(device, monkeypatch, send_sigint)
        with pytest.raises(KeyboardInterrupt):
            blob.run({"x": ONES})
        assert device.counters()["DOORBELLS"] == 2
        assert blob.in_flight == 0
        assert blob.run({"x": ONES})["y"].tolist() == ONES.tolist()


@pytest.mark.usefixtures("python_sigint")
def test_an_interrupt_between_calls_comes_at_once(blob_bytes):
    with libnpu.open() as device, pytest.raises(KeyboardInterrupt):
        send_sigint()
        device.alloc(1)  # pragma: no cover


@pytest.mark.usefixtures("python_sigint")
def test_a_second_interrupt_breaks_the_call_off_and_reset_begins_anew(blob_bytes, monkeypatch):
    with libnpu.open() as device:
        blob, data = device.load(blob_bytes(nbytes=NBYTES)), blob_bytes(nbytes=NBYTES)
        in_the_middle(device, monkeypatch, lambda: (send_sigint(), send_sigint()))
        with pytest.raises(KeyboardInterrupt):
            blob.run({"x": ONES})
        with pytest.raises(
            libnpu.NpuError, match=r"KeyboardInterrupt broke off a call .* Device.reset begins anew"
        ) as caught:
            blob.run({"x": ONES})
        assert caught.value.result == C.NPU_ERROR_DEVICE_LOST
        before = device.now_ps
        device.reset()
        assert device.now_ps >= before
        assert device.load(data).run({"x": ONES})["y"].tolist() == ONES.tolist()


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError, AssertionError, MemoryError])
def test_whatever_breaks_out_of_the_simulator_leaves_a_lost_device_that_closes(blob_bytes, monkeypatch, error):
    def break_out():
        raise error

    device = libnpu.open()
    blob, stream = device.load(blob_bytes(nbytes=NBYTES)), device.create_stream()
    buffer = device.alloc(64)
    in_the_middle(device, monkeypatch, break_out)
    with pytest.raises(error):
        blob.run({"x": ONES})
    for call in (device.memory_info, lambda: device.alloc(1), lambda: blob.run({"x": ONES}), device.synchronize):
        with pytest.raises(libnpu.NpuError) as caught:
            call()
        assert caught.value.result == C.NPU_ERROR_DEVICE_LOST
    buffer.free()
    stream.close()
    device.close()


@pytest.fixture
def on_alarm():
    """on_alarm(handler): a handler of SIGALRM for this test."""
    before = signal.getsignal(signal.SIGALRM)
    yield lambda handler: signal.signal(signal.SIGALRM, handler)
    signal.signal(signal.SIGALRM, before)


def test_a_handler_that_has_interrupted_a_call_cannot_call(blob_bytes, monkeypatch, on_alarm):
    def ask(*_):
        try:
            stream.query()
        except libnpu.NpuError as error:
            answers.append(error.result)

    answers: list[int] = []
    with libnpu.open() as device:
        blob, stream = device.load(blob_bytes(nbytes=NBYTES)), device.create_stream()
        on_alarm(ask)
        in_the_middle(device, monkeypatch, lambda: signal.raise_signal(signal.SIGALRM))
        assert blob.run({"x": ONES})["y"].tolist() == ONES.tolist()
        signal.raise_signal(signal.SIGALRM)  # between two calls
    assert answers == [C.NPU_ERROR_NOT_PERMITTED]


def test_what_a_handler_raises_shows_the_program_s_lines_and_the_device_is_lost(blob_bytes, monkeypatch, on_alarm):
    with libnpu.open() as device:
        blob, stream = device.load(blob_bytes(nbytes=NBYTES)), device.create_stream()
        on_alarm(lambda *_: stream.query())
        in_the_middle(device, monkeypatch, lambda: signal.raise_signal(signal.SIGALRM))
        with pytest.raises(libnpu.NpuError, match=r"Stream.query: in a signal's handler") as caught:
            blob.run({"x": ONES})
        ours = [entry for entry in caught.traceback if "/libnpu/" in str(entry.path)]
        assert len(ours) == 2  # of the call that was refused
        with pytest.raises(libnpu.NpuError) as caught:
            stream.query()
        assert caught.value.result == C.NPU_ERROR_DEVICE_LOST


def test_a_mistake_of_the_caller_does_not_lose_the_device(device, blob_bytes):
    blob = device.load(blob_bytes())
    for mistake in (
        lambda: device.alloc(1.5),
        lambda: device.load(7),
        lambda: device.alloc(8).at(1.5),
        lambda: blob.run({"x": np.zeros(1024, np.uint8)}, 5),
    ):
        with pytest.raises(TypeError):
            mistake()
    assert device.alloc(8).size == 8


def test_a_program_s_own_exception_leaves_with_blocks_unchanged(device, blob_bytes):
    free = device.memory_info()[0]
    x, y = device.alloc(NBYTES), device.alloc(NBYTES)
    with (
        pytest.raises(KeyError, match="mine"),
        device.create_stream() as stream,
        device.load(blob_bytes(nbytes=NBYTES)) as blob,
    ):
        stream.launch(blob, {"x": x}, {"y": y})
        raise KeyError("mine")
    x.free()
    y.free()
    assert device.memory_info()[0] == free


def test_a_program_s_own_exception_is_not_replaced_when_the_device_is_lost(blob_bytes, monkeypatch):
    def fail():
        raise AssertionError("defect")

    def run():
        with libnpu.open() as device, device.create_stream() as stream, device.load(blob_bytes()) as blob:
            in_the_middle(device, monkeypatch, fail)
            blob.run({"x": np.zeros(1024, np.uint8)}, stream)

    with pytest.raises(AssertionError, match="defect"):
        run()


def test_run_without_memory_for_its_tensors_leaves_none_allocated(device, image):
    huge = image()
    nbytes = device.memory_info()[1] - (64 << 20)
    huge.outputs[0] = type(huge.outputs[0])("y", C.NPU_DT_U8, (nbytes,), nbytes)
    blob = device.load(write(huge))
    device.alloc(65 << 20)
    free = device.memory_info()[0]
    with pytest.raises(libnpu.NpuError) as caught:
        blob.run({"x": np.zeros(1024, np.uint8)})
    assert caught.value.result == C.NPU_ERROR_OUT_OF_DEVICE_MEMORY
    assert device.memory_info()[0] == free


def test_run_of_an_unloaded_blob_allocates_nothing(device, blob_bytes):
    x = {"x": np.zeros(1024, np.uint8)}
    unloaded = device.load(blob_bytes())
    unloaded.unload()
    free = device.memory_info()[0]
    with pytest.raises(libnpu.NpuError) as caught:
        unloaded.run(x)
    assert caught.value.result == C.NPU_ERROR_STALE_HANDLE
    assert device.memory_info()[0] == free
    old = device.load(blob_bytes())
    device.reset()
    free = device.memory_info()[0]
    with pytest.raises(libnpu.NpuError) as caught:
        old.run(x)
    assert caught.value.result == C.NPU_ERROR_STALE_HANDLE
    assert device.memory_info()[0] == free
