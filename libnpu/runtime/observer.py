"""What the runtime tells somebody who watches contexts, such as the checker: `Context.observer`, usually None.

Each method is called by whoever does it, in the order of the program, with the lock of the device held.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from libnpu.blob import BlobImage
    from libnpu.errors import NpuError
    from libnpu.runtime.buffer import Buffer
    from libnpu.runtime.context import Context
    from libnpu.runtime.ipc_event import IpcEvent
    from libnpu.runtime.job import Job
    from libnpu.runtime.stream import Stream
    from libnpu.syscalls import Node


class Observer(ABC):
    """One who watches. A stream's jobs are known by their number: all up to one have ended."""

    @abstractmethod
    def attach(self, context: Context) -> None:
        """A context was made; whoever wants to watch it sets `context.observer`."""

    @abstractmethod
    def called(self) -> None:
        """The program makes a call; when it has its turn other threads, and host functions, may have gone on."""

    @abstractmethod
    def refused(self, node: Node, name: str, error: NpuError) -> None:
        """A call of the program, `name`, fails with an error."""

    @abstractmethod
    def created(self, context: Context, thing: object, what: str) -> None:
        """The program has made a stream, an event or a notify."""

    @abstractmethod
    def loaded(self, context: Context, image: BlobImage) -> None:
        """The program has loaded a model, or a library of kernels."""

    @abstractmethod
    def prepared(self, job: Job) -> None:
        """The calling thread is about to enqueue a job; nothing of it can have happened."""

    @abstractmethod
    def enqueued(self, job: Job) -> None:
        """The calling thread has enqueued a job."""

    @abstractmethod
    def submitted(self, job: Job, job_id: int, from_ps: int) -> None:
        """The driver has a job, by that id, since `from_ps`."""

    def begins(self, job: Job) -> None:  # noqa: B027 - of schedules that run one job after the other alone
        """A job is about to run, and what runs before it has ended; of a schedule that runs one job after the other."""

    def ended(self, job: Job) -> None:  # noqa: B027 - as `begins`
        """The device has ended a job that has begun, and the host was not told."""

    @abstractmethod
    def ordered(self, stream: Stream, job: Job) -> None:
        """What is enqueued in `stream` from now on comes behind `job`, which needs no command for it."""

    @abstractmethod
    def recorded(self, event: object, before: Job | None, job: Job) -> None:
        """An event was recorded by `job`; its record before that, if there was one, is forgotten."""

    @abstractmethod
    def waited(self, event: object, job: Job | None, stream: Stream | None, *, asks: bool = False) -> None:
        """Somebody waits for what an event has recorded, `job`, None for nothing: a stream, or the host (None); or the host `asks` about
        it, which is meant for events without a record too.
        """

    @abstractmethod
    def reset(self, event: object, job: Job) -> None:
        """The program has an event forget its record, `job`."""

    @abstractmethod
    def closed(self, stream: Stream) -> None:
        """The program has closed a stream; errors that it was not told of are dropped."""

    @abstractmethod
    def known(self, stream: Stream, number: int, *, waited: bool, whole: bool) -> None:
        """The calling thread was told that the stream's jobs up to `number` have ended; `waited`: by a call that waits for them and
        does nothing else; `whole`: by one that is about all of the stream, what needed no command included.
        """

    @abstractmethod
    def accessed(self, buffer: Buffer, offset: int, size: int, *, write: bool, what: str) -> None:
        """The host reads or writes memory in a call, `what`, without the device."""

    @abstractmethod
    def annotated(self, buffer: Buffer, offset: int, size: int, *, write: bool) -> None:
        """The program says that the host reads or writes memory in place here."""

    @abstractmethod
    def exported(self, thing: Buffer | IpcEvent, handle: bytes) -> None:
        """The program has a handle by which other contexts and processes open memory or an event."""

    @abstractmethod
    def opened(self, thing: Buffer | IpcEvent, handle: bytes) -> None:
        """The program has opened memory or an event by a handle."""

    @abstractmethod
    def signalled(self, event: IpcEvent, number: int, job: Job) -> None:
        """`job` records an event of several processes: its record `number`."""

    @abstractmethod
    def taken_back(self, event: IpcEvent, number: int) -> None:
        """The program has an event of several processes forget its record `number`, whoever made it."""

    @abstractmethod
    def passed(self, event: IpcEvent, number: int, by: Job | Stream | None) -> None:
        """A job waits for a record of an event of several processes; or it is over, and a stream needs no command for it, or the
        host (None) was told.
        """

    @abstractmethod
    def maintained(self, buffer: Buffer, offset: int, size: int, what: str, made: str | None) -> None:
        """The host maintains its caches over a range, `what` is "flush" or "invalidate"; in a mapping that was `made` in a direction of
        enum npu_direction.
        """

    @abstractmethod
    def unmapped(self, buffer: Buffer, offset: int, size: int) -> None:
        """The program ends a mapping, or tries to."""

    @abstractmethod
    def reached(self, job: Job) -> None:
        """A host function begins that comes behind `job`, a marker."""

    @abstractmethod
    def array_of(self, buffer: Buffer, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The program takes an array that is memory of a buffer itself; it gets what this returns."""

    @abstractmethod
    def shown(self, buffer: Buffer) -> None:
        """The program, or another process, has an address of the memory from now on: accesses by it are not seen."""

    @abstractmethod
    def pages_of(self, view: memoryview) -> memoryview:
        """The program is to have new memory by address: return it as it gets it, there or somewhere else."""

    @abstractmethod
    def allocated(self, buffer: Buffer) -> None:
        """The program has new memory."""

    @abstractmethod
    def allocated_in(self, buffer: Buffer, stream: Stream) -> None:
        """New memory, of which `allocated` has told, is for work that is enqueued in `stream` from now on, and what comes behind it."""

    @abstractmethod
    def freed(self, buffer: Buffer, job: Job | None) -> None:
        """The program gives memory back: in this call, or when `job` ends."""

    @abstractmethod
    def ends(self, context: Context) -> None:
        """A context ends; its file is still open."""


current: Observer | None = None  # is told of new contexts
