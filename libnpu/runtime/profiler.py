"""Records of what was enqueued in a context and of the calls of the host, while a profiler runs.

Operations are noted when they are enqueued; what the device says about them is looked up when records are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import npu_abi
from npu_abi import C

from libnpu.errors import NpuError
from libnpu.runtime.arguments import whole
from libnpu.runtime.call_log import CallLog
from libnpu.runtime.guard import public
from libnpu.runtime.host_threads import HOST

if TYPE_CHECKING:
    from libnpu.runtime.call_log import HostCall
    from libnpu.runtime.context import Context
    from libnpu.runtime.job import Job

KINDS = {
    name.removeprefix("NPU_OP_").lower(): int(kind) for name, kind in npu_abi.enum("npu_op_kind").__members__.items()
}


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """One operation: the fields of npu_op_record_t, in ps. `enqueue_site` is "file:line", or an address when C called."""

    op_id: int
    stream_id: int
    kind: int  # enum npu_op_kind
    result: int  # enum npu_result; NPU_NOT_READY: it had not ended
    bytes: int
    enqueue_ps: int
    enqueued_ps: int
    start_ps: int
    end_ps: int
    pack_ps: int
    submit_ps: int
    schedule_ps: int
    load_ps: int
    execute_ps: int
    enqueue_site: str | int
    units: int
    blocks: int
    name: str


@dataclass(frozen=True, slots=True)
class Entry:
    """An operation that was enqueued as number `op_id` of its context; the call had done so at `enqueued_ps`: it returned
    then, or with `launch_blocking` began to wait.
    """

    op_id: int
    job: Job
    enqueued_ps: int


class Profiler:
    """`Context.profiler`. `is_active`: records are being kept.

    >>> profiler, memory = device.primary.profiler, device.alloc(64)
    >>> profiler.start()
    >>> job = device.default_stream.fill(memory, 0)
    >>> device.synchronize()
    >>> profiler.stop()
    >>> [(record.name, record.bytes, record.result) for record in profiler.records]
    [('fill with 0x00', 64, 0)]
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.guard = context.guard
        self.is_active = False
        self._entries: list[Entry] = []
        self._calls: list[HostCall] = []  # of before the last stop
        self._first_call = 0  # in the call log

    @public
    def start(self) -> None:
        """Keep records from now on; those that were kept are forgotten. Raises BAD_STATE when records are being kept."""
        self.context.enter()
        if self.is_active:
            raise NpuError(C.NPU_ERROR_BAD_STATE, "records are being kept already")
        self.is_active = True
        self._entries = []
        self._calls = []
        log = HOST.call_log = HOST.call_log or CallLog()
        log.users += 1
        self._first_call = len(log.calls.get(self.context.node.machine, ()))

    @public
    def stop(self) -> None:
        """Keep no more records; those that are kept stay. Raises BAD_STATE when none are being kept."""
        self.context.enter()
        if not self.is_active:
            raise NpuError(C.NPU_ERROR_BAD_STATE, "no records are being kept")
        self.end()

    def end(self) -> None:
        """Stop, if records are being kept."""
        if self.is_active:
            self._calls = list(self.calls)
            self.is_active = False
            assert HOST.call_log is not None
            HOST.call_log.users -= 1
            if not HOST.call_log.users:
                HOST.call_log = None

    def note(self, job: Job) -> None:
        """Take note of an operation, one with a `kind`, that was enqueued."""
        self._entries.append(Entry(self.context.operation_count, job, self.context.node.now_ps))

    @property
    @public
    def records(self) -> tuple[OperationRecord, ...]:
        """The records that are kept, oldest first."""
        self._look()
        return tuple(self._record(entry) for entry in self._entries)

    @public
    def take(self, count: int | None = None) -> tuple[OperationRecord, ...]:
        """Return the `count` oldest records (None: all), and forget them. Raises INVALID_VALUE for a negative count."""
        if count is not None:
            count = whole(count, "count")
            if count < 0:
                raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"{count} records; 0 is the least")
        self._look()
        taken, self._entries = self._entries[:count], [] if count is None else self._entries[count:]
        return tuple(self._record(entry) for entry in taken)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def calls(self) -> tuple[HostCall, ...]:
        """The public calls of all threads on the device's clock while records were kept, in the order of their ends."""
        if not self.is_active:
            return tuple(self._calls)
        assert HOST.call_log is not None
        return tuple(HOST.call_log.calls.get(self.context.node.machine, [])[self._first_call :])

    @public
    def host_times(self) -> dict[int, tuple[int, int]]:
        """Return (busy, blocked) in ps by number of the thread, in the calls that were noted: blocked is what passed in
        waits for the device, busy the rest of the calls and what was between them.
        """
        found: dict[int, tuple[int, int]] = {}
        for thread in sorted({call.thread for call in self.calls}):
            mine = [call for call in self.calls if call.thread == thread]
            blocked = sum(call.blocked_ps for call in mine)
            found[thread] = max(c.end_ps for c in mine) - min(c.begin_ps for c in mine) - blocked, blocked
        return found

    def _look(self) -> None:
        """Take note of operations that have ended by now."""
        if self.context.is_alive and self.context.node.is_usable:
            for stream in {entry.job.stream: None for entry in self._entries if not entry.job.done}:
                stream.drained()

    def _record(self, entry: Entry) -> OperationRecord:
        job = entry.job
        operation = job.operation
        result = C.NPU_NOT_READY if not job.done else C.NPU_SUCCESS if job.error is None else job.error.result
        steps = job.steps if operation.kind == "kernel" and job.done and job.blocks else None
        shaves = self.context.profile.shaves_per_tile
        units = 0
        for block in job.blocks:
            units |= 1 << (block.unit >> 4) * shaves + (block.unit & 15)
        return OperationRecord(
            op_id=entry.op_id,
            stream_id=job.stream.id,
            kind=KINDS[operation.kind],
            result=int(result),
            bytes=operation.size_bytes,
            enqueue_ps=job.enqueue_ps,
            enqueued_ps=entry.enqueued_ps,
            start_ps=job.start_ps,
            end_ps=job.end_ps,
            pack_ps=steps.pack_ps if steps else 0,
            submit_ps=steps.submit_ps if steps else 0,
            schedule_ps=steps.pick_ps if steps else 0,
            load_ps=steps.load_ps if steps else 0,
            execute_ps=steps.execute_ps if steps else 0,
            enqueue_site=job.site,
            units=units,
            blocks=len(job.blocks),
            name=operation.name,
        )
