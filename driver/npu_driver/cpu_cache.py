"""The caches of the host's CPU, as far as mappings show what they hold.

The device sees memory. A CPU mapping that the device does not snoop shows a shadow of it: pages of the same DRAM that no
device address leads to. There is one shadow of an allocation for its cached mappings, because a cache is found by physical
address, and one for its write-combined ones. Snooped and uncached mappings show the memory itself and cost nothing.

Nobody tells the driver of a load or store of a program. What was written is found by difference with what the shadow held when
it was last the same as memory: so a store of the value that was there is no store here, and a line of write-combined memory is
full when all of its 64 bytes have changed. Differences are looked for at calls, in what the calling process has mapped: who
maps much pays for it, and nobody else.

A line moves to memory when it is cleaned (BO_SYNC TO_DEVICE), evicted (module parameter `evict`) or drained (write-combining),
and to the CPU when it is invalidated (BO_SYNC FROM_DEVICE): a refill follows at once, as a prefetcher may do it, so that an
invalidation before the device has written is of no use. The CPU reads write-combined memory past its caches.
"""

from __future__ import annotations

import errno
import random
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from npu_abi import C

from npu_driver.error import KernelError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from npu_driver.mappings import Mappings
    from npu_driver.memory import Memory
    from npu_driver.params import Params
    from npu_driver.process import Process

    Lines = NDArray[np.int64]  # indices of lines, ascending

S = TypeVar("S", bound="Shadow")

LINE_BYTES = 64
COMBINING_BUFFERS = 4
PAGE = int(C.NPU_PAGE_SIZE)
TO_DEVICE, FROM_DEVICE = int(C.NPU_SYNC_TO_DEVICE), int(C.NPU_SYNC_FROM_DEVICE)


def policy_of(flags: int, *, coherent: bool) -> int:
    """Return the cache policy of a mapping, of NPU_BO_CACHE_MASK and NPU_BO_NON_SNOOPED, on a board that snoops or not."""
    policy = flags & C.NPU_BO_CACHE_MASK
    if policy == C.NPU_BO_CACHED and (not coherent or flags & C.NPU_BO_NON_SNOOPED):
        return int(C.NPU_BO_NON_SNOOPED)
    return int(policy)


class Shadow:
    """What the CPU sees of the allocation at physical address `pa`. `clean` is what it held when it was the same as memory.
    `mappings` are its mappings by process, None being the kernel, whose own end with the memory.
    """

    __slots__ = ("_clean", "_lines", "_memory", "_words", "_words_clean", "mappings", "pa", "view_pa")

    def __init__(self, memory: Memory, pa: int, heap: int) -> None:
        """ENOMEM, ENOBUFS without room in `heap` for as much as there is at `pa`."""
        size = memory.size_of(pa)
        self.pa = pa
        self.mappings: dict[Process | None, Mappings] = {}
        self.view_pa = memory.alloc(size // PAGE, heap)
        view = np.frombuffer(memory.view(self.view_pa, size), np.uint8)
        self._memory = np.frombuffer(memory.view(pa, size), np.uint8).reshape(-1, LINE_BYTES)
        view[:] = self._memory.reshape(-1)
        self._lines = view.reshape(-1, LINE_BYTES)
        self._clean = self._lines.copy()
        self._words, self._words_clean = view.view(np.uint64), self._clean.reshape(-1).view(np.uint64)

    def changed(self, first: int, end: int) -> Lines:
        """Return which of the lines first..end - 1 the CPU has written."""
        words = slice(first * 8, end * 8)
        where = np.flatnonzero(self._words[words] != self._words_clean[words])
        return np.unique(where >> 3) + first

    @property
    def line_count(self) -> int:
        """How many lines there are."""
        return len(self._lines)


class CachedShadow(Shadow):
    """A write-back cache over an allocation."""

    __slots__ = ()

    def take(self, lines: Lines) -> NDArray[np.uint8]:
        """Return the content of dirty lines, which are clean from now on; it is to go to memory."""
        content: NDArray[np.uint8] = self._lines[lines]
        self._clean[lines] = content
        return content

    def store(self, lines: Lines, content: NDArray[np.uint8]) -> None:
        """Let what was taken arrive in memory."""
        self._memory[lines] = content

    def write_back(self, lines: Lines) -> None:
        """Clean dirty lines."""
        self.store(lines, self.take(lines))

    def refill(self, first: int, end: int) -> None:
        """Let the lines first..end - 1 show memory again."""
        self._lines[first:end] = self._clean[first:end] = self._memory[first:end]


class CombinedShadow(Shadow):
    """Write-combined memory: the CPU's stores wait in buffers, its loads go to memory."""

    __slots__ = ()

    def full(self, lines: Lines) -> NDArray[np.bool_]:
        """Return which of these lines have no byte that was not written."""
        return np.asarray((self._lines[lines] != self._clean[lines]).all(axis=1))

    def drain(self, lines: Lines) -> None:
        """Let the bytes that were written arrive in memory, and no others."""
        content, written = self._lines[lines], self._lines[lines] != self._clean[lines]
        self._memory[lines] = np.where(written, content, self._memory[lines])
        self._clean[lines] = content

    def refresh(self) -> None:
        """Let the CPU see what memory holds; stores that wait stay."""
        memory = self._memory
        where = np.unique(np.flatnonzero(memory.reshape(-1).view(np.uint64) != self._words_clean) >> 3)
        if len(where):
            view, clean, fresh = self._lines[where], self._clean[where], memory[where]
            self._lines[where] = np.where(view == clean, fresh, view)
            self._clean[where] = fresh


class Seen(Generic[S]):
    """Which shadows a process sees, in the order of their making, after those that the kernel (None) sees."""

    __slots__ = ("_by_process",)

    def __init__(self) -> None:
        self._by_process: dict[Process | None, dict[int, S]] = {}

    def add(self, process: Process | None, shadow: S) -> None:
        """A process sees it from now on."""
        shadow.mappings.setdefault(process, {})
        self._by_process.setdefault(process, {})[shadow.pa] = shadow

    def remove(self, process: Process | None, shadow: S) -> None:
        """It does not any more."""
        shadows = self._by_process[process]
        del shadows[shadow.pa]
        if not shadows:
            del self._by_process[process]

    def by(self, process: Process) -> Iterator[S]:
        """Yield those that a call of a process is about."""
        for who in (None, process):
            yield from self._by_process.get(who, {}).values()


class CpuCaches:
    """All shadows of a machine. `active` is False while there is none, and then nothing here needs to be called. `ended` is for
    (shadow, process) of mappings that have ended.
    """

    __slots__ = (
        "_buffers", "_cached", "_combined", "_evict", "_lines_per_doorbell", "_memory", "_params", "_posted", "_random", "_seen_cached",
        "_seen_combined", "active", "ended",
    )  # fmt: skip

    def __init__(self, memory: Memory, params: Params) -> None:
        self._memory = memory
        self._params = params
        kind, _, number = params.evict.partition(":")
        self._evict = kind
        self._lines_per_doorbell = int(number or 0)
        self._random = random.Random(self._lines_per_doorbell)
        self._cached: dict[int, CachedShadow] = {}  # by physical address, in the order of their making
        self._combined: dict[int, CombinedShadow] = {}
        self._seen_cached: Seen[CachedShadow] = Seen()
        self._seen_combined: Seen[CombinedShadow] = Seen()
        self._buffers: list[tuple[CombinedShadow, int]] = []  # write-combining buffers in use, oldest first
        self._posted: list[tuple[CachedShadow, Lines, Any]] = []  # cleaned, and no barrier has come since
        self.ended: deque[tuple[Shadow, Process]] = deque()
        self.active = False

    def shadow(self, pa: int, policy: int, heap: int | None, process: Process | None = None) -> Shadow | None:
        """Return what a mapping of the allocation at `pa` by a process shows, by `policy_of`, in place of the memory itself. It is
        made on first use, in `heap`, which is that of the allocation, None when that is closed. ENOMEM, ENOBUFS, EOWNERDEAD.
        """
        if policy == C.NPU_BO_NON_SNOOPED:
            cached = self._cached.get(pa)
            if cached is None:
                cached = self._cached[pa] = CachedShadow(self._memory, pa, _open(heap))
                self._begin(pa)
            self._seen_cached.add(process, cached)
            return cached
        if policy == C.NPU_BO_WC:
            combined = self._combined.get(pa)
            if combined is None:
                combined = self._combined[pa] = CombinedShadow(self._memory, pa, _open(heap))
                self._begin(pa)
            self._seen_combined.add(process, combined)
            return combined
        return None

    def _begin(self, pa: int) -> None:
        self._memory.followers[pa] = self._forget
        self.active = True

    def _forget(self, pa: int) -> None:
        """The allocation at `pa` has been freed, and what the caches held of it is nobody's."""
        self._posted = [post for post in self._posted if post[0].pa != pa]
        self._buffers = [buffer for buffer in self._buffers if buffer[0].pa != pa]
        if (cached := self._cached.pop(pa, None)) is not None:
            for process in cached.mappings:
                self._seen_cached.remove(process, cached)
            self._memory.free(cached.view_pa)
        if (combined := self._combined.pop(pa, None)) is not None:
            for process in combined.mappings:
                self._seen_combined.remove(process, combined)
            self._memory.free(combined.view_pa)
        self.active = bool(self._cached or self._combined)
        if not self.active:
            self.ended.clear()

    def _mapping_ended(self, shadow: Shadow, process: Process) -> None:
        """A mapping of a process has ended. When nobody maps write-combined memory any more, what was stored goes to memory, sooner
        or later; a cache keeps what it holds.
        """
        if (
            not isinstance(shadow, CombinedShadow)
            or shadow.mappings.get(process)
            or self._combined.get(shadow.pa) is not shadow
        ):
            return
        if shadow.mappings.pop(process, None) is not None:
            self._seen_combined.remove(process, shadow)
        if shadow.mappings:
            return
        shadow.drain(shadow.changed(0, shadow.line_count))
        self._buffers = [buffer for buffer in self._buffers if buffer[0] is not shadow]
        del self._combined[shadow.pa]
        self._memory.free(shadow.view_pa)
        self.active = bool(self._cached or self._combined)

    # ---- what happens by itself ----

    def enter(self, process: Process) -> None:
        """A call of a process begins: its stores to write-combined memory are in buffers, or already further."""
        while self.ended:
            self._mapping_ended(*self.ended.popleft())
        for shadow in self._seen_combined.by(process):
            lines = shadow.changed(0, shadow.line_count)
            if not len(lines):
                continue
            full = shadow.full(lines)
            if full.any():
                shadow.drain(lines[full])
                gone = set(lines[full].tolist())
                self._buffers = [(s, line) for s, line in self._buffers if s is not shadow or line not in gone]
            waiting = {line for s, line in self._buffers if s is shadow}
            fresh = [line for line in lines[~full].tolist() if line not in waiting]
            if overflow := fresh[:-COMBINING_BUFFERS]:
                self._drain_buffers(len(self._buffers))
                shadow.drain(np.array(overflow))
            self._buffers += [(shadow, line) for line in fresh[-COMBINING_BUFFERS:]]
            self._drain_buffers(len(self._buffers) - COMBINING_BUFFERS)

    def leave(self, process: Process) -> None:
        """A call ends: the process reads what the device has written to write-combined memory."""
        for shadow in self._seen_combined.by(process):
            shadow.refresh()

    def job_ended(self, process: Process) -> None:
        """The device has interrupted for a job of a process. Under `evict` all dirty lines that it sees go to memory now."""
        self._complete_posts()
        if self._evict == "evict":
            for shadow in self._seen_cached.by(process):
                shadow.write_back(shadow.changed(0, shadow.line_count))

    def before_submit(self, process: Process) -> None:
        """The driver is about to ring a doorbell for a new job of a process, behind a write barrier."""
        if not self._params.has("skip_wmb"):
            self.barrier()
        self.before_doorbell(process)

    def before_doorbell(self, process: Process) -> None:
        """The driver is about to write a doorbell register for a process. Under `seed` lines that it sees are evicted now."""
        if self._params.wc_drain_on_uc:
            self._drain_buffers(len(self._buffers))
        if self._evict == "seed":
            self._complete_posts()
            dirty = [(s, line) for s in self._seen_cached.by(process) for line in s.changed(0, s.line_count).tolist()]
            for shadow, line in self._random.sample(dirty, min(self._lines_per_doorbell, len(dirty))):
                shadow.write_back(np.array([line]))

    def barrier(self) -> None:
        """Everything that left the CPU is in memory before what follows."""
        self._complete_posts()
        self._drain_buffers(len(self._buffers))

    def _complete_posts(self) -> None:
        for shadow, lines, content in self._posted:
            shadow.store(lines, content)
        self._posted.clear()

    def _drain_buffers(self, count: int) -> None:
        for shadow, line in self._buffers[: max(count, 0)]:
            shadow.drain(np.array([line]))
        del self._buffers[: max(count, 0)]

    # ---- maintenance ----

    def sync(self, pa: int, direction: int, offset: int, size: int) -> None:
        """Do BO_SYNC (enum npu_sync_dir) over the lines of a range of the allocation at `pa`; a barrier on both sides."""
        if self._params.has("skip_sync"):
            return
        self.barrier()
        shadow = self._cached.get(pa)
        if shadow is not None and size:
            if direction != FROM_DEVICE:
                self.clean(shadow, offset, size)
            if direction != TO_DEVICE:
                self.invalidate(shadow, offset, size)
        if not self._params.has("skip_wmb"):
            self.barrier()

    def clean(self, shadow: CachedShadow, offset: int, size: int) -> None:
        """Send the dirty lines of a range on their way to memory; a barrier makes sure that they have arrived."""
        lines = shadow.changed(offset // LINE_BYTES, -(-(offset + size) // LINE_BYTES))
        if len(lines):
            self._posted.append((shadow, lines, shadow.take(lines)))

    def invalidate(self, shadow: CachedShadow, offset: int, size: int) -> None:
        """Drop the lines of a range and fetch them again. A dirty line that is partly outside of it is cleaned before."""
        end = offset + size
        edges = {at // LINE_BYTES for at in (offset, end) if at % LINE_BYTES}
        for line in sorted(edges):
            self.clean(shadow, line * LINE_BYTES, LINE_BYTES)
        self._complete_posts()
        shadow.refill(offset // LINE_BYTES, -(-end // LINE_BYTES))


def _open(heap: int | None) -> int:
    if heap is None:
        raise KernelError(
            errno.EOWNERDEAD, "the owner of the memory is gone, and nobody has mapped it with this policy yet"
        )
    return heap
