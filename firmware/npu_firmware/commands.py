"""Command buffers: header and commands, parsed defensively into a list before the first one runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from npu_abi import C, sizeof

from npu_firmware.errors import ParseError
from npu_firmware.hal import Hal
from npu_firmware.structs import read

HEADER_BYTES = sizeof("npu_cmd_buffer_header")
COMMAND_BYTES = sizeof("npu_cmd_header")
MAX_BUFFER_BYTES = 1 << 20  # chosen
MAX_COPY_DESCRIPTORS = 4096

_STRUCTS: dict[int, str] = {
    C.NPU_CMD_NOP: "npu_cmd_header",
    C.NPU_CMD_TIMESTAMP: "npu_cmd_timestamp",
    C.NPU_CMD_FENCE_WAIT: "npu_cmd_fence",
    C.NPU_CMD_FENCE_SIGNAL: "npu_cmd_fence",
    C.NPU_CMD_BARRIER: "npu_cmd_header",
    C.NPU_CMD_MEMORY_FILL: "npu_cmd_fill",
    C.NPU_CMD_COPY: "npu_cmd_copy",
    C.NPU_CMD_INFERENCE_EXECUTE: "npu_cmd_inference",
}


@dataclass(frozen=True, slots=True)
class Command:
    """One command. `va` is its own address, `fields` its structure; `fence_va` is resolved for fences."""

    type: int
    index: int
    va: int
    fields: Any
    fence_va: int = 0
    heap_va: int = 0


def parse(hal: Hal, ssid: int, va: int) -> list[Command]:
    """Return the commands of the buffer at `va` of a context. Raises ParseError."""
    if va % 64:
        raise ParseError(C.NPU_PARSE_BAD_COMMAND_BUFFER)
    header = read("npu_cmd_buffer_header", _load(hal, ssid, va, HEADER_BYTES))
    size, offset = header.cmd_buffer_size, header.cmd_offset
    if header.api_version != C.NPU_CMD_API_VERSION:
        raise ParseError(C.NPU_PARSE_BAD_API_VERSION)
    if header.reserved0 or any(header.reserved1):
        raise ParseError(C.NPU_PARSE_RESERVED_NOT_ZERO)
    if not HEADER_BYTES <= offset <= size <= MAX_BUFFER_BYTES or offset % 8:
        raise ParseError(C.NPU_PARSE_BAD_COMMAND_BUFFER)
    data = _load(hal, ssid, va, size)
    commands: list[Command] = []
    while offset < size:
        commands.append(_command(data, va, offset, size, len(commands), header))
        offset += commands[-1].fields.h.size if hasattr(commands[-1].fields, "h") else commands[-1].fields.size
    return commands


def _command(data: bytes, va: int, offset: int, size: int, index: int, header: Any) -> Command:
    if size - offset < COMMAND_BYTES:
        raise ParseError(C.NPU_PARSE_BAD_COMMAND, index)
    head = read("npu_cmd_header", data, offset)
    struct = _STRUCTS.get(head.type)
    if struct is None or head.size % 8 or head.size != sizeof(struct) or head.size > size - offset:
        raise ParseError(C.NPU_PARSE_BAD_COMMAND, index)
    fields = read(struct, data, offset)
    if head.reserved or getattr(fields, "reserved", 0):
        raise ParseError(C.NPU_PARSE_RESERVED_NOT_ZERO, index)
    fence_va = heap_va = 0
    if struct == "npu_cmd_fence":
        if not header.fence_heap_va or fields.offset % 8:
            raise ParseError(C.NPU_PARSE_BAD_COMMAND, index)
        fence_va = header.fence_heap_va + fields.offset
    if head.type == C.NPU_CMD_COPY:
        if not header.descriptor_heap_va or not 0 < fields.desc_count <= MAX_COPY_DESCRIPTORS:
            raise ParseError(C.NPU_PARSE_BAD_COMMAND, index)
        heap_va = header.descriptor_heap_va + fields.desc_offset
    if head.type == C.NPU_CMD_MEMORY_FILL and (not fields.size or fields.size % 4):
        raise ParseError(C.NPU_PARSE_BAD_COMMAND, index)
    return Command(head.type, index, va + offset, fields, fence_va, heap_va)


def _load(hal: Hal, ssid: int, va: int, nbytes: int) -> bytes:
    try:
        return hal.load(ssid, va, nbytes)
    except hal.Fault:
        raise ParseError(C.NPU_PARSE_BAD_ADDRESS) from None
