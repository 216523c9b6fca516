"""An instance of a module: what one launch in flight needs for itself. MappedInference, the task lists, and scratch
memory.

The task lists hold the addresses of inputs and outputs, and the firmware reads them while the job runs; so they are
patched only when no job uses them. Launches with equal arguments in one stream share an instance: they run one after
the other.
"""

from __future__ import annotations

import weakref
from array import array
from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.runtime.buffer_object import BufferObject
from libnpu.runtime.placement import MAPPED, SCRATCH, Layout, Patch

if TYPE_CHECKING:
    from libnpu.runtime.job import Job
    from libnpu.runtime.stream import Stream
    from libnpu.syscalls import Node


class Instance:
    """`key` is what it is bound to: the addresses of inputs and outputs, in order; () before the first launch."""

    __slots__ = (
        "_scratch",
        "_tasks",
        "bound_handles",
        "handles",
        "held",
        "jobs",
        "key",
        "mapped_va",
        "owner",
        "segment",
    )

    def __init__(self, node: Node, layout: Layout, patch: Patch, scratch_bytes: int, shared: dict[str, int]) -> None:
        """Copy and relocate the task lists. `shared` are the addresses of the module's shared sections."""
        self._tasks = BufferObject(node, layout.size, C.NPU_BO_MAPPABLE | C.NPU_BO_DMA_MEM)
        self._scratch = BufferObject(node, scratch_bytes, C.NPU_BO_DMA_MEM) if scratch_bytes else None
        view = self._tasks.view
        assert view is not None
        layout.copy_to(view)
        addresses = shared | {name: self._tasks.va + offset for name, offset in layout.offsets.items()}
        if self._scratch:
            addresses[SCRATCH] = self._scratch.va
        patch.apply(view, addresses)
        self.mapped_va = addresses[MAPPED]
        self.handles = [self._tasks.handle, *([self._scratch.handle] if self._scratch else [])]
        self.key: tuple[int, ...] | None = None
        self.bound_handles: dict[int, None] = {}  # of all memory that a job touches
        self.segment = b""  # the same as an array of uint32
        self.held: list[int] | None = None  # the handles of the latest `hold`
        self.jobs: list[Job] = []  # that may not have finished
        self.owner: weakref.ref[object] | None = None  # the one launch that may use it, as long as that lives

    @property
    def is_owned(self) -> bool:
        """Whether it belongs to one launch."""
        return self.owner is not None and self.owner() is not None

    def only_in(self, stream: Stream) -> bool:
        """Whether nobody outside of `stream` uses it."""
        if self.owner is not None and self.is_owned:
            return False
        return not self.jobs or all(job.stream is stream for job in self.jobs)

    def bind(self, patch: Patch, key: tuple[int, ...], addresses: dict[str, int]) -> None:
        """Patch the addresses of inputs and outputs; no job may be using it."""
        view = self._tasks.view
        assert view is not None
        patch.apply(view, addresses)
        self.key = key

    def hold(self, objects: list[BufferObject], handles: list[int]) -> None:
        """Note what else the next job touches: the module's objects, always the same, and the handles of inputs and
        outputs.
        """
        self.held = handles
        self.bound_handles = dict.fromkeys([*self.handles, *[bo.handle for bo in objects], *handles])
        self.segment = array("I", self.bound_handles).tobytes()

    def free(self) -> None:
        """Give its memory back."""
        self._tasks.free()
        if self._scratch:
            self._scratch.free()
