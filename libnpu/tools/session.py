"""One run of a blob on a fresh device, and everything that was seen of it."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import libnpu
from libnpu.collector import uncollected
from libnpu.trace.slices import Instant, Slice, instants_of, jobs_of, slices_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from libnpu.blob import BlobImage
    from libnpu.runtime import Device, TensorInfo

DDR = (
    "DMA_DDR_READ",
    "DMA_DDR_WRITE",
    "SHAVE_DDR_READ",
    "SHAVE_DDR_WRITE",
)  # counters of bytes that engines read there and write


@dataclass(frozen=True, slots=True)
class PartTime:
    """A part of a model in parts: `on` "NPU" or "host". `device_ps` is the device's, copies included, `host_ps` the host's."""

    on: str
    device_ps: int
    host_ps: int
    to_host_bytes: int  # copied from device memory for a part on the host
    from_host_bytes: int


@dataclass(frozen=True, slots=True)
class Execution:
    """A finished run. Times are picoseconds of the virtual clock, `start_ps` and `end_ps` those of the job on the device, or of
    the first and the last one of a model in parts; `device_ps` is what the jobs took.

    `outputs` is {} when the device computes no values. `counters` are what the run added to the PMU counters.
    """

    inputs: dict[str, NDArray[Any]]
    outputs: dict[str, NDArray[Any]]
    start_ps: int
    end_ps: int
    counters: dict[str, int]
    slices: list[Slice]
    records: NDArray[np.void]  # struct npu_trace_record
    host: list[Slice]
    host_busy_ps: int  # of the host's thread, from the launch to the end of the wait
    host_blocked_ps: int
    units: dict[str, int]  # engine -> how many the job could use
    overflows: list[tuple[str, int]]  # layer -> finite values that became infinite in fp16
    device_ps: int
    parts: list[PartTime]
    leaked_bytes: int  # device memory that was free before the blob was loaded and is not after everything was freed

    @property
    def instants(self) -> list[Instant]:
        """What the management core did, and its interrupts."""
        return instants_of(self.records)

    @property
    def jobs(self) -> list[Slice]:
        """The jobs, in order of their end."""
        return jobs_of(self.records)


@contextmanager
def fresh_device(
    profile: str, compute: bool, numerics: str, fidelity: str, faults: str | None, schedule: str | None
) -> Iterator[Device]:
    """A device of its own that is traced, for a `with` block; parameters as of `execute`."""
    with (
        nullcontext() if compute else uncollected(),  # without values a run leaves no large arrays
        libnpu.open(
            profile, compute=compute, numerics=numerics, fidelity=fidelity, trace=True, faults=faults
        ) as device,
    ):
        if schedule is not None:
            device.set_schedule(schedule)
        yield device


def execute(
    data: bytes,
    image: BlobImage,
    profile: str,
    make_inputs: Callable[[list[TensorInfo]], dict[str, NDArray[Any]]],
    *,
    compute: bool = True,
    numerics: str = "exact",
    fidelity: str = "fast",
    faults: str | None = None,
    schedule: str | None = None,
) -> Execution:
    """Run the blob `data` once and return what was seen. `faults`: as of `libnpu.open`, `schedule`: of `Device.set_schedule`. Raises NpuError."""
    host: list[Slice] = []
    with fresh_device(profile, compute, numerics, fidelity, faults, schedule) as device:

        def step(name: str, since_ps: int) -> int:
            host.append(Slice("host", name, name, since_ps, device.now_ps))
            return device.now_ps

        free_before = device.memory_info()[0]
        now = device.now_ps
        blob = device.load(data)
        now = step("load blob", now)
        inputs = make_inputs(blob.inputs)
        tensors = [*blob.inputs, *blob.outputs]
        buffers = [device.alloc(max(1, tensor.size_bytes)) for tensor in tensors]
        now = step("allocate", now)
        ins, outs = buffers[: len(blob.inputs)], buffers[len(blob.inputs) :]
        for tensor, buffer in zip(blob.inputs, ins, strict=True):
            buffer.write(tensor.check(inputs[tensor.name]))
        now = step("copy in", now)
        before = device.counters()
        times = device.host_times()
        stream = device.create_stream()
        job = stream.launch(
            blob,
            {t.name: b for t, b in zip(blob.inputs, ins, strict=True)},
            {t.name: b for t, b in zip(blob.outputs, outs, strict=True)},
        )
        now = step("launch", now)
        stream.synchronize()
        start_ps, end_ps = job.start_ps, job.end_ps
        del job  # it holds a mapping of its command buffer
        now = step("wait", now)
        busy, blocked = (after - before for after, before in zip(device.host_times(), times, strict=True))
        counters = {name: value - before[name] for name, value in device.counters().items()}
        outputs = {}
        if compute:
            outputs = {t.name: b.read(t.numpy_dtype, t.shape) for t, b in zip(blob.outputs, outs, strict=True)}
        step("copy out", now)
        records = device.trace()
        overflows = device.overflows()
        info = device.info()
        stream.close()
        blob.unload()
        for buffer in buffers:
            buffer.free()
        leaked = free_before - device.memory_info()[0]
    tasks = image.debug.get("tasks", [])
    return Execution(
        inputs=inputs,
        outputs=outputs,
        start_ps=start_ps,
        end_ps=end_ps,
        counters=counters,
        slices=slices_of(records, tasks if isinstance(tasks, list) else []),
        records=records,
        host=host,
        host_busy_ps=busy,
        host_blocked_ps=blocked,
        units={
            "DMA": info.dma_ports,
            "DPU": image.tile_count,
            "SHAVE": image.tile_count * info.shaves_per_tile,
        },
        overflows=overflows,
        device_ps=end_ps - start_ps,
        parts=[],
        leaked_bytes=leaked,
    )


def ddr_bytes_by_task(image: BlobImage) -> dict[int, int]:
    """Return task_id -> bytes that the DMA task moves from or to DDR. An end with a relocation is DDR."""
    found: dict[int, int] = {}
    places = {(r.section, r.offset) for r in image.relocations}
    for section in (".npu.tasks.dma0", ".npu.tasks.dma1"):
        array = image.tasks.get(section)
        if array is None:
            continue
        fields: Any = array.dtype.fields
        ends = [fields[name][1] for name in ("transaction_src", "transaction_dst")]
        size = array["transaction_length"].astype(int) * array["transaction_num_planes"]
        for index, (task_id, moved) in enumerate(zip(array["task_id"].tolist(), size.tolist(), strict=True)):
            base = index * array.dtype.itemsize
            found[task_id] = moved * sum((section, base + end) in places for end in ends)
    return found
