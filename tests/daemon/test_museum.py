"""The bug museum at a daemon: what is reported of its programs is what is reported of them in process; and a race between processes."""

import subprocess
import sys

import pytest

from libnpu.tools.exhibits import exhibits
from libnpu.tools.replays import watch, watched

ALL = {name: each for name, each in exhibits().items() if "module_params" not in each.source}  # those are npud's
SOME = ("read_before_wait", "vector_cleared")


def places(records):
    """Return (rule, lines of the acts) of records."""
    return [(r["rule"], [int(a["site"].rpartition(":")[2]) if a["site"] else None for a in r["acts"]]) for r in records]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("museum")


def check(name, folder, daemon, monkeypatch):
    monkeypatch.setenv("NPU_DEVICE", daemon.where)
    for arguments, expected in (((), ALL[name].reports), (("fixed",), [])):
        status, records = watched(ALL[name].command(folder, *arguments), stdout=subprocess.DEVNULL)
        assert (status, places(records)) == (0, expected)


@pytest.mark.parametrize("name", SOME)
def test_some_programs(name, folder, shared_daemon, monkeypatch):
    check(name, folder, shared_daemon, monkeypatch)


TWO = """
import subprocess, sys, libnpu
memory, event = [bytes.fromhex(handle) for handle in sys.argv[1:]] or (None, None)
with libnpu.open() as device:
    stream, result = device.create_stream(), device.alloc(4096)
    if memory:
        view, event = device.primary.open_ipc_memory(memory), device.primary.open_ipc_event(event)
        stream.copy(result[:2048], view[:2048])  # which nothing lets wait
        stream.wait_event(event)
        stream.copy(result[2048:], view[2048:])
    else:
        memory, event = device.alloc(4096), device.create_event(timing=False, interprocess=True)
        stream.fill(memory, 1)
        event.record(stream)
        subprocess.run([sys.executable, __file__, memory.ipc_handle().hex(), event.ipc_handle().hex()], check=True)
    stream.synchronize()
"""


def test_two_processes_that_share_memory(tmp_path, shared_daemon, monkeypatch):
    monkeypatch.setenv("NPU_DEVICE", shared_daemon.where)
    (tmp_path / "two.py").write_text(TWO)
    run = watch([sys.executable, str(tmp_path / "two.py")], witnesses=1)
    assert (run.status, run.not_checked, places(run.found)) == (0, [], [("XS-RAW", [13, 8])])
    assert run.found[0]["bytes"] == [0, 2048]
    assert run.found[0]["witness"] == {"problem": "the two are of different processes, which are not run again"}


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in ALL if name not in SOME])
def test_all_others(name, folder, shared_daemon, monkeypatch):
    check(name, folder, shared_daemon, monkeypatch)
