"""Buffer objects of the driver, as the runtime uses them."""

from __future__ import annotations

from npu_abi import C

from libnpu.syscalls import Node, Request


class BufferObject:
    """One object of the driver. `view` is its memory, None when it was made without NPU_BO_MAPPABLE."""

    __slots__ = ("_node", "handle", "size", "va", "view")

    def __init__(self, node: Node, size: int, flags: int) -> None:
        request = Request(C.NPU_IOCTL_BO_CREATE, "npu_bo_create", f"BO_CREATE of {size} bytes")
        request.arg.size, request.arg.flags = size, flags
        node.ioctl(request)
        self._node = node
        self.handle: int = request.arg.handle
        self.va: int = request.arg.npu_va
        self.size: int = request.arg.size
        self.view: memoryview | None = None
        if flags & C.NPU_BO_MAPPABLE:
            info = Request(C.NPU_IOCTL_BO_INFO, "npu_bo_info", "BO_INFO")
            info.arg.handle = self.handle
            node.ioctl(info)
            self.view = node.mmap(info.arg.mmap_offset, self.size)

    def free(self) -> None:
        """Give the object back; a job in flight keeps its memory. Twice is allowed."""
        if self.handle:
            request = Request(C.NPU_IOCTL_BO_FREE, "npu_bo_free", "BO_FREE")
            request.arg.handle = self.handle
            self.view = None
            self.handle = 0
            if self._node.is_usable:  # else the memory went with the device
                self._node.ioctl(request)
