"""One run of a model in parts on a fresh device; `session.py` is the same of one blob."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from libnpu.blob import read
from libnpu.parts import HostPart, NpuPart
from libnpu.runtime.operation import ModuleLaunch
from libnpu.runtime.parted_module import PartedModule
from libnpu.tools.session import Execution, PartTime, fresh_device
from libnpu.trace.slices import Slice, slices_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from libnpu.parts import PartedModel
    from libnpu.runtime import Device, Job, Module, TensorInfo


def execute_parts(
    data: bytes,
    model: PartedModel,
    profile: str,
    make_inputs: Callable[[list[TensorInfo]], dict[str, NDArray[Any]]],
    *,
    compute: bool = True,
    numerics: str = "exact",
    fidelity: str = "fast",
    faults: str | None = None,
    schedule: str | None = None,
) -> Execution:
    """Run the model in parts `data` once and return what was seen; as `session.execute`."""
    host: list[Slice] = []
    with fresh_device(profile, compute, numerics, fidelity, faults, schedule) as device:

        def step(name: str, since_ps: int) -> int:
            host.append(Slice("host", name, name, since_ps, device.now_ps))
            return device.now_ps

        free_before = device.memory_info()[0]
        now = device.now_ps
        module = device.load(data)
        assert isinstance(module, PartedModule)
        now = step("load parts", now)
        inputs = make_inputs(module.inputs)
        before, times = device.counters(), device.host_times()
        stream = device.create_stream()
        outputs = module.run(inputs, stream)
        parts = module.last_launch
        step("launch", now)
        busy, blocked = (after - earlier for after, earlier in zip(device.host_times(), times, strict=True))
        counters = {name: value - before[name] for name, value in device.counters().items()}
        records, overflows, info = device.trace(), device.overflows(), device.info()
        for part, jobs in zip(model.parts, parts, strict=True):
            if isinstance(part, HostPart):
                host.append(Slice("host", "part on the host", "part on the host", *_host_span(jobs)))
        images = [read(part.blob) for part in model.npu_parts]
        found = [_part_time(model, part, jobs) for part, jobs in zip(model.parts, parts, strict=True)]
        all_jobs = [job for jobs in parts for job in jobs]
        start_ps, end_ps = min(job.start_ps for job in all_jobs), max(job.end_ps for job in all_jobs)
        names = dict(zip(module.blobs, (image.debug.get("tasks", []) for image in images), strict=True))
        slices = _slices(device, records, names)
        del parts, all_jobs, jobs  # they hold mappings of their command buffers
        stream.close()
        module.unload()
        leaked = free_before - device.memory_info()[0]
    tiles = max((image.tile_count for image in images), default=1)
    return Execution(
        inputs=inputs,
        outputs=outputs,
        start_ps=start_ps,
        end_ps=end_ps,
        counters=counters,
        slices=slices,
        records=records,
        host=host,
        host_busy_ps=busy,
        host_blocked_ps=blocked,
        units={"DMA": info.dma_ports, "DPU": tiles, "SHAVE": tiles * info.shaves_per_tile},
        overflows=overflows,
        device_ps=sum(part.device_ps for part in found),
        parts=found,
        leaked_bytes=leaked,
    )


def _slices(device: Device, records: NDArray[Any], names: dict[Module, Any]) -> list[Slice]:
    """Return the tasks of all jobs, each with the names of its own blob."""
    found: list[Slice] = []
    for job_id in sorted(set(records["job_id"].tolist())):
        job = device.primary.job_of(job_id)
        tasks = names.get(job.operation.module, []) if job and isinstance(job.operation, ModuleLaunch) else []
        found += slices_of(records[records["job_id"] == job_id], tasks)
    return sorted(found, key=lambda s: s.end_ps)


def _host_span(jobs: list[Job]) -> tuple[int, int]:
    """Return when a part on the host began, and when its function had returned."""
    gate = next(index for index, job in enumerate(jobs) if job.operation.kind == "host_function")
    start = jobs[gate - 1].end_ps if gate else jobs[gate].start_ps
    return min(start, jobs[gate].end_ps), jobs[gate].end_ps


def _part_time(model: PartedModel, part: NpuPart | HostPart, jobs: list[Job]) -> PartTime:
    if isinstance(part, NpuPart):
        return PartTime("NPU", sum(job.latency_ps for job in jobs), 0, 0, 0)
    gate = next(index for index, job in enumerate(jobs) if job.operation.kind == "host_function")
    copies = [job for index, job in enumerate(jobs) if index != gate]
    start, end = _host_span(jobs)
    to_host, from_host = (sum(job.operation.size_bytes for job in side) for side in (jobs[:gate], jobs[gate + 1 :]))
    return PartTime("host", sum(job.latency_ps for job in copies), end - start, to_host, from_host)
