"""`npu dump`: what driver and firmware know, as text, of npud's device (NPU_DEVICE=unix:PATH) or of a new one in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_abi import C

from libnpu.syscalls import Request
from libnpu.tools.smi import open_node

if TYPE_CHECKING:
    import argparse


ROOM = 1 << 20  # chosen: far above every dump


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--profile", metavar="NAME", default="npu-37xx", help="of a device in this process (npu-37xx)")


def run(options: argparse.Namespace) -> int:
    """Print the dump."""
    request = Request(C.NPU_IOCTL_STATE_DUMP, "npu_state_dump", "STATE_DUMP")
    request.arg.buffer_ptr, request.arg.buffer_bytes = 1, ROOM
    with open_node(options.profile) as node:
        print(bytes(node.ioctl(request)[0]).decode(), end="")
    return 0
