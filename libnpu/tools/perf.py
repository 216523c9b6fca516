"""`npu perf stat -- PROG ARGS`: run a program, C or Python, and show what the PMU counted meanwhile, as perf stat does (counter_log.py)."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from npu_abi import enum

from libnpu.ioctl_trace import COUNTERS
from libnpu.tools.console import PS_PER_S, ToolError, json_text
from libnpu.tools.files import check_targets, write_file

EVENTS = [member.name.removeprefix("NPU_PMU_").lower().replace("_", "-") for member in sorted(enum("npu_pmu"))][:-1]
DEFAULT = (
    "cycles", "core-busy", "dma-busy", "dpu-busy", "shave-busy", "mem-pending", "mem-stall", "barrier-wait", "dpu-macs", "shave-insns",
    "dma-ddr-read", "dma-ddr-write", "tasks", "doorbells", "irqs",
)  # fmt: skip
ALIASES = {"aie-pmu-mem-stall-cycles": "mem-stall", "r1000": "mem-stall"}  # AIE's name and number of it
CYCLES = ("cycles", "busy", "wait", "pending", "stall")
BYTES = ("read", "write", "moved", "code-load")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    shown = actions.add_parser("list", help="show the names of events")
    stat = actions.add_parser("stat", help="run a program and count")
    stat.add_argument(
        "-e",
        "--event",
        type=events,
        metavar="LIST",
        default=events(",".join(DEFAULT)),
        help="events, with commas: counters of enum npu_pmu, such as dma-mem-stall; mem-stall is that of each engine",
    )
    stat.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of stderr")
    for action in (shown, stat):
        action.add_argument("--json", action="store_true", help="as JSON")
    stat.add_argument("program", metavar="PROG", help="what to run, after --")
    stat.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="its arguments")


def events(text: str) -> list[str]:
    """Return the events of a list, as EVENTS has them. A name without its engine is that of each engine."""
    found = []
    for word in text.split(","):
        name = word.lower().replace("_", "-").removeprefix("npu-pmu-")
        name = ALIASES.get(name, name)
        known = [event for event in EVENTS if event == name] or [e for e in EVENTS if name and e.endswith(f"-{name}")]
        if not known:
            raise argparse.ArgumentTypeError(f"no event {word!r}; npu perf list shows them")
        found += known
    return list(dict.fromkeys(found))


def run(options: argparse.Namespace) -> int:
    """Run the program, write what was counted, and return the program's exit status, 128 + N when signal N ended it."""
    if options.action == "list":
        print(json_text(EVENTS) if options.json else "\n".join(EVENTS), end="" if options.json else "\n")
        return 0
    check_targets({"--output": options.output}, {})
    command = [options.program, *options.arguments]
    status, devices = count(command)
    if not devices:
        raise ToolError(
            f"{options.program} ended with status {status} and counted nothing: it opened no device, or did not end by itself"
        )
    report = total(command, devices, options.event)
    text = json_text(report) if options.json else table(report)
    if options.output:
        write_file(options.output, text.encode())
    else:
        print(text, end="", file=sys.stderr)
    return status


def count(command: list[str]) -> tuple[int, list[dict[str, Any]]]:
    """Run a program and return its exit status, and what each device counted that it, or a process that it started, opened."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counters"
        words = ["1"] if "1" in os.environ.get("NPU_TRACE", "").split(",") else []
        environment = os.environ | {"NPU_TRACE": ",".join([*words, COUNTERS]), "NPU_TRACE_FILE": str(path)}
        status = subprocess.run(command, env=environment, check=False).returncode
        lines = path.read_text().splitlines() if path.exists() else []
    return status if status >= 0 else 128 - status, [json.loads(line) for line in lines]


def total(command: list[str], devices: list[dict[str, Any]], wanted: list[str]) -> dict[str, Any]:
    """Return the sums over devices, with the cycles and the time that shares and rates go by."""
    sums: Counter[str] = Counter()
    for device in devices:
        sums.update({name.lower().replace("_", "-"): value for name, value in device["counters"].items()})
    return {
        "command": shlex.join(command),
        "devices": len(devices),
        "virtual_ps": sum(device["ps"] for device in devices),
        "cycles": sums["cycles"],
        "events": {name: sums[name] for name in wanted},
    }


def table(report: dict[str, Any]) -> str:
    """Return a report as perf stat prints one."""
    several = f", {report['devices']} devices" if report["devices"] > 1 else ""
    lines = ["", f" Performance counter stats for {report['command']!r}{several}:", ""]
    for name, value in report["events"].items():
        remark = _remark(name, value, report)
        lines.append(f"{value:>22,}      {name:<22}{f'# {remark}' if remark else ''}".rstrip())
    return "\n".join([*lines, "", f"{report['virtual_ps'] / PS_PER_S:>22.9f} seconds on the device's clock", "", ""])


def _remark(name: str, value: int, report: dict[str, Any]) -> str:
    if name == "cycles" or not report["cycles"] or not report["virtual_ps"]:
        return ""
    if name.startswith("energy-"):
        return f"{value / report['virtual_ps'] / 1000:.6f} W"
    if name.endswith(CYCLES):
        return f"{value / report['cycles']:.2%} of cycles"
    return f"{value * 1000 / report['virtual_ps']:.3f} GB/s" if name.endswith(BYTES) else ""
