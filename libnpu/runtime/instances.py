"""All instances of a module: one for each launch in flight, made when no idle one is left, and used again."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from libnpu.runtime.instance import Instance
from libnpu.runtime.placement import Patch, task_layout

if TYPE_CHECKING:
    from libnpu.blob import BlobImage, Relocation
    from libnpu.runtime.buffer_object import BufferObject
    from libnpu.runtime.context import Context
    from libnpu.runtime.stream import Stream


class Instances:
    """`made` are relocations for when an instance is made, `launched` those to the addresses of inputs and outputs.

    `objects` and `shared` are the module's: the buffer objects that every launch touches, and the addresses of the
    sections in them, both filled before the first instance is made.
    """

    def __init__(
        self,
        context: Context,
        image: BlobImage,
        made: list[Relocation],
        launched: list[Relocation],
        objects: list[BufferObject],
        shared: dict[str, int],
    ) -> None:
        self._context = context
        self._tasks = task_layout(image)
        self._made = Patch(self._tasks, made, image)
        self._launched = Patch(self._tasks, launched, image)
        self._symbols = [f"in:{t.name}" for t in image.inputs] + [f"out:{t.name}" for t in image.outputs]
        self._scratch_bytes = image.scratch_bytes
        self._objects = objects
        self._shared = shared
        self._all: list[Instance] = []

    def new(self) -> Instance:
        """Make one more. Raises OUT_OF_DEVICE_MEMORY."""
        instance = Instance(self._context.node, self._tasks, self._made, self._scratch_bytes, self._shared)
        self._all.append(instance)
        self._context.charge_copy(self._tasks.size)
        return instance

    def take(self, stream: Stream, key: tuple[int, ...], handles: list[int]) -> Instance:
        """Return an instance bound to the addresses `key` that a launch in `stream` may use; `handles` are its
        buffers'.
        """
        idle = None
        for instance in self._all:
            if instance.key == key and instance.only_in(stream):
                if instance.held != handles:  # other allocations are at the same addresses now
                    instance.hold(self._objects, handles)
                return instance
            if idle is None and not instance.jobs and not instance.is_owned:
                idle = instance
        return self._bind(self.new() if idle is None else idle, key, handles)

    def own(self, owner: object, key: tuple[int, ...], handles: list[int]) -> Instance:
        """Return an instance bound to `key` that no other launch uses as long as `owner` lives."""
        idle = next((found for found in self._all if not found.jobs and not found.is_owned), None)
        instance = self._bind(self.new() if idle is None else idle, key, handles)
        instance.owner = weakref.ref(owner)
        return instance

    def _bind(self, instance: Instance, key: tuple[int, ...], handles: list[int]) -> Instance:
        addresses = dict(zip(self._symbols, key, strict=True))
        instance.bind(self._launched, key, addresses)
        instance.hold(self._objects, handles)
        return instance

    @property
    def memory_bytes(self) -> int:
        """Device memory that they take."""
        return len(self._all) * (self._tasks.size + self._scratch_bytes)

    @property
    def in_flight(self) -> int:
        """How many launches may not have finished."""
        return sum(len(instance.jobs) for instance in self._all)

    def free(self) -> None:
        """Give their memory back."""
        for instance in self._all:
            instance.free()
        self._all.clear()
