"""Records that the driver hands out by the usual two calls: how many bytes wait, then the bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from libnpu.syscalls import Node, Request


def read_records(node: Node, request: Request, record: np.dtype[np.void]) -> NDArray[np.void]:
    """Return all records that `request` (its structure has buffer_ptr, buffer_bytes, used_bytes) gives, and drop them."""
    import numpy as np

    node.ioctl(request)
    size = request.arg.used_bytes
    data = b""
    if size:
        request.arg.buffer_ptr, request.arg.buffer_bytes, request.arg.used_bytes = 1, size, 0
        data = node.ioctl(request)[0]
    return np.frombuffer(bytearray(data), record)
