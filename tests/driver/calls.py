"""Raw system calls of a process, with nothing checked: in process and at npud."""

from __future__ import annotations

import npu_abi
from npu_abi import C, ioctl_request


class Calls:
    """One open file behind a door, a callable as `Kernel.syscall`, and the position of its process on the clock."""

    def __init__(self, door, now_ps=0):
        self._door = door
        self.now_ps = now_ps
        self.fd = 0
        self.fd = self.call(C.NPU_SYS_OPEN)[0]

    def raw(self, number, arg=b"", segments=()):
        """One call: (ret, structure, segments)."""
        ret, out, replies, self.now_ps = self._door(self.fd << 32 | number, arg, list(segments), self.now_ps)
        return ret, out, replies

    def call(self, number, struct=None, segments=(), **fields):
        """One call: (ret, structure as a cffi pointer, segments)."""
        arg = npu_abi.pack(npu_abi.new(struct, **fields)) if struct else b""
        ret, out, replies = self.raw(ioctl_request(number, struct), arg, segments)
        return ret, npu_abi.view(struct, bytearray(out)) if struct else None, replies

    def create(self, size=4096, flags=C.NPU_BO_MAPPABLE):
        """Make a buffer object: struct npu_bo_create."""
        ret, arg, _ = self.call(C.NPU_IOCTL_BO_CREATE, "npu_bo_create", size=size, flags=flags)
        assert ret == 0
        return arg

    def info(self, handle):
        """Struct npu_bo_info."""
        ret, arg, _ = self.call(C.NPU_IOCTL_BO_INFO, "npu_bo_info", handle=handle)
        assert ret == 0
        return arg

    def map(self, handle):
        """The memory of a mappable buffer object."""
        info = self.info(handle)
        ret, _, replies = self.call(C.NPU_SYS_MMAP, "npu_mmap", offset=info.mmap_offset, length=info.size)
        assert ret == 0
        return replies[0]

    def queue(self, priority=0):
        """Make a command queue: its id."""
        ret, arg, _ = self.call(C.NPU_IOCTL_CMDQ_CREATE, "npu_cmdq_create", priority=priority)
        assert ret == 0
        return arg.cmdq_id

    def param(self, param, index=0):
        """Read a parameter, which must exist."""
        ret, arg, _ = self.call(C.NPU_IOCTL_GET_PARAM, "npu_param_arg", param=param, index=index)
        assert ret == 0
        return arg.value
