"""When enqueued jobs go to the driver. The default hands each over at once; schedules that hold jobs back subclass it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from libnpu.runtime.job import Job
    from libnpu.runtime.stream import Stream


class Dispatcher:
    """A job is *held* from `submit` until `job.stream.submit(job)`, which must happen in the order of each stream."""

    holds_back: ClassVar[bool] = False  # jobs wait in the library, which takes any number
    runs_alone: ClassVar[bool] = False  # one job after the other: what can be several jobs is

    def submit(self, job: Job) -> None:
        """Take a job that was enqueued. What this raises is raised by the enqueuing call, and takes the job back."""
        job.stream.submit(job)

    def need(self, job: Job) -> None:
        """Somebody waits for or asks about `job`: it and what it depends on (`job.signals`) must reach the device."""

    def let_go(self, job: Job) -> None:
        """As `need`, of the thread that runs host functions, which waits for nothing: the program may wait for one without a call."""

    def function_enqueued(self) -> None:
        """A host function was enqueued, whose jobs were submitted."""

    def discard(self, stream: Stream) -> None:
        """The stream's jobs were aborted or its context ended: forget those that are held."""
