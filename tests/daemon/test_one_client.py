"""With one process the daemon's device is the one in process: bytes, times, trace, errors."""

from __future__ import annotations

import numpy as np
import pytest
from npu_abi import C

import libnpu
from libnpu.daemon import wire
from tests.daemon.conftest import Client


def work(npu):
    """Copies, kernels, streams, events, a time-out, an error: everything that a program would see of it."""
    x = npu.to_device(np.arange(1024, dtype=np.float32))
    kernel = npu.kernel("scale_add")
    for _ in range(3):
        kernel.launch(npu.default_stream, x, x, 2.0, 1024)
    npu.synchronize()
    one, two, event = npu.create_stream(), npu.create_stream(), npu.create_event()
    memory, result = npu.alloc(1 << 18), npu.alloc(1 << 18)
    one.fill(memory, 7)
    event.record(one)
    two.wait_event(event)
    two.copy(result, memory)
    with pytest.raises(libnpu.NpuError) as late:
        two.synchronize(timeout_ns=1)
    two.synchronize()
    with pytest.raises(libnpu.NpuError) as large:
        npu.alloc(1 << 50)
    pinned = npu.alloc_host(4096)
    pinned.array[:] = 3
    npu.copy(memory, pinned, 4096)
    return (
        x.read(np.float32).tobytes(), bytes(result.read()), bytes(memory.read()[:4096]), str(late.value), str(large.value),
        event.timestamp_ps, npu.now_ps, npu.host_times(), npu.counters(), npu.trace().tobytes(), npu.reproducible,
    )  # fmt: skip


def test_all_that_a_program_sees_is_as_in_process(start):
    daemon = start("--trace")
    with libnpu.open("unit", trace=True, where=daemon.where) as npu:
        there = work(npu)
    with libnpu.open("unit", trace=True, where="") as npu:
        here = work(npu)
    assert there == here
    assert len(here[9]) > 1000
    assert here[10] is True


def test_the_environment_selects_it(daemon, monkeypatch):
    monkeypatch.setenv("NPU_DEVICE", daemon.where)
    with libnpu.open() as npu:
        assert npu.info().profile == "unit"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"profile": "npu-40xx"}, "has profile unit, and npu-40xx is asked for"),
        ({"compute": False}, "has compute True, and False is asked for"),
        ({"numerics": "fast"}, "has numerics exact, and fast is asked for"),
        ({"trace": True}, "has trace False, and True is asked for"),
        ({"module_params": "coherent=0"}, "module parameters 'coherent=0': npud's are given to npud"),
    ],
)
def test_another_device_than_the_daemon_has_is_refused(daemon, asked, message):
    with pytest.raises(libnpu.NpuError) as error:
        libnpu.open(where=daemon.where, **asked)
    assert error.value.result == C.NPU_ERROR_INVALID_VALUE
    assert message in str(error.value)


def test_faults_to_arm_before_the_boot_are_refused(daemon, tmp_path):
    path = tmp_path / "faults.json"
    path.write_text('[{"point": "boot_done", "kind": "irq_lost"}]')
    with pytest.raises(libnpu.NpuError, match="1 faults to arm before the boot: npud's device has booted") as error:
        libnpu.open(where=daemon.where, faults=str(path))
    assert error.value.result == C.NPU_ERROR_INVALID_VALUE


@pytest.mark.parametrize("where", ["unix", "unix:", "tcp:host", "/dev/accel0"])
def test_other_addresses_are_refused(where):
    with pytest.raises(libnpu.NpuError, match=f"NPU_DEVICE={where}: unix:PATH is needed"):
        libnpu.open(where=where)


def test_no_daemon_is_an_error_with_the_path(tmp_path):
    path = tmp_path / "none.sock"
    with pytest.raises(libnpu.NpuError, match=f"no device at unix:{path}: No such file or directory") as error:
        libnpu.open(where=f"unix:{path}")
    assert error.value.result == C.NPU_ERROR_DEVICE_LOST


def test_nobody_listening_is_an_error_with_the_path(daemon):
    daemon.process.kill()
    daemon.process.wait()
    with pytest.raises(libnpu.NpuError, match=f"no device at {daemon.where}: Connection refused"):
        libnpu.open(where=daemon.where)


def test_a_daemon_that_goes_loses_the_device_and_a_new_one_has_it_again(start):
    first = start()
    npu = libnpu.open("unit", where=first.where)
    x = npu.to_device(np.arange(4))
    first.process.kill()
    first.stop()
    for _ in range(2):
        with pytest.raises(libnpu.NpuError, match=first.path) as error:
            npu.copy(x, np.arange(4))
        assert error.value.result == C.NPU_ERROR_DEVICE_LOST
    start()
    npu.reset()
    assert npu.to_device(np.arange(4)).read(np.int64).tolist() == [0, 1, 2, 3]
    npu.close()


def test_a_daemon_is_not_started_twice_nor_over_a_file(daemon, tmp_path):
    from libnpu.daemon.__main__ import main

    assert main(["--socket", daemon.path]) == 2
    plain = tmp_path / "file"
    plain.write_text("mine")
    assert main(["--socket", str(plain)]) == 2
    assert plain.read_text() == "mine"
    assert daemon.stop() == 0
    assert not (tmp_path / "npud.sock").exists()


def test_the_socket_has_the_permissions_that_were_asked_for(start, tmp_path):
    start("--mode", "0600")
    assert (tmp_path / "npud.sock").stat().st_mode & 0o777 == 0o600


def test_large_segments_go_in_a_file(daemon):
    client = Client(daemon)
    content = bytes(range(256)) * (1 << 13)
    assert len(content) > wire.INLINE_BYTES
    ret, arg, replies = client.call(
        C.NPU_IOCTL_BO_CREATE_FROM_USERPTR, "npu_bo_userptr", [content], ptr=1 << 20, size=len(content)
    )
    assert (ret, arg.handle) == (0, 1)
    assert replies[0] == content
    del replies
    client.close()


@pytest.mark.slow
def test_a_large_trace_comes_in_a_file(start):
    daemon = start("--trace")
    with libnpu.open(trace=True, where=daemon.where) as npu:
        x = npu.to_device(np.zeros(1024, np.float32))
        kernel = npu.kernel("scale_add")
        for _ in range(2500):
            kernel.launch(npu.default_stream, x, x, 2.0, 1024)
        npu.synchronize()
        records = npu.trace()
    assert records.nbytes > 1 << 20
    assert (np.diff(records["time_ps"].astype(np.int64)) >= 0).all()
