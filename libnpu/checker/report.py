"""Findings as records that travel (JSON), and as text for people."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from libnpu.checker.symbols import place_of
from libnpu.checker.witness import is_benign, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from libnpu.checker.findings import Finding
    from libnpu.checker.steps import Act

PS_PER_US = 10**6


def records(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return findings as JSON has them: sites as "file:line", times in ps, byte ranges in their allocation."""
    return [
        {
            "rule": found.rule,
            "certain": found.certain,
            "count": found.count,
            "message": found.message,
            "fix": found.fix,
            "acts": [_act(act) for act in found.acts],
            "bytes": [found.start, found.end] if found.made is not None else None,
            "allocation": None
            if found.made is None
            else {"number": found.memory, "bytes": found.size, "made": _act(found.made)},
            "freed": None if found.freed is None else _act(found.freed),
            "evidence": found.evidence,
            "witness": {"problem": found.no_witness} if found.no_witness else None,
        }
        for found in findings
    ]


def _act(act: Act) -> dict[str, Any]:
    site, captured = (place_of(at) if isinstance(at, int) else at for at in (act.site, act.captured))
    record = {"what": act.what, "stream": act.stream or None, "site": site, "time_ps": act.time_ps}
    more = {"job": act.job, "is_function": act.is_function, "captured": captured}
    return record | {key: value for key, value in more.items() if value}


def text(found: Sequence[dict[str, Any]]) -> str:
    """Return records of `records` for people, "" for none."""
    blocks = []
    for number, record in enumerate(found, 1):
        level = "BENIGN" if is_benign(record) else "ERROR" if record["certain"] else "WARNING"
        times = f", {record['count']} times" if record["count"] > 1 else ""
        lines = [f"{number}. {level} {record['rule']}: {record['message']}{times}"]
        lines += [f"     {_line(act)}" for act in record["acts"]]
        if record["bytes"] is not None:
            start, end = record["bytes"]
            made = record["allocation"]
            lines.append(f"     bytes {start} to {end} of {made['bytes']}, {_line(made['made'])}")
        if record["freed"] is not None and record["freed"] not in record["acts"]:
            lines.append(f"     given back: {_line(record['freed'])}")
        lines += [f"   evidence: {record['evidence']}", f"   fix: {record['fix']}"]
        if witness := text_of(record):
            lines.append(f"   witness: {witness}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n" if blocks else ""


def _line(act: dict[str, Any]) -> str:
    where = f" in {act['stream']}" if act["stream"] else ""
    captured = f", captured at {_short(act['captured'])}" if "captured" in act else ""
    return f"{act['what']}{where}, at {_short(act['site'])} ({act['time_ps'] / PS_PER_US:.3f} us){captured}"


def _short(site: str) -> str:
    return (site or "an unknown place").removeprefix(os.getcwd() + os.sep)
