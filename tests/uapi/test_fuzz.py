"""Seeded fuzz of the seam: calls of all kinds, mostly right ones with something wrong, by several open files through one door.

After it a neighbour's memory is what it was, nothing is left when the files are closed, and the device runs a job.
"""

from __future__ import annotations

import errno
import random

import pytest
from npu_abi import C, ffi
from npu_device import Device
from npu_driver import Kernel
from npu_driver.ioctls import TABLE

from libnpu.daemon.client import Door
from tests.daemon.conftest import Client, Daemon, until

OPEN, CLOSE = (
    next(request for request, row in TABLE.items() if row.name == f"NPU_SYS_{call}") for call in ("OPEN", "CLOSE")
)
MAX_FILES = 4
WRONG = (
    0,
    1,
    2,
    3,
    63,
    64,
    4095,
    4096,
    8192,
    1 << 20,
    1 << 31,
    (1 << 32) - 1,
    1 << 40,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
SMALL_SIZES = (1, 64, 4096, 5000, 8192, 65536)
MAX_GROWTH_KB = 8 << 10  # of the daemon's memory, whatever the number of calls
MAX_BYTES = 1 << 16  # of what a structure may ask the fuzzer to put behind a pointer
# Calls that end all others' work, or the clock: rarely.
RARE = {
    "NPU_IOCTL_RECOVER": 0.002,
    "NPU_IOCTL_EMU_INJECT": 0.0,
    "NPU_IOCTL_EMU_ADVANCE": 0.3,
    "NPU_SYS_MODULE_LOAD": 0.2,
    "NPU_SYS_POLL": 0.3,
}
ROWS = sorted((request, row) for request, row in TABLE.items() if row.struct is not None and RARE.get(row.name, 1))


class Fuzzer:
    """Makes calls through `door`, a callable as `Kernel.syscall`, from one seed. It knows which handles it was given."""

    def __init__(self, door, seed):
        self.door = door
        self.random = random.Random(seed)
        self.now_ps = 0
        self.files = {}  # descriptor -> names of what it has: kind -> numbers
        self.calls = self.refused = 0

    def call(self, number, arg=b"", segments=()):
        before = bytes(arg)
        ret, out, replies, now_ps = self.door(number, arg, list(segments), self.now_ps)
        assert now_ps >= self.now_ps
        self.now_ps = now_ps
        self.calls += 1
        assert len(out) == len(arg)
        if ret < 0:
            self.refused += 1
            assert -ret in errno.errorcode
            assert bytes(out) == before
        return ret, out, replies

    def number(self, kind, own):
        """A number of something: mostly one that this file has, or another's, or nonsense."""
        chance = self.random.random()
        if chance < 0.8 and own[kind]:
            return self.random.choice(own[kind])
        if chance < 0.9:
            return self.random.choice(self.random.choice(list(self.files.values()))[kind] or [0])
        return self.random.choice(WRONG)

    def value(self, row, name, bits, own):
        """A value for a field, by its name."""
        draw = self.random
        if draw.random() < 0.06:
            return draw.choice((*WRONG, draw.getrandbits(bits), 1 << draw.randrange(bits)))
        match name:
            case "handle" if row.name not in (
                "NPU_IOCTL_BO_CREATE",
                "NPU_IOCTL_BO_CREATE_FROM_USERPTR",
                "NPU_IOCTL_BO_IMPORT",
            ):
                return self.number("handle", own)
            case "cmdq_id" if row.name != "NPU_IOCTL_CMDQ_CREATE":
                return self.number("queue", own)
            case "token" if row.name == "NPU_IOCTL_BO_IMPORT":
                return self.number("token", own)
            case "offset" if row.name == "NPU_SYS_MMAP":
                return self.number("offset", own)
            case "ptr":
                return draw.randrange(1, 64) << 16
            case "size" if row.name == "NPU_IOCTL_BO_CREATE_FROM_USERPTR":
                return draw.choice((4096, 8192))
            case "size" | "length" if row.name != "NPU_IOCTL_BO_IMPORT":
                return draw.choice(SMALL_SIZES)
            case "flags" if row.name == "NPU_IOCTL_BO_CREATE":
                return draw.choice((2, 0x200002, 0x200002, 0, 3, 6, 10, 16, 0x220002, 0x100002))
            case "deadline_ps":
                return self.now_ps + draw.choice((0, 10**6, 10**9))
            case "until_ps":
                return self.now_ps + draw.choice((0, 10**3, 10**6))
            case "buffers_ptr" | "buffer_ptr" | "params_ptr":
                return 1
            case "buffer_count":
                return draw.choice((1, 1, 1, 2, 3))
            case "buffer_bytes" | "params_bytes":
                return draw.choice((0, 40, 80, 4096))
            case "count":
                return draw.randrange(1, 4)
            case "param":
                return draw.randrange(25)
            case "kind" | "direction" | "priority":
                return draw.choice((0, 1, 1, 2))
        return 0

    def step(self):
        """One call."""
        draw = self.random
        chance = draw.random()
        if not self.files or (chance < 0.01 and len(self.files) < MAX_FILES):
            fd, *_ = self.call(OPEN)
            if fd >= 0:
                self.files[fd] = {"handle": [], "queue": [], "token": [], "offset": []}
            return
        fd = draw.choice(list(self.files))
        if chance < 0.013:
            self.call(fd << 32 | CLOSE)
            del self.files[fd]
            return
        own = self.files[fd]
        request, row = draw.choice(ROWS)
        if draw.random() > RARE.get(row.name, 1):
            return
        struct = ffi.new(row.ctype)
        for name, field in ffi.typeof(f"struct {row.struct}").fields:
            bits = 8 * ffi.sizeof(field.type)
            if not name.startswith("reserved"):
                value = self.value(row, name, bits, own) & (1 << bits) - 1
                setattr(
                    struct, name, value - (value >> bits - 1 << bits) if field.type.cname.startswith("int") else value
                )
        arg = bytearray(ffi.buffer(struct))
        if draw.random() < 0.02:
            arg[draw.randrange(len(arg))] ^= 1 << draw.randrange(8)
        arg = bytes(arg)
        ret, out, replies = self.call(fd << 32 | request, arg, self.behind(row, arg, own))
        if ret >= 0:
            self.learn(row, out, own, replies)

    def behind(self, row, arg, own):
        """What is behind the [in] pointers, now and then too little."""
        struct = ffi.from_buffer(row.ctype, arg)
        found = []
        for pointer in row.pointers:
            if not pointer.incoming:
                continue
            size = min(pointer.length(struct), MAX_BYTES)
            if row.name.endswith("SUBMIT"):
                handles = [self.number("handle", own) & 0xFFFFFFFF for _ in range(min(size // 4, 8))]
                data = b"".join(handle.to_bytes(4, "little") for handle in handles)
            elif row.name == "NPU_SYS_MODULE_LOAD":
                data = self.random.choice((b"", b"dma_debug=1", b"x=1", b"coherent=1 evict=evict")).ljust(size)[:size]
            else:
                data = self.random.randbytes(size)
            found.append(data if self.random.random() > 0.02 else data[:-1])
        return found

    def learn(self, row, out, own, replies):
        """Remember what a call has made."""
        struct = ffi.from_buffer(row.ctype, out)
        match row.name:
            case "NPU_IOCTL_BO_CREATE" | "NPU_IOCTL_BO_CREATE_FROM_USERPTR" | "NPU_IOCTL_BO_IMPORT":
                own["handle"].append(struct.handle)
            case "NPU_IOCTL_BO_FREE" if self.random.random() < 0.8:
                own["handle"] = [handle for handle in own["handle"] if handle != struct.handle]
            case "NPU_IOCTL_CMDQ_CREATE":
                own["queue"].append(struct.cmdq_id)
            case "NPU_IOCTL_BO_EXPORT":
                own["token"].append(struct.token)
            case "NPU_IOCTL_BO_INFO" if struct.mmap_offset:
                own["offset"].append(struct.mmap_offset)
            case "NPU_SYS_MMAP":
                self.scribble(replies[0])
        for numbers in own.values():
            del numbers[:-64]

    def scribble(self, memory):
        """Write a command buffer, or nonsense, or something between."""
        draw = self.random
        header = ffi.new("struct npu_cmd_buffer_header *")
        header.cmd_offset, header.api_version = 64, C.NPU_CMD_API_VERSION
        body = b""
        for _ in range(draw.randrange(3)):
            command = ffi.new("struct npu_cmd_header *")
            command.type, command.size = (
                draw.choice((int(C.NPU_CMD_NOP),) * 3 + (draw.getrandbits(16),)),
                ffi.sizeof("struct npu_cmd_header"),
            )
            body += bytes(ffi.buffer(command)) + (draw.randbytes(8) if draw.random() < 0.2 else b"")
        header.cmd_buffer_size = 64 + len(body)
        data = bytes(ffi.buffer(header)) + body
        if draw.random() < 0.2:
            data = draw.randbytes(len(data))
        size = min(len(data), len(memory))
        memory[:size] = data[:size]


def fuzz(door, seed, count, neighbour):
    """Make `count` calls, close all files, and see to the neighbour: (Fuzzer, its files are closed)."""
    pattern = random.Random(seed + 1).randbytes(16384)
    handle = neighbour.bo(16384)
    neighbour.map(handle)[:] = pattern
    fuzzer = Fuzzer(door, seed)
    fuzzer.now_ps = neighbour.now_ps
    while fuzzer.calls < count:
        fuzzer.step()
    for fd in list(fuzzer.files):
        fuzzer.call(fd << 32 | CLOSE)
    neighbour.now_ps = fuzzer.now_ps
    assert bytes(neighbour.map(handle)) == pattern
    assert neighbour.run(neighbour.queue(), neighbour.nop()) == C.NPU_JOB_SUCCESS
    return fuzzer


def check(file_type, seed, count):
    kernel = Kernel(Device("unit"))
    neighbour = file_type(kernel.syscall)
    free = kernel.memory.free_bytes
    fuzzer = fuzz(kernel.syscall, seed, count, neighbour)
    assert fuzzer.calls // 10 < fuzzer.refused < fuzzer.calls * 9 // 10  # both kinds are there
    assert list(kernel.contexts) == [2]
    assert set(kernel.doorbells.values()) <= set(kernel.contexts[2].queues.values())
    neighbour.call(C.NPU_SYS_CLOSE)
    neighbour.fd = 0
    neighbour.fd = neighbour.call(C.NPU_SYS_OPEN)[0]
    assert kernel.memory.free_bytes == free
    return fuzzer


@pytest.mark.parametrize("seed", range(4))
def test_a_thousand_calls(file_type, seed):
    check(file_type, seed, 1000)


@pytest.mark.slow
def test_a_hundred_thousand_calls(file_type):
    check(file_type, 99, 100_000)


def test_a_seed_gives_the_same_calls_and_answers(file_type):
    def run():
        answers = []
        kernel = Kernel(Device("unit"))

        def door(*call):
            ret, out, replies, now_ps = kernel.syscall(*call)
            answers.append((call[0], ret, bytes(out), now_ps))
            return ret, out, replies, now_ps

        neighbour = file_type(kernel.syscall)
        fuzz(door, 7, 500, neighbour)
        return [answer for answer in answers if answer[1] < 0 or answer[0] & 0xFF != C.NPU_IOCTL_GET_INFO]

    assert run() == run()


@pytest.fixture
def daemon(tmp_path):
    """A running npud."""
    running = Daemon(tmp_path)
    yield running
    assert running.stop() == 0


def fuzz_npud(daemon, file_type, seed, count):
    """Fuzz the daemon through one connection beside a neighbour; then it has what it had, and answers. Returns the fuzzer."""
    watcher = Client(daemon)
    before, descriptors, resident = watcher.base_line(), daemon.descriptors(), daemon.resident()
    attacker, other = Door(daemon.path), Door(daemon.path)
    fuzzer = fuzz(attacker.call, seed, count, file_type(other.call))
    assert fuzzer.calls // 10 < fuzzer.refused < fuzzer.calls * 9 // 10
    assert daemon.alive, daemon.log
    attacker.close()
    other.close()
    until(lambda: daemon.descriptors() <= descriptors)
    assert watcher.base_line() == before
    assert daemon.resident() < resident + MAX_GROWTH_KB
    watcher.close()
    return fuzzer


def test_a_thousand_calls_at_npud(file_type, daemon):
    fuzz_npud(daemon, file_type, 5, 1000)


@pytest.mark.slow
def test_a_hundred_thousand_calls_at_npud(file_type, daemon):
    fuzz_npud(daemon, file_type, 6, 100_000)
