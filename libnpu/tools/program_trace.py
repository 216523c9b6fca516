"""What a trace file of a program (Device.export_trace) says about its launches and waits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libnpu.tools.console import ToolError
from libnpu.tools.files import INVALID, what_is_wrong
from libnpu.trace import chrome

LAUNCHES = ("kernel", "model", "cmdlist", "graph")  # categories of operations, from enum npu_op_kind
WORK = (*LAUNCHES, "memcpy", "memset", "host_function")  # the others only order work
COMPUTE = ("DPU", "SHAVE")  # categories of engines' lanes


@dataclass(frozen=True, slots=True)
class ProgramTrace:
    """Counts, and times in ps. The span is from the first call, or operation, to the last end."""

    launches: int
    syncs: int  # calls that were blocked, or ask to be
    span_ps: int
    running_ps: int  # in which an operation of any stream ran
    launch_ps: int  # of all launches, added up
    enqueue_ps: int  # of the host in the calls that launched, added up
    blocked_ps: int  # of the host's threads, added up
    blocked_on_copies_ps: int  # the part of it in which they could have launched: see `_on_copies_ps`


def read_program(path: str) -> ProgramTrace:
    """Return what is in the file at `path`. Raises ToolError for any other file, and for one without launches."""
    try:
        events = [e for e in json.loads(Path(path).read_bytes())["traceEvents"] if e["ph"] == "X"]
        on_copies_ps = _on_copies_ps(events)
        calls = [e for e in events if e["pid"] == chrome.HOST and e["cat"] == "call"]
        operations = [e for e in events if e["pid"] == chrome.STREAMS]
        launched = [e for e in operations if e["cat"] in LAUNCHES]
        spans = sorted(map(_span, operations))
        blocked = [int(e["args"]["blocked_ps"]) for e in calls]
        enqueue = sum(int(e["args"]["enqueued_ps"]) - int(e["args"]["enqueue_ps"]) for e in launched)
        ends = [_span(e) for e in (*calls, *operations)]
        syncs = sum(ps > 0 or "synchronize" in e["name"] for e, ps in zip(calls, blocked, strict=True))
    except INVALID as error:
        raise ToolError(f"{path}: not a trace file of Device.export_trace: {what_is_wrong(error)}") from None
    if not launched:
        raise ToolError(f"{path}: holds no launch; the profiler notes them between start and stop")
    running = past = 0
    for start, end in spans:
        running += max(0, end - max(start, past))
        past = max(past, end)
    return ProgramTrace(
        launches=len(launched),
        syncs=syncs,
        span_ps=max(end for _, end in ends) - min(start for start, _ in ends),
        running_ps=running,
        launch_ps=sum(end - start for start, end in map(_span, launched)),
        enqueue_ps=enqueue,
        blocked_ps=sum(blocked),
        blocked_on_copies_ps=on_copies_ps,
    )


def _on_copies_ps(events: list[dict[str, Any]]) -> int:
    """Return how long threads of the host were blocked while copies of host memory were outstanding, from the call to
    the end, and nothing else was: no other operation, and nothing on a lane of a DPU or SHAVE, whoever launched it. What
    comes behind the call of the last launch does not count: a program has to wait for its results.
    """
    operations = [e for e in events if e["pid"] == chrome.STREAMS]
    last = max((int(e["args"]["enqueue_ps"]) for e in operations if e["cat"] in LAUNCHES), default=0)
    edges: list[tuple[int, int, str]] = []  # time in ps, +1 or -1, of what
    for event in events:
        start, end = _span(event)
        if event["pid"] == chrome.HOST and event["cat"] == "blocked":
            what = "blocked"
        elif event["pid"] == chrome.STREAMS and event["cat"] in WORK:
            start = int(event["args"]["enqueue_ps"])
            what = "copies" if event["cat"] == "memcpy" and "host" in event["name"] else "other"
        elif event["pid"] == chrome.DEVICE and event["cat"] in COMPUTE:
            what = "other"
        else:
            continue
        edges += [(min(start, last), 1, what), (min(end, last), -1, what)]
    found = past = 0
    outstanding = {"blocked": 0, "copies": 0, "other": 0}
    for time, change, what in sorted(edges):
        if outstanding["copies"] and not outstanding["other"]:
            found += (time - past) * outstanding["blocked"]
        outstanding[what] += change
        past = time
    return found


def _span(event: dict[str, Any]) -> tuple[int, int]:
    """Return start and end in ps."""
    start = round(event["ts"] * chrome.PS_PER_US)
    return start, start + round(event["dur"] * chrome.PS_PER_US)
