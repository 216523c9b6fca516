"""Interrupt controller: causes, enables, global mask, and the line to the host.

The handler is called on a rising edge of the line. An edge that comes while the handler runs is delivered after it returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from npu_abi import C

HOST_IPC_FIFO = int(C.NPU_ICB_HOST_IPC_FIFO)


class Interrupts:
    """The ICB registers and the host-bound message FIFO, whose level is a cause."""

    def __init__(self) -> None:
        self.handler: Callable[[], None] | None = None
        self.on_edge: Callable[[], None] | None = None  # for counter and trace
        self._in_handler = False
        self.edges = 0  # rising edges, ever
        self.host_fifo: deque[int] = deque()
        self.reset()

    def reset(self) -> None:
        """Return to the reset state: everything off, line low."""
        self.status = 0
        self.enable = 0
        self.mask = 1
        self._line = False
        self._edge = False
        self.host_fifo.clear()

    def raise_cause(self, cause: int) -> None:
        """Set bits of ICB_STATUS."""
        self.status |= cause
        self.update()

    def clear(self, bits: int) -> None:
        """Clear bits of ICB_STATUS; a level cause that persists is raised again as a new edge."""
        self.status &= ~bits
        self.update()
        if self.host_fifo and not self.status & HOST_IPC_FIFO:
            self.raise_cause(HOST_IPC_FIFO)

    def set_enable(self, value: int) -> None:
        """Write ICB_ENABLE."""
        self.enable = value
        self.update()

    def set_mask(self, value: int) -> None:
        """Write GLOBAL_INT_MASK."""
        self.mask = value & 1
        self.update()

    def push_host(self, address: int) -> None:
        """Post a message address to the host."""
        self.host_fifo.append(address)
        self.raise_cause(HOST_IPC_FIFO)

    def pop_host(self) -> int:
        """Return the next message address, 0 when there is none."""
        return self.host_fifo.popleft() if self.host_fifo else 0

    def update(self) -> None:
        """Recompute the line; deliver a rising edge."""
        line = bool(self.status & self.enable) and not self.mask & 1
        rising = line and not self._line
        self._line = line
        if not rising:
            return
        self._edge = True
        self.edges += 1
        if self.on_edge is not None:
            self.on_edge()
        self.deliver()

    def deliver(self) -> None:
        """Let the host know of a rising edge."""
        if self._in_handler or self.handler is None:
            return
        self._in_handler = True
        try:
            while self._edge and self._line:
                self._edge = False
                self.handler()
        finally:
            self._in_handler = False
