"""The library's only door to the kernel: open, close, mmap, poll and ioctl on one device node, and the host's
position on the clock.

A call is (number, structure bytes, segments, position) → (result, structure bytes, segments, position); npu_uapi.h
has the encoding. The node of `open_device` is a driver in this process over a simulated device of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npu_abi import C, ffi, ioctl_request
from npu_model.profile import load_profile

from libnpu.errors import NpuError, errno_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npu_model.profile import Profile

    Syscall = Callable[[int, bytes, list[bytes], int], tuple[int, bytes, list[Any], int]]
    Machine = tuple[Syscall, Sequence[str]]  # a kernel's door and its log

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

    `log` is the kernel's message buffer, where there is one to read: errors quote it. `power_cycle` starts the machine
    behind the node again, for `open` after `lose`. `calls` counts the calls that were made.
    """

    __slots__ = (
        "_behind", "_down", "_fd_bits", "_lost", "_power_cycle", "_sys_mmap", "_syscall", "calls", "is_open", "log",
        "now_ps", "profile",
    )  # fmt: skip

    def __init__(
        self,
        syscall: Syscall,
        profile: Profile,
        log: Sequence[str] = (),
        power_cycle: Callable[[], Machine] | None = None,
    ) -> None:
        self.log = log
        self._syscall = syscall
        self._power_cycle = power_cycle
        self.profile = profile
        self.now_ps = 0
        self.calls = 0
        self._behind = False
        self.is_open = False
        self._lost = False
        self._down: tuple[int, str] | None = None  # why nothing can be asked: enum npu_result, reason
        self._fd_bits = 0
        self._sys_mmap = Request(C.NPU_SYS_MMAP, "npu_mmap", "mmap")
        self.open()

    def _call(self, number: int, arg: bytes, segments: list[bytes]) -> tuple[int, bytes, list[Any]]:
        if self._down is not None:
            raise NpuError(*self._down)
        self.calls += 1
        try:
            ret, out, replies, self.now_ps = self._syscall(self._fd_bits | number, arg, segments, self.now_ps)
        except BaseException as error:
            self.lose(error)
            raise
        self._behind = False
        return ret, out, replies

    def check_usable(self) -> None:
        """Raise STALE_HANDLE when the node is closed, DEVICE_LOST after `lose`."""
        if self._down is not None:
            raise NpuError(*self._down)

    def lose(self, error: BaseException) -> None:
        """Give the device up: `error` broke out of a call, and nobody knows how far the call got."""
        self._lost = True
        if self._down is None:
            reason = f"{type(error).__name__} broke off a call of the device, which is lost: Device.reset begins anew"
            self._down = (int(C.NPU_ERROR_DEVICE_LOST), reason)

    def ioctl(self, request: Request, segments: Sequence[bytes] = ()) -> list[Any]:
        """Do `request`; its structure then has the outputs.

        Returns the segments behind [out] pointers. Raises NpuError.
        """
        ret, out, replies = self._call(request.number, bytes(request.buffer), list(segments))
        if ret < 0:
            raise errno_error(-ret, request.name, self.log)
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

    def open(self) -> None:
        """Open a closed node: a new context. The clock goes on. The machine of a lost device is started anew before."""
        assert not self.is_open
        if self._lost and self._power_cycle is not None:
            self._syscall, self.log = self._power_cycle()
        self._lost = False
        self._down = None
        self._fd_bits = 0
        fd, *_ = self._call(ioctl_request(C.NPU_SYS_OPEN, None), b"", _NO_SEGMENTS)
        self.is_open = True
        if fd < 0:
            error = errno_error(-fd, "open", self.log)
            self.lose(error)
            raise error
        self._fd_bits = fd << 32

    @property
    def is_usable(self) -> bool:
        """Whether calls reach the driver: neither closed nor lost."""
        return self._down is None

    def close(self) -> None:
        """Close the node: the driver waits for its jobs and frees what it owned. Twice is allowed."""
        if self._down is None:
            self._call(ioctl_request(C.NPU_SYS_CLOSE, None), b"", _NO_SEGMENTS)
        self.is_open = False
        self._down = (int(C.NPU_ERROR_STALE_HANDLE), "the device is closed")


def open_device(profile: str, *, compute: bool, numerics: str, trace: bool) -> Node:
    """Return an open node of a new simulated device.

    Raises ProfileError for an unknown profile, NpuError when it does not boot.
    """
    from npu_driver.platform import start

    def power_on() -> Machine:
        kernel = start(hardware, compute=compute, numerics=numerics, trace=trace)
        return kernel.syscall, kernel.log

    hardware = load_profile(profile)
    syscall, log = power_on()
    return Node(syscall, hardware, log, power_on)
