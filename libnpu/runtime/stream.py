"""A stream: a command queue of the driver. Launches run in order; streams are independent of each other."""

from __future__ import annotations

import errno
import struct
from collections import deque
from operator import index
from typing import TYPE_CHECKING

from npu_abi import C, codec

from libnpu.errors import NpuError, errno_error
from libnpu.runtime.buffer import BufferObject
from libnpu.runtime.guard import failures_yield_to, public
from libnpu.runtime.job import Job
from libnpu.runtime.tensor import check_names
from libnpu.runtime.time import LAST_PS, duration_ps
from libnpu.syscalls import Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from libnpu.runtime.blob import Blob
    from libnpu.runtime.buffer import DeviceBuffer, DeviceSpan
    from libnpu.runtime.device import Device

FOR_EVER_PS = (1 << 63) - 1
ALIGNMENT = 64  # of launch arguments, bytes
FENCE_BYTES = 8
HEADER = codec("npu_cmd_buffer_header", "cmd_buffer_size", "cmd_offset", "api_version", "fence_heap_va")
EXECUTE = codec("npu_cmd_inference", "h.type", "h.size", "inference_id", "mapped_inference_va")
SIGNAL = codec("npu_cmd_fence", "h.type", "h.size", "offset", "value")
REAP_AT = 32  # jobs in flight from which a launch first looks for finished ones


class Command:
    """A command buffer with one INFERENCE_EXECUTE and the FENCE_SIGNAL behind it. One job in flight at a time."""

    __slots__ = ("bo", "prefix")

    def __init__(self, device: Device, fence: BufferObject) -> None:
        size = HEADER.size + EXECUTE.size + SIGNAL.size
        self.bo = BufferObject(device.node, size, C.NPU_BO_MAPPABLE)
        memory = self.bo.view
        assert memory is not None
        HEADER.pack_into(memory, 0, size, HEADER.size, C.NPU_CMD_API_VERSION, fence.va)
        self.prefix = struct.pack("<II", self.bo.handle, fence.handle)

    def fill(self, number: int, mapped_va: int) -> None:
        """Write the commands that run the inference at `mapped_va` as the stream's launch `number`."""
        memory = self.bo.view
        assert memory is not None
        EXECUTE.pack_into(memory, HEADER.size, C.NPU_CMD_INFERENCE_EXECUTE, EXECUTE.size, number, mapped_va)
        SIGNAL.pack_into(memory, HEADER.size + EXECUTE.size, C.NPU_CMD_FENCE_SIGNAL, SIGNAL.size, 0, number)


class Stream:
    """Made by `Device.create_stream`; a context manager. `launch` returns at once, `synchronize` waits."""

    def __init__(self, device: Device) -> None:
        self._fence = BufferObject(device.node, FENCE_BYTES, C.NPU_BO_MAPPABLE)
        assert self._fence.view is not None
        self._fence.view[:FENCE_BYTES] = bytes(FENCE_BYTES)
        create = Request(C.NPU_IOCTL_CMDQ_CREATE, "npu_cmdq_create", "CMDQ_CREATE")
        try:
            device.node.ioctl(create)
        except NpuError:
            self._fence.free()
            raise
        self.device = device
        self.guard = device.guard
        self._node = device.node
        self._submit = Request(C.NPU_IOCTL_CMDQ_SUBMIT, "npu_cmdq_submit", "CMDQ_SUBMIT")
        self._submit.arg.cmdq_id = self._cmdq_id = create.arg.cmdq_id
        self._submit.arg.buffers_ptr = 1  # the handles travel as a segment
        self._wait = Request(C.NPU_IOCTL_BO_WAIT, "npu_bo_wait", "BO_WAIT")
        self._idle: list[Command] = []
        self._jobs: deque[Job] = deque()  # in flight, oldest first
        self._failed: deque[Job] = deque()  # errors that no call has raised yet
        self._launches = 0
        self._api_ps = device.api_ps
        self._open = True

    @public
    def launch(
        self,
        blob: Blob,
        inputs: Mapping[str, DeviceBuffer | DeviceSpan],
        outputs: Mapping[str, DeviceBuffer | DeviceSpan],
    ) -> Job:
        """Enqueue `blob` on device memory by tensor name, and return at once.

        The buffers must stay until the job is done. A full queue makes it wait for the oldest job. Raises
        INVALID_VALUE for names, ARG_SIZE for a buffer that is too small, MISALIGNED, STALE_HANDLE for a freed one,
        WRONG_CONTEXT for another device's; what happens on the device comes from the wait.
        """
        self._check_open()
        if inputs.keys() != blob.input_names:
            check_names(inputs, [t.name for t in blob.inputs], "inputs")
        if outputs.keys() != blob.output_names:
            check_names(outputs, [t.name for t in blob.outputs], "outputs")
        key, handles = [], []
        for tensors, given in ((blob.inputs, inputs), (blob.outputs, outputs)):
            for tensor in tensors:
                span = given[tensor.name]
                handles.append(span.buffer.handle)
                if span.size < tensor.size_bytes:
                    raise NpuError(
                        C.NPU_ERROR_ARG_SIZE,
                        f"{tensor.name!r} has {span.size} bytes, the blob expects {tensor.size_bytes}",
                    )
                if span.buffer.guard is not self.guard:
                    raise NpuError(C.NPU_ERROR_WRONG_CONTEXT, f"the memory of {tensor.name!r} is another device's")
                key.append(span.device_address)
        while True:
            try:
                return self._enqueue(blob, tuple(key), handles)
            except NpuError as error:
                if error.errno != errno.EBUSY or not self._jobs:
                    raise
            self._finish(self._jobs[0], FOR_EVER_PS)  # the queue is full: wait for its oldest job

    @public
    def launch_addresses(self, blob: Blob, addresses: Sequence[int]) -> Job:
        """Enqueue `blob` on device addresses, its inputs' and then its outputs', all in buffers of this device.

        As `launch`, but never waits: raises OUT_OF_RESOURCES when the queue is full.
        """
        self._check_open()
        addresses = [index(address) for address in addresses]
        tensors = [*blob.inputs, *blob.outputs]
        if len(addresses) != len(tensors):
            raise NpuError(C.NPU_ERROR_ARG_COUNT, f"{len(addresses)} addresses for {len(tensors)} tensors")
        handles = []
        for tensor, address in zip(tensors, addresses, strict=True):
            buffer = self.device.buffer_at(address, tensor.size_bytes)
            handles.append(buffer.handle)
        return self._enqueue(blob, tuple(addresses), handles)

    def _enqueue(self, blob: Blob, key: tuple[int, ...], handles: list[int]) -> Job:
        if blob.device is not self.device:
            raise NpuError(C.NPU_ERROR_WRONG_CONTEXT, f"blob {blob.name!r} is another device's")
        for address in key:
            if address % ALIGNMENT:
                raise NpuError(C.NPU_ERROR_MISALIGNED, f"address {address:#x} is not a multiple of {ALIGNMENT}")
        self._node.advance(self._api_ps)
        if len(self._jobs) >= REAP_AT:
            self._reap()
        instance = blob.instance_for(self, key, handles)
        command = self._idle.pop() if self._idle else Command(self.device, self._fence)
        number = self._launches + 1
        command.fill(number, instance.mapped_va)
        submit = self._submit
        handles_segment = command.prefix + instance.segment
        submit.arg.buffer_count = len(handles_segment) // 4
        ret = self._node.try_ioctl(submit, [handles_segment])
        if ret < 0:
            self._idle.append(command)
            if ret == -errno.EBUSY and self._jobs:
                full = f"the queue already holds {len(self._jobs)} launches: synchronise first"
                raise NpuError(C.NPU_ERROR_OUT_OF_RESOURCES, full, errno=errno.EBUSY)
            raise errno_error(-ret, submit.name, self._node.log)
        self._launches = number
        job = Job(self, blob, instance, command)
        instance.jobs.append(job)
        self._jobs.append(job)
        return job

    @public
    def synchronize(self, timeout_ns: float | None = None) -> None:
        """Wait for everything enqueued, for `timeout_ns` at most (None, infinity: for ever).

        Raises the first error of that work which was not raised before, or TIMEOUT; INVALID_VALUE for a negative time.
        """
        deadline = self._deadline(timeout_ns)
        while self._jobs:
            if not self._finish(self._jobs[0], deadline):
                raise NpuError(C.NPU_TIMEOUT, f"{len(self._jobs)} launches have not finished after {timeout_ns} ns")
        self._raise_failed()

    @public
    def wait(self, job: Job, timeout_ns: float | None = None) -> None:
        """Wait for one job of this stream, and raise its error, each time, or TIMEOUT; INVALID_VALUE for another's job."""
        if job.stream is not self:
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, "the job is another stream's")
        deadline = 0 if job.done else self._deadline(timeout_ns)
        while not job.done:
            if not self._finish(self._jobs[0], deadline):
                raise NpuError(C.NPU_TIMEOUT, f"the launch has not finished after {timeout_ns} ns")
        if job.error is not None:
            if not job.reported:
                self._report(job)
            raise job.error

    def _deadline(self, timeout_ns: float | None) -> int:
        """Let the host make a call that waits, and return the time at which it gives up."""
        self._check_open()
        timeout_ps = None if timeout_ns is None else duration_ps(timeout_ns, "time-out")
        self._node.advance(self._api_ps)
        deadline = FOR_EVER_PS if timeout_ps is None else self._node.now_ps + timeout_ps
        return deadline if deadline <= LAST_PS else FOR_EVER_PS

    @public
    def query(self) -> bool:
        """Return whether all work has finished. Raises the first error of it which was not raised before."""
        self._check_open()
        self._node.advance(self._api_ps)
        self._reap()
        self._raise_failed()
        return not self._jobs

    @property
    @public
    def fence(self) -> int:
        """The fence value in host memory: the device wrote there how many launches had run when the last one ended well."""
        self._check_open()
        self._node.catch_up()
        assert self._fence.view is not None
        return int.from_bytes(self._fence.view[:FENCE_BYTES], "little")

    @public
    def close(self) -> None:
        """Wait for the work and free the queue; errors of the work are dropped. Twice is allowed."""
        if not self._open:
            return
        if self._node.is_usable:  # else the queue went with the device
            self.finish_all()
            destroy = Request(C.NPU_IOCTL_CMDQ_DESTROY, "npu_cmdq_destroy", "CMDQ_DESTROY")
            destroy.arg.cmdq_id = self._cmdq_id
            self._node.ioctl(destroy)
        self.abandon()
        self.device.forget_stream(self)

    def finish_all(self) -> None:
        """Wait for the work, and keep its errors for the call that asks for them."""
        while self._jobs:
            self._finish(self._jobs[0], FOR_EVER_PS)

    def abandon(self) -> None:
        """Become stale and free its memory; what is in flight has failed, for its context has ended."""
        self._open = False
        for job in self._jobs:
            job.instance.jobs.clear()
            job.command.bo.free()
            job.done = True
            job.error = NpuError(C.NPU_ERROR_STALE_HANDLE, "the context of the launch has ended", job=job)
        self._failed.extend(self._jobs)
        self._jobs.clear()
        for command in self._idle:
            command.bo.free()
        self._idle.clear()
        self._fence.free()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with failures_yield_to(kind):
            self.close()

    def _check_open(self) -> None:
        if not self._open:
            raise NpuError(C.NPU_ERROR_STALE_HANDLE, "the stream is closed")

    def _reap(self) -> None:
        """Take note of jobs that have finished by now."""
        while self._jobs and self._finish(self._jobs[0], self._node.now_ps):
            pass

    def _finish(self, job: Job, deadline_ps: int) -> bool:
        """Wait for the oldest job; False when the deadline passes."""
        request = self._wait
        arg = request.arg
        arg.handle = job.command.bo.handle
        arg.deadline_ps = deadline_ps
        ret = self._node.try_ioctl(request)
        if ret == -errno.ETIMEDOUT:
            return False
        if ret < 0:
            self._drop(job)
            job.command.bo.free()
            job.error = errno_error(-ret, request.name, self._node.log)
            if ret == -errno.EDEADLK:
                idle = "the device is idle and the launch cannot finish"
                job.error = NpuError(C.NPU_ERROR_BARRIER_DEADLOCK, idle, errno=errno.EDEADLK, job=job)
            self._failed.append(job)
            return True
        job.start_ps, job.end_ps = arg.start_ps, arg.end_ps
        self.device.note_job(arg.job_id, job.blob)
        self._drop(job)
        self._idle.append(job.command)
        if arg.job_status:
            job.describe(arg.job_id, arg.job_status, arg.error_detail, arg.error_info)
            self._failed.append(job)
        return True

    def _drop(self, job: Job) -> None:
        self._jobs.popleft()
        job.instance.jobs.remove(job)
        job.done = True

    def _report(self, job: Job) -> None:
        job.reported = True
        self._failed.remove(job)

    def _raise_failed(self) -> None:
        if self._failed:
            job = self._failed.popleft()
            job.reported = True
            assert job.error is not None
            raise job.error
