"""`npu check -- PROG ARGS`: run a program, C or Python, and report what order it takes for granted (libnpu/checker)."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from libnpu.checker.witness import WITNESSES
from libnpu.tools.console import ToolError, UsageError, json_text
from libnpu.tools.files import check_targets, write_file
from libnpu.tools.replays import SCHEDULE, watch
from libnpu.tools.source import count

if TYPE_CHECKING:
    from libnpu.checker.suppressions import Suppressions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.epilog = (
        "Exit status: 1 for findings; 2 when there are none and the check could not be done as asked (an option that cannot be meant, a program "
        "that cannot be run, opens no device or does not end by itself, a schedule that holds what never was); else the program's."
    )
    parser.add_argument("--json", action="store_true", help="as JSON, on stdout")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of stderr")
    parser.add_argument("--sarif", metavar="FILE", help="write them as SARIF, too")
    parser.add_argument(
        "--suppress", metavar="FILE", help="leave out what is in FILE, rows of a rule and a place (patterns)"
    )
    parser.add_argument("--stop-on-first", action="store_true", help="end the program at the first certain finding")
    parser.add_argument("--lint", action="store_true", help="report what costs time, too")
    parser.add_argument("--leaks", action="store_true", help="report what is never given back, too")
    parser.add_argument("--schedule", metavar="NAME", help="run it under a schedule, as NPU_SCHEDULE")
    parser.add_argument(
        "--witnesses",
        type=count,
        metavar="N",
        default=WITNESSES,
        help=f"run it again for so many findings to show what the order of two accesses changes (default {WITNESSES})",
    )
    parser.add_argument(
        "--guard", action="store_true", help="see loads and stores of a C program in pinned and mapped memory in use"
    )
    parser.add_argument("--rules", action="store_true", help="show the rules instead")
    parser.add_argument("program", metavar="PROG", nargs="?", help="what to run, after --")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="its arguments")


def run(options: argparse.Namespace) -> int:
    """Run the program. Return 1 when something was found, else 2 when what its schedule names never was, else the program's exit status,
    128 + N when signal N ended it. Raises UsageError, and NotDone when the program was not checked.
    """
    from libnpu.checker.report import text
    from libnpu.checker.rules import RULES
    from libnpu.checker.sarif import sarif
    from libnpu.runtime.hold import missing

    if options.rules:
        width = max(map(len, RULES))
        print(
            json_text(RULES) if options.json else "\n".join(f"{rule:{width}}  {what}" for rule, what in RULES.items())
        )
        return 0
    if options.program is None:
        raise UsageError("no program to check; npu check -- PROG ARGS")
    suppressions = _checked(options)
    wanted = {"lint": options.lint, "leaks": options.leaks, "guard": options.guard}
    stops = {"stop_unless": suppressions.rows} if options.stop_on_first else {}
    done = watch(
        [options.program, *options.arguments],
        options=wanted | stops,
        schedule=options.schedule,
        witnesses=0 if options.stop_on_first else options.witnesses,
        is_known=suppressions.covers,
    )
    found = [record for record in done.found if not suppressions.covers(record)]
    left_out = f", {len(done.found) - len(found)} suppressed" if len(found) < len(done.found) else ""
    unmeant = [*filter(None, (missing(*each) for each in done.enqueued.items()))]
    for line in (*done.not_checked, *unmeant):
        print(f"npu check: {line}", file=sys.stderr)
    summary = f"npu check: {len(found)} finding{'s'[: len(found) != 1]}{left_out}\n"
    if options.sarif:
        write_file(options.sarif, json_text(sarif(found)).encode())
    report = json_text(found) if options.json else "\n".join([part for part in (text(found), summary) if part])
    if options.output:
        write_file(options.output, report.encode())
    else:
        print(report, end="", file=sys.stdout if options.json else sys.stderr)
    return 1 if found else 2 if unmeant else done.status


def _checked(options: argparse.Namespace) -> Suppressions:
    """Return what is suppressed. Raises UsageError for a file or a schedule that cannot be meant."""
    from libnpu.errors import NpuError
    from libnpu.runtime.schedule import schedule_of

    try:
        check_targets({"--output": options.output, "--sarif": options.sarif}, {"--suppress": options.suppress})
        schedule_of(options.schedule if options.schedule is not None else os.environ.get(SCHEDULE) or None)
    except (ToolError, NpuError) as error:
        raise UsageError(error.message if isinstance(error, NpuError) else str(error)) from None
    return _suppressions(options.suppress)


def _suppressions(path: str | None) -> Suppressions:
    """Read a file of suppressions, none for None."""
    from libnpu.checker.suppressions import Suppressions

    try:
        return Suppressions.parse(Path(path).read_text(encoding="utf-8") if path else "")
    except (OSError, ValueError) as error:
        raise UsageError(f"--suppress {path}: {error}") from None
