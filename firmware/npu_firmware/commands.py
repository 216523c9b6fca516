"""Command buffers: header and commands, parsed defensively into a list before the first one runs."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from npu_abi import C, codec

from npu_firmware.errors import ParseError
from npu_firmware.hal import Hal

MAX_BUFFER_BYTES = int(C.NPU_MAX_CMD_BUFFER_BYTES)
MAX_COPY_DESCRIPTORS = 4096

HEADER = codec(
    "npu_cmd_buffer_header", "cmd_buffer_size", "cmd_offset", "api_version", "reserved0", "descriptor_heap_va",
    "fence_heap_va", "reserved1",
)  # fmt: skip
NO_RESERVED = bytes(32)
COMMAND = codec("npu_cmd_header", "type", "size", "reserved")
FENCES = (C.NPU_CMD_FENCE_WAIT, C.NPU_CMD_FENCE_SIGNAL)
INFERENCES = (C.NPU_CMD_INFERENCE_EXECUTE, C.NPU_CMD_INFERENCE_DYNAMIC)
# Members of a command: an address or an offset, then what there is of a size or a value, then what must be zero.
_LAYOUTS: dict[int, Struct] = {
    C.NPU_CMD_NOP: codec("npu_cmd_header"),
    C.NPU_CMD_TIMESTAMP: codec("npu_cmd_timestamp", "va"),
    C.NPU_CMD_FENCE_WAIT: codec("npu_cmd_fence", "offset", "value"),
    C.NPU_CMD_FENCE_SIGNAL: codec("npu_cmd_fence", "offset", "value"),
    C.NPU_CMD_BARRIER: codec("npu_cmd_header"),
    C.NPU_CMD_MEMORY_FILL: codec("npu_cmd_fill", "start_va", "size", "reserved"),
    C.NPU_CMD_COPY: codec("npu_cmd_copy", "desc_offset", "desc_count", "reserved"),
    C.NPU_CMD_INFERENCE_EXECUTE: codec("npu_cmd_inference", "mapped_inference_va"),
    C.NPU_CMD_INFERENCE_DYNAMIC: codec("npu_cmd_inference", "mapped_inference_va"),
    C.NPU_CMD_KERNEL_LAUNCH: codec(
        "npu_cmd_kernel", "text_va", "args_va", "record_va", "code_bytes", "args_bytes", "grid", "flags"
    ),
}


class Kernel(NamedTuple):
    """The members of struct npu_cmd_kernel, not yet checked."""

    text_va: int
    args_va: int
    record_va: int
    code_bytes: int
    args_bytes: int
    grid: int
    flags: int


class Command(NamedTuple):
    """One command. `va` is its own address, `address` what it works on: a MappedInference, a fence, a time stamp, the
    descriptors of a copy, the memory to fill. `value` is a fence's, the number of descriptors, or the bytes to fill.
    """

    type: int
    number: int  # in its buffer
    va: int
    address: int = 0
    value: int = 0
    kernel: Kernel | None = None


def parse(hal: Hal, ssid: int, va: int) -> tuple[list[Command], tuple[int, int] | None]:
    """Return the commands of the buffer at `va` of a context and (code, info) of ParseError if it is refused: then none may run.

    Of a refused buffer the commands are those that could be read, for the fences among them.
    """
    commands: list[Command] = []
    refusal: tuple[int, int] | None = None
    try:
        data, offset, descriptors, fences = _buffer(hal, ssid, va)
        end, index = len(data), 0
        while offset < end:
            if end - offset < COMMAND.size:
                raise ParseError(C.NPU_PARSE_BAD_COMMAND, index)
            kind, length, reserved = COMMAND.unpack_from(data, offset)
            layout = _LAYOUTS.get(kind)
            if layout is None or length != layout.size or length > end - offset:
                raise ParseError(C.NPU_PARSE_BAD_COMMAND, index)
            try:
                if reserved:
                    raise ParseError(C.NPU_PARSE_RESERVED_NOT_ZERO, index)
                commands.append(
                    _command(kind, index, va + offset, layout.unpack_from(data, offset), descriptors, fences)
                )
            except ParseError as error:
                refusal = refusal or (error.code, error.info)
            offset += length
            index += 1
    except ParseError as error:  # from here on nobody knows where a command begins
        refusal = refusal or (error.code, error.info)
    return commands, refusal


def _buffer(hal: Hal, ssid: int, va: int) -> tuple[bytes, int, int, int]:
    """Return the bytes of a buffer, the offset of its first command, and its heaps. Raises ParseError."""
    if va % 64:
        raise ParseError(C.NPU_PARSE_BAD_COMMAND_BUFFER)
    try:
        size, offset, version, reserved0, descriptors, fences, reserved1 = hal.read(ssid, va, HEADER)
    except hal.Fault:
        raise ParseError(C.NPU_PARSE_BAD_ADDRESS) from None
    if version != C.NPU_CMD_API_VERSION:
        raise ParseError(C.NPU_PARSE_BAD_API_VERSION)
    if reserved0 or reserved1 != NO_RESERVED:
        raise ParseError(C.NPU_PARSE_RESERVED_NOT_ZERO)
    if not HEADER.size <= offset <= size <= MAX_BUFFER_BYTES or offset % 8:
        raise ParseError(C.NPU_PARSE_BAD_COMMAND_BUFFER)
    return _load(hal, ssid, va, size), offset, descriptors, fences


def _command(kind: int, index: int, va: int, members: tuple[int, ...], descriptors: int, fences: int) -> Command:
    """Check the members of a command, and turn offsets in a heap into addresses. Raises ParseError."""
    if kind in FENCES:
        offset, value = members
        if not fences or offset % 8:
            raise ParseError(C.NPU_PARSE_BAD_COMMAND, index)
        return Command(kind, index, va, fences + offset, value)
    if kind == C.NPU_CMD_KERNEL_LAUNCH:
        return Command(kind, index, va, kernel=Kernel(*members))
    if any(members[2:]):
        raise ParseError(C.NPU_PARSE_RESERVED_NOT_ZERO, index)
    if kind == C.NPU_CMD_COPY:
        offset, count, _ = members
        if not descriptors or not 0 < count <= MAX_COPY_DESCRIPTORS:
            raise ParseError(C.NPU_PARSE_BAD_COMMAND, index)
        return Command(kind, index, va, descriptors + offset, count)
    if kind == C.NPU_CMD_MEMORY_FILL and (not members[1] or members[1] % 4):
        raise ParseError(C.NPU_PARSE_BAD_COMMAND, index)
    address, value = (*members, 0, 0)[:2]
    return Command(kind, index, va, address, value)


def _load(hal: Hal, ssid: int, va: int, nbytes: int) -> bytes:
    try:
        return hal.load(ssid, va, nbytes)
    except hal.Fault:
        raise ParseError(C.NPU_PARSE_BAD_ADDRESS) from None
