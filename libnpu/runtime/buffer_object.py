"""Buffer objects of the driver, as the runtime uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.errors import NpuError
from libnpu.syscalls import Node, Request

if TYPE_CHECKING:
    from typing import Self

AS_MEMORY = int(C.NPU_MMAP_POLICY | C.NPU_BO_UNCACHED)


class BufferObject:
    """One object of the driver. `view` is its memory, None when it was made without NPU_BO_MAPPABLE; `flags` are those in force.

    On a board without snooping the CPU's caches are in front of cached memory. The runtime then looks past them, so that what
    it shares with the device needs no maintenance; with `program`, `view` is as the object's own policy says.
    """

    __slots__ = ("_mmap_offset", "_node", "flags", "handle", "size", "va", "view")

    def __init__(self, node: Node, size: int, flags: int, *, program: bool = False) -> None:
        request = Request(C.NPU_IOCTL_BO_CREATE, "npu_bo_create", f"BO_CREATE of {size} bytes")
        request.arg.size, request.arg.flags = size, flags
        node.ioctl(request)
        self._node = node
        self.handle: int = request.arg.handle
        self.va: int = request.arg.npu_va
        self.size: int = request.arg.size
        self.view: memoryview | None = None
        self.flags = flags
        self._mmap_offset = 0
        if flags & C.NPU_BO_MAPPABLE:
            self._show(program=program)

    @classmethod
    def of_user_memory(cls, node: Node, address: int, content: memoryview, flags: int) -> Self:
        """Return an object with `content`, the user's pages at `address`, whose place its memory is to take."""
        request = Request(
            C.NPU_IOCTL_BO_CREATE_FROM_USERPTR, "npu_bo_userptr", f"BO_CREATE_FROM_USERPTR of {len(content)} bytes"
        )
        request.arg.ptr, request.arg.size, request.arg.flags = address, len(content), flags
        replies = node.ioctl(request, [content])
        self = cls.__new__(cls)
        self._node = node
        self.handle, self.va, self.size = request.arg.handle, request.arg.npu_va, len(content)
        self.flags, self._mmap_offset = flags, 0
        self.view = replies[0]
        return self

    @classmethod
    def of_token(cls, node: Node, token: int) -> Self:
        """Return the object that another context has exported, as one of this."""
        request = Request(C.NPU_IOCTL_BO_IMPORT, "npu_bo_import", "BO_IMPORT")
        request.arg.token = token
        node.ioctl(request)
        self = cls.__new__(cls)
        self._node = node
        self.handle, self.va, self.size = request.arg.handle, request.arg.npu_va, request.arg.size
        self.flags, self._mmap_offset = request.arg.flags, 0
        self.view = None
        if self.flags & C.NPU_BO_MAPPABLE:
            self._show(program=False)
        return self

    def _show(self, *, program: bool) -> None:
        """Look at the memory of a new object, which is given back when that fails."""
        info = Request(C.NPU_IOCTL_BO_INFO, "npu_bo_info", "BO_INFO")
        info.arg.handle = self.handle
        try:
            self._node.ioctl(info)
            self.flags, self._mmap_offset = info.arg.flags, info.arg.mmap_offset
            self.view = self.map(program=program)
        except NpuError:
            self.free()
            raise

    def map(self, *, program: bool) -> memoryview:
        """Return a new mapping of the whole: as the object's policy says, or the memory itself."""
        hidden = self.flags & C.NPU_BO_NON_SNOOPED
        return self._node.mmap(self._mmap_offset, self.size, AS_MEMORY if hidden and not program else 0)

    def map_memory(self) -> memoryview:
        """Return a new mapping of the memory itself, whatever the object's policy."""
        try:
            return self._node.mmap(self._mmap_offset, self.size, AS_MEMORY)
        except NpuError:  # a board that snoops, and refuses it: a cached mapping is that there
            return self._node.mmap(self._mmap_offset, self.size, int(C.NPU_MMAP_POLICY | C.NPU_BO_CACHED))

    def publish(self) -> None:
        """Make sure that the device sees what was written to `view`, and end that."""
        if self.flags & C.NPU_BO_WC:
            request = Request(C.NPU_IOCTL_BO_SYNC, "npu_bo_sync", "BO_SYNC")
            request.arg.handle, request.arg.direction, request.arg.size = self.handle, C.NPU_SYNC_TO_DEVICE, self.size
            self._node.ioctl(request)
        self.view = None

    def free(self) -> None:
        """Give the object back; a job in flight keeps its memory. Twice is allowed."""
        if self.handle:
            request = Request(C.NPU_IOCTL_BO_FREE, "npu_bo_free", "BO_FREE")
            request.arg.handle = self.handle
            self.view = None
            self.handle = 0
            if self._node.is_usable:  # else the memory went with the device
                self._node.ioctl(request)
