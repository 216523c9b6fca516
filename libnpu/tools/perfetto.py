"""Trace files: Chrome's JSON trace event format, which Perfetto opens. One track per engine unit, the core and the host.

Times in the file are microseconds with six decimals, so that picoseconds survive. Process 1 is the device, 2 the host.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from libnpu.tools.console import ToolError
from libnpu.tools.files import write_file
from libnpu.tools.timeline import ENGINES, Instant, Slice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DEVICE, _HOST = 1, 2
_PS_PER_US = 1_000_000


def write_trace(
    path: str,
    slices: Sequence[Slice],
    instants: Sequence[Instant] = (),
    host: Sequence[Slice] = (),
    ddr_bytes: Mapping[int, int] | None = None,
    summary: Mapping[str, Any] | None = None,
) -> None:
    """Write a trace file.

    `host` are slices of the host's track. `ddr_bytes` are the bytes that each DMA task moves to or from DDR, by task_id:
    the counter track. `summary` goes into the file's otherData.
    """
    tracks = sorted({s.track for s in slices}, key=lambda track: (ENGINES.index(track.split()[0]), track))
    thread = {"core": 1, **{track: number for number, track in enumerate(tracks, 2)}}
    events: list[dict[str, Any]] = [
        _name("process_name", _DEVICE, 0, "NPU"),
        _name("process_name", _HOST, 0, "host"),
        _name("thread_name", _HOST, 1, "host"),
    ]
    events += [_name("thread_name", _DEVICE, number, track) for track, number in thread.items()]
    events += [_complete(s, _HOST, 1) for s in host]
    events += [_complete(s, _DEVICE, thread[s.track]) for s in slices]
    for instant in instants:
        place = {"pid": _DEVICE, "tid": thread[instant.track], "ts": _us(instant.time_ps)}
        events.append({"ph": "i", "s": "t", "name": instant.name, **place})
    events += _bandwidth(slices, ddr_bytes or {})
    document = {"displayTimeUnit": "ns", "otherData": dict(summary or {}), "traceEvents": events}
    write_file(path, (json.dumps(document, separators=(",", ":")) + "\n").encode())


def read_trace(path: str) -> tuple[list[Slice], dict[str, Any]]:
    """Return the device slices and the summary of a file that `write_trace` wrote. Raises ToolError for any other file."""
    try:
        document = json.loads(Path(path).read_bytes())
        events = document["traceEvents"]
        tracks = {
            event["tid"]: event["args"]["name"]
            for event in events
            if event["ph"] == "M" and event["name"] == "thread_name" and event["pid"] == _DEVICE
        }
        found = [_slice(event, tracks) for event in events if event["ph"] == "X" and event["pid"] == _DEVICE]
        return found, dict(document["otherData"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ToolError(f"{path}: not a trace file of npu run --trace: {type(error).__name__}: {error}") from None


def _slice(event: dict[str, Any], tracks: dict[int, str]) -> Slice:
    start, duration = round(event["ts"] * _PS_PER_US), round(event["dur"] * _PS_PER_US)
    args = event["args"]
    track = tracks[event["tid"]]
    if track.split()[0] not in ENGINES:
        raise ValueError(f"a task on track {track!r}")
    task_id, job_id, amount = int(args["task_id"]), int(args["job"]), int(args["amount"])
    return Slice(track, str(args["task"]), str(event["name"]), start, start + duration, task_id, job_id, amount)


def _us(ps: int) -> float:
    return ps / _PS_PER_US


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _complete(s: Slice, pid: int, tid: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": s.layer,
        "cat": s.track.split()[0],
        "pid": pid,
        "tid": tid,
        "ts": _us(s.start_ps),
        "dur": _us(s.end_ps - s.start_ps),
        "args": {"task": s.name, "task_id": s.task_id, "job": s.job_id, "amount": s.amount},
    }


def _bandwidth(slices: Sequence[Slice], ddr_bytes: Mapping[int, int]) -> list[dict[str, Any]]:
    """Return the counter of DDR traffic: each transfer counts evenly over its duration, all ports together."""
    changes: dict[int, float] = {}
    for s in slices:
        moved = ddr_bytes.get(s.task_id, 0)
        if s.engine == "DMA" and moved and s.end_ps > s.start_ps:
            rate = moved * 1000 / (s.end_ps - s.start_ps)  # bytes per ps are 1000 GB/s
            changes[s.start_ps] = changes.get(s.start_ps, 0.0) + rate
            changes[s.end_ps] = changes.get(s.end_ps, 0.0) - rate
    level, found = 0.0, []
    for time_ps in sorted(changes):
        level += changes[time_ps]
        args = {"GB/s": round(abs(level), 3)}
        found.append({"ph": "C", "name": "DDR bandwidth", "pid": _DEVICE, "tid": 0, "ts": _us(time_ps), "args": args})
    return found
