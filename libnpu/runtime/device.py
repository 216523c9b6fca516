"""A device: its memory, blobs, streams, clock and counters."""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING

import npu_abi
from npu_abi import C
from npu_model.profile import ProfileError

from libnpu import syscalls
from libnpu.errors import NpuError
from libnpu.runtime.blob import Blob, read_blob
from libnpu.runtime.buffer import DeviceBuffer
from libnpu.runtime.guard import Guard, failures_yield_to, public
from libnpu.runtime.stream import Stream
from libnpu.runtime.time import LAST_PS, duration_ps
from libnpu.syscalls import Node, Request

FILE_FACTOR = 2  # chosen: a file has names and relocations beside what it places in memory

if TYPE_CHECKING:
    import os

    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a device is."""

    profile: str
    tiles: int
    shaves_per_tile: int
    dma_ports: int
    barriers: int
    cmx_bytes_per_tile: int
    ddr_bytes: int
    clock_hz: int
    firmware_api: tuple[str, ...]  # "major.minor" by NPU_FW_API_*


class Device:
    """An open device; a context manager. Everything made from it ends with `close`.

    It and everything made from it may be used by several threads; one call runs at a time (`guard.py`).
    """

    def __init__(self, node: Node, *, compute: bool) -> None:
        host = node.profile.host
        self.node = node
        self.guard = Guard(node)
        self.profile = node.profile
        self.compute = compute
        self.api_ps = round(host.api_call_ns * 1000)
        self._copy_ps = 1000 / host.copy_bytes_per_ns
        self._buffers: dict[int, DeviceBuffer] = {}  # by device address
        self._addresses: list[int] = []  # of the buffers, sorted
        self._blobs: list[Blob] = []
        self._streams: list[Stream] = []
        self._ran: dict[int, Blob] = {}  # by job id: what the last job of that id ran
        self._default: Stream | None = None

    @public
    def load(self, source: str | os.PathLike[str] | bytes | bytearray | memoryview) -> Blob:
        """Load a blob from a file or bytes.

        Raises INVALID_BLOB, FILE, OUT_OF_DEVICE_MEMORY; then nothing stays allocated.
        """
        self._enter()
        blob = Blob(self, read_blob(source, FILE_FACTOR * self.profile.ddr.capacity_bytes))
        self._blobs.append(blob)
        return blob

    @public
    def alloc(self, nbytes: int) -> DeviceBuffer:
        """Allocate device memory, page aligned, poison until written. Raises INVALID_SIZE, OUT_OF_DEVICE_MEMORY."""
        self._enter()
        buffer = DeviceBuffer(self.guard, nbytes, values=self.compute, forget=self._forget_buffer)
        self._buffers[buffer.device_address] = buffer
        insort(self._addresses, buffer.device_address)
        return buffer

    @public
    def create_stream(self) -> Stream:
        """Create a stream. Raises OUT_OF_RESOURCES when the driver has no queue left."""
        self._enter()
        stream = Stream(self)
        self._streams.append(stream)
        return stream

    @property
    @public
    def default_stream(self) -> Stream:
        """The stream that `Blob.run` uses, made on first use."""
        if self._default is None:
            self._default = self.create_stream()
        return self._default

    @public
    def synchronize(self) -> None:
        """Wait for all streams, in the order of their creation, then raise the first error that was not raised before."""
        self._enter()
        for stream in self._streams:
            stream.finish_all()
        for stream in self._streams:
            stream.synchronize()

    @property
    def now_ps(self) -> int:
        """The host's position on the clock, in picoseconds."""
        return self.node.now_ps

    @public
    def host_delay(self, duration_ns: float) -> None:
        """Let the host work for `duration_ns` while the device goes on.

        Raises INVALID_VALUE when it is negative or the clock would pass 2^62 ps.
        """
        self.node.check_usable()
        delay_ps = duration_ps(duration_ns, "delay")
        if delay_ps is None or self.now_ps + delay_ps > LAST_PS:
            raise NpuError(
                C.NPU_ERROR_INVALID_VALUE,
                f"a delay of {duration_ns} ns: the clock is at {self.now_ps} ps and would pass its end at 2^62 ps",
            )
        self.node.advance(delay_ps)
        self.node.catch_up()

    @public
    def set_schedule(self, seed: int | None = None) -> None:
        """Order ready work by time (None, the default), or stretch task durations by a generator seeded with `seed`.

        Raises INVALID_VALUE for a seed that does not fit 64 bits.
        """
        if seed is not None and not 0 <= index(seed) < 1 << 64:
            raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"seed {seed}; 0 to 2^64 - 1 are allowed")
        request = Request(C.NPU_IOCTL_EMU_SET_SCHEDULE, "npu_emu_schedule", "EMU_SET_SCHEDULE")
        if seed is not None:
            request.arg.kind, request.arg.seed = C.NPU_SCHEDULE_SEED, seed
        self.node.ioctl(request)

    @public
    def counters(self) -> dict[str, int]:
        """Return the PMU counters by name: "CYCLES", "DMA_BUSY", ... of enum npu_pmu. Unit and meaning: npu_hw.h."""
        request = Request(C.NPU_IOCTL_EMU_COUNTERS, "npu_emu_counters", "EMU_COUNTERS")
        request.arg.count, request.arg.buffer_ptr = C.NPU_PMU_COUNT, 1
        values = memoryview(self.node.ioctl(request)[0]).cast("Q")
        kinds = npu_abi.enum("npu_pmu")
        return {kinds(i).name.removeprefix("NPU_PMU_"): value for i, value in enumerate(values)}

    @public
    def trace(self) -> NDArray[np.void]:
        """Return and forget what the device did since the last call: struct npu_trace_record, oldest first.

        Empty without `trace=True`.
        """
        request = Request(C.NPU_IOCTL_EMU_TRACE_READ, "npu_emu_trace_read", "EMU_TRACE_READ")
        return self._read_records(request, npu_abi.dtype("npu_trace_record"))

    def _read_records(self, request: Request, record: np.dtype[np.void]) -> NDArray[np.void]:
        """Ask how many bytes wait, then read them."""
        import numpy as np

        self.node.ioctl(request)
        size = request.arg.used_bytes
        data = b""
        if size:
            request.arg.buffer_ptr, request.arg.buffer_bytes, request.arg.used_bytes = 1, size, 0
            data = self.node.ioctl(request)[0]
        return np.frombuffer(bytearray(data), record)

    @public
    def overflows(self) -> list[tuple[str, int]]:
        """Return and forget which layers rounded finite values to infinity in fp16, and how many, in order of their first one.

        Of launches that a wait has seen the end of. Jobs have 256 ids: after so many launches a layer may bear another
        blob's name, so ask before.
        """
        request = Request(C.NPU_IOCTL_EMU_OVERFLOWS, "npu_emu_overflows", "EMU_OVERFLOWS")
        record = npu_abi.dtype("npu_overflow_record")
        found: dict[str, int] = {}
        for job_id, task_id, count in self._read_records(request, record).tolist():
            blob = self._ran.get(job_id)
            layer = blob.layer_name(task_id) if blob else f"task {task_id}"
            found[layer] = found.get(layer, 0) + count
        return list(found.items())

    @public
    def info(self) -> DeviceInfo:
        """Return what the driver says about the device."""
        name = b"".join(self._param(C.NPU_PARAM_PROFILE_NAME, i).to_bytes(8, "little") for i in range(8))
        versions = [self._param(C.NPU_PARAM_FW_API_VERSION, i) for i in range(C.NPU_FW_API_COUNT)]
        return DeviceInfo(
            profile=name.rstrip(b"\0").decode(),
            tiles=self._param(C.NPU_PARAM_TILE_CONFIG).bit_count(),
            shaves_per_tile=self._param(C.NPU_PARAM_SHAVES_PER_TILE),
            dma_ports=self._param(C.NPU_PARAM_DMA_PORTS),
            barriers=self._param(C.NPU_PARAM_BARRIER_COUNT),
            cmx_bytes_per_tile=self._param(C.NPU_PARAM_CMX_BYTES),
            ddr_bytes=self._param(C.NPU_PARAM_DDR_BYTES),
            clock_hz=self._param(C.NPU_PARAM_CORE_CLOCK_RATE),
            firmware_api=tuple(f"{v >> 16}.{v & 0xFFFF}" for v in versions),
        )

    @public
    def memory_info(self) -> tuple[int, int]:
        """Return (free, total) bytes of device memory."""
        return self._param(C.NPU_PARAM_DDR_FREE_BYTES), self._param(C.NPU_PARAM_DDR_BYTES)

    @public
    def close(self) -> None:
        """End everything: work in flight is waited for or aborted, blobs, buffers and streams become stale.

        Twice is allowed.
        """
        try:
            self.node.close()
        finally:
            self._forget_all()

    @public
    def reset(self) -> None:
        """Begin anew with an empty context, for instance after a fault ended the old one (DEVICE_LOST); everything
        made before is stale. The clock goes on; a device that was lost as a whole is started again, and its schedule
        and counters begin anew too. Raises STALE_HANDLE after `close`.
        """
        if not self.node.is_open:
            self.node.check_usable()
        self.close()
        self.node.open()

    def _forget_all(self) -> None:
        """Make everything stale: the context that it was in is gone."""
        for stream in self._streams:
            stream.abandon()
        for blob in self._blobs:
            blob.release()
        self._addresses.clear()
        for buffer in list(self._buffers.values()):
            buffer.free()
        self._default = None
        self._streams.clear()
        self._blobs.clear()
        self._ran.clear()

    def __enter__(self) -> Device:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with failures_yield_to(kind):
            self.close()

    # ---- for the other modules of the runtime ----

    def charge_copy(self, size: int) -> None:
        """Let the host spend the time of a copy of `size` bytes."""
        self.node.advance(round(size * self._copy_ps))

    def buffer_at(self, address: int, size: int) -> DeviceBuffer:
        """Return the buffer that holds `size` bytes at `address`.

        Raises ARG_KIND when none does, ARG_SIZE when it ends before.
        """
        at = bisect_right(self._addresses, address) - 1
        buffer = self._buffers[self._addresses[at]] if at >= 0 else None
        if buffer is None or address >= buffer.device_address + buffer.size:
            raise NpuError(C.NPU_ERROR_ARG_KIND, f"{address:#x} is not device memory")
        left = buffer.device_address + buffer.size - address
        if size > left:
            raise NpuError(C.NPU_ERROR_ARG_SIZE, f"{left} bytes are left at {address:#x}, {size} are needed")
        return buffer

    def note_job(self, job_id: int, blob: Blob) -> None:
        """Remember which blob a job ran."""
        self._ran[job_id] = blob

    def forget_blob(self, blob: Blob) -> None:
        """Drop an unloaded blob."""
        if blob in self._blobs:
            self._blobs.remove(blob)

    def forget_stream(self, stream: Stream) -> None:
        """Drop a closed stream."""
        if stream in self._streams:
            self._streams.remove(stream)
        if stream is self._default:
            self._default = None

    def _forget_buffer(self, buffer: DeviceBuffer) -> None:
        self._buffers.pop(buffer.device_address, None)
        if buffer.device_address in self._addresses:
            self._addresses.remove(buffer.device_address)

    def _enter(self) -> None:
        self.node.check_usable()
        self.node.advance(self.api_ps)

    def _param(self, param: int, index: int = 0) -> int:
        request = Request(C.NPU_IOCTL_GET_PARAM, "npu_param_arg", f"GET_PARAM {param}")
        request.arg.param, request.arg.index = param, index
        self.node.ioctl(request)
        value: int = request.arg.value
        return value


def open_device(profile: str, *, compute: bool, numerics: str, trace: bool) -> Device:
    """Return a new booted device. Raises INVALID_VALUE for an unknown profile or numerics policy."""
    if numerics not in ("exact", "fast"):
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, f"numerics {numerics!r}; there are 'exact' and 'fast'")
    try:
        node = syscalls.open_device(profile, compute=compute, numerics=numerics, trace=trace)
    except ProfileError as error:
        raise NpuError(C.NPU_ERROR_INVALID_VALUE, str(error)) from None
    return Device(node, compute=compute)
