"""Chrome's JSON trace event format, which Perfetto opens: the events, and the file around them.

A process is a group of tracks (`pid`), a thread one track (`tid`). Times in the file are microseconds with six decimals,
so that picoseconds survive. Equal events give equal bytes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from libnpu.trace.slices import CORE, INTERRUPTS, JOBS, units_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from libnpu.trace.slices import Instant, Slice

DEVICE, HOST, STREAMS = 1, 2, 3  # processes of our files
PS_PER_US = 1_000_000
Event = dict[str, Any]


def microseconds(ps: int) -> float:
    """Return `ps` as files have it."""
    return ps / PS_PER_US


def process(pid: int, name: str) -> Event:
    """Name a group of tracks."""
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}


def track(pid: int, tid: int, name: str) -> Event:
    """Name a track."""
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def complete(
    pid: int, tid: int, name: str, category: str, start_ps: int, end_ps: int, args: Mapping[str, Any]
) -> Event:
    """Something that lasts."""
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": pid,
        "tid": tid,
        "ts": microseconds(start_ps),
        "dur": microseconds(end_ps - start_ps),
        "args": dict(args),
    }


def instant(pid: int, tid: int, name: str, time_ps: int) -> Event:
    """Something without duration."""
    return {"ph": "i", "s": "t", "name": name, "pid": pid, "tid": tid, "ts": microseconds(time_ps)}


def task(s: Slice, pid: int, tid: int) -> Event:
    """A task of a blob or a kernel, on a unit or on the host."""
    args = {"task": s.name, "task_id": s.task_id, "job": s.job_id, "amount": s.amount}
    return complete(pid, tid, s.layer, s.track.split()[0], s.start_ps, s.end_ps, args)


def device_events(slices: Sequence[Slice], instants: Sequence[Instant], jobs: Sequence[Slice] = ()) -> list[Event]:
    """Return the device's tracks: the management core, one per unit that did something, jobs, interrupts."""
    tids = {name: tid for tid, name in enumerate((CORE, *units_of(slices), JOBS, INTERRUPTS), 1)}
    return [
        *(track(DEVICE, tid, name) for name, tid in tids.items()),
        *(task(s, DEVICE, tids[s.track]) for s in (*slices, *jobs)),
        *(instant(DEVICE, tids[i.track], i.name, i.time_ps) for i in instants),
    ]


def document(events: Sequence[Event], other: Mapping[str, Any]) -> bytes:
    """Return the file. `other` goes into its otherData."""
    content = {"displayTimeUnit": "ns", "otherData": dict(other), "traceEvents": list(events)}
    return (json.dumps(content, separators=(",", ":")) + "\n").encode()
