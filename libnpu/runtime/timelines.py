"""What profilers have noted, as a Chrome trace (`Device.export_trace`) and as text (`libnpu.timeline`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from npu_abi import C, name_of

from libnpu.errors import NpuError
from libnpu.runtime.operation import ModuleLaunch
from libnpu.trace import chrome
from libnpu.trace.slices import instants_of, jobs_of, slices_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libnpu.runtime.call_log import HostCall
    from libnpu.runtime.context import Context
    from libnpu.runtime.device import Device
    from libnpu.runtime.profiler import OperationRecord
    from libnpu.trace.chrome import Event
    from libnpu.trace.slices import Slice

PS_PER_US = 1_000_000
BAR, LANE, NAME = 48, 10, 22  # columns; the whole line has 100


def export_trace(device: Device, contexts: Sequence[Context], path: str) -> None:
    """Write a trace file; see `Device.export_trace`."""
    records = device.trace()
    slices = [_named(s, contexts) for s in slices_of(records)]
    events = [
        chrome.process(chrome.DEVICE, "NPU"),
        chrome.process(chrome.HOST, "host"),
        chrome.process(chrome.STREAMS, "streams"),
        *chrome.device_events(slices, instants_of(records), jobs_of(records)),
        *_host_events(list(dict.fromkeys(call for context in contexts for call in context.profiler.calls))),
        *_stream_events(contexts),
    ]
    about = {
        "profile": device.profile.name,
        "reproducible": device.reproducible,
        "times_meaningful": device.times_meaningful,
    }
    try:
        Path(path).write_bytes(chrome.document(events, about))
    except OSError as error:
        raise NpuError(C.NPU_ERROR_FILE, f"{error.strerror}: {path!r}") from None


def _named(s: Slice, contexts: Sequence[Context]) -> Slice:
    """Return a slice with the name of its operation, as far as it is known which job it belongs to."""
    for context in contexts:
        job = context.job_of(s.job_id)
        if job is not None and job.start_ps <= s.start_ps and s.end_ps <= job.end_ps:
            operation = job.operation
            layer = operation.module.tasks.layer(s.task_id) if isinstance(operation, ModuleLaunch) else operation.name
            return s._replace(layer=layer)
    return s


def _host_events(calls: Sequence[HostCall]) -> list[Event]:
    """Return a track per thread: its calls, and in each the part in which it was blocked."""
    threads = sorted({call.thread for call in calls})
    events = [chrome.track(chrome.HOST, thread + 1, f"thread {thread}") for thread in threads]
    for call in sorted(calls, key=lambda call: (call.begin_ps, call.thread)):
        place = chrome.HOST, call.thread + 1
        args = {"blocked_ps": call.blocked_ps}
        events.append(chrome.complete(*place, call.name, "call", call.begin_ps, call.end_ps, args))
        events += [chrome.complete(*place, "blocked", "blocked", *part, {}) for part in call.blocked]
    return events


def _stream_events(contexts: Sequence[Context]) -> list[Event]:
    """Return a track per stream with its operations."""
    events = []
    tracks: dict[tuple[int, int], int] = {}
    for number, context in enumerate(contexts):
        for record in context.profiler.records:
            key = number, record.stream_id
            if key not in tracks:
                tracks[key] = len(tracks) + 1
                name = f"stream {record.stream_id}" + (f" of context {number}" if number else "")
                events.append(chrome.track(chrome.STREAMS, tracks[key], name))
            if record.result != C.NPU_NOT_READY:
                events.append(_operation(record, tracks[key]))
    return events


def _operation(record: OperationRecord, tid: int) -> Event:
    kind = name_of("npu_op_kind", record.kind).removeprefix("NPU_OP_").lower()
    args = {
        "op_id": record.op_id,
        "result": name_of("npu_result", record.result),
        "bytes": record.bytes,
        "enqueue_ps": record.enqueue_ps,
        "enqueued_ps": record.enqueued_ps,
    }
    if record.blocks:
        args |= {"blocks": record.blocks, "units": f"{record.units:#x}"}
    return chrome.complete(chrome.STREAMS, tid, record.name, kind, record.start_ps, record.end_ps, args)


def timeline(context: Context) -> str:
    """Return calls and operations as text; see `libnpu.timeline`."""
    rows = [
        (c.begin_ps, 0, c.thread, f"host {c.thread}" if c.thread else "host", c.name, c.end_ps, c.blocked)
        for c in context.profiler.calls
    ] + [
        (r.start_ps, 1, r.stream_id, f"stream {r.stream_id}", _label(r), r.end_ps, ())
        for r in context.profiler.records
        if r.result != C.NPU_NOT_READY
    ]
    if not rows:
        return "nothing was recorded: context.profiler.start() begins\n"
    first, last = min(row[0] for row in rows), max(row[5] for row in rows)
    scale = max(1, -(-(last - first) // BAR))
    where = f"one column is {scale / PS_PER_US:.3f} us, from {first / PS_PER_US:.3f} us"
    lines = [f"# works  . is blocked  = runs on the device; {where}"]
    for begin, is_operation, _, lane, name, end, blocked in sorted(rows):
        bar = [" "] * BAR
        for start, stop, mark in ((begin, end, "=" if is_operation else "#"), *((*part, ".") for part in blocked)):
            columns = range((start - first) // scale, max((start - first) // scale + 1, -(-(stop - first) // scale)))
            for column in columns:
                bar[min(column, BAR - 1)] = mark
        label = f"{lane[:LANE]:<{LANE}} {name[:NAME]:<{NAME}}"
        lines.append(f"{label} |{''.join(bar)}| {(end - begin) / PS_PER_US:10.3f} us")
    return "\n".join(lines) + "\n"


def _label(record: OperationRecord) -> str:
    """Return the name of an operation, but for waits, whose names say where the event was recorded, too long for a line."""
    return "event wait" if record.kind == C.NPU_OP_EVENT_WAIT else record.name
