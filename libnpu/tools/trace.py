"""`npu trace -- PROG ARGS`: run a program, C or Python, and show what it asks of the driver, as strace does (ioctl_trace.py)."""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path

from libnpu.ioctl_trace import COUNTS, LINES, MMIO


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "-c", "--counts", action="store_true", help="print time, calls and errors of each kind of call at the end"
    )
    parser.add_argument(
        "-m", "--mmio", action="store_true", help="show the registers that the driver reads and writes, too"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of stderr")
    parser.add_argument("program", metavar="PROG", help="what to run, after --")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="its arguments")


def run(options: argparse.Namespace) -> int:
    """Run the program and return its exit status, 128 + N when signal N ended it."""
    environment = os.environ | {"NPU_TRACE": ",".join(_words(options))}
    if options.output is not None:
        path = Path(options.output).absolute()
        path.write_bytes(b"")
        environment["NPU_TRACE_FILE"] = str(path)
    status = subprocess.run([options.program, *options.arguments], env=environment, check=False).returncode
    return status if status >= 0 else 128 - status


def _words(options: argparse.Namespace) -> list[str]:
    """Return the words of NPU_TRACE: the device's trace stays as it is."""
    device = ["1"] if "1" in os.environ.get("NPU_TRACE", "").split(",") else []
    return [*device, COUNTS if options.counts else LINES, *([MMIO] if options.mmio else [])]
