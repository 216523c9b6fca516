"""What is no frame of the protocol: who sends it is disconnected with a line in the log, and nobody else notices."""

from __future__ import annotations

import os
import random
import socket
import struct

import pytest
from npu_abi import C, ffi, ioctl_request

from libnpu.daemon import wire
from tests.daemon.conftest import Client, frame, until

HELLO = wire.HELLO.pack(wire.MAGIC, wire.VERSION, 0)
OPEN = ioctl_request(C.NPU_SYS_OPEN, None)
HUGE = 0xFFFFFFFF


def connect(daemon, greet=True):
    raw = socket.socket(socket.AF_UNIX)
    raw.connect(daemon.path)
    raw.settimeout(20)
    if greet:
        raw.sendall(HELLO)
        _, _, size = wire.WELCOME.unpack(raw.recv(wire.WELCOME.size))
        while size:
            size -= len(raw.recv(size))
    return raw


def is_gone(raw):
    """Whether the daemon has ended the connection."""
    try:
        while raw.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


WRONG = {
    "frame too short": (frame(OPEN, size=8), "a frame of 8 bytes"),
    "frame too long": (frame(OPEN, size=HUGE), f"a frame of {HUGE} bytes"),
    "structure longer than the frame": (frame(OPEN, arg_bytes=100), "parts do not add up"),
    "structure too long": (frame(OPEN, arg_bytes=HUGE), "bytes of structure"),
    "segments that are not there": (frame(OPEN, segments=4), "ends in its lengths"),
    "too many segments": (frame(OPEN, segments=9), "9 segments"),
    "too many dropped mappings": (frame(OPEN, dropped=HUGE), "dropped mappings"),
    "a segment longer than the frame": (frame(OPEN, segments=1, rest=struct.pack("<Q", 64)), "do not add up"),
    "a segment whose length wraps": (frame(OPEN, segments=1, rest=struct.pack("<Q", 2**64 - 1)), "do not add up"),
    "a large segment without its file": (
        frame(OPEN, segments=1, files=1, rest=struct.pack("<Q", 2 << 20)),
        "do not add up",
    ),
    "a position before the clock": (frame(OPEN, now_ps=-1), "position -1"),
    "a position beyond the clock": (frame(OPEN, now_ps=(1 << 63) - 1), f"position {(1 << 63) - 1}"),
    "two frames at once": (frame(OPEN) + frame(OPEN), "before the reply"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_frames(shared_daemon, name):
    content, message = WRONG[name]
    raw = connect(shared_daemon)
    raw.sendall(content)
    assert is_gone(raw)
    raw.close()
    until(lambda: message in shared_daemon.log)


@pytest.mark.parametrize(
    "greeting",
    [b"GET / HTTP/1.1\r\n\r\n", wire.HELLO.pack(wire.MAGIC, 2, 0), wire.HELLO.pack(wire.MAGIC, 1, 1), HELLO + b"x"],
)
def test_wrong_greetings(shared_daemon, greeting):
    raw = connect(shared_daemon, greet=False)
    raw.sendall(greeting)
    assert is_gone(raw)
    raw.close()


def test_a_partial_frame_keeps_nobody_waiting(shared_daemon):
    raw = connect(shared_daemon)
    raw.sendall(frame(OPEN)[:11])
    half = connect(shared_daemon, greet=False)
    half.sendall(HELLO[:5])
    client = Client(shared_daemon)
    assert client.call(C.NPU_IOCTL_BO_CREATE, "npu_bo_create", size=4096)[0] == 0
    client.close()
    raw.sendall(frame(OPEN)[11:])
    assert len(raw.recv(4096)) == wire.REPLY.size
    raw.close()
    half.close()


def test_a_flood_is_cut_off(shared_daemon):
    raw = connect(shared_daemon)
    with pytest.raises(OSError):
        for _ in range(10**5):
            raw.sendall(frame(OPEN) * 100)
    raw.close()


def test_files_that_are_not_sealed_are_refused(shared_daemon):
    raw = connect(shared_daemon)
    fd = os.memfd_create("mine")
    os.ftruncate(fd, 2 << 20)
    socket.send_fds(raw, [frame(OPEN, segments=1, files=1, rest=struct.pack("<Q", 2 << 20))], [fd])
    assert is_gone(raw)
    until(lambda: "not sealed" in shared_daemon.log)
    os.close(fd)
    raw.close()


def test_many_files_are_refused_and_closed(shared_daemon):
    before = shared_daemon.descriptors()
    raw = connect(shared_daemon)
    socket.send_fds(raw, [frame(OPEN)], [0] * 200)
    assert is_gone(raw)
    raw.close()
    until(lambda: shared_daemon.descriptors() <= before)


def test_files_before_the_greeting_are_refused(shared_daemon):
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    raw.connect(shared_daemon.path)
    socket.send_fds(raw, [wire.MAGIC[:2]], [0])
    assert is_gone(raw)
    raw.close()


@pytest.mark.parametrize("until", [(1 << 63) - 1, (1 << 64) - 2])
def test_nobody_runs_the_device_beyond_its_clock(shared_daemon, until):
    one, other = Client(shared_daemon), Client(shared_daemon)
    assert one.call(C.NPU_IOCTL_EMU_RUN, "npu_emu_run", until_ps=until)[0] == 0
    assert one.call(C.NPU_SYS_POLL, "npu_poll", deadline_ps=(1 << 63) - 2)[0] == 0
    for client in (one, other, Client(shared_daemon)):
        assert client.param(C.NPU_PARAM_DDR_FREE_BYTES) > 0
        client.close()


def test_the_end_of_the_clock_leaves_newcomers_their_calls(daemon):
    one = Client(daemon)
    assert one.call(C.NPU_IOCTL_EMU_ADVANCE, "npu_emu_advance", until_ps=3 << 61)[0] == 0
    newcomer = Client(daemon)
    for client in (one, newcomer):
        assert client.param(C.NPU_PARAM_DDR_FREE_BYTES) > 0
        client.close()


def test_a_client_that_does_not_read_its_replies_holds_nobody_up(shared_daemon):
    raw = connect(shared_daemon)
    raw.sendall(frame(OPEN))
    raw.shutdown(socket.SHUT_WR)
    client = Client(shared_daemon)
    assert client.call(C.NPU_IOCTL_BO_CREATE, "npu_bo_create", size=4096)[0] == 0
    client.close()
    raw.close()


def mutated(chance, good):
    data = bytearray(good)
    for _ in range(chance.randint(1, 8)):
        kind = chance.randrange(4)
        at = chance.randrange(len(data))
        if kind == 0:
            data[at] = chance.randrange(256)
        elif kind == 1:
            data[at : at + 8] = chance.choice([b"\0" * 8, b"\xff" * 8, (1 << 31).to_bytes(8, "little")])
        elif kind == 2:
            del data[at : at + chance.randint(1, 16)]
        else:
            data[at:at] = chance.randbytes(chance.randint(1, 16))
        if not data:
            data = bytearray(b"\0")
    return bytes(data)


def fuzz(daemon, count, seed):
    """Send `count` mutated frames over as many connections as it takes, one neighbour works on."""
    chance = random.Random(seed)
    neighbour = Client(daemon)
    _, bo, _ = neighbour.call(C.NPU_IOCTL_BO_CREATE, "npu_bo_create", size=4096, flags=C.NPU_BO_MAPPABLE)
    info = neighbour.call(C.NPU_IOCTL_BO_INFO, "npu_bo_info", handle=bo.handle)[1]
    memory = neighbour.call(C.NPU_SYS_MMAP, "npu_mmap", offset=info.mmap_offset, length=4096)[2][0]
    memory[:] = b"\x5a" * 4096
    create = bytes(ffi.buffer(ffi.new("struct npu_bo_create *", {"size": 4096, "flags": C.NPU_BO_MAPPABLE})))
    requests = [
        (OPEN, b""),
        (ioctl_request(C.NPU_IOCTL_BO_CREATE, "npu_bo_create"), create),
        (ioctl_request(C.NPU_SYS_CLOSE, None), b""),
        (ioctl_request(C.NPU_IOCTL_BO_WAIT, "npu_bo_wait"), bytes(56)),
        (ioctl_request(C.NPU_IOCTL_EMU_RUN, "npu_emu_run"), bytes(32)),
    ]
    raw, files = connect(daemon), []
    for _ in range(count):
        number, arg = chance.choice(requests)
        fd = chance.choice([*files, 3]) if number != OPEN else 0
        good = frame(fd << 32 | number, arg)
        bad = chance.random() < 0.7
        try:
            raw.sendall(mutated(chance, good) if bad else good)
            raw.settimeout(0.005 if bad else 20)
            reply = raw.recv(65536)
            if not reply:
                raise ConnectionResetError
            result = wire.REPLY.unpack_from(reply)[2]
            if not bad and number == OPEN and result > 0:
                files.append(result)
            raw.settimeout(20)
        except (ConnectionError, TimeoutError):
            raw.close()
            raw, files = connect(daemon), []
        if chance.random() < 0.05:
            assert neighbour.call(C.NPU_IOCTL_BO_INFO, "npu_bo_info", handle=bo.handle)[0] == 0
    raw.close()
    assert bytes(memory) == b"\x5a" * 4096
    del memory
    neighbour.close()


def test_fuzzed_frames(daemon):
    watcher = Client(daemon)
    before, descriptors = watcher.base_line(), daemon.descriptors()
    fuzz(daemon, 600, seed=3)
    assert daemon.alive, daemon.log
    until(lambda: daemon.descriptors() <= descriptors)
    until(lambda: watcher.base_line() == before)
    watcher.close()


@pytest.mark.slow
def test_many_fuzzed_frames(daemon):
    watcher = Client(daemon)
    before = watcher.base_line()
    fuzz(daemon, 30_000, seed=4)
    assert daemon.alive, daemon.log
    until(lambda: watcher.base_line() == before)
    watcher.close()
