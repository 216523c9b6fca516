"""One process at the daemon: its socket, the call that is under way, and what of the device it has."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_driver.process import NAME_BYTES, Process, printable

from libnpu.daemon import wire
from libnpu.daemon.wire import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    Find = Callable[[memoryview], tuple[int, int, int]]  # where device memory is, as `Dram.find`

PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid


class Call:
    """A system call that has no answer yet. `device_ps` is where it has the device by its own doing, see `Waiting`."""

    __slots__ = ("arg", "begun", "deadline_ps", "idle_since_s", "number", "position_ps", "segments")

    def __init__(self, number: int, arg: bytes, segments: list[Any], position_ps: int) -> None:
        self.number = number
        self.arg = arg
        self.segments = segments
        self.position_ps = position_ps
        self.begun = False
        self.deadline_ps = 0
        self.idle_since_s: float | None = None  # wall clock, since when nothing is left to happen that could end it


class Connection:
    """`process` is who the kernel says it is, `files` are its open files of the device, `device_ps` is the device's time at
    the end of its last call. `call` is under way, None while the process is silent.
    """

    def __init__(self, peer: socket.socket, owner_uid: int) -> None:
        peer.setblocking(False)
        pid, uid, _ = PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
        self.process = Process(pid, uid, _name(pid), privileged=uid in (0, owner_uid))
        self.socket = peer
        self.greeted = False
        self.call: Call | None = None
        self.files: dict[int, set[int]] = {}  # open file of the device -> files of memory that it was sent
        self.device_ps = -1
        self._buffer = bytearray()
        self._received: list[int] = []  # descriptors that belong to the frame under way
        self._unsent: memoryview | None = None
        self._mappings: dict[int, Any] = {}
        self._next_mapping = wire.FIRST_MAPPING

    @property
    def who(self) -> str:
        """The process, for the log."""
        return f"process {self.process.pid} ({self.process.name}) of user {self.process.uid}"

    # ---- what comes in ----

    def receive(self) -> bool:
        """Take what has arrived; True when there is a greeting or a call to serve.

        Raises ProtocolError for what no frame is, EOFError at the end, OSError.
        """
        try:
            data, ancillary, flags, _ = self.socket.recvmsg(
                wire.RECEIVE_BYTES, wire.ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return False
        if ancillary:
            self._received += wire.files_in(ancillary)
        if flags & socket.MSG_CTRUNC or len(self._received) > wire.MAX_FILES * self.greeted:
            raise ProtocolError("more files than a frame has")
        if not data:
            raise EOFError
        if self.call is not None:
            raise ProtocolError("a frame before the reply to the last one")
        buffer = self._buffer
        buffer += data
        if not self.greeted:
            return self._take_hello()
        if len(buffer) < wire.CALL.size:
            return False
        size = int.from_bytes(buffer[:4], "little")
        if not wire.CALL.size <= size <= wire.MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame of {size} bytes; {wire.CALL.size} to {wire.MAX_FRAME_BYTES} are allowed")
        if len(buffer) < size:
            return False
        if len(buffer) > size:
            raise ProtocolError("a frame before the reply to the last one")
        self._buffer = bytearray()
        self.call = self._parse(buffer)
        return True

    def _take_hello(self) -> bool:
        buffer = self._buffer
        if not wire.MAGIC.startswith(buffer[: len(wire.MAGIC)]):
            raise ProtocolError("no greeting of this protocol")
        if len(buffer) < wire.HELLO.size:
            return False
        _, version, reserved = wire.HELLO.unpack_from(buffer)
        if len(buffer) > wire.HELLO.size or version != wire.VERSION or reserved:
            raise ProtocolError(f"a greeting of version {version}; {wire.VERSION} is known")
        self._buffer = bytearray()
        self.greeted = True
        return True

    def _parse(self, frame: bytearray) -> Call:
        _, arg_bytes, number, position, count, files, dropped = wire.CALL.unpack_from(frame)
        at = wire.CALL.size
        if arg_bytes > wire.MAX_STRUCTURE_BYTES or count > wire.MAX_SEGMENTS or dropped > wire.MAX_DROPPED:
            raise ProtocolError(f"{arg_bytes} bytes of structure, {count} segments, {dropped} dropped mappings")
        if not 0 <= position <= wire.MAX_POSITION_PS:
            raise ProtocolError(f"position {position}")
        lengths: tuple[int, ...] = ()
        if count or dropped:
            if at + 8 * (count + dropped) > len(frame):
                raise ProtocolError("a frame that ends in its lengths")
            numbers = struct.unpack_from(f"<{count + dropped}Q", frame, at)
            lengths = numbers[:count]
            at += 8 * len(numbers)
            for mapping in numbers[count:]:
                self._mappings.pop(mapping, None)
        large = sum(length > wire.INLINE_BYTES for length in lengths)
        inline = sum(length for length in lengths if length <= wire.INLINE_BYTES)
        if at + arg_bytes + inline != len(frame) or large != files or files != len(self._received):
            raise ProtocolError("a frame whose parts do not add up")
        if any(length > wire.MAX_SEGMENT_BYTES for length in lengths):
            raise ProtocolError(f"a segment above {wire.MAX_SEGMENT_BYTES} bytes")
        arg = bytes(frame[at : at + arg_bytes])
        at += arg_bytes
        segments: list[Any] = []
        for length in lengths:
            if length > wire.INLINE_BYTES:
                fd = self._received.pop(0)
                try:
                    segments.append(wire.from_file(fd, length))
                finally:
                    os.close(fd)
            else:
                segments.append(bytes(frame[at : at + length]))
                at += length
        return Call(number, arg, segments, position)

    # ---- what goes out ----

    def reply(
        self, result: int, arg: bytes, segments: list[Any], position_ps: int, message: bytes, flags: int, find: Find
    ) -> bool:
        """Answer the call; False when some of it has to wait for room in the socket. Raises OSError."""
        assert self.call is not None
        owner = self.call.number >> 32
        self.call = None
        count = len(segments)
        if not count:
            size = wire.REPLY.size + len(arg) + len(message)
            header = wire.REPLY.pack(size, len(arg), result, position_ps, 0, 0, flags, len(message))
            return self._send(header + arg + message, [])
        records, inline, files, mine = [], [], [], []
        try:
            for segment in segments:
                size = len(segment)
                if isinstance(segment, memoryview):
                    fd, offset, file_bytes = find(segment)
                    file = os.fstat(fd).st_ino
                    sent = self.files.setdefault(owner, set())
                    if file not in sent:
                        sent.add(file)
                        files.append(fd)
                    mapping = self._next_mapping
                    self._next_mapping += 1
                    self._mappings[mapping] = segment
                    records.append(wire.SEGMENT.pack(mapping, size, file, offset, file_bytes))
                elif size > wire.INLINE_BYTES:
                    mine.append(wire.to_file(segment))
                    files.append(mine[-1])
                    records.append(wire.SEGMENT.pack(wire.IN_FILE, size, 0, 0, 0))
                else:
                    inline.append(segment)
                    records.append(wire.SEGMENT.pack(wire.INLINE, size, 0, 0, 0))
            size = wire.REPLY.size + count * wire.SEGMENT.size + len(arg) + len(message) + sum(map(len, inline))
            header = wire.REPLY.pack(
                size, len(arg), result, position_ps, count, len(files), flags, len(message)
            )  # fmt: skip
            return self._send(b"".join((header, *records, arg, message, *inline)), files)
        finally:
            for fd in mine:
                os.close(fd)

    def greet(self, greeting: bytes) -> bool:
        """Answer the greeting; as `reply`."""
        return self._send(wire.WELCOME.pack(wire.MAGIC, wire.VERSION, len(greeting)) + greeting, [])

    def _send(self, frame: bytes, files: list[int]) -> bool:
        if files:
            sent = socket.send_fds(self.socket, [frame], files)
        else:
            sent = self.socket.send(frame)
        if sent < len(frame):
            self._unsent = memoryview(frame)[sent:]
            return False
        return True

    def send_rest(self) -> bool:
        """Go on with what had to wait; as `reply`."""
        if self._unsent is not None:
            try:
                self._unsent = self._unsent[self.socket.send(self._unsent) :] or None
            except BlockingIOError:
                return False
        return self._unsent is None

    def close(self) -> None:
        """Forget everything; the files of the device are the server's to close."""
        self.call = None
        self._mappings.clear()
        for fd in self._received:
            os.close(fd)
        self._received.clear()
        self.socket.close()


def _name(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_bytes().removesuffix(b"\n")
    except OSError:
        return "?"
    return printable(name.decode(errors="replace"), NAME_BYTES)
