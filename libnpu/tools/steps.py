"""A trace step by step, as text: what each unit has done by then, what runs, and how far the whole has come.

A step is the next moment at which a task starts or ends; step 0 is the start. Barriers are columns of `:` where they retire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from libnpu.tools import timeline
from libnpu.tools.console import ToolError, format_time
from libnpu.trace.slices import units_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libnpu.trace.slices import Slice

WIDTH = 72  # columns of the whole span: chosen
DONE, RUNNING, AHEAD, BARRIER, IDLE = "=", "#", "-", ":", " "


def step_of(slices: Sequence[Slice], retired_ps: Sequence[int], number: int) -> dict[str, Any]:
    """Return where a run is at step `number`, times from its first task on. Raises ToolError beyond the last step."""
    start_ps, end_ps = timeline.span(slices)
    moments = sorted({time_ps for s in slices for time_ps in (s.start_ps, s.end_ps)})
    if number >= len(moments):
        raise ToolError(f"--step {number}: the trace has steps 0 to {len(moments) - 1}")
    now_ps = moments[number]
    serial_ps = sum(s.end_ps - s.start_ps for s in slices)
    return {
        "step": number,
        "steps": len(moments) - 1,
        "time_ps": now_ps - start_ps,
        "serial_ps": serial_ps,
        "pipelined_ps": end_ps - start_ps,
        "speed_up": round(serial_ps / (end_ps - start_ps), 6) if end_ps > start_ps else 1.0,
        "done": sum(s.end_ps <= now_ps for s in slices),
        "tasks": len(slices),
        "running": [
            {"unit": s.track, "task": s.name, "layer": s.layer} for s in slices if s.start_ps <= now_ps < s.end_ps
        ],
        "barriers_retired": sum(time_ps <= now_ps for time_ps in retired_ps),
        "barriers": len(retired_ps),
    }


def step_text(slices: Sequence[Slice], retired_ps: Sequence[int], number: int) -> str:
    """Return the chart of all units at step `number`, and what `step_of` says."""
    found = step_of(slices, retired_ps, number)
    start_ps, end_ps = timeline.span(slices)
    span_ps = max(1, end_ps - start_ps)

    def edge(time_ps: int) -> int:
        """Return the column that begins at a moment, WIDTH at the end."""
        return (time_ps - start_ps) * WIDTH // span_ps

    def column(time_ps: int) -> int:
        return min(WIDTH - 1, edge(time_ps))

    now_ps = start_ps + found["time_ps"]
    lines = [
        f"step {number} of {found['steps']}: t = {format_time(found['time_ps'])} of {format_time(found['pipelined_ps'])}",
        f"{DONE} done   {RUNNING} running   {AHEAD} to come   {BARRIER} a barrier retires   ^ now",
    ]
    tracks = units_of(slices)
    width = max(map(len, tracks))
    for track in tracks:
        row = [IDLE] * WIDTH
        for time_ps in retired_ps:
            if start_ps <= time_ps <= end_ps:
                row[column(time_ps)] = BARRIER
        for s in (s for s in slices if s.track == track):
            mark = DONE if s.end_ps <= now_ps else AHEAD if s.start_ps > now_ps else RUNNING
            for place in range(column(s.start_ps), max(column(s.start_ps) + 1, edge(s.end_ps))):
                row[place] = mark
        lines.append(f"{track:{width}} |{''.join(row)}|")
    lines.append(f"{'':{width}}  {'':{column(now_ps)}}^")
    lines += [f"running on {one['unit']}: {one['task']} ({one['layer']})" for one in found["running"]]
    lines.append(
        f"{found['done']} of {found['tasks']} tasks done, {found['barriers_retired']} of {found['barriers']} barriers retired"
    )
    lines.append(
        f"serial {format_time(found['serial_ps'])}, pipelined {format_time(found['pipelined_ps'])}: {found['speed_up']:.2f} times as fast"
    )
    return "\n".join(lines)
