"""A job: an operation that was enqueued in a stream, until the driver says how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npu_abi import C, name_of

from libnpu.errors import NpuError, job_result
from libnpu.runtime.site import line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import Any

    from libnpu.runtime.buffer_object import BufferObject
    from libnpu.runtime.fences import Signal
    from libnpu.runtime.operation import Operation
    from libnpu.runtime.site import Place
    from libnpu.runtime.stream import Stream

_WHAT_DETAIL_IS = {
    C.NPU_JOB_DEADLOCK: "barrier {0}",
    C.NPU_JOB_BARRIER_UNDERFLOW: "barrier {0}",
    C.NPU_JOB_CTX_VIOLATION: "address {0:#x}",
}


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a kernel launch on the device's clock, in ps: struct npu_kernel_record."""

    taken_ps: int
    picked_ps: int
    load_ps: int
    start_ps: int
    end_ps: int
    unit: int  # physical tile << 4 | SHAVE
    loaded_bytes: int
    cached_bytes: int


@dataclass(frozen=True, slots=True)
class Steps:
    """The five steps of a launch, in ps; the last three are of the block that ended last."""

    pack_ps: int  # host: from the call to the packed arguments
    submit_ps: int  # host: ioctl and doorbell
    pick_ps: int  # management core: until it chose the unit
    load_ps: int  # unit: instruction cache
    execute_ps: int  # unit: the program


class Job:
    """`done` once a wait or query has seen its end; then `start_ps`, `end_ps` (device time) and `error`, None when it
    succeeded. `number` counts the operations of the stream; its fence reaches it when the job has ended.
    `enqueue_ps` ... `submitted_ps` are the host's positions.
    """

    __slots__ = (
        "_site", "asked", "blocks", "bo", "commands_offset", "done", "end_ps", "ends", "enqueue_ps", "error", "number", "operation",
        "packed_ps", "position", "preempt_index", "reported", "segment", "signals", "start_ps", "stream", "submitted", "submitted_ps", "written",
    )  # fmt: skip

    def __init__(
        self, stream: Stream, operation: Operation, number: int, enqueue_ps: int, site: Place | str | int
    ) -> None:
        self.stream = stream
        self.operation = operation
        self.number = number
        self._site = site
        self.enqueue_ps = self.packed_ps = self.submitted_ps = enqueue_ps
        self.position = 0  # in its stream, as `name` has it; 0 of waits for events
        self.bo: BufferObject | None = None  # the command buffer, while it is in flight
        self.commands_offset = 0
        self.segment = b""  # handles of the submit
        self.preempt_index = 0  # of the preemption buffer among them, 0 for none
        self.signals: Sequence[Signal] = ()  # that it waits for, besides its predecessor
        self.written: Sequence[Signal] = ()  # that it gives, besides the stream's
        self.ends: list[Callable[[Job], None]] = []
        self.blocks: tuple[Block, ...] = ()
        self.submitted = False  # the driver has it, or had it
        self.asked = 0  # queries that found it the oldest of its stream
        self.done = False
        self.reported = False  # its error has been raised
        self.error: NpuError | None = None
        self.start_ps = 0
        self.end_ps = 0

    @property
    def site(self) -> str | int:
        """Where it was enqueued: "file:line", or a code address when C called."""
        return line_of(self._site) if isinstance(self._site, tuple) else self._site

    @property
    def name(self) -> str:
        """What the schedule `hold` calls it: stream and position, behind the number of a context that is not the device's first; "" for a
        wait for an event.
        """
        if not self.position:
            return ""
        context = self.stream.context.number
        return f"{self.stream.id}.{self.position}" if context == 1 else f"{context}.{self.stream.id}.{self.position}"

    @property
    def latency_ps(self) -> int:
        """Device time from its start to its end. The job is done."""
        return self.end_ps - self.start_ps

    @property
    def steps(self) -> Steps:
        """How long each step of a kernel launch took. Raises NOT_READY before a wait has seen its end, BAD_STATE for
        an operation that is no kernel launch or did not run.
        """
        if not self.done:
            raise NpuError(C.NPU_NOT_READY, f"{self.operation.name!r} has not been waited for")
        if not self.blocks:
            raise NpuError(C.NPU_ERROR_BAD_STATE, f"{self.operation.name!r} has no launch steps: no kernel ran")
        last = max(self.blocks, key=lambda block: block.end_ps)
        return Steps(
            pack_ps=self.packed_ps - self.enqueue_ps,
            submit_ps=self.submitted_ps - self.packed_ps,
            pick_ps=last.picked_ps - last.taken_ps,
            load_ps=last.start_ps - last.load_ps,
            execute_ps=last.end_ps - last.start_ps,
        )

    def wait(self, timeout_ns: float | None = None) -> None:
        """Wait for this job; raises its error, or TIMEOUT."""
        self.stream.wait(self, timeout_ns)

    def __await__(self) -> Generator[Any, None, None]:
        """Let the task wait for this job; raises its error."""
        from libnpu.runtime.aio import wait_job  # asyncio takes long to import

        return wait_job(self).__await__()

    def data(self, address: int, size: int) -> bytes:
        """Return what is at `address` in its command buffer, for `CommandWriter.at_end`; zeros of a job that never ran."""
        if self.bo is None:
            return bytes(size)
        assert self.bo.view is not None
        offset = address - self.bo.va
        return bytes(self.bo.view[offset : offset + size])

    def touches(self, handle: int) -> bool:
        """Whether it is in flight and uses the buffer object `handle`."""
        return not self.done and handle in memoryview(self.segment).cast("I")

    def end(self, error: NpuError | None = None) -> None:
        """Let what the operation left behind take place, once; the command buffer is still there."""
        self.done = True
        self.error = error
        ends, self.ends = self.ends, []
        for function in ends:
            function(self)
        self.signals = self.written = ()
        self.bo = None

    @property
    def where(self) -> str:
        """The site for people: ", enqueued at x.py:3"."""
        site = self.site
        if isinstance(site, int):
            site = f"{site:#x}"
        return f", enqueued at {site}" if site else ""

    def failure(
        self, result: int, message: str, *, job_id: int = 0, status: int = 0, detail: int = 0, info: int = 0
    ) -> NpuError:
        """Return the error that this job ends with."""
        return NpuError(
            result,
            f"{message}{self.where}",
            job=self,
            operation=self.operation.name,
            enqueue_site=self.site or None,
            job_id=job_id,
            job_status=status,
            error_detail=detail,
            error_info=info,
        )

    def describe(self, job_id: int, status: int, detail: int, info: int) -> NpuError:
        """Return the driver's word on a job that did not succeed."""
        parts = [f"job {job_id:#x} of {self.operation.name!r} ended with {name_of('npu_job_status', status)}"]
        if detail == C.NPU_BARRIER_NONE and status == C.NPU_JOB_DEADLOCK:
            pass  # of a kernel; the operation says which block waits
        elif status in _WHAT_DETAIL_IS:
            parts.append(_WHAT_DETAIL_IS[status].format(detail))
        elif status == C.NPU_JOB_ABORTED and detail:
            parts.append(name_of("npu_abort_reason", detail))
        elif status == C.NPU_JOB_PARSING_ERR:
            parts.append(name_of("npu_parse_error", detail))
        elif status == C.NPU_JOB_SHAVE_FAULT:
            parts.append(f"{name_of('npu_shave_fault', detail >> 32)} at pc {detail & 0xFFFFFFFF:#x}")
        elif status == C.NPU_JOB_PROCESSING_ERR:
            parts.append(f"{name_of('npu_engine', detail)} refused a descriptor")
        entry, task = self.operation.culprit(status, detail, info)
        if entry:
            parts.append(entry)
        if task is not None:
            parts.append(f"task {task!r}")
        error = self.failure(
            job_result(status, detail),
            ", ".join(parts),
            job_id=job_id,
            status=status,
            detail=detail,
            info=info,
        )
        error.task = task
        return error
