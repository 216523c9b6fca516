"""What goes over the socket between a process and npud: the system calls of npu_uapi.h, one frame each way.

1. The process sends HELLO (magic, version, 0), the daemon answers WELCOME (magic, version, bytes) and as many bytes of JSON:
   what the device is (`Greeting`).
2. The process sends a CALL and nothing more until it has the REPLY.

A CALL is its header, the lengths of its segments (u64 each), the numbers of the mappings that the process has dropped since its
last call (u64 each), the structure, and the segments. A REPLY is its header, a SEGMENT record for each segment, the structure,
the kernel's message when the call has failed, and the segments. A segment above INLINE_BYTES is not among the bytes: it comes as
a sealed memfd, in SCM_RIGHTS. Device memory is not either: its record names a file, which comes once for each open file of the
device, and the place in it. All numbers are little-endian.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct
from typing import Any

import msgspec

MAGIC = b"npud\r\n\x1a\n"
VERSION = 1
HELLO = struct.Struct("<8sII")
WELCOME = struct.Struct("<8sII")
CALL = struct.Struct(
    "<IIQqHHI"
)  # bytes of the frame, of the structure; number; position; segments; files; dropped mappings
REPLY = struct.Struct(
    "<IIqqHHII"
)  # bytes of the frame, of the structure; result; position; segments; files; flags; bytes of the message
SEGMENT = struct.Struct(
    "<QQQQQ"
)  # INLINE, IN_FILE or number of the mapping; bytes; number of the file, offset in it, its bytes
INLINE, IN_FILE, FIRST_MAPPING = 0, 1, 2
SHARED = 1  # flag of a reply: other processes have used the device
ALONE = 2  # flag of a reply: no other process is connected
SPINS = (
    64 if len(os.sched_getaffinity(0)) > 1 else 0
)  # chosen: 0.3 to 0.8 ms of looks at a socket before going to sleep, when alone: longer than a short job

MAX_POSITION_PS = 1 << 62 | 1 << 61 | 1 << 60  # chosen: the end of the clock, and 13 days for what calls there cost
MAX_FRAME_BYTES = 16 << 20  # chosen: far above every call, whose large segments are files
MAX_STRUCTURE_BYTES = 4096  # chosen: the largest of npu_uapi.h has 80
MAX_SEGMENTS = 8  # chosen: no call has more than one pointer
MAX_SEGMENT_BYTES = 1 << 32  # NPU_MAX_USERPTR_BYTES
MAX_DROPPED = 1 << 16  # chosen: the rest goes with the next call
INLINE_BYTES = 1 << 20  # chosen: above, a copy into a file is cheaper than four through a socket's buffers
RECEIVE_BYTES = 1 << 16
MAX_FILES = 1  # of a frame to the daemon, which holds descriptors for all: as many as a call has pointers
ANCILLARY_BYTES = socket.CMSG_SPACE(4 * MAX_SEGMENTS)
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
NEEDED_SEALS = (
    fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE
)  # else the sender could pull the pages away from under the reader


class ProtocolError(Exception):
    """The other side has sent what no frame is."""


class Greeting(msgspec.Struct, frozen=True):
    """What the daemon says about its device; `profile` as in the profiles' files."""

    profile: msgspec.Raw
    compute: bool
    numerics: str
    fidelity: str
    trace: bool
    now_ps: int


def to_file(content: bytes | memoryview) -> int:
    """Return the descriptor of a sealed file with `content`, the caller's to close."""
    fd = os.memfd_create("npu-segment", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def from_file(fd: int, size: int) -> memoryview:
    """Return the `size` bytes of a sealed file. Raises ProtocolError for another file."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if seals & NEEDED_SEALS != NEEDED_SEALS or os.fstat(fd).st_size != size:
        raise ProtocolError(f"a segment of {size} bytes in a file that is not sealed or has another size")
    return memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ))


def files_in(ancillary: list[Any]) -> list[int]:
    """Return the descriptors that came with a message."""
    files: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            files += struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4])
    return files
