"""The system-call table: number → structure, handler, and the pointer fields with direction and length.

`Row.copy_in` copies the structure once and checks its size, its reserved fields and the segments behind its pointers,
so that handlers see only values. Handlers are `handler(kernel, context, struct, segments) -> (result, segments out)`;
they raise `KernelError` and then have changed nothing.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npu_abi import C, ffi, ioctl_request, name_of

from npu_driver import export, ioctl_bo, ioctl_emu, ioctl_file, ioctl_info, ioctl_job, ioctl_module, ioctl_param
from npu_driver.error import KernelError

if TYPE_CHECKING:
    from npu_driver.kernel import Kernel

Handler = Callable[["Kernel", Any, Any, list[bytes]], tuple[int, list[Any]]]


@dataclass(frozen=True, slots=True)
class Pointer:
    """A pointer field, not 0 when bytes are behind it. `length` says how many; [in] segments have exactly so many."""

    field: str
    length: Callable[[Any], int]
    incoming: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One system call. `free` costs the host no time (emulator range)."""

    name: str
    struct: str | None
    handler: Handler
    pointers: tuple[Pointer, ...]
    free: bool
    needs_file: bool
    ctype: Any
    size: int
    reserved: tuple[tuple[int, int], ...]  # byte ranges, start and end
    reserved_mask: int  # their bits in the structure as a little-endian number

    def copy_in(self, arg: bytes, segments: list[bytes]) -> Any:
        """Return the call's structure (a cffi pointer), None without one. EINVAL, EFAULT."""
        if len(arg) != self.size:
            raise KernelError(errno.EINVAL, f"{len(arg)} bytes of structure, {self.struct} has {self.size}")
        if self.struct is None:
            return None
        if self.reserved_mask and int.from_bytes(arg, "little") & self.reserved_mask:
            start, end = next((start, end) for start, end in self.reserved if any(arg[start:end]))
            raise KernelError(errno.EINVAL, f"reserved bytes {start}..{end - 1} of {self.struct} are not zero")
        struct = ffi.new(self.ctype)
        ffi.memmove(struct, arg, self.size)
        index = 0
        for pointer in self.pointers:
            length = pointer.length(struct)
            if length and not getattr(struct, pointer.field):
                raise KernelError(errno.EFAULT, f"{pointer.field} is 0 and should lead to {length} bytes")
            if pointer.incoming:
                if length and (index >= len(segments) or len(segments[index]) != length):
                    raise KernelError(errno.EFAULT, f"{pointer.field} does not lead to {length} readable bytes")
                index += 1
        return struct


def _reserved(struct: str) -> tuple[tuple[int, int], ...]:
    fields = [f for name, f in ffi.typeof(f"struct {struct}").fields if name.startswith("reserved")]
    return tuple((f.offset, f.offset + ffi.sizeof(f.type)) for f in fields)


def _row(
    number: int, struct: str | None, handler: Handler, *pointers: Pointer, free: bool = False, needs_file: bool = True
) -> tuple[int, Row]:
    reserved = _reserved(struct) if struct else ()
    enum = "npu_syscall_nr" if number < C.NPU_IOCTL_GET_PARAM else "npu_ioctl_nr"
    return ioctl_request(number, struct), Row(
        name=name_of(enum, number),
        struct=struct,
        handler=handler,
        pointers=pointers,
        free=free,
        needs_file=needs_file,
        ctype=ffi.typeof(f"struct {struct} *") if struct else None,
        size=ffi.sizeof(f"struct {struct}") if struct else 0,
        reserved=reserved,
        reserved_mask=sum((1 << 8 * end) - (1 << 8 * start) for start, end in reserved),
    )


MAX_BUFFERS = int(C.NPU_MAX_SUBMIT_BUFFERS)  # with more nothing is copied, and the call is refused
_HANDLES = Pointer("buffers_ptr", lambda arg: 4 * n if (n := arg.buffer_count) <= MAX_BUFFERS else 0, incoming=True)

TABLE: dict[int, Row] = dict(
    (
        _row(C.NPU_SYS_OPEN, None, ioctl_file.sys_open, needs_file=False),
        _row(C.NPU_SYS_CLOSE, None, ioctl_file.sys_close),
        _row(C.NPU_SYS_MMAP, "npu_mmap", ioctl_bo.map_object),
        _row(C.NPU_SYS_POLL, "npu_poll", ioctl_file.sys_poll),
        _row(
            C.NPU_SYS_MODULE_LOAD, "npu_module", ioctl_module.module_load,
            Pointer("params_ptr", ioctl_module.load_bytes, incoming=True), needs_file=False,
        ),
        _row(
            C.NPU_SYS_MODULE_PARAMS, "npu_module", ioctl_module.module_params,
            Pointer("params_ptr", lambda arg: int(arg.params_bytes), incoming=False), needs_file=False,
        ),
        _row(C.NPU_IOCTL_GET_PARAM, "npu_param_arg", ioctl_param.get_param),
        _row(C.NPU_IOCTL_SET_PARAM, "npu_param_arg", ioctl_param.set_param),
        _row(C.NPU_IOCTL_BO_CREATE, "npu_bo_create", ioctl_bo.bo_create),
        _row(C.NPU_IOCTL_BO_INFO, "npu_bo_info", ioctl_bo.bo_info),
        _row(C.NPU_IOCTL_BO_SYNC, "npu_bo_sync", ioctl_bo.bo_sync),
        _row(C.NPU_IOCTL_BO_FREE, "npu_bo_free", ioctl_bo.bo_free),
        _row(
            C.NPU_IOCTL_BO_CREATE_FROM_USERPTR, "npu_bo_userptr", ioctl_bo.bo_create_from_userptr,
            Pointer("ptr", ioctl_bo.userptr_bytes, incoming=True),
        ),
        _row(C.NPU_IOCTL_BO_EXPORT, "npu_bo_export", export.bo_export),
        _row(C.NPU_IOCTL_BO_IMPORT, "npu_bo_import", export.bo_import),
        _row(
            C.NPU_IOCTL_GET_INFO, "npu_get_info", ioctl_info.get_info,
            Pointer("buffer_ptr", lambda arg: int(arg.buffer_bytes), incoming=False),
        ),
        _row(C.NPU_IOCTL_SUBMIT, "npu_submit", ioctl_job.submit, _HANDLES),
        _row(C.NPU_IOCTL_BO_WAIT, "npu_bo_wait", ioctl_job.bo_wait),
        _row(C.NPU_IOCTL_CMDQ_CREATE, "npu_cmdq_create", ioctl_job.cmdq_create),
        _row(C.NPU_IOCTL_CMDQ_DESTROY, "npu_cmdq_destroy", ioctl_job.cmdq_destroy),
        _row(C.NPU_IOCTL_CMDQ_SUBMIT, "npu_cmdq_submit", ioctl_job.cmdq_submit, _HANDLES),
        _row(C.NPU_IOCTL_CMDQ_RING, "npu_cmdq_ring", ioctl_job.cmdq_ring),
        _row(C.NPU_IOCTL_RECOVER, "npu_recover", ioctl_file.recover),
        _row(
            C.NPU_IOCTL_STATE_DUMP, "npu_state_dump", ioctl_file.state_dump,
            Pointer("buffer_ptr", lambda arg: int(arg.buffer_bytes), incoming=False),
        ),
        _row(
            C.NPU_IOCTL_EMU_TRACE_READ, "npu_emu_trace_read", ioctl_emu.trace_read,
            Pointer("buffer_ptr", lambda arg: int(arg.buffer_bytes), incoming=False), free=True,
        ),
        _row(C.NPU_IOCTL_EMU_SET_SCHEDULE, "npu_emu_schedule", ioctl_emu.set_schedule, free=True),
        _row(
            C.NPU_IOCTL_EMU_COUNTERS, "npu_emu_counters", ioctl_emu.counters,
            Pointer("buffer_ptr", lambda arg: 8 * int(arg.count), incoming=False), free=True,
        ),
        _row(
            C.NPU_IOCTL_EMU_OVERFLOWS, "npu_emu_overflows", ioctl_emu.overflows,
            Pointer("buffer_ptr", lambda arg: int(arg.buffer_bytes), incoming=False), free=True,
        ),
        _row(C.NPU_IOCTL_EMU_ADVANCE, "npu_emu_advance", ioctl_emu.advance, free=True),
        _row(C.NPU_IOCTL_EMU_RUN, "npu_emu_run", ioctl_emu.run, free=True),
        _row(C.NPU_IOCTL_EMU_JOB, "npu_emu_job", ioctl_emu.job, free=True),
        _row(C.NPU_IOCTL_EMU_INJECT, "npu_emu_inject", ioctl_emu.inject, free=True, needs_file=False),
        _row(C.NPU_IOCTL_EMU_REGISTER, "npu_emu_register", ioctl_emu.register, free=True),
        _row(C.NPU_IOCTL_EMU_TRAFFIC, "npu_emu_traffic", ioctl_emu.traffic, free=True),
        _row(C.NPU_IOCTL_EMU_WATCH, "npu_emu_watch", ioctl_emu.watch, free=True),
        _row(
            C.NPU_IOCTL_EMU_ACCESSES, "npu_emu_accesses", ioctl_emu.accesses,
            Pointer("buffer_ptr", lambda arg: int(arg.buffer_bytes), incoming=False), free=True,
        ),
    )
)  # fmt: skip
NUMBERS: frozenset[int] = frozenset(request & 0xFF for request in TABLE)
