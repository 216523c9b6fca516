"""Who makes a call: a process of the machine, with the rights that the driver asks for."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

NAME_BYTES = 15  # of struct npu_context_info, as Linux's comm


@dataclass(frozen=True, slots=True, eq=False)
class Process:
    """`name` is the program's, as `printable` shows it. `privileged`: may reset the device, load the module anew, set parameters and inject faults
    (else EPERM). Two are never the same: each connection of a process is one.
    """

    pid: int
    uid: int
    name: str
    privileged: bool


def printable(text: str, limit_bytes: int) -> str:
    """Return `text`, which somebody else has chosen, for logs and terminals: what does not print is shown by its escape, and the end is cut
    off where it has more than `limit_bytes` of UTF-8.
    """
    shown, room = "", limit_bytes
    for character in text:
        piece = character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        room -= len(piece.encode())
        if room < 0:
            break
        shown += piece
    return shown


def this_process() -> Process:
    """Return the process that the driver runs in: the device is its own."""
    name = Path(sys.argv[0]).name if getattr(sys, "argv", None) else "python"
    return Process(os.getpid(), os.getuid(), printable(name, NAME_BYTES), privileged=True)
