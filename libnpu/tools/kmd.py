"""`npu kmd params`, `npu kmd reload`: the kernel module's parameters, of npud's device (NPU_DEVICE=unix:PATH) or of one in this process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from libnpu.syscalls import load_module, module_params, open_module
from libnpu.tools.console import ToolError, print_json

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("action", choices=("params", "reload"), help="show the parameters, or load the module anew")
    parser.add_argument(
        "--param",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="of reload: others are as by default; more than once",
    )
    parser.add_argument("--profile", metavar="NAME", default="npu-37xx", help="of a device in this process (npu-37xx)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Do what is asked, and print the parameters in force."""
    if options.param and options.action != "reload":
        raise ToolError("--param is of npu kmd reload")
    machine = open_module(os.environ.get("NPU_DEVICE", ""), options.profile)
    if options.action == "reload":
        load_module(machine, " ".join(options.param))
    text = module_params(machine)
    if options.json:
        print_json(dict(line.split("=", 1) for line in text.splitlines()))
    else:
        print(text, end="")
    return 0
