"""The trace files of `npu run --trace`: one track per engine unit, the core and the host. The format is libnpu.trace's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from libnpu.tools.console import ToolError
from libnpu.tools.files import INVALID, what_is_wrong, write_file
from libnpu.trace import chrome
from libnpu.trace.slices import ENGINES, JOBS, RETIRED, Instant, Slice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Trace(NamedTuple):
    """What `read_trace` finds: the device's tasks, the summary, and when barriers retired."""

    slices: list[Slice]
    summary: dict[str, Any]
    retired_ps: list[int]


def write_trace(
    path: str,
    slices: Sequence[Slice],
    instants: Sequence[Instant] = (),
    jobs: Sequence[Slice] = (),
    host: Sequence[Slice] = (),
    ddr_bytes: Mapping[int, int] | None = None,
    summary: Mapping[str, Any] | None = None,
) -> None:
    """Write a trace file.

    `host` are slices of the host's track. `ddr_bytes` are the bytes that each DMA task moves to or from DDR, by task_id:
    the counter track. `summary` goes into the file's otherData.
    """
    events = [
        chrome.process(chrome.DEVICE, "NPU"),
        chrome.process(chrome.HOST, "host"),
        chrome.track(chrome.HOST, 1, "host"),
        *(chrome.task(s, chrome.HOST, 1) for s in host),
        *chrome.device_events(slices, instants, jobs),
        *_bandwidth(slices, ddr_bytes or {}),
    ]
    write_file(path, chrome.document(events, summary or {}))


def read_trace(path: str) -> Trace:
    """Return what a file holds that `write_trace` wrote. Raises ToolError for any other file."""
    try:
        document = json.loads(Path(path).read_bytes())
        events = document["traceEvents"]
        tracks = {
            event["tid"]: event["args"]["name"]
            for event in events
            if event["ph"] == "M" and event["name"] == "thread_name" and event["pid"] == chrome.DEVICE
        }
        found = [
            _slice(event, tracks)
            for event in events
            if event["ph"] == "X" and event["pid"] == chrome.DEVICE and tracks[event["tid"]] != JOBS
        ]
        retired_ps = [
            round(event["ts"] * chrome.PS_PER_US)
            for event in events
            if event["ph"] == "i" and event["pid"] == chrome.DEVICE and event["name"].startswith(RETIRED)
        ]
        return Trace(found, dict(document["otherData"]), retired_ps)
    except INVALID as error:
        raise ToolError(f"{path}: not a trace file of npu run --trace: {what_is_wrong(error)}") from None


def _slice(event: dict[str, Any], tracks: dict[int, str]) -> Slice:
    start, duration = round(event["ts"] * chrome.PS_PER_US), round(event["dur"] * chrome.PS_PER_US)
    args = event["args"]
    track = tracks[event["tid"]]
    if track.split()[0] not in ENGINES:
        raise ValueError(f"a task on track {track!r}")
    task_id, job_id, amount = int(args["task_id"]), int(args["job"]), int(args["amount"])
    return Slice(track, str(args["task"]), str(event["name"]), start, start + duration, task_id, job_id, amount)


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
        found.append(
            {
                "ph": "C",
                "name": "DDR bandwidth",
                "pid": chrome.DEVICE,
                "tid": 0,
                "ts": chrome.microseconds(time_ps),
                "args": args,
            }
        )
    return found
