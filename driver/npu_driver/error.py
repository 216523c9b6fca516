"""The driver's one failure: an errno and a sentence for the kernel log.

Raised by handlers, answered by `Kernel.syscall`.
"""

from __future__ import annotations

import errno


class KernelError(Exception):
    """A call that the driver refuses; nothing has changed. `code` is a positive errno."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{errno.errorcode.get(code, code)}: {why}")
        self.code = code
        self.why = why
