"""At the limit of its open descriptors the daemon lets nobody in, says so once, does not spin, and goes on when some have come free."""

from __future__ import annotations

import resource
import socket

import pytest
from npu_abi import C

import libnpu
from libnpu.daemon import client, wire
from tests.daemon.conftest import Client, until

SAID = "nobody is let in before one of"


def leave(daemon, count):
    """Let the daemon open `count` descriptors more than it has."""
    fds = daemon.descriptors() + count
    resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (fds, fds))


def cpu_s(daemon):
    """Processor time that the daemon has used."""
    with open(f"/proc/{daemon.process.pid}/stat") as stat:
        return sum(map(int, stat.read().rsplit(") ")[1].split()[11:13])) / 100


def knock(daemon):
    """Connect and greet; the answer comes when the daemon lets it in."""
    raw = socket.socket(socket.AF_UNIX)
    raw.connect(daemon.path)
    raw.sendall(wire.HELLO.pack(wire.MAGIC, wire.VERSION, 0))
    return raw


def is_answered(raw, seconds):
    """Whether a welcome comes in the time."""
    raw.settimeout(seconds)
    try:
        return len(raw.recv(wire.WELCOME.size)) == wire.WELCOME.size
    except TimeoutError:
        return False


def test_who_comes_at_the_limit_waits_until_a_connection_closes(daemon):
    one, other = Client(daemon), Client(daemon)
    leave(daemon, 1)
    inside, outside = knock(daemon), knock(daemon)
    assert is_answered(inside, 20)
    until(lambda: SAID in daemon.log)
    assert "accept: [Errno 24] Too many open files" in daemon.log
    before = cpu_s(daemon)
    assert not is_answered(outside, 0.5)  # of wall time, in which a daemon that spins uses a processor
    assert cpu_s(daemon) - before < 0.2
    assert daemon.log.count(SAID) == 1
    assert one.param(C.NPU_PARAM_DDR_FREE_BYTES) > 0  # who is inside goes on
    other.close()
    assert is_answered(outside, 20)
    for raw in (inside, outside):
        raw.close()
    one.close()


def test_a_file_of_the_device_that_closes_is_enough(daemon):
    one = Client(daemon)
    assert one.create().handle  # memory of the context's own: descriptors
    leave(daemon, 0)
    outside = knock(daemon)
    until(lambda: SAID in daemon.log)
    assert one.call(C.NPU_SYS_CLOSE)[0] == 0
    assert is_answered(outside, 20)
    outside.close()
    one.close()


def test_a_program_that_is_not_let_in_is_told_and_the_next_one_is_let_in(daemon, monkeypatch):
    one = Client(daemon)
    leave(daemon, 0)
    monkeypatch.setattr(client, "GREETING_TIMEOUT_S", 0.2)
    with pytest.raises(libnpu.NpuError, match=f"no device at {daemon.where}: timed out") as error:
        libnpu.open(where=daemon.where)
    assert error.value.result == C.NPU_ERROR_DEVICE_LOST
    one.close()
    monkeypatch.undo()
    until(lambda: daemon.log.count("gone with") == 1)
    Client(daemon).close()
