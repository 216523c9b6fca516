"""`npu museum`: programs with one bug of synchronisation each, what they print, and what `npu check` says of them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from libnpu.checker.witness import WITNESSES
from libnpu.tools.console import ToolError, print_json
from libnpu.tools.exhibits import exhibit, exhibits
from libnpu.tools.replays import watched

if TYPE_CHECKING:
    import argparse

    from libnpu.tools.exhibits import Exhibit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    commands = parser.add_subparsers(dest="what", metavar="list|show|run", required=True)
    listing = commands.add_parser("list", help="show all programs", description="Show all programs.")
    listing.add_argument("--json", action="store_true", help="as JSON")
    showing = commands.add_parser("show", help="print a program", description="Print a program.")
    running = commands.add_parser("run", help="run and check a program", description="Run and check a program.")
    for command in (showing, running):
        command.add_argument("name", metavar="NAME", help="of a program, as list has it")
    running.add_argument("--fixed", action="store_true", help="the variant without the bug")


def run(options: argparse.Namespace) -> int:
    """Do it. Running returns 1 when what is printed, or reported, is not what the program's head says."""
    if options.what == "list":
        _list(as_json=options.json)
        return 0
    chosen = exhibit(options.name)
    if options.what == "show":
        print(chosen.source, end="")
        return 0
    return _run(chosen, options.fixed)


def _list(*, as_json: bool) -> None:
    found = exhibits().values()
    if as_json:
        print_json(
            [
                {
                    "name": each.name,
                    "title": each.title,
                    "rules": [rule for rule, _ in each.reports],
                    "catalogue": each.values("catalogue"),
                    "link": each.values("link"),
                }
                for each in found
            ]
        )
        return
    width = max(len(each.name) for each in found)
    for each in found:
        rules = ", ".join(rule for rule, _ in each.reports)
        print(f"{each.name:{width}}  {each.title}{f' ({rules})' if rules else ''}")


def _run(chosen: Exhibit, fixed: bool) -> int:
    """Run a program under its schedule, and then under the checker, and show both."""
    from libnpu.checker.report import text

    fixed = fixed or not chosen.reports
    schedule = (chosen.values("schedule") or ["timed"])[0]
    right = chosen.value("right")
    with tempfile.TemporaryDirectory() as folder:
        command = chosen.command(Path(folder), *(["fixed"] if fixed else []))
        plain = subprocess.run(
            command, env=os.environ | {"NPU_SCHEDULE": schedule}, stdout=subprocess.PIPE, text=True, check=False
        )
        printed = plain.stdout.strip()
        print(f"schedule {schedule}: it prints {printed!r}; right is {right!r}", flush=True)
        if plain.returncode:
            raise ToolError(f"{chosen.name} ended with status {plain.returncode}")
        _, records = watched(command, stdout=subprocess.DEVNULL, witnesses=WITNESSES)
    print(f"npu check: {len(records)} finding{'s'[: len(records) != 1]}\n{text(records)}", end="")
    rules = sorted(record["rule"] for record in records)
    expected = [] if fixed else sorted(rule for rule, _ in chosen.reports)
    return int(rules != expected or (printed == right) != fixed)
