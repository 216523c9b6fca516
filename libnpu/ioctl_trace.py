"""What a process asks of the driver, a line for each call, as strace has it: NPU_TRACE=ioctl, on stderr or in NPU_TRACE_FILE.

    0.000001250 <+0.000000400> fd 3 NPU_IOCTL_BO_CREATE({size=4096, flags=NPU_BO_MAPPABLE}) = 0 {handle=1, npu_va=0x200000}

Virtual seconds of begin and duration; the fields that are not 0 as they go in, the result or -errno, the fields that came out different, and
behind a pointer `[in]` and `[out]` how many bytes. Everything comes from the types of npu_uapi.h. NPU_TRACE=ioctl-counts prints no
lines but a table at the end, as strace -c.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Any

from npu_abi import C, ffi, name_of
from npu_abi import enum as abi_enum

from libnpu.at_end import at_end
from libnpu.errors import NpuError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Syscall = Callable[[int, bytes, list[bytes], int], tuple[int, bytes, list[Any], int]]

LINES, COUNTS = "ioctl", "ioctl-counts"
COUNTERS = "pmu"  # the device's counters instead (counter_log.py)
VALUES = (LINES, COUNTS, COUNTERS)
MMIO = "mmio"  # with LINES: registers that the driver in this process reads and writes, too
# (structure, field) -> enum of its value, or of its bits
ENUMS = {
    ("npu_param_arg", "param"): "npu_param", ("npu_bo_sync", "direction"): "npu_sync_dir", ("npu_bo_wait", "job_status"): "npu_job_status",
    ("npu_submit", "priority"): "npu_job_priority", ("npu_cmdq_create", "priority"): "npu_job_priority",
    ("npu_get_info", "kind"): "npu_info_kind", ("npu_recover", "kind"): "npu_recover_kind", ("npu_emu_schedule", "kind"): "npu_schedule",
    ("npu_emu_inject", "point"): "npu_fault_point", ("npu_emu_inject", "kind"): "npu_fault_kind", ("npu_emu_inject", "action"): "npu_inject_action",
    ("npu_emu_job", "job_status"): "npu_job_status",
}  # fmt: skip
FLAGS = {
    "npu_bo_create": "npu_bo_flag", "npu_bo_userptr": "npu_bo_flag", "npu_bo_info": "npu_bo_flag", "npu_bo_import": "npu_bo_flag",
    "npu_mmap": "npu_mmap_flag npu_bo_flag", "npu_cmdq_create": "npu_cmdq_flag", "npu_cmdq_destroy": "npu_cmdq_destroy_flag",
}  # fmt: skip
HEXADECIMAL = ("npu_va", "token", "ptr", "offset", "seed")
PS_PER_S = 10**12


def flag_names(enums: str, value: int) -> str:
    """Return the bits of `value` as names of an enum, or of the first of several that has one, "A|B|0x40"."""
    found, left = [], value
    for member in (member for enum in enums.split() for member in abi_enum(enum)):
        bit = int(member)
        if bit and not bit & bit - 1 and left & bit:
            found.append(member.name)
            left &= ~bit
    if left:
        found.append(hex(left))
    return "|".join(found) or "0"


class IoctlTrace:
    """A door that writes about the calls that go through it to `write`, which takes a line. `counts`: only `report` says something."""

    def __init__(
        self, door: Syscall, structs: Mapping[int, str | None], write: Callable[[str], object], *, counts: bool = False
    ) -> None:
        """`structs`: request word -> structure, of every call."""
        self._door = door
        self._write = write
        self._counts = counts
        self._totals: dict[str, list[int]] = {}  # call -> virtual ps, calls, errors
        self._structs = structs

    def __call__(
        self, number: int, arg: bytes, segments: list[bytes], now_ps: int
    ) -> tuple[int, bytes, list[Any], int]:
        """As `npu_driver.kernel.Kernel.syscall`."""
        answer = ret, out, replies, after_ps = self._door(number, arg, segments, now_ps)
        request, name = number & 0xFFFFFFFF, _call_name(number & 0xFF)
        if self._counts:
            total = self._totals.setdefault(name, [0, 0, 0])
            total[0] += after_ps - now_ps
            total[1] += 1
            total[2] += ret < 0
            return answer
        struct = self._structs.get(request)
        text = f"{now_ps / PS_PER_S:.9f} <+{(after_ps - now_ps) / PS_PER_S:.9f}> fd {number >> 32} {name}("
        text += self._fields(struct, arg, segments, "in") + ") = "
        if ret < 0:
            self._write(f"{text}-1 {errno.errorcode.get(-ret, str(-ret))} ({os.strerror(-ret)})")
        else:
            changed = self._fields(struct, out, replies, "out", arg)
            self._write(f"{text}{ret} {changed}".rstrip())
        return answer

    def report(self) -> list[str]:
        """Return the table of counts as lines, the call that took longest first."""
        lines = [f"{'% time':>7} {'seconds':>13} {'us/call':>11} {'calls':>8} {'errors':>7} call"]
        whole = sum(ps for ps, _, _ in self._totals.values()) or 1
        for name, (ps, calls, errors) in sorted(self._totals.items(), key=lambda item: (-item[1][0], item[0])):
            lines.append(
                f"{100 * ps / whole:7.2f} {ps / PS_PER_S:13.9f} {ps / calls / 1e6:11.3f} {calls:8} {errors or '':>7} {name}"
            )
        return lines

    def _fields(
        self, struct: str | None, data: bytes, segments: list[Any], way: str, before: bytes | None = None
    ) -> str:
        parts = []
        if struct is not None and len(data) == ffi.sizeof(f"struct {struct}"):
            value = ffi.from_buffer(f"struct {struct} *", data)
            old = ffi.from_buffer(f"struct {struct} *", before) if before is not None else None
            for name, _ in ffi.typeof(f"struct {struct}").fields:
                number = getattr(value, name)
                if getattr(old, name) != number if old is not None else number:
                    parts.append(f"{name}={_value(struct, name, int(number))}")
        elif data:
            parts.append(data.hex())
        text = "{" + ", ".join(parts) + "}" if parts else ""
        bytes_behind = [len(segment) for segment in segments if len(segment)]
        return " ".join(filter(None, (text, *(f"[{way}] {size} bytes" for size in bytes_behind))))


def _value(struct: str, field: str, value: int) -> str:
    if field == "flags" and struct in FLAGS:
        return flag_names(FLAGS[struct], value)
    if enum := ENUMS.get((struct, field)):
        return name_of(enum, value)
    return hex(value) if any(field.endswith(end) for end in HEXADECIMAL) and value > 9 else str(value)


def _call_name(number: int) -> str:
    return name_of("npu_syscall_nr" if number < C.NPU_IOCTL_GET_PARAM else "npu_ioctl_nr", number)


def wanted_of(text: str) -> tuple[bool, str]:
    """Return what NPU_TRACE says, words with commas between: whether the device records (1), and which of VALUES the calls are to give.

    Raises INVALID_VALUE.
    """
    words = text.split(",") if text else []
    calls = [word for word in words if word in VALUES]
    if len(calls) > 1 or any(word not in ("0", "1", MMIO, *VALUES) for word in words):
        raise NpuError(
            C.NPU_ERROR_INVALID_VALUE, f"NPU_TRACE is {text!r}; 0 and 1 are allowed, and ioctl, mmio, ioctl-counts, pmu"
        )
    return "1" in words, calls[0] if calls else ""


def line_writer(path: str) -> Callable[[str], object]:
    """Return what writes lines to the end of the file `path`, "" for stderr. Raises OSError."""
    out = open(path, "a", encoding="utf-8") if path else sys.stderr  # noqa: SIM115 - open until the process ends

    def write(line: str) -> None:
        print(line, file=out, flush=True)

    return write


def traced(door: Syscall, structs: Mapping[int, str | None], wanted: str, path: str) -> Syscall:
    """Return `door` with a trace of it, `wanted` one of VALUES, in the file `path`, "" for stderr. Raises OSError."""
    write = line_writer(path)
    if wanted == COUNTERS:
        from libnpu.counter_log import counted

        return counted(door, write)
    trace = IoctlTrace(door, structs, write, counts=wanted == COUNTS)
    if wanted == COUNTS:
        at_end(lambda: write("\n".join(trace.report())))
    return trace
