"""Kernel arguments of npu.h, `struct npu_arg`: from numbers that C passed to memory, integers and floats of the runtime."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import npu_abi
from npu_abi import C, name_of

from libnpu.capi.door import require
from libnpu.capi.refusal import Refusal
from libnpu.errors import NpuError

if TYPE_CHECKING:
    from libnpu.capi.library import Library
    from libnpu.runtime import Kernel
    from libnpu.runtime.kernel import Param
    from libnpu.runtime.spans import DeviceSpan

ARG = npu_abi.codec("npu_arg", "kind", "reserved", "value")
INT64 = 1 << 63
Value: TypeAlias = "DeviceSpan | int | float | None"
Refuse: TypeAlias = Callable[..., Refusal]  # of a result's name and a problem


def read_arguments(library: Library, kernel: Kernel, args: int, count: int) -> list[Value]:
    """Return `count` arguments at address `args`, checked against the kernel's parameters as npu_launch_kernel_async says."""
    if count != len(kernel.params):
        takes = len(kernel.params)
        raise Refusal("NPU_ERROR_ARG_COUNT", f"{count} arguments for {kernel.name!r}, which takes {takes}")
    if not count:
        return []
    require(args, "args")
    records = ARG.iter_unpack(library.door.read(args, count * ARG.size))
    return [_value(library, kernel, i, *record) for i, record in enumerate(records)]


def _value(library: Library, kernel: Kernel, index: int, kind: int, reserved: int, value: int) -> Value:
    param = kernel.params[index]
    refuse = _refusing(index, param)
    if kind != param.kind:
        names = [name_of("npu_arg_kind", k) for k in (kind, param.kind)]
        raise refuse("NPU_ERROR_ARG_KIND", f"has kind {names[0]}, and the kernel takes {names[1]}")
    if reserved:
        raise refuse("NPU_ERROR_INVALID_VALUE", f"has reserved {reserved}, not 0")
    if kind == C.NPU_ARG_BUFFER:
        return _memory(library, kernel, param, value, refuse)
    if kind == C.NPU_ARG_INT:
        return value - 2 * INT64 if value >= INT64 else value
    if value >> 32:
        raise refuse("NPU_ERROR_INVALID_VALUE", f"has bits {value:#x}, more than the 32 of a float")
    number: float = struct.unpack("<f", value.to_bytes(4, "little"))[0]
    return number


def values_of(library: Library, kernel: Kernel, numbers: Sequence[int | float]) -> list[Value]:
    """Return arguments of the kernel's kinds, in which memory is a pointer of C, as values of the runtime."""
    found: list[Value] = []
    for index, (param, number) in enumerate(zip(kernel.params, numbers, strict=True)):
        if param.kind == C.NPU_ARG_BUFFER:
            found.append(_memory(library, kernel, param, int(number), _refusing(index, param)))
        else:
            found.append(number)
    return found


def _refusing(index: int, param: Param) -> Refuse:
    return lambda result, problem, **more: Refusal(result, f"argument {index} ({param.name!r}) {problem}", **more)


def _memory(library: Library, kernel: Kernel, param: Param, address: int, refuse: Refuse) -> DeviceSpan | None:
    """Return the memory at a pointer; of a library's kernel NULL is memory that is absent."""
    if not address and kernel.takes_absent_memory:
        return None
    try:
        span = library.memory.seen_by_device(
            kernel.module.context, address, "NPU_ERROR_ARG_KIND", max(1, param.size_bytes)
        )
    except NpuError as error:
        result, problem = name_of("npu_result", error.result), f"is wrong: {error.message}"
        raise refuse(result, problem, gone=error.gone, asked=error.asked) from None
    if span.size < param.size_bytes:
        left = f"needs {param.size_bytes} bytes, and {span.size} are left at {address:#x}"
        raise refuse("NPU_ERROR_ARG_SIZE", left, asked=span.asked(0, param.size_bytes))
    if span.device_address % kernel.alignment:
        raise refuse("NPU_ERROR_MISALIGNED", f"is at {address:#x}, not a multiple of {kernel.alignment}")
    return span
