"""Several processes on one device: each gets its own results, what one does to itself or dies of is nobody else's."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from npu_abi import C

import libnpu
from tests.daemon.conftest import Client, until

WORKER = """
import sys
import numpy as np, libnpu
start, rounds = int(sys.argv[1]), int(sys.argv[2])
with libnpu.open() as npu:
    kernel = npu.kernel("scale_add")
    values = np.arange(start, start + 4096, dtype=np.float32)
    x, y = npu.to_device(values), npu.to_device(np.zeros(4096, np.float32))
    stream = npu.create_stream()
    print("ready", flush=True)
    for i in range(rounds):
        y.write(np.full(4096, i, np.float32))
        kernel.launch(stream, x, y, 2.0, 4096)
        stream.synchronize()
        got = y.read(np.float32)
        want = values * np.float32(2) + np.float32(i)
        assert np.array_equal(got, want), (i, got[:4], want[:4])
    print("shared" if not npu.reproducible else "alone", npu.disorder)
"""


def worker(daemon, *arguments, code=WORKER):
    environment = os.environ | {"NPU_DEVICE": daemon.where}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_four_processes_get_their_own_results(daemon):
    workers = [worker(daemon, 1000 * i, 40) for i in range(4)]
    outputs = [process.communicate(timeout=120)[0] for process in workers]
    assert [process.returncode for process in workers] == [0] * 4
    assert outputs.count("ready\nshared other processes have used the device\n") >= 3
    assert daemon.log.count("gone with") == 0


def test_a_wait_does_not_keep_others_waiting(daemon):
    one = libnpu.open("unit", where=daemon.where)
    token, waiting = one.create_notify(), one.create_stream()
    token.wait(waiting)
    other = Client(daemon)
    blocked = worker(daemon, 0, 10)
    assert blocked.communicate(timeout=60)[0].startswith("ready\n")
    assert other.param(C.NPU_PARAM_DDR_FREE_BYTES) > 0
    token.record()
    waiting.synchronize()
    other.close()
    one.close()


def test_a_wait_that_nobody_ends_is_a_deadlock_also_with_others_there(daemon):
    other = Client(daemon)
    with libnpu.open("unit", where=daemon.where) as one:
        token, stream = one.create_notify(), one.create_stream()
        token.wait(stream)
        with pytest.raises(libnpu.NpuError) as error:
            stream.synchronize()
        assert error.value.result == C.NPU_ERROR_BARRIER_DEADLOCK
    assert other.param(C.NPU_PARAM_DDR_FREE_BYTES) > 0
    other.close()


def test_two_waits_that_nobody_ends_are_deadlocks_when_they_come_at_once(daemon):
    """The daemon is stopped while both calls arrive, so that it finds them in the same round."""
    program = (
        "import sys, libnpu\n"
        "one = libnpu.open('unit')\n"
        "token, stream = one.create_notify(), one.create_stream()\n"
        "token.wait(stream)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "try: stream.synchronize()\n"
        "except libnpu.NpuError as error: print(int(error.result))\n"
    )
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = os.environ | {"NPU_DEVICE": daemon.where}
    programs = [subprocess.Popen([sys.executable, "-c", program], env=environment, **options) for _ in range(2)]
    for process in programs:
        assert process.stdout.readline() == "ready\n"
    daemon.process.send_signal(signal.SIGSTOP)
    for process in programs:
        process.stdin.write("\n")
        process.stdin.flush()
    time.sleep(0.3)  # of wall time, for their calls to arrive; were it too short, the case would only be an easier one
    daemon.process.send_signal(signal.SIGCONT)
    for process in programs:
        assert process.communicate(timeout=30)[0] == f"{int(C.NPU_ERROR_BARRIER_DEADLOCK)}\n"


def test_a_time_limit_is_not_used_up_by_others(daemon):
    with libnpu.open("unit", where=daemon.where) as one:
        x = one.to_device(np.zeros(1024, np.float32))
        job = one.kernel("scale_add").launch(one.default_stream, x, x, 2.0, 1024)
        assert job is not None
        other = Client(daemon)
        far = other.now_ps + 10**12
        assert other.call(C.NPU_IOCTL_EMU_ADVANCE, "npu_emu_advance", until_ps=far)[0] == 0
        one.default_stream.synchronize(timeout_ns=10**6)
        other.close()


def test_files_of_another_process_are_not_there(daemon):
    one, other = Client(daemon), Client(daemon)
    other.fd = one.fd
    assert other.call(C.NPU_IOCTL_BO_CREATE, "npu_bo_create", size=4096)[0] == -errno.EBADF
    assert other.call(C.NPU_SYS_CLOSE)[0] == -errno.EBADF
    assert one.call(C.NPU_IOCTL_BO_CREATE, "npu_bo_create", size=4096)[0] == 0
    one.close()
    other.close()


def test_memory_of_another_process_is_in_no_file_that_it_has(daemon):
    """Whoever maps an extent as a whole sees one context's objects: not page tables, not a neighbour."""
    one, other = Client(daemon), Client(daemon)
    views = []
    for client, byte in ((one, b"\x11"), (other, b"\x22")):
        ret, bo, _ = client.call(C.NPU_IOCTL_BO_CREATE, "npu_bo_create", size=4096, flags=C.NPU_BO_MAPPABLE)
        assert ret == 0
        info = client.call(C.NPU_IOCTL_BO_INFO, "npu_bo_info", handle=bo.handle)[1]
        view = client.call(C.NPU_SYS_MMAP, "npu_mmap", offset=info.mmap_offset, length=4096)[2][0]
        view[:] = byte * 4096
        views.append(view)
    (extent,) = one.door._files[one.fd].values()
    assert extent.size >= 1 << 20
    assert np.count_nonzero(extent == 0x22) == 0
    assert np.count_nonzero(extent == 0x11) == 4096
    del views, extent, view
    one.close()
    other.close()


def test_a_user_has_as_many_contexts_as_the_parameter_says(start):
    daemon = start("--module-params", "max_contexts=2")
    one = Client(daemon)
    assert one.call(C.NPU_SYS_OPEN)[0] > 0
    other = Client(daemon)
    assert other.fd == -errno.EMFILE
    one.close()
    until(lambda: other.door.call(C.NPU_SYS_OPEN, b"", [], other.now_ps)[0] > 0)
    other.close()


def test_a_client_that_closes_while_its_work_runs_frees_everything(daemon):
    watcher = Client(daemon)
    before = watcher.base_line()
    victim = worker(daemon, 0, 10**6)
    assert victim.stdout.readline() == "ready\n"
    victim.kill()
    victim.communicate()
    until(lambda: "gone with" in daemon.log)
    assert watcher.base_line() == before
    watcher.close()


def kills(daemon, count, seed):
    """Kill `count` clients at random moments while a neighbour works; return what of it is left."""
    chance = random.Random(seed)
    watcher = Client(daemon)
    before, descriptors = watcher.base_line(), daemon.descriptors()
    neighbour = worker(daemon, 7, 60 * count)
    assert neighbour.stdout.readline() == "ready\n"
    for _ in range(count):
        victim = worker(daemon, 1, 10**6)
        if chance.random() < 0.8:
            assert victim.stdout.readline() == "ready\n"
            time.sleep(chance.random() * 0.05)
        else:
            time.sleep(chance.random() * 0.3)  # while it connects, opens, loads
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
    assert neighbour.communicate(timeout=300)[0].startswith("shared")
    assert neighbour.returncode == 0
    until(lambda: daemon.descriptors() == descriptors)
    assert watcher.base_line() == before
    watcher.close()


def test_kill_at_random_moments_leaves_nothing_behind(daemon):
    kills(daemon, 6, seed=1)
    assert daemon.alive


@pytest.mark.slow
def test_a_hundred_kills_leave_nothing_behind(daemon):
    kills(daemon, 100, seed=2)
    assert daemon.alive


def test_killed_in_a_wait_its_jobs_are_aborted_not_waited_for(daemon):
    watcher = Client(daemon)
    before = watcher.base_line()
    code = """
import libnpu
npu = libnpu.open()
token, stream = npu.create_notify(), npu.create_stream()
token.wait(stream)
big = npu.alloc(1 << 20)
job = npu.create_stream().fill(big, 1)
print("ready", flush=True)
stream.synchronize()
"""
    victim = worker(daemon, code=code)
    assert victim.stdout.readline() == "ready\n"
    time.sleep(0.2)  # it waits by now
    other = worker(daemon, 0, 10)
    assert other.communicate(timeout=60)[0].startswith("ready\n")  # the wait is nobody else's
    victim.kill()
    victim.communicate()
    until(lambda: "gone with" in daemon.log)
    assert watcher.base_line() == before
    watcher.close()
