"""The library's only door to the kernel: open, close, mmap, poll and ioctl on one device node, and the host's
position on the clock.

A call is (number, structure bytes, segments, position) → (result, structure bytes, segments, position); npu_uapi.h
has the encoding. The node of `open_device` is a driver in this process over a simulated device of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npu_abi import C, ffi, ioctl_request

from libnpu.errors import raise_errno

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npu_model.profile import Profile

    Syscall = Callable[[int, bytes, list[bytes], int], tuple[int, bytes, list[Any], int]]

_NO_SEGMENTS: list[bytes] = []


class Request:
    """One kind of call with its structure, made once and used again: set fields of `arg`, hand it to `Node.ioctl`,
    read fields.
    """

    __slots__ = ("arg", "buffer", "name", "number")

    def __init__(self, number: int, struct: str | None, name: str = "") -> None:
        self.number = ioctl_request(number, struct)
        self.name = name or (struct or str(number))
        self.arg: Any = ffi.new(f"struct {struct} *") if struct else None
        self.buffer: Any = ffi.buffer(self.arg) if struct else b""


class Node:
    """An open device node of one process. `now_ps` is the host's position; only this module and `advance` move it.

    `log` is the kernel's message buffer, where there is one to read: errors quote it.
    """

    __slots__ = ("_behind", "_fd_bits", "_sys_mmap", "_syscall", "log", "now_ps", "profile")

    def __init__(self, syscall: Syscall, profile: Profile, log: Sequence[str] = ()) -> None:
        self.log = log
        self._syscall = syscall
        self.profile = profile
        self.now_ps = 0
        self._behind = False
        self._fd_bits = 0
        self._sys_mmap = Request(C.NPU_SYS_MMAP, "npu_mmap", "mmap")
        self._open()

    def _open(self) -> None:
        fd, *_ = self._call(ioctl_request(C.NPU_SYS_OPEN, None), b"", _NO_SEGMENTS)
        if fd < 0:
            raise_errno(-fd, "open", self.log)
        self._fd_bits = fd << 32

    def _call(self, number: int, arg: bytes, segments: list[bytes]) -> tuple[int, bytes, list[Any]]:
        ret, out, replies, self.now_ps = self._syscall(self._fd_bits | number, arg, segments, self.now_ps)
        self._behind = False
        return ret, out, replies

    def ioctl(self, request: Request, segments: Sequence[bytes] = ()) -> list[Any]:
        """Do `request`; its structure then has the outputs.

        Returns the segments behind [out] pointers. Raises NpuError.
        """
        ret, out, replies = self._call(request.number, bytes(request.buffer), list(segments))
        if ret < 0:
            raise_errno(-ret, request.name, self.log)
        if request.arg is not None:
            request.buffer[:] = out
        return replies

    def try_ioctl(self, request: Request, segments: list[bytes] = _NO_SEGMENTS) -> int:
        """Do `request` and return the driver's answer, which may be -errno; the structure changes on success only."""
        ret, out, _ = self._call(request.number, bytes(request.buffer), segments)
        if ret >= 0:
            request.buffer[:] = out
        return ret

    def mmap(self, offset: int, length: int) -> memoryview:
        """Return `length` bytes of the buffer object at mmap offset `offset`, writable, until the object is freed."""
        request = self._sys_mmap
        request.arg.offset, request.arg.length = offset, length
        view: memoryview = self.ioctl(request)[0]
        return view

    def advance(self, duration_ps: int) -> None:
        """Let the host work for `duration_ps`. The device follows with the next call, or `catch_up`."""
        self.now_ps += duration_ps
        self._behind = True

    def catch_up(self) -> None:
        """Bring the device to the host's position, so that memory shows what a host would see now."""
        if self._behind:
            request = Request(C.NPU_IOCTL_EMU_ADVANCE, "npu_emu_advance", "EMU_ADVANCE")
            request.arg.until_ps = self.now_ps
            self.ioctl(request)

    def reopen(self) -> None:
        """Close the node and open it again: a new context. The clock goes on."""
        self.close()
        self._open()

    @property
    def is_open(self) -> bool:
        """Whether `close` has not been called."""
        return self._fd_bits != 0

    def close(self) -> None:
        """Close the node: the driver waits for its jobs and frees what it owned. Twice is allowed."""
        if self._fd_bits:
            self._call(ioctl_request(C.NPU_SYS_CLOSE, None), b"", _NO_SEGMENTS)
            self._fd_bits = 0


def open_device(profile: str, *, compute: bool, numerics: str, trace: bool) -> Node:
    """Return an open node of a new simulated device.

    Raises ProfileError for an unknown profile, NpuError when it does not boot.
    """
    from npu_driver.platform import start

    kernel, hardware = start(profile, compute=compute, numerics=numerics, trace=trace)
    return Node(kernel.syscall, hardware, kernel.log)
