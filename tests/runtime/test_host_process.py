"""The process around the library: forks, interrupts during waits, ends at any point. Each in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from npu_abi import C

PREAMBLE = """
import os, signal, sys, threading, time
import libnpu
from libnpu.runtime.host_threads import HOST

def report(call):
    try:
        call()
    except libnpu.NpuError as error:
        print(error)
    else:
        print("done")

def job_or_deadlock(call):  # a slow machine takes so long to end that the deadlock is told
    try:
        call()
    except libnpu.NpuError:
        pass

device = libnpu.open("unit")
stream, notify, memory = device.create_stream(), device.create_notify(), device.alloc(4096)
"""


def start(program):
    """Start a Python program that has a device, a stream, a notify and memory."""
    code = textwrap.dedent(PREAMBLE) + textwrap.dedent(program)
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


def rest_of(process):
    """Return what is still to be read on both outputs, to their ends. (`communicate` does not see what `readline` has read ahead.)"""
    limit = threading.Timer(30, process.kill)
    limit.start()
    with process:  # closes them
        out, err = process.stdout.read(), process.stderr.read()
    limit.cancel()
    return out, err


def run(program, code=0):
    """Run it to its end: its lines on standard output; nothing may be on standard error."""
    process = start(program)
    out, err = process.communicate(timeout=30)
    assert err == ""
    assert process.returncode == code
    return out.splitlines()


def test_a_forked_child_may_not_use_the_devices_of_its_parent():
    program = """
    pid = os.fork()
    if not pid:
        for call in (device.synchronize, stream.query, memory.read, device.close, lambda: libnpu.open("unit"), lambda: device.team(1)):
            report(call)
        sys.stdout.flush()
        os._exit(3)
    print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    report(device.synchronize)
    """
    lines = run(program)
    refused = "NPU_ERROR_NOT_PERMITTED: this process was forked: devices belong to the parent process"
    assert lines == [refused] * 6 + ["child 3", "done"]


def test_a_child_of_a_process_without_devices_may_open_one():
    program = """
    import libnpu, os, sys
    import libnpu.runtime.device
    pid = os.fork()
    if not pid:
        with libnpu.open("unit") as device:
            print(device.info().profile, flush=True)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout.splitlines(), done.stderr) == (["unit", "0"], "")


def test_a_fork_while_another_thread_is_in_a_call_does_not_hang_the_child():
    program = """
    notify.wait(stream)
    def blocked():
        report(stream.synchronize)
    thread = threading.Thread(target=blocked)
    other = device.create_stream()
    def busy():
        while not stop.is_set():
            other.fill(memory, 1)
            other.synchronize()
    stop, worker = threading.Event(), threading.Thread(target=busy)
    thread.start()
    worker.start()
    for _ in range(20):
        pid = os.fork()
        if not pid:
            try:
                device.synchronize()
            except libnpu.NpuError as error:
                os._exit(0 if "forked" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
    stop.set()
    worker.join()
    notify.record(other)
    thread.join()
    """
    assert run(program) == ["done"]


@pytest.mark.parametrize("in_a_function", [False, True])
def test_an_interrupt_comes_out_at_once_of_a_wait_that_lets_others_go_on(in_a_function):
    program = f"""
    go_on = threading.Event()
    if {in_a_function}:
        stream.add_host_function(go_on.wait)
    else:
        notify.wait(stream)
        def silent():
            device.host_delay(1)
            go_on.wait()
        thread = threading.Thread(target=silent)
        thread.start()
        other = device.create_stream()
        def busy():
            while not go_on.is_set():
                other.fill(memory, 1)
                other.synchronize()
        worker = threading.Thread(target=busy)
        worker.start()
    print("waiting", flush=True)
    try:
        stream.synchronize()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    if not {in_a_function}:
        go_on.set()
        worker.join()
        thread.join()
        notify.record(other)
    go_on.set()
    report(stream.synchronize)
    report(device.synchronize)
    """
    process = start(program)
    try:
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        assert process.stdout.readline() == "interrupted\n"
        assert time.monotonic() - sent < 10
        out, err = rest_of(process)
    finally:
        process.kill()
    assert err == ""
    assert out.splitlines() == ["done", "done"]


@pytest.mark.parametrize(
    "program",
    [
        "stream.fill(memory, 1)",  # nothing is closed
        "stream.add_host_function(print, 'never')\nnotify.wait(stream)",
        "notify.wait(stream)\nstream.add_host_function(print, 'never')",
        "stream.add_host_function(threading.Event().wait)\ndevice.host_delay(1000)",
        "notify.wait(stream)\nthreading.Thread(target=lambda: job_or_deadlock(stream.synchronize), daemon=True).start()\ntime.sleep(0.1)",
        "team = device.team(2)",
        "threading.Thread(target=lambda: (device.host_delay(5), time.sleep(0.1), device.host_delay(5))).start()",
        "sys.exit()",
        "os.environ['X'] = '1'; os.kill(os.getpid(), signal.SIGTERM)",
    ],
)
def test_a_process_may_end_at_any_point(program):
    expected = -signal.SIGTERM if "SIGTERM" in program else 0
    out = run(program, expected)
    assert [line for line in out if line != "never"] == []


def test_an_interrupt_without_anybody_around_ends_the_program_as_python_does():
    program = """
    go_on = threading.Event()
    stream.add_host_function(go_on.wait)
    print("waiting", flush=True)
    stream.synchronize()
    """
    process = start(program)
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = rest_of(process)
    lines = err.splitlines()
    assert lines[-1] == "KeyboardInterrupt"
    assert not any("/libnpu/" in line for line in lines)  # the way to the pause is left out
    assert process.returncode == -signal.SIGINT


def test_an_exception_that_nobody_asks_for_ends_quietly():
    program = """
    def broken():
        raise ValueError("nobody asks")
    stream.add_host_function(broken)
    device.host_delay(1000)
    """
    assert run(program) == []


def test_the_environment_records_and_replays_the_order(tmp_path, monkeypatch):
    program = """
    def work():
        s = device.create_stream()
        for _ in range(3):
            s.fill(memory, 1)
            s.synchronize()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(device.now_ps)
    """
    monkeypatch.setenv("NPU_ORDER_RECORD", str(tmp_path / "first"))
    first = run(program)
    monkeypatch.setenv("NPU_ORDER_REPLAY", str(tmp_path / "first"))
    monkeypatch.setenv("NPU_ORDER_RECORD", str(tmp_path / "second"))
    assert run(program) == first

    def calls(name):
        return [line for line in (tmp_path / name).read_text().splitlines() if line[0] != "+"]

    assert calls("second") == calls("first")
    assert len(calls("first")) > 30


def test_an_interrupt_while_devices_come_and_go_is_neither_lost_nor_shown_inside():
    """At the first instruction of each function that a call of the program enters, two deep."""
    program = """
    import traceback
    shown, entries = [], 0
    def use():
        with libnpu.open("unit") as device, device.create_stream() as stream:
            stream.fill(device.alloc(64), 1)
    def is_inside(frame):
        return frame.f_globals.get("__name__", "").startswith(("libnpu", "npu_"))
    def interrupt(frame, event, argument):
        global left
        if is_inside(frame) and not (is_inside(frame.f_back) and is_inside(frame.f_back.f_back)):
            left -= 1
            if left == 0:
                sys.settrace(None)
                signal.getsignal(signal.SIGINT)(signal.SIGINT, frame)
    use()
    while True:
        left = entries = entries + 1
        sys.settrace(interrupt)
        try:
            use()
        except KeyboardInterrupt as error:
            lines = traceback.format_tb(error.__traceback__)
            shown.append(sum("libnpu" in line or "npu_d" in line for line in lines))
        else:
            sys.settrace(None)
            break
    print(entries > 20, len(shown) == entries - 1, max(shown))
    """
    assert run(program) == ["True True 1"]


PLAIN_ASYNCIO = """
    import asyncio
    async def side():
        while True:
            await asyncio.sleep(0)
    async def main():
        print("running", flush=True)
        try:
            await asyncio.gather(side(), side())
        finally:
            await asyncio.sleep(0.01)
            print("cleaned up", flush=True)
"""


@pytest.mark.parametrize("opened", ["before", "inside", "between"])
def test_ctrl_c_cancels_the_main_task_of_asyncio_run_as_ever(opened):
    opening = {"before": "", "inside": "main = inside(main)", "between": "asyncio.run(inside(asyncio.sleep)(0))"}[
        opened
    ]
    program = f"""{PLAIN_ASYNCIO}
    def inside(function):
        async def opens(*arguments):
            device.alloc(64).free()
            libnpu.open("unit").close()
            await function(*arguments)
        return opens
    {opening}
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    device.synchronize()
    print("done", flush=True)
    """
    process = start(program)
    assert process.stdout.readline() == "running\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = rest_of(process)
    assert (out.splitlines(), err, process.returncode) == (["cleaned up", "interrupted", "done"], "", 0)


def test_a_process_that_is_stopped_now_and_then_does_the_same():
    program = """
    print("ready", flush=True)
    seen = []
    for number in range(400):
        stream.fill(memory, number & 255)
        stream.add_host_function(seen.append, number)
        device.host_delay(number % 7 * 100)
    stream.synchronize()
    print(device.now_ps, device.reproducible, seen == list(range(400)), flush=True)
    """

    def result(stops):
        process = start(program)
        assert process.stdout.readline() == "ready\n"
        for _ in range(stops):
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.08)
            process.send_signal(signal.SIGCONT)
            time.sleep(0.01)
        out, err = rest_of(process)
        assert err == ""
        return out

    expected = result(0)
    assert expected.split()[1:] == ["True", "True"]
    assert result(6) == expected


@pytest.mark.parametrize("wait", ["stream.synchronize()", "device.primary.synchronize()", "device.synchronize()"])
def test_a_wait_ends_though_another_thread_enqueues_more_and_more(wait):
    program = f"""
    go_on = True
    def enqueue():
        while go_on:
            stream.fill(memory, 1)
    thread = threading.Thread(target=enqueue)
    thread.start()
    for _ in range(3):
        {wait}
    go_on = False
    thread.join()
    stream.synchronize()
    print("done")
    """
    assert run(program) == ["done"]


def test_a_stream_that_is_being_closed_takes_no_more():
    program = """
    ends = []
    def enqueue():
        try:
            while True:
                stream.fill(memory, 1)
        except libnpu.NpuError as error:
            ends.append(error.result)
    thread = threading.Thread(target=enqueue)
    thread.start()
    while not stream.query():
        pass
    stream.fill(memory, 1)
    stream.close()
    thread.join()
    print(*ends)
    """
    assert run(program) == [str(int(C.NPU_ERROR_STALE_HANDLE))]


def test_the_replay_of_functions_of_a_context_that_is_destroyed(tmp_path, monkeypatch):
    program = """
    context = device.create_context()
    dead, token, seen = context.create_stream(), context.create_notify(), []
    token.wait(dead)
    dead.add_host_function(seen.append, "dead")
    stream.fill(memory, 1)
    stream.add_host_function(seen.append, "live")
    context.destroy(force=True)
    stream.fill(memory, 2)
    stream.synchronize()
    print(seen, device.now_ps)
    """
    orders = [tmp_path / "order0", tmp_path / "order1"]
    monkeypatch.setenv("NPU_ORDER_RECORD", str(orders[0]))
    first = run(program)
    monkeypatch.setenv("NPU_ORDER_REPLAY", str(orders[0]))
    monkeypatch.setenv("NPU_ORDER_RECORD", str(orders[1]))
    assert run(program) == first
    assert first[0].startswith("['live'] ")
    assert orders[0].read_text() == orders[1].read_text()


def test_a_finaliser_at_the_end_may_call_though_another_thread_has_called_and_ended():
    program = """
    class Last:
        def __del__(self):
            device.synchronize()
    last = Last()
    def work():
        stream.fill(memory, 1)
        stream.synchronize()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    """
    assert run(program) == []


def test_a_thread_may_go_on_when_the_main_thread_and_a_host_function_have_ended():
    program = """
    stream.add_host_function(time.sleep, 0.02)
    def work():
        threading.main_thread().join()
        time.sleep(0.1)
        stream.fill(memory, 1)
        stream.synchronize()
        print("done")
    threading.Thread(target=work).start()
    """
    assert run(program) == ["done"]


RESETS = """
def functions():
    team.enter(0)
    for _ in range(10):
        try:
            s = device.create_stream()
            for _ in range(2):
                s.add_host_function(int)
            s.synchronize()
        except libnpu.NpuError as error:
            print(error.result)
    team.leave()
def resets():
    team.enter(1)
    for i in range(10):
        device.host_delay(7300 * (i % 3) + 500)
        device.reset()
    team.leave()
team = device.team(2)
threads = [threading.Thread(target=functions), threading.Thread(target=resets)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
team.end()
print(device.now_ps)
"""


def test_the_replay_of_functions_beside_resets(tmp_path, monkeypatch):
    orders = [tmp_path / f"order{i}" for i in range(3)]
    monkeypatch.setenv("NPU_ORDER_RECORD", str(orders[0]))
    first = run(RESETS)
    monkeypatch.setenv("NPU_ORDER_REPLAY", str(orders[0]))
    for order in orders[1:]:
        monkeypatch.setenv("NPU_ORDER_RECORD", str(order))
        assert run(RESETS) == first
        assert order.read_text() == orders[0].read_text()


def test_a_departure_from_the_order_of_the_environment_is_printed(tmp_path, monkeypatch):
    monkeypatch.setenv("NPU_ORDER_RECORD", str(tmp_path / "order"))
    run("stream.fill(memory, 1)\nstream.synchronize()")
    monkeypatch.delenv("NPU_ORDER_RECORD")
    monkeypatch.setenv("NPU_ORDER_REPLAY", str(tmp_path / "order"))
    _, said = start("try:\n    device.alloc(1)\nexcept libnpu.NpuError:\n    pass").communicate(timeout=30)
    assert said.startswith("libnpu: the program departs from the order in order: thread 0 calls ")
    assert said.count("\n") == 1
