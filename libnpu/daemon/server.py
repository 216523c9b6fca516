"""The daemon's event loop: connections, and one device that serves their calls one after the other.

A call that waits for the device stands aside while the loop steps the device from interrupt to interrupt (`waiting.py`) and
looks at the sockets in between. No process is waited for: the device goes on as soon as anybody wants it to, so the order of
calls of several processes, and with it times and traces, is the machine's. With one process all is as in process.

Nothing that comes from a process is trusted (`connection.py`). A process that ends, or breaks the protocol, loses what it had:
its jobs are aborted, its files closed.
"""

from __future__ import annotations

import errno
import os
import selectors
import signal
import socket
import stat
import time
from typing import TYPE_CHECKING

import msgspec
from npu_abi import C, ioctl_request

from libnpu.daemon import waiting, wire
from libnpu.daemon.connection import Call, Connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from npu_driver.kernel import Kernel

OPEN = ioctl_request(C.NPU_SYS_OPEN, None)
CLOSE = waiting.CLOSE
MAX_CONNECTIONS = (
    256  # chosen: with a file of a frame under way each, half of the descriptors that a process has by default
)
MAX_CONNECTIONS_OF_USER = 128  # chosen: so that one user leaves room for others
STEPS = 4  # chosen: of a call that waits, before others are looked at; a short job ends within them
DEADLOCK_GRACE_S = 2.0  # chosen: as for threads: another process may still do what a wait without end waits for
BACKLOG = 64
FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # of accept: who wants to come in stays at the door


class Server:
    """Serves `kernel`'s device at `path`. `log` takes lines for people. `owner_uid`: who may reset the device, besides root."""

    def __init__(
        self, kernel: Kernel, greeting: wire.Greeting, path: str, mode: int, log: Callable[[str], None], owner_uid: int
    ) -> None:
        """Listen. Raises OSError: EADDRINUSE when another daemon does, EEXIST when there is another file."""
        self.kernel = kernel
        self.path = path
        self._greeting = greeting
        self._log = log
        self._owner_uid = owner_uid
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, Connection] = {}  # by descriptor
        self._waiting: list[Connection] = []  # with a call under way, in the order in which they came
        self._shared = False  # a second process has come
        self._listener = _listen(path, mode)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._listening = True
        self._wakeup, self._waker = socket.socketpair()
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._stopping = False
        self._spins = 0  # looks at the sockets that are left before going to sleep

    def stop(self, *_: object) -> None:
        """Let `run` return: for signal handlers and other threads."""
        self._stopping = True
        self._waker.send(b"\0")

    def run(self) -> None:
        """Serve until `stop`."""
        select, by_fd = self._selector.select, self._connections
        while not self._stopping:
            found = select(self._patience())
            if not found and self._spins:
                self._spins -= 1
            for key, events in found:
                connection = by_fd.get(key.fd)
                if connection is not None:
                    self._talk(connection, events)
                elif key.fileobj is self._listener:
                    self._accept()
            if self._waiting:
                self._serve()
        self._end()

    def _patience(self) -> float | None:
        """How long to look for messages: not at all while the device has to go on."""
        if not self._waiting:
            return 0 if self._spins else None
        if any(c.call is not None and c.call.idle_since_s is None for c in self._waiting):
            return 0
        return DEADLOCK_GRACE_S

    # ---- connections ----

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError as error:
            if error.errno not in FULL:
                self._log(f"accept: {error}")
                return
            self._log(f"accept: {error}: nobody is let in before one of {len(self._connections)} connections closes")
            self._selector.unregister(self._listener)
            self._listening = False
            return
        connection = Connection(peer, self._owner_uid)
        uid = connection.process.uid
        others = sum(other.process.uid == uid for other in self._connections.values())
        if len(self._connections) >= MAX_CONNECTIONS or others >= MAX_CONNECTIONS_OF_USER:
            self._log(f"{connection.who} refused: {others} connections of this user, {len(self._connections)} in all")
            connection.close()
            return
        self._connections[peer.fileno()] = connection
        self._selector.register(peer, selectors.EVENT_READ)

    def _listen_again(self) -> None:
        """Let in who waits at the door: descriptors have come free."""
        if not self._listening:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._listening = True

    def _talk(self, connection: Connection, events: int) -> None:
        """Send and receive what there is; who breaks the protocol goes."""
        try:
            if events & selectors.EVENT_WRITE and connection.send_rest():
                self._selector.modify(connection.socket, selectors.EVENT_READ)
            if events & selectors.EVENT_READ and connection.receive():
                if connection.call is not None:
                    self._waiting.append(connection)
                else:
                    self._greet(connection)
        except EOFError:
            self._bury(connection, None)
        except (OSError, wire.ProtocolError) as error:
            self._bury(connection, str(error))

    def _greet(self, connection: Connection) -> None:
        greeting = msgspec.structs.replace(self._greeting, now_ps=self.kernel.device.now_ps)
        if any(other.greeted for other in self._connections.values() if other is not connection) or greeting.now_ps:
            self._shared = True
        if not connection.greet(msgspec.json.encode(greeting)):
            self._selector.modify(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def _bury(self, connection: Connection, why: str | None) -> None:
        """Free everything of a process that is gone; `why`: it broke the protocol."""
        self._selector.unregister(connection.socket)
        del self._connections[connection.socket.fileno()]
        if connection in self._waiting:
            self._waiting.remove(connection)
        if why is not None:
            self._log(f"{connection.who} is disconnected: {why}")
        elif connection.files:
            self._log(f"{connection.who} is gone with {len(connection.files)} open files")
        connection.close()
        kernel = self.kernel
        kernel.current = connection.process
        for fd in connection.files:
            context = kernel.files[fd]
            kernel.abort_jobs(context)
            kernel.syscall(fd << 32 | CLOSE, b"", [], kernel.device.now_ps)
        self._listen_again()

    # ---- calls ----

    def _serve(self) -> None:
        """Bring every call under way a step further."""
        for connection in tuple(self._waiting):
            try:
                if self._answer(connection):
                    self._waiting.remove(connection)
            except OSError as error:
                self._bury(connection, str(error))

    def _answer(self, connection: Connection) -> bool:
        """Answer the call of a connection, unless the device has to go on first."""
        kernel, call = self.kernel, connection.call
        assert call is not None
        device = kernel.device
        kernel.current = connection.process
        if not call.begun:
            mine_ps = max(call.position_ps, connection.device_ps)
            waiting.begin(call, device.now_ps - mine_ps if connection.device_ps >= 0 else 0)
            if call.number >> 32 not in connection.files:
                call.number &= 0xFFFFFFFF  # of another process, or nobody's
        try:
            for _ in range(STEPS):
                if not waiting.approach(kernel, call) and not waiting.advance(kernel, call):
                    break
            else:
                call.idle_since_s = None
                return False
        except waiting.Idle:
            if self._may_end(connection, call):
                return False
        ret, out, segments, now_ps = kernel.syscall(call.number, call.arg, call.segments, call.position_ps)
        request = call.number & 0xFFFFFFFF
        if ret >= 0:
            out = waiting.finish_run(call, out)
            if request == OPEN:
                connection.files[ret] = set()
            elif request == CLOSE:
                connection.files.pop(call.number >> 32, None)
                self._listen_again()
        connection.device_ps = device.now_ps
        message = kernel.log[-1].encode() if ret < 0 and kernel.log else b""
        flags = wire.SHARED if self._shared else 0
        self._spins = 0
        if len(self._connections) == 1:
            flags |= wire.ALONE
            self._spins = wire.SPINS
        if not connection.reply(ret, out, segments, now_ps, message, flags, device.dram.find):
            self._selector.modify(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
        return True

    def _may_end(self, connection: Connection, call: Call) -> bool:
        """Whether another process could still end a wait that the device cannot."""
        now_s = time.monotonic()
        call.idle_since_s = call.idle_since_s or now_s
        if all(other.call is not None or not other.files for other in self._connections.values()):
            return any(
                other.call is not None and other.call.idle_since_s is None
                for other in self._connections.values()
                if other is not connection
            )
        return now_s - call.idle_since_s < DEADLOCK_GRACE_S

    def _end(self) -> None:
        for connection in tuple(self._connections.values()):
            self._selector.unregister(connection.socket)
            connection.close()
        self._listener.close()
        self._wakeup.close()
        self._waker.close()
        self._selector.close()
        os.unlink(self.path)


def _listen(path: str, mode: int) -> socket.socket:
    """Return a socket that listens at `path`, for whom `mode` lets. A socket that nobody listens at is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.lexists(path):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise FileExistsError(f"{path} is there and no socket")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                if probe.connect_ex(path) == 0:
                    raise FileExistsError(f"another daemon listens at {path}")
            os.unlink(path)
        before = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        os.chmod(path, mode)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def stop_on_signals(server: Server) -> None:
    """End `server` in order on SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.stop)
