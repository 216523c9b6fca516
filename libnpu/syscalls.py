"""The library's only door to the kernel: open, close, mmap, poll and ioctl on device nodes, and the host's position on
the clock.

A call is (number, structure bytes, segments, position) → (result, structure bytes, segments, position); npu_uapi.h
has the encoding. The node of `open_device` is a driver in this process over a simulated device of its own; that of
`open_remote` is a device of npud, which other processes use too (libnpu/daemon).
"""

from __future__ import annotations

import os
import weakref
from threading import get_ident
from typing import TYPE_CHECKING, Any

from npu_abi import C, ffi, ioctl_request
from npu_model.profile import load_profile

from libnpu.errors import NpuError, errno_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npu_model.armed import Armed
    from npu_model.profile import Profile

    from libnpu.runtime.host_participants import Participant
    from libnpu.runtime.host_threads import Host

    Syscall = Callable[[int, bytes, list[bytes], int], tuple[int, bytes, list[Any], int]]
    Started = tuple[Syscall, Sequence[str]]  # a kernel's door and its log

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


class Machine:
    """A machine with one device, as its processes reach it: the kernel's door, its log, and the clock.

    `now_ps` is the position on the clock of the thread that is in a call; only this module and `advance` move it.
    `power_cycle` starts the machine again, for `open` after `lose`.
    """

    __slots__ = (
        "__weakref__", "_power_cycle", "begun_ps", "behind", "blocked_ps", "disorder", "host", "inside", "left_ps", "log", "lost", "nodes", "now_ps",
        "number", "positions", "profile", "syscall",
    )  # fmt: skip

    def __init__(
        self,
        syscall: Syscall,
        profile: Profile,
        log: Sequence[str] = (),
        power_cycle: Callable[[], Started] | None = None,
    ) -> None:
        self.syscall = syscall
        self.profile = profile
        self.log = log  # the kernel's message buffer, where there is one to read: errors quote it
        self.now_ps = 0
        self.behind = False  # the device has not been told of `now_ps`
        self.lost: BaseException | None = None
        self.inside = 0  # the thread in a system call
        self.host: Host | None = None  # the threads that share the clock, once they are told of this machine
        self.number = 0  # among the machines of `host`
        self.positions: dict[Participant, int] = {}  # of the threads of `host` that use it
        self.left_ps = 0  # the furthest position of those that use it no more
        self.begun_ps: dict[Participant | None, int] = {}  # where threads came in, if not at 0, and what they skipped
        self.blocked_ps: dict[Participant | None, int] = {}  # how long threads were blocked in `Node.wait`
        self.disorder: str | None = None  # why the order of calls was not the clock's
        self.nodes: weakref.WeakSet[Node] = weakref.WeakSet()
        self._power_cycle = power_cycle

    def lose(self, error: BaseException) -> None:
        """Give the device up: `error` broke out of a call, and nobody knows how far the call got."""
        self.lost = error
        reason = error.message if isinstance(error, NpuError) else None
        reason = (
            reason or f"{type(error).__name__} broke off a call of the device, which is lost: Device.reset begins anew"
        )
        for node in self.nodes:
            node.go_down(C.NPU_ERROR_DEVICE_LOST, reason)

    @property
    def caller(self) -> Participant | None:
        """The calling thread, as the maps of threads have it."""
        return self.host.known() if self.host is not None else None

    def note_blocked(self, since_ps: int) -> None:
        """Note that the calling thread was blocked since `since_ps`."""
        who = self.host.known() if self.host is not None else None
        self.blocked_ps[who] = self.blocked_ps.get(who, 0) + self.now_ps - since_ps
        if self.host is not None and self.host.call_log is not None:
            self.host.call_log.note_blocked(self, since_ps)

    def host_times(self, who: Participant | None) -> tuple[int, int]:
        """Return how long a thread, which is in a call, has worked and has been blocked, in ps."""
        blocked = self.blocked_ps.get(who, 0)
        return self.now_ps - self.begun_ps.get(who, 0) - blocked, blocked

    def any_node(self) -> Node | None:
        """Return an open node, if there is one."""
        return next((node for node in self.nodes if node.is_usable), None)

    @property
    def is_closed(self) -> bool:
        """Whether all its nodes were closed: nothing can happen any more, unlike with one that is lost."""
        return not any(node.is_open for node in self.nodes)

    def start_again(self) -> None:
        """Start the machine anew if it was lost. What was open in it is gone."""
        if self.lost is not None and self._power_cycle is not None:
            self.syscall, self.log = self._power_cycle()
        self.lost = None


class Node:
    """One open device node of a process: a context. `calls` counts the calls that were made; `down` says why nothing can
    be asked (enum npu_result, reason), None while it can.
    """

    __slots__ = ("__weakref__", "_fd_bits", "_sys_mmap", "calls", "down", "is_open", "machine")

    def __init__(self, machine: Machine, *, is_open: bool = True) -> None:
        self.machine = machine
        self.calls = 0
        self.is_open = False
        self.down: tuple[int, str] | None = None
        self._fd_bits = 0
        self._sys_mmap = Request(C.NPU_SYS_MMAP, "npu_mmap", "mmap")
        if is_open:
            self.open()

    @property
    def profile(self) -> Profile:
        """What the machine is."""
        return self.machine.profile

    @property
    def log(self) -> Sequence[str]:
        """The kernel's message buffer."""
        return self.machine.log

    @property
    def now_ps(self) -> int:
        """The calling thread's position on the clock."""
        machine = self.machine
        host = machine.host
        return machine.now_ps if host is None or host.solo == get_ident() else host.position_of_caller(self)

    def sibling(self) -> Node:
        """Open the node once more: another context on the same machine, with the same clock."""
        self.check_usable()
        return Node(self.machine)

    def successor(self) -> Node:
        """Return a node of the same machine that is to be opened, in the place of this one, which is closed."""
        return Node(self.machine, is_open=False)

    def _call(self, number: int, arg: bytes, segments: list[Any]) -> tuple[int, bytes, list[Any]]:
        if self.down is not None:
            raise NpuError(*self.down)
        machine = self.machine
        ident = get_ident()
        if machine.inside == ident:
            raise NpuError(C.NPU_ERROR_NOT_PERMITTED, "a signal's handler or a finalizer has interrupted a system call")
        machine.inside = ident
        self.calls += 1
        try:
            ret, out, replies, machine.now_ps = machine.syscall(self._fd_bits | number, arg, segments, machine.now_ps)
        except BaseException as error:
            machine.lose(error)
            raise
        finally:
            machine.inside = 0
        machine.behind = False
        return ret, out, replies

    def check_usable(self) -> None:
        """Raise STALE_HANDLE when the node is closed, DEVICE_LOST after `lose`."""
        if self.down is not None:
            raise NpuError(*self.down)

    def lose(self, error: BaseException) -> None:
        """Give the device up, see `Machine.lose`."""
        self.machine.lose(error)

    def go_down(self, result: int, reason: str) -> None:
        """Answer every call with an error from now on; the first reason counts."""
        if self.down is None:
            self.down = (int(result), reason)

    def ioctl(self, request: Request, segments: Sequence[Any] = ()) -> list[Any]:
        """Do `request`; its structure then has the outputs. `segments` are bytes, or views of them.

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

    def wait(self, request: Request, deadline_ps: int) -> int:
        """Do the BO_WAIT `request` with a deadline, and return the driver's answer, which may be -errno.

        -EAGAIN: while this thread waited, another one took the job's end; the caller looks again at what it knows.
        """
        machine = self.machine
        host, before_ps = machine.host, machine.now_ps
        if host is not None and not host.solo:
            ret = host.wait(self, request, deadline_ps)
        else:
            request.arg.deadline_ps = deadline_ps
            ret = self.try_ioctl(request)
        if deadline_ps > before_ps:
            machine.note_blocked(before_ps)
        return ret

    def wait_ahead(self, handle: int, deadline_ps: int) -> None:
        """With other threads on the machine, let them go on until the job of a command buffer has ended, or the deadline passes:
        before waits for it and for what is before it in its queue, so that those need not take turns with anybody.
        """
        machine = self.machine
        host = machine.host
        if host is None or host.solo or deadline_ps <= machine.now_ps:
            return
        if len(machine.positions) > 1 or host.keeps_order:
            host.wait_ahead(self, handle, deadline_ps)

    def mmap(self, offset: int, length: int, flags: int = 0) -> memoryview:
        """Return `length` bytes of the buffer object at mmap offset `offset`, writable, until the object is freed. `flags` are those
        of struct npu_mmap.
        """
        request = self._sys_mmap
        request.arg.offset, request.arg.length, request.arg.flags = offset, length, flags
        view: memoryview = self.ioctl(request)[0]
        return view

    def advance(self, duration_ps: int) -> None:
        """Let the host work for `duration_ps`. The device follows with the next call, or `catch_up`."""
        machine = self.machine
        machine.now_ps += duration_ps
        machine.behind = True

    def work(self, duration_ps: int) -> None:
        """Let the host work for `duration_ps`, and the device go on. Other threads may make calls meanwhile."""
        self.advance(duration_ps)
        host = self.machine.host
        if host is not None and not host.solo:
            host.take_turn(host.me(), self)
        self.catch_up()

    def catch_up(self) -> None:
        """Bring the device to the host's position, so that memory shows what a host would see now."""
        if self.machine.behind:
            request = Request(C.NPU_IOCTL_EMU_ADVANCE, "npu_emu_advance", "EMU_ADVANCE")
            request.arg.until_ps = self.now_ps
            self.ioctl(request)

    def open(self) -> None:
        """Open a closed node: a new context. The clock goes on. The machine of a lost device is started anew before."""
        assert not self.is_open
        machine = self.machine
        machine.start_again()
        self.down = None
        self._fd_bits = 0
        machine.nodes.add(self)
        fd, *_ = self._call(ioctl_request(C.NPU_SYS_OPEN, None), b"", _NO_SEGMENTS)
        if fd < 0:
            error = errno_error(-fd, "open", self.log)
            if not any(node.is_open for node in machine.nodes):
                machine.lose(error)
            self.is_open = True
            self.go_down(error.result, error.message)
            raise error
        self.is_open = True
        self._fd_bits = fd << 32

    @property
    def is_usable(self) -> bool:
        """Whether calls reach the driver: neither closed nor lost."""
        return self.down is None

    def close(self) -> None:
        """Close the node: the driver waits for its jobs and frees what it owned. Twice is allowed."""
        if self.down is None:
            self._call(ioctl_request(C.NPU_SYS_CLOSE, None), b"", _NO_SEGMENTS)
        self.is_open = False
        self.down = (int(C.NPU_ERROR_STALE_HANDLE), "the device is closed")


def check_module_params(text: str) -> None:
    """Raise INVALID_VALUE for parameters that the kernel module would refuse (npu_driver/params.py)."""
    from npu_driver.error import KernelError
    from npu_driver.params import parse

    try:
        parse(text)
    except KernelError as error:
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, error.why, errno=error.code) from None


def check_faults(faults: Sequence[Armed]) -> None:
    """Raise INVALID_VALUE for a fault of a kind that cannot strike at its point (npu_driver/inject.py)."""
    from npu_driver.error import KernelError
    from npu_driver.platform import check_fault

    try:
        for fault in faults:
            check_fault(fault)
    except KernelError as error:
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"fault: {error.why}", errno=error.code) from None


def open_device(
    profile: str,
    *,
    compute: bool,
    numerics: str,
    fidelity: str,
    trace: bool,
    module_params: str = "",
    faults: Sequence[Armed] = (),
) -> Node:
    """Return an open node of a new simulated device, whose driver is loaded with `module_params` ("name=value ..."). `faults` are
    armed before it boots.

    Raises ProfileError for an unknown profile, MemoryUnsupported for a fidelity without its helpers, NpuError when it does not boot and
    for parameters and faults.
    """
    from npu_driver.platform import start

    def power_on() -> Started:
        mmio = _mmio_lines()
        kernel = start(
            hardware, compute=compute, numerics=numerics, fidelity=fidelity, trace=trace,
            module_params=module_params, faults=faults, mmio=mmio,
        )  # fmt: skip
        return _traced(kernel.syscall), kernel.log

    check_module_params(module_params)
    check_faults(faults)
    hardware = load_profile(profile)
    syscall, log = power_on()
    return Node(Machine(syscall, hardware, log, power_on))


def _mmio_lines() -> Callable[[str], object] | None:
    """Return what takes lines about the driver's accesses to registers, where NPU_TRACE asks for them."""
    if "mmio" not in os.environ.get("NPU_TRACE", "").split(","):
        return None
    from libnpu.ioctl_trace import line_writer

    return line_writer(os.environ.get("NPU_TRACE_FILE", ""))


def _traced(syscall: Syscall) -> Syscall:
    """Return a kernel's door, with a trace of the calls where NPU_TRACE asks for one (ioctl_trace.py)."""
    text = os.environ.get("NPU_TRACE", "")
    if text in ("", "0", "1"):
        return syscall
    from npu_driver.platform import structures

    from libnpu.ioctl_trace import traced, wanted_of

    _, wanted = wanted_of(text)
    return traced(syscall, structures(), wanted, os.environ.get("NPU_TRACE_FILE", "")) if wanted else syscall


def open_module(device: str, profile: str) -> Machine:
    """Return the machine of the kernel module, with no node open: npud's for `device` "unix:PATH", else a new one of `profile`. NpuError."""
    if device:
        from libnpu.daemon.client import Door

        door = Door(remote_path(device))
        machine = Machine(_traced(door.call), door.profile, door.log)
        machine.now_ps = door.greeting.now_ps
        return machine
    from npu_driver.platform import start

    text = os.environ.get("NPU_KMD_PARAMS", "")
    check_module_params(text)
    hardware = load_profile(profile)
    kernel = start(
        hardware, compute=True, numerics="exact", fidelity="fast", trace=False, module_params=text, mmio=_mmio_lines()
    )
    return Machine(_traced(kernel.syscall), hardware, kernel.log)


def installed_firmware() -> bytes:
    """Return the firmware image that is installed. Raises DEVICE_LOST when there is none."""
    from npu_driver.error import KernelError
    from npu_driver.platform import firmware_image

    try:
        return firmware_image()
    except KernelError as error:
        raise errno_error(error.code, "firmware", [str(error)]) from None


def load_module(machine: Machine, params: str) -> None:
    """Load the kernel module anew with `params`. Raises INVALID_VALUE for one of them, BUSY while a file is open, NOT_PERMITTED."""
    request = Request(C.NPU_SYS_MODULE_LOAD, "npu_module", "MODULE_LOAD")
    data = params.encode()
    request.arg.params_ptr, request.arg.params_bytes = int(bool(data)), min(len(data), 0xFFFFFFFF)
    _module_call(machine, request, [data])


def module_params(machine: Machine) -> str:
    """Return the parameters in force, one "name=value" a line."""
    request = Request(C.NPU_SYS_MODULE_PARAMS, "npu_module", "MODULE_PARAMS")
    request.arg.params_ptr, request.arg.params_bytes = 1, C.NPU_MAX_MODULE_PARAMS_BYTES
    return bytes(_module_call(machine, request, _NO_SEGMENTS)[0]).decode()


def _module_call(machine: Machine, request: Request, segments: list[bytes]) -> list[Any]:
    ret, _, replies, machine.now_ps = machine.syscall(request.number, bytes(request.buffer), segments, machine.now_ps)
    if ret < 0:
        raise errno_error(-ret, request.name, machine.log)
    return replies


def remote_path(device: str) -> str:
    """Return the PATH of "unix:PATH", what NPU_DEVICE may be. Raises INVALID_VALUE for anything else."""
    kind, _, path = device.partition(":")
    if kind != "unix" or not path:
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"NPU_DEVICE={device}: unix:PATH is needed")
    return path


def open_remote(path: str, profile: str | None, *, compute: bool, numerics: str, fidelity: str, trace: bool) -> Node:
    """Return an open node of the device that npud serves at `path`. None: of whatever profile it is.

    Raises DEVICE_LOST when nobody answers there, NOT_PERMITTED, INVALID_VALUE when its device is not what is asked for.
    """
    from libnpu.daemon.client import Door

    def connect() -> Door:
        door = Door(path)
        door.on_shared = note_shared
        return door

    def note_shared() -> None:
        if machine is not None:
            machine.disorder = machine.disorder or "other processes have used the device"

    def power_on() -> Started:
        door = connect()
        return _traced(door.call), door.log

    machine: Machine | None = None
    door = connect()
    greeting, served = door.greeting, door.profile
    asked = None if profile is None else load_profile(profile)
    for what, ours, theirs in (
        ("profile", asked and asked.name, asked and served.name), ("compute", compute, greeting.compute),
        ("numerics", numerics, greeting.numerics), ("fidelity", fidelity, greeting.fidelity), ("trace", trace, trace and greeting.trace),
    ):  # fmt: skip
        if ours != theirs:
            door.close()
            theirs = served.name if what == "profile" else theirs
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"unix:{path} has {what} {theirs}, and {ours} is asked for")
    machine = Machine(_traced(door.call), served, door.log, power_on)
    machine.now_ps = greeting.now_ps
    machine.begun_ps[None] = greeting.now_ps
    return Node(machine)
