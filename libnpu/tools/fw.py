"""`npu fw version`, `npu fw set-version X.Y.Z`, `npu fw qos`: the firmware image that is installed, one that is of another release, and the
priorities on the network on chip that the firmware of npud's device (NPU_DEVICE=unix:PATH), or of a new one in this process, sets.

What a firmware can do goes by the release in its header (enum npu_fw_since of npu_fw.h): an image of an older one lacks what came later.
"""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_abi import C, offsetof, view

from libnpu.syscalls import installed_firmware, load_module, module_params, open_module
from libnpu.tools.console import ToolError, print_json, print_table
from libnpu.tools.files import check_targets, write_file
from libnpu.tools.memory_loads import parse_priority

if TYPE_CHECKING:
    import argparse

INTERFACES = {"boot": C.NPU_FW_API_BOOT, "job": C.NPU_FW_API_JSM}
VERSION_BYTES = 128  # of the text for people in struct npu_fw_header
CAPABILITIES = {"coherent_dma": C.NPU_FW_COHERENT_DMA, "noc_priority": C.NPU_FW_NOC_PRIORITY}
OWN = {  # options, by the action that they are of, and how they are named
    "set-version": (("release", "output"), "a release and --output are"),
    "qos": (("client", "prio", "profile"), "--client, --prio and --profile are"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "action",
        choices=("version", "set-version", "qos"),
        help="show an image, make one of a release, or show and set priorities of the network on chip",
    )
    parser.add_argument("release", nargs="?", metavar="X.Y.Z", help="of set-version")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="of set-version: the image to write (npu_fw-X.Y.Z.bin); npud loads it"
    )
    parser.add_argument("--client", metavar="NAME", help="of qos: of the memory system, or npu, the device itself")
    parser.add_argument(
        "--prio", type=parse_priority, metavar="N", help="of qos: 0 to 7, a higher one goes first at every port"
    )
    parser.add_argument("--profile", metavar="NAME", help="of qos: of a device in this process (npu-37xx)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Show the installed image; write one of another release, and have npud (NPU_DEVICE=unix:PATH) load its module anew with it; or show priorities."""
    for action, (names, words) in OWN.items():
        if action != options.action and any(getattr(options, name) is not None for name in names):
            raise ToolError(f"{words} of npu fw {action}")
    if options.action == "qos":
        return _qos(options)
    if options.action == "version":
        said = describe(installed_firmware())
        text = "\n".join(f"{name}: {value}" for name, value in said.items())
    else:
        if not options.release:
            raise ToolError("npu fw set-version needs a release X.Y.Z")
        image = of_release(installed_firmware(), options.release)
        text = _install(options.output or f"npu_fw-{options.release}.bin", image)
        said = {"module_param": text, **describe(image)}
    if options.json:
        print_json(said)
    else:
        print(text)
    return 0


def _qos(options: argparse.Namespace) -> int:
    """Have the firmware set the priority of a client, if one is named, and print those of all."""
    from libnpu.runtime import Device
    from libnpu.tools.smi import open_node

    if (options.client is None) != (options.prio is None):
        raise ToolError("npu fw qos sets a priority with --client NAME and --prio N")
    with open_node(options.profile or "npu-37xx") as node:
        device = Device(node, compute=True)
        if options.client is not None:
            device.set_noc_priority(options.client, options.prio)
        found = device.noc_priorities()
    if options.json:
        print_json({"profile": node.profile.name, "priorities": found})
    else:
        rows = [(name, str(priority)) for name, priority in found.items()]
        print_table("network on chip", ("client", "priority"), rows)
    return 0


def _install(path: str, image: bytes) -> str:
    """Write an image, have npud load its module with it, and return the module parameter that names it."""
    param = f"firmware={Path(path).absolute()}"
    if any(character.isspace() for character in param):
        raise ToolError(f"{path}: a module parameter has no spaces")
    check_targets({"--output": path}, {})
    write_file(path, image)
    if device := os.environ.get("NPU_DEVICE", ""):
        machine = open_module(device, "")
        others = [line for line in module_params(machine).splitlines() if not line.startswith("firmware=")]
        load_module(machine, " ".join([*others, param]))
    return param


def describe(image: bytes) -> dict[str, Any]:
    """Return what the header of an image says."""
    header = view("npu_fw_header", bytearray(image))
    release, start = header.release, offsetof("npu_fw_header", "version")
    return {
        "version": image[start : start + VERSION_BYTES].split(b"\0")[0].decode("ascii"),
        "release": f"{release >> 16}.{release >> 8 & 0xFF}.{release & 0xFF}",
        **{f"{name}_interface": "{}.{}".format(*header.api_version[index]) for name, index in INTERFACES.items()},
        **{name: release >= since for name, since in CAPABILITIES.items()},
        "digest": bytes(header.digest).hex(),
    }


def of_release(image: bytes, text: str) -> bytes:
    """Return `image` with the release "X.Y.Z" in its header, and sealed again. Raises ToolError."""
    numbers = [int(word) for word in text.split(".")] if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3}){2}", text) else []
    if not numbers or max(numbers) > 255:
        raise ToolError(f"release {text!r}: X.Y.Z is needed, each at most 255")
    data = bytearray(image)
    header = view("npu_fw_header", data)
    header.release = numbers[0] << 16 | numbers[1] << 8 | numbers[2]
    start = offsetof("npu_fw_header", "version")
    version = f"libnpu firmware {'.'.join(map(str, numbers))}".encode()
    data[start : start + VERSION_BYTES] = version.ljust(VERSION_BYTES, b"\0")
    header.crc32 = 0
    header.crc32 = zlib.crc32(data)
    return bytes(data)
