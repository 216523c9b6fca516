"""A running npud, and what is told from outside about the resources of its device."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from npu_abi import C

from libnpu.daemon import wire
from libnpu.daemon.client import Door
from tests.driver.calls import Calls

START_S = 60


class Daemon:
    """npud as a process of its own."""

    def __init__(self, folder, *options):
        self.path = str(folder / "npud.sock")
        self.where = f"unix:{self.path}"
        self.log_path = folder / "log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "libnpu.daemon", "--socket", self.path, "--profile", "unit", *options],
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        line = self.process.stdout.readline()
        assert line == f"npud: unit at {self.path}\n", self.log

    @property
    def log(self):
        return self.log_path.read_text()

    @property
    def alive(self):
        return self.process.poll() is None

    def descriptors(self):
        """Open descriptors of the daemon."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident(self):
        """Its memory in kB, without files."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(re.search(r"RssAnon:\s+(\d+)", status.read())[1])

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(START_S)
        self.process.stdout.close()
        return code


class Client(Calls):
    """A process at the daemon."""

    def __init__(self, daemon):
        self.door = Door(daemon.path)
        super().__init__(self.door.call, self.door.greeting.now_ps)

    def base_line(self):
        """What of the device is in use besides this client's: free memory, and how many contexts can be opened."""
        free = self.param(C.NPU_PARAM_DDR_FREE_BYTES)
        opened = []
        keep = self.fd
        while (fd := self.call(C.NPU_SYS_OPEN)[0]) >= 0:
            opened.append(fd)
        for self.fd in opened:
            assert self.call(C.NPU_SYS_CLOSE)[0] == 0
        self.fd = keep
        return free, len(opened), self.param(C.NPU_PARAM_DDR_FREE_BYTES) - free

    def close(self):
        self.door.close()


@pytest.fixture
def start(tmp_path):
    """start(*options) -> Daemon; ended with the test."""
    daemons = []

    def begin(*options):
        daemons.append(Daemon(tmp_path, *options))
        return daemons[-1]

    yield begin
    for daemon in daemons:
        if daemon.alive:
            assert daemon.stop() == 0
        daemon.process.stdout.close()


@pytest.fixture
def daemon(start):
    return start()


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory):
    """One for the tests of a module."""
    daemon = Daemon(tmp_path_factory.mktemp("npud"))
    yield daemon
    assert daemon.alive, daemon.log
    assert daemon.stop() == 0


def until(condition, seconds=20):
    """Wait until `condition()` holds: what another process does takes wall-clock time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def frame(number, arg=b"", now_ps=0, arg_bytes=None, size=None, segments=0, files=0, dropped=0, rest=b""):
    """A CALL as bytes, right or wrong."""
    arg_bytes = len(arg) if arg_bytes is None else arg_bytes
    size = wire.CALL.size + len(rest) + len(arg) if size is None else size
    return wire.CALL.pack(size, arg_bytes, number, now_ps, segments, files, dropped) + rest + arg
