"""Handles by which other processes, and other contexts, reach memory and events: 64 bytes that mean something on the device
where they were made, and only there.

What is opened by a handle is a mapping of its own of the same memory: each context has it at an address of its own, and the memory
lives as long as anybody has it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.arguments import wrong
from libnpu.runtime.buffer import Buffer
from libnpu.runtime.buffer_object import BufferObject
from libnpu.runtime.guard import public
from libnpu.syscalls import Node, Request

if TYPE_CHECKING:
    from libnpu.runtime.memory import ContextMemory

HANDLE_BYTES = int(C.NPU_IPC_HANDLE_BYTES)
MEMORY, EVENT = 1, 2
_HANDLE = struct.Struct("<8sIIQQ32x")  # magic, version, kind, token, bytes
_MAGIC, _VERSION = b"npu-ipc\0", 1


def make_handle(node: Node, kind: int, bo: BufferObject, size: int) -> bytes:
    """Return the handle of `size` bytes of an object of the driver."""
    request = Request(C.NPU_IOCTL_BO_EXPORT, "npu_bo_export", "BO_EXPORT")
    request.arg.handle = bo.handle
    node.ioctl(request)
    return _HANDLE.pack(_MAGIC, _VERSION, kind, request.arg.token, size)


def open_handle(node: Node, kind: int, handle: bytes) -> tuple[BufferObject, int]:
    """Return the object behind a handle, as a new one of this context, and its bytes.

    Raises INVALID_VALUE for what is no handle of this kind, INVALID_HANDLE when the memory is not there (any more).
    """
    if not isinstance(handle, bytes | bytearray | memoryview):
        raise wrong(handle, "handle", "bytes")
    handle = bytes(handle)
    known = len(handle) == HANDLE_BYTES
    if known:
        magic, version, found, token, size = _HANDLE.unpack(handle)
        known = magic == _MAGIC and version == _VERSION and found == kind and not any(handle[_HANDLE.size - 32 :])
    if not known:
        what = "memory" if kind == MEMORY else "an event"
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"these {len(handle)} bytes are not the handle of {what}")
    bo = BufferObject.of_token(node, token)
    if not 0 < size <= bo.size:
        bo.free()
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"a handle of {size} bytes, of memory with {bo.size} bytes")
    return bo, size


class ImportedBuffer(Buffer):
    """Memory of another context or process, made by `Context.open_ipc_memory`. As a `Buffer`; `close` ends it here.

    >>> memory, other = device.to_device(b"shared"), device.create_context()
    >>> with other.open_ipc_memory(memory.ipc_handle()) as view:
    ...     memory.write(b"S")
    ...     bytes(view.read())
    b'Shared'
    """

    __slots__ = ("_imported",)

    def __init__(self, context: ContextMemory, handle: bytes) -> None:
        self._imported, size = open_handle(context.node, MEMORY, handle)
        super().__init__(context, size)

    def _object(self, size: int, flags: int) -> BufferObject:
        return self._imported

    @public
    def close(self) -> None:
        """End the mapping; the memory goes with the last who has it. Twice is allowed. Work in flight that uses it: as
        `Buffer.free`.
        """
        self.free()
