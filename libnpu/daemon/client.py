"""The way of a process to npud: `Door.call` is the system-call seam of npu_driver, over a Unix socket.

Device memory is the daemon's: a file that comes with the first mapping in it is mapped here as a whole, once for each open
file of the device.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from npu_abi import C, ioctl_request
from npu_model.profile import Profile

from libnpu.daemon import wire
from libnpu.errors import NpuError

if TYPE_CHECKING:
    from collections.abc import Callable

GREETING_TIMEOUT_S = 10.0  # chosen: a daemon that is busy answers within a step of the device
LOOK = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
SYS_CLOSE = ioctl_request(C.NPU_SYS_CLOSE, None)


class Door:
    """A connection. `log` has the kernel's messages about failed calls of this process, `on_shared` is called once, when
    other processes have used the device.

    The constructor raises DEVICE_LOST when no daemon answers at `path`, NOT_PERMITTED when this user may not reach it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.log: deque[str] = deque(maxlen=256)
        self.on_shared: Callable[[], None] | None = None
        self._spins = 0
        self._dropped: deque[int] = deque()
        self._mappings: dict[int, weakref.ref[Any]] = {}
        self._files: dict[int, dict[int, Any]] = {}  # open file of the device -> file of memory -> its bytes
        self._socket, self.greeting, self.profile = self._connect()
        _DOORS.add(self)

    def call(self, number: int, arg: bytes, segments: list[bytes], now_ps: int) -> tuple[int, bytes, list[Any], int]:
        """As `npu_driver.kernel.Kernel.syscall`. Raises DEVICE_LOST when the daemon is gone."""
        try:
            self._send(number, arg, segments, now_ps)
            return self._receive(number)
        except (OSError, wire.ProtocolError, struct.error) as error:
            self._socket.close()
            raise NpuError(C.NPU_ERROR_DEVICE_LOST, f"npud at {self.path} is gone: {error}") from None
        except BaseException:
            self._socket.close()  # a reply may be under way, which nobody would know for what
            raise

    def close(self) -> None:
        """End the connection: the daemon frees what this process had."""
        self._socket.close()

    def __del__(self) -> None:
        if hasattr(self, "_socket"):
            self._socket.close()

    # ---- connecting ----

    def _connect(self) -> tuple[socket.socket, wire.Greeting, Profile]:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(GREETING_TIMEOUT_S)
        try:
            connection.connect(self.path)
            connection.sendall(wire.HELLO.pack(wire.MAGIC, wire.VERSION, 0))
            magic, version, size = wire.WELCOME.unpack(_exactly(connection, wire.WELCOME.size))
            if magic != wire.MAGIC or version != wire.VERSION or size > wire.MAX_FRAME_BYTES:
                raise wire.ProtocolError(f"who listens there speaks version {version}, not {wire.VERSION}")
            greeting = msgspec.json.decode(_exactly(connection, size), type=wire.Greeting)
            profile = msgspec.json.decode(greeting.profile, type=Profile)  # fails for a daemon of another release
        except (OSError, wire.ProtocolError, msgspec.MsgspecError, ValueError) as error:
            connection.close()
            why = getattr(error, "strerror", None) or str(error) or "no answer"
            code = getattr(error, "errno", None) or 0
            denied = isinstance(error, PermissionError)
            result = C.NPU_ERROR_NOT_PERMITTED if denied else C.NPU_ERROR_DEVICE_LOST
            raise NpuError(result, f"no device at unix:{self.path}: {why}", errno=code) from None
        except BaseException:
            connection.close()
            raise
        connection.settimeout(None)
        return connection, greeting, profile

    # ---- frames ----

    def _send(self, number: int, arg: bytes, segments: list[bytes], now_ps: int) -> None:
        dropped = self._dropped
        if not segments and not dropped:
            size = wire.CALL.size + len(arg)
            self._socket.sendall(wire.CALL.pack(size, len(arg), number, now_ps, 0, 0, 0) + arg)
            return
        gone = [dropped.popleft() for _ in range(min(len(dropped), wire.MAX_DROPPED))]
        for mapping in gone:
            self._mappings.pop(mapping, None)
        inline = [segment for segment in segments if len(segment) <= wire.INLINE_BYTES]
        numbers = struct.pack(f"<{len(segments) + len(gone)}Q", *map(len, segments), *gone)
        files = [wire.to_file(segment) for segment in segments if len(segment) > wire.INLINE_BYTES]
        try:
            size = wire.CALL.size + len(numbers) + len(arg) + sum(map(len, inline))
            header = wire.CALL.pack(size, len(arg), number, now_ps, len(segments), len(files), len(gone))
            frame = b"".join((header, numbers, arg, *inline))
            sent = socket.send_fds(self._socket, [frame], files) if files else 0
            self._socket.sendall(memoryview(frame)[sent:])
        finally:
            for fd in files:
                os.close(fd)

    def _receive(self, number: int) -> tuple[int, bytes, list[Any], int]:
        frame: bytes | bytearray
        frame, ancillary = self._first()
        while len(frame) < wire.REPLY.size:
            frame += self._more(ancillary)
        header = wire.REPLY.unpack_from(frame)
        size, arg_bytes, result, position, count, _, flags, message_bytes = header
        if len(frame) < size:
            frame = self._rest(frame, size, ancillary)
        self._spins = wire.SPINS if flags & wire.ALONE else 0
        if flags & wire.SHARED and self.on_shared is not None:
            notify, self.on_shared = self.on_shared, None
            notify()
        at = wire.REPLY.size + count * wire.SEGMENT.size
        arg = bytes(frame[at : at + arg_bytes])
        at += arg_bytes
        if message_bytes:
            self.log.append(bytes(frame[at : at + message_bytes]).decode(errors="replace"))
            at += message_bytes
        replies = self._segments(frame, count, at, wire.files_in(ancillary), number >> 32) if count or ancillary else []
        if number & 0xFFFFFFFF == SYS_CLOSE and result >= 0:
            self._files.pop(number >> 32, None)
        return result, arg, replies, position

    def _first(self) -> tuple[bytes, list[Any]]:
        """Return what comes first. Being woken takes longer than a short call: who is alone looks for a while first."""
        receive = self._socket.recvmsg
        for _ in range(self._spins):
            try:
                frame, ancillary, _, _ = receive(wire.RECEIVE_BYTES, wire.ANCILLARY_BYTES, LOOK)
            except BlockingIOError:
                continue
            return frame, ancillary
        frame, ancillary, _, _ = receive(wire.RECEIVE_BYTES, wire.ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        return frame, ancillary

    def _segments(self, frame: bytes | bytearray, count: int, at: int, files: list[int], owner: int) -> list[Any]:
        known = self._files.setdefault(owner, {})
        replies: list[Any] = []
        try:
            for index in range(count):
                where = wire.REPLY.size + index * wire.SEGMENT.size
                mapping, size, file, offset, file_bytes = wire.SEGMENT.unpack_from(frame, where)
                if mapping == wire.INLINE:
                    replies.append(bytes(frame[at : at + size]))
                    at += size
                elif mapping == wire.IN_FILE:
                    replies.append(wire.from_file(files.pop(0), size))
                else:
                    if file not in known:
                        known[file] = np.frombuffer(mmap.mmap(files.pop(0), file_bytes), np.uint8)
                    replies.append(self._mapping(mapping, known[file][offset : offset + size]))
        finally:
            for fd in files:
                os.close(fd)
        return replies

    def _mapping(self, mapping: int, array: Any) -> memoryview:
        dropped = self._dropped
        self._mappings[mapping] = weakref.ref(array, lambda _: dropped.append(mapping))
        return memoryview(array)

    def _more(self, ancillary: list[Any]) -> bytes:
        data, more, _, _ = self._socket.recvmsg(wire.RECEIVE_BYTES, wire.ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        if not data:
            raise wire.ProtocolError("it has closed the connection")
        ancillary += more
        return data

    def _rest(self, frame: bytes | bytearray, size: int, ancillary: list[Any]) -> bytearray:
        whole = bytearray(frame)
        while len(whole) < size:
            whole += self._more(ancillary)
        return whole


_DOORS: weakref.WeakSet[Door] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a forked child: the daemon must see when the parent ends."""
    for door in _DOORS:
        door.close()


os.register_at_fork(after_in_child=_leave_to_parent)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise wire.ProtocolError("it has closed the connection")
        data += more
    return data
