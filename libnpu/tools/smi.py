"""`npu smi`: who uses the device and what it did, of npud's device (NPU_DEVICE=unix:PATH) or of a new one in this process.

Utilisation is device time of jobs over virtual time, since boot in the first report and since the report before in later ones; it is
above 100 % when jobs run side by side.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import npu_abi
from npu_abi import C, ffi, name_of

from libnpu.syscalls import Node, Request, open_module
from libnpu.tools.console import ToolError, format_bytes, print_json, print_table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

INTERVAL_S = 1.0  # chosen: as vendors' tools; wall-clock time between reports
COLUMNS = (
    "SSID",
    "process",
    "pid",
    "uid",
    "state",
    "memory",
    "objects",
    "queues",
    "in flight",
    "done",
    "failed",
    "faults",
    "utilisation",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("-l", "--loop", metavar="N", type=int, default=1, help="print N reports, one a second")
    parser.add_argument("--profile", metavar="NAME", default="npu-37xx", help="of a device in this process (npu-37xx)")
    parser.add_argument("--json", action="store_true", help="print JSON, one object a report")


def run(options: argparse.Namespace) -> int:
    """Print the reports."""
    if options.loop < 1:
        raise ToolError(f"-l {options.loop}: 1 or more is needed")
    with open_node(options.profile) as node:
        before: dict[str, Any] | None = None
        for index in range(options.loop):
            if index:
                time.sleep(INTERVAL_S)
            report = _report(node, before)
            if options.json:
                print_json(report)
            else:
                _print(report)
            before = report
    return 0


@contextmanager
def open_node(profile: str) -> Iterator[Node]:
    """Open npud's device at NPU_DEVICE, or a new one of `profile`, for the body."""
    node = Node(open_module(os.environ.get("NPU_DEVICE", ""), profile))
    try:
        yield node
    finally:
        node.close()


def _report(node: Node, before: dict[str, Any] | None) -> dict[str, Any]:
    (device,) = records(node, C.NPU_INFO_DEVICE, "npu_device_info")
    contexts = records(node, C.NPU_INFO_CONTEXTS, "npu_context_info")
    passed_ps = device["now_ps"] - (before["device"]["now_ps"] if before else 0)
    busy_before = {(c["ssid"], c["pid"]): c["busy_ps"] for c in before["contexts"]} if before else {}
    for context in contexts:
        busy_ps = max(0, context["busy_ps"] - busy_before.get((context["ssid"], context["pid"]), 0))
        context["utilisation"] = busy_ps / passed_ps if passed_ps else 0.0
        context["state"] = name_of("npu_context_state", context["state"]).removeprefix("NPU_CONTEXT_").lower()
    return {"profile": node.profile.name, "device": device, "contexts": contexts}


def records(node: Node, kind: int, struct: str) -> list[dict[str, Any]]:
    """Return the records of NPU_IOCTL_GET_INFO of a kind, as their fields."""
    request = Request(C.NPU_IOCTL_GET_INFO, "npu_get_info", "GET_INFO")
    request.arg.kind, request.arg.buffer_ptr = kind, 1
    request.arg.buffer_bytes = npu_abi.sizeof(struct) * C.NPU_NUM_SSIDS
    data = bytearray(node.ioctl(request)[0])
    fields = [name for name, _ in ffi.typeof(f"struct {struct}").fields if not name.startswith("reserved")]
    views = [npu_abi.view(struct, data, at) for at in range(0, len(data), npu_abi.sizeof(struct))]
    return [{name: _plain(getattr(view, name)) for name in fields} for view in views]


def _plain(value: Any) -> Any:
    return value if isinstance(value, int) else ffi.string(value).decode(errors="replace")


def _print(report: dict[str, Any]) -> None:
    device = report["device"]
    used = device["memory_bytes"] - device["memory_free_bytes"]
    rows = [
        ("virtual time", f"{device['now_ps'] / 1e12:.9f} s"),
        ("memory", f"{format_bytes(used)} of {format_bytes(device['memory_bytes'])}"),
        ("jobs", f"{device['jobs_done']} done, {device['jobs_failed']} of them failed"),
        ("MMU faults", str(device["mmu_faults"])),
        ("resets", f"{device['engine_resets']} of the engines, {device['full_resets']} full"),
        ("lost interrupts", str(device["lost_interrupts"])),
        ("module loads", str(device["module_loads"])),
    ]
    print_table(report["profile"], ("what", "value"), rows, left=2)
    print_table("contexts", COLUMNS, [_row(context) for context in report["contexts"]], left=2)


def _row(context: dict[str, Any]) -> tuple[str, ...]:
    keys = ("objects", "queues", "jobs_in_flight", "jobs_done", "jobs_failed", "faults")
    return (
        *(str(context[key]) for key in ("ssid", "name", "pid", "uid", "state")),
        format_bytes(context["memory_bytes"]),
        *(str(context[key]) for key in keys),
        f"{100 * context['utilisation']:.1f} %",
    )
