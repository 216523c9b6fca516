"""What a trace file of a program (Device.export_trace) says about its launches and waits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from libnpu.tools.console import ToolError
from libnpu.trace import chrome

LAUNCHES = ("kernel", "model", "cmdlist", "graph")  # categories of operations, from enum npu_op_kind


@dataclass(frozen=True, slots=True)
class ProgramTrace:
    """Counts, and times in ps. The span is from the first call, or operation, to the last end."""

    launches: int
    syncs: int  # calls that were blocked, or ask to be
    span_ps: int
    running_ps: int  # in which an operation of any stream ran
    launch_ps: int  # of all launches, added up
    enqueue_ps: int  # of the host in the calls that launched, added up
    blocked_ps: int  # of the host


def read_program(path: str) -> ProgramTrace:
    """Return what is in the file at `path`. Raises ToolError for any other file, and for one without launches."""
    try:
        events = [e for e in json.loads(Path(path).read_bytes())["traceEvents"] if e["ph"] == "X"]
        calls = [e for e in events if e["pid"] == chrome.HOST and e["cat"] == "call"]
        operations = [e for e in events if e["pid"] == chrome.STREAMS]
        launched = [e for e in operations if e["cat"] in LAUNCHES]
        spans = sorted(map(_span, operations))
        blocked = [int(e["args"]["blocked_ps"]) for e in calls]
        enqueue = sum(int(e["args"]["enqueued_ps"]) - int(e["args"]["enqueue_ps"]) for e in launched)
        ends = [_span(e) for e in (*calls, *operations)]
        syncs = sum(ps > 0 or "synchronize" in e["name"] for e, ps in zip(calls, blocked, strict=True))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ToolError(f"{path}: not a trace file of Device.export_trace: {type(error).__name__}: {error}") from None
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
    )


def _span(event: dict[str, float]) -> tuple[int, int]:
    """Return start and end in ps."""
    start = round(event["ts"] * chrome.PS_PER_US)
    return start, start + round(event["dur"] * chrome.PS_PER_US)
