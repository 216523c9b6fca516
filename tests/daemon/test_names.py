"""A client's name is its own choice: it changes neither the lines nor the terminal of who reads it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from npu_abi import C
from npu_driver.process import printable

from libnpu.syscalls import Node, open_module
from libnpu.tools.smi import records
from tests.daemon.conftest import until

COMM = Path("/proc/self/comm")
NAMES = [
    (b"x\nnpud: fake", r"x\nnpud: fake"),
    (b"\x1b[31mred", r"\x1b[31mred"),
    (b"a\tb\rc", r"a\tb\rc"),
    ("é\u202eab".encode(), r"é\u202eab"),  # right to left
    (b"\xff\xfe", "\ufffd\ufffd"),
    (b"\n\n\n\n\n\n\n\n\n\n", r"\n\n\n\n\n\n\n"),  # 15 bytes have room for no more
    (b" ", " "),
]


@pytest.fixture
def called():
    """called(name): how this process is named to the daemon from now on."""
    before = COMM.read_bytes().removesuffix(b"\n")
    yield COMM.write_bytes
    COMM.write_bytes(before)


@pytest.mark.parametrize(("name", "shown"), NAMES)
def test_a_name_is_shown_with_escapes_in_reports_dumps_and_the_log(shared_daemon, called, name, shown):
    called(name)
    node = Node(open_module(shared_daemon.where, "unit"))
    assert [record["name"] for record in records(node, C.NPU_INFO_CONTEXTS, "npu_context_info")] == [shown]
    node.close()
    lines = len(shared_daemon.log.splitlines())
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(shared_daemon.path)
        stranger.sendall(b"who is there?")
        until(lambda: len(shared_daemon.log.splitlines()) > lines)
    line = shared_daemon.log.splitlines()[lines:]
    assert line == [
        f"npud: process {os.getpid()} ({shown}) of user {os.getuid()} is disconnected: no greeting of this protocol"
    ]


def test_a_dump_has_a_line_for_a_context_whatever_its_name(shared_daemon, called, capsys, monkeypatch):
    from libnpu.tools.cli import main

    called(b"x\nnpud: fake")
    monkeypatch.setenv("NPU_DEVICE", shared_daemon.where)
    assert main(["dump"]) == 0
    assert rf"context 2 of x\nnpud: fake (pid {os.getpid()}): live" in capsys.readouterr().out


def test_what_prints_stays_and_the_rest_is_escaped():
    assert printable("model é 模", 99) == "model é 模"
    assert printable("\x00\x7f\x85\u2028\udc80", 99) == r"\x00\x7f\x85\u2028\udc80"
    assert printable("abc\n", 4) == "abc"
    assert printable("ééé", 5) == "éé"
