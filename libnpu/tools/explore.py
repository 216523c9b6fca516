"""`npu explore -- PROG ARGS`: run a program under many schedules and print the results that there are (`libnpu/checker/exploration.py`)."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from libnpu.checker.exploration import explore
from libnpu.runtime.hold import parse
from libnpu.tools.console import NotDone, print_json, progress
from libnpu.tools.replays import FIRST_S, replay, time_limit
from libnpu.tools.source import count, positive

if TYPE_CHECKING:
    from libnpu.checker.exploration import Exploration
    from libnpu.checker.witness import Run

SHOWN = 60  # characters of what is printed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--holds", type=count, metavar="N", default=2, help="operations held back at once (default 2)")
    parser.add_argument("--seeds", type=count, metavar="N", default=8, help="of the schedules seed:N (default 8)")
    parser.add_argument("--runs", type=positive, metavar="N", default=100, help="of the program, at most (default 100)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("program", metavar="PROG", help="what to run, after --")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="its arguments")


def run(options: argparse.Namespace) -> int:
    """Explore it. Return 1 when there is more than one result. Raises NotDone when it cannot be."""
    command, limit_s = [options.program, *options.arguments], FIRST_S

    def replay_once(schedule: str) -> Run:
        nonlocal limit_s
        begun_s = time.monotonic()
        with progress(f"Running under {schedule}"):
            found = replay(command, schedule, limit_s=limit_s)
        limit_s = min(limit_s, time_limit(time.monotonic() - begun_s)) if not found.problem else limit_s
        return found

    found = explore(replay_once, holds=options.holds, seeds=options.seeds, runs=options.runs)
    if all(result.run.problem for result in found.results):
        raise NotDone(f"{options.program} was not explored: {found.results[0].run.problem}")
    if options.json:
        print_json(_json(found))
    else:
        _print(found, options.holds)
    return int(len(found.results) > 1)


def _json(found: Exploration) -> dict[str, Any]:
    return {
        "runs": found.runs,
        "complete": found.is_complete,
        "results": [
            {
                "schedule": result.shortest,
                "schedules": result.schedules,
                "status": result.run.status,
                "printed": result.run.printed,
                "outputs": result.run.record.get("outputs"),
                "problem": result.run.problem or None,
            }
            for result in found.results
        ],
        "operations": found.jobs,
    }


def _print(found: Exploration, holds: int) -> None:
    results, ended = len(found.results), "" if found.is_complete else "; there are more orders"
    print(
        f"npu explore: {results} result{'s'[: results != 1]} in {found.runs} runs, with at most {holds} operations held{ended}"
    )
    first = found.results[0].run
    for number, result in enumerate(found.results, 1):
        more = len(result.schedules) - 1
        others = f" and {more} other schedule{'s'[: more != 1]}" if more else ""
        print(f"{number}. NPU_SCHEDULE={result.shortest}{others}: {_outcome(result.run, first)}")
        kind, _, held = result.shortest.partition(":")
        for item in parse(held) if kind == "hold" else ():
            until = "a wait or query needs it"
            if item.until is not None:
                event = "is enqueued" if item.before else "has ended"
                until = f"{item.until} {event} ({found.jobs.get(item.until, '?')})"
            print(f"     {item.name} ({found.jobs.get(item.name, '?')}) is held until {until}")


def _outcome(run: Run, first: Run) -> str:
    """Say what a run came to; where several lines are printed, the first that differs from those of `first`."""
    if run.problem:
        return run.problem
    lines, others = run.printed.splitlines(), first.printed.splitlines()
    status = f"it ends with status {run.status}" if run.status else ""
    place = next((at for at, (line, other) in enumerate(zip(lines, others, strict=False)) if line != other), 0)
    shown = repr(lines[place][:SHOWN]) if place < len(lines) else "nothing"
    printed = f"it prints {shown}" + (f" in line {place + 1} of {len(lines)}" if len(lines) > 1 else "")
    same = run is not first and (run.status, run.printed) == (first.status, first.printed)
    return " and ".join(part for part in (printed, status, "other bytes come to the host" if same else "") if part)
