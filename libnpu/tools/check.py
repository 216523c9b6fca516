"""`npu check -- PROG ARGS`: run a program, C or Python, and report what order it takes for granted (libnpu/checker)."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from libnpu.checker import VARIABLE
from libnpu.tools.console import ToolError, json_text
from libnpu.tools.files import check_targets, write_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="as JSON, on stdout")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of stderr")
    parser.add_argument("--rules", action="store_true", help="show the rules instead")
    parser.add_argument("program", metavar="PROG", nargs="?", help="what to run, after --")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="its arguments")


def run(options: argparse.Namespace) -> int:
    """Run the program. Return 1 when something was found, else the program's exit status, 128 + N when signal N ended it."""
    from libnpu.checker.report import text
    from libnpu.checker.rules import RULES

    if options.rules:
        width = max(map(len, RULES))
        print(
            json_text(RULES) if options.json else "\n".join(f"{rule:{width}}  {what}" for rule, what in RULES.items())
        )
        return 0
    if options.program is None:
        raise ToolError("no program to check; npu check -- PROG ARGS")
    check_targets({"--output": options.output}, {})
    status, found = watched([options.program, *options.arguments])
    summary = f"npu check: {len(found)} finding{'s'[: len(found) != 1]}\n"
    report = json_text(found) if options.json else "\n".join([part for part in (text(found), summary) if part])
    if options.output:
        write_file(options.output, report.encode())
    else:
        print(report, end="", file=sys.stdout if options.json else sys.stderr)
    return 1 if found else status


def watched(command: list[str]) -> tuple[int, list[dict[str, Any]]]:
    """Run a program and return its exit status, and what was found in it and in processes that it started."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "findings"
        status = subprocess.run(command, env=os.environ | {VARIABLE: str(path)}, check=False).returncode
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if not lines:
        raise ToolError(
            f"{command[0]} ended with status {status} and was not checked: it opened no device, or did not end by itself"
        )
    return status if status >= 0 else 128 - status, [record for line in lines for record in json.loads(line)]
