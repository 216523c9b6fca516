"""The memory that a program has had, by device address and time: an address may come again as other memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING
from weakref import ref

if TYPE_CHECKING:
    from libnpu.checker.caches import Cache
    from libnpu.checker.shadow import Access, Shadow
    from libnpu.checker.steps import Act
    from libnpu.runtime.buffer import Buffer

POISON = b"\xff"
PAGE_BYTES = 4096  # what lies behind an allocation in its last page is reached without a fault


class Allocation:
    """`size` bytes at `address`, which act `made`; `freed` is the act that gave them back. `number` counts what the program has made."""

    __slots__ = (
        "address",
        "buffer",
        "cache",
        "free",
        "freed",
        "handle",
        "is_host",
        "is_opened",
        "is_shared",
        "is_shown",
        "made",
        "making",
        "number",
        "shadow",
        "size",
        "unmaps",
        "unordered",
        "unwritten",
    )

    def __init__(self, address: int, made: Act, shadow: Shadow, number: int, *, is_host: bool = False) -> None:
        self.address = address
        self.number = number
        self.size = shadow.size
        self.made = made
        self.freed: Act | None = None
        self.shadow = shadow
        self.free: Access | None = None  # that gave it back, once it was looked at
        self.is_host = is_host  # pinned, or the program's
        self.is_shared = False  # with other contexts
        self.handle = b""  # by which others have it
        self.is_opened = False  # by a handle
        self.is_shown = is_host  # accesses by address are not seen
        self.buffer: ref[Buffer] | None = None  # of memory that is shown and was poison when it was made, to Python
        self.cache: Cache | None = None  # of the host, in front of memory that the device does not snoop
        self.unmaps: list[tuple[int, int, Access]] = []  # ends of mappings of [start, end)
        self.making: Access | None = None  # in the order of a stream
        self.unordered: list[
            tuple[Access, int, int]
        ] = []  # uses of [start, end) in no order with the allocation itself
        self.unwritten: list[tuple[Act, int, int]] = []  # reads of [start, end), which nobody had written

    @property
    def is_untouched(self) -> bool:
        """Whether what was not seen to be written still has the poison of fresh memory: no store went past what is seen. It does not ask
        again when one has.
        """
        buffer = self.buffer() if self.buffer is not None else None
        if buffer is None or not buffer.is_live:
            return False
        view = buffer.program_view
        if any(bytes(view[low:high]).strip(POISON) for low, high in self.shadow.unwritten(0, self.size)):
            self.buffer = None
            return False
        return True

    @property
    def end(self) -> int:
        """The address behind its last page."""
        return self.address + -(-self.size // PAGE_BYTES) * PAGE_BYTES


class Allocations:
    """All of a context that somebody may still ask about."""

    def __init__(self) -> None:
        self._live: list[Allocation] = []  # by address
        self._gone: list[Allocation] = []  # in the order in which they went

    def add(self, made: Allocation) -> None:
        """Note new memory."""
        self._live.insert(bisect_left(self._live, made.address, key=_address), made)

    def remove(self, address: int, act: Act) -> Allocation | None:
        """Note that what begins at an address was given back, and return it; None when it was not known."""
        index = bisect_left(self._live, address, key=_address)
        if index == len(self._live) or self._live[index].address != address:
            return None
        found = self._live.pop(index)
        found.freed = act
        self._gone.append(found)
        return found

    def find(self, address: int, order: int) -> Allocation | None:
        """Return what an address meant to act number `order`; None for what is no memory of the program's."""
        index = bisect_right(self._live, address, key=_address) - 1
        if index >= 0 and address < self._live[index].end and self._live[index].made.order <= order:
            return self._live[index]
        for found in reversed(self._gone):
            assert found.freed is not None
            if found.made.order <= order <= found.freed.order and found.address <= address < found.end:
                return found
        return None

    def forget_gone(self, order: int) -> list[Allocation]:
        """Forget what went before act number `order`, and return it: nobody will ask about anything earlier."""
        kept = next((i for i, found in enumerate(self._gone) if found.freed and found.freed.order >= order), None)
        forgotten = self._gone[:kept]
        del self._gone[:kept]
        return forgotten

    @property
    def live(self) -> list[Allocation]:
        """What has not been given back, by address."""
        return self._live


def _address(allocation: Allocation) -> int:
    return allocation.address
