"""The programs of the bug museum (samples/bugs), and what the head of each says of it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from libnpu.tools.console import ToolError

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGE = Path(__file__).parents[1]
FOLDERS = (PACKAGE / "museum" / "bugs", PACKAGE.parent / "samples" / "bugs")  # of a wheel, of a tree
FIELDS = ("catalogue", "link", "schedule", "report", "right", "wrong")
SETTING = re.compile(rf"^(?: \*)? {{2,}}({'|'.join(FIELDS)}): (.*)$", re.MULTILINE)
MARK = re.compile(r"(?:#|/\*) <- (.*?)(?: \*/)?$")
UNSEEN = "unseen"  # the place of a store that the checker knows of by what it did


@dataclass(frozen=True)
class Exhibit:
    """A program with a bug, without which it runs when its one argument is "fixed"."""

    path: Path

    @property
    def name(self) -> str:
        """Its name in the museum."""
        return self.path.stem

    @cached_property
    def source(self) -> str:
        """Its text."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def head(self) -> str:
        """The comment or docstring at its begin, without the marks."""
        found = re.match(r'"""(.*?)"""|/\* SPDX[^\n]*\n(.*?) \*/', self.source, re.DOTALL)
        if found is None:
            raise ToolError(f"{self.path}: no comment at its begin")
        return "\n".join(line.removeprefix(" *").removeprefix(" ") for line in (found[1] or found[2]).splitlines())

    @property
    def title(self) -> str:
        """The first sentence."""
        return self.head.partition("\n")[0].removeprefix(f"{self.name} - ")

    def values(self, field: str) -> list[str]:
        """Return what the head says of a field of FIELDS, in order."""
        return [value for name, value in SETTING.findall(self.source) if name == field]

    def value(self, field: str) -> str:
        """Return the one value of a field."""
        (value,) = self.values(field)
        return value

    @property
    def reports(self) -> list[tuple[str, list[int | None]]]:
        """What the checker reports of the wrong variant: rule, and lines of the acts, None for a place that it cannot know."""
        marks = {mark[1]: line for line, text in enumerate(self.source.splitlines(), 1) if (mark := MARK.search(text))}
        return [
            (rule, [None if name == UNSEEN else marks[name] for name in names.split(", ")])
            for rule, _, names in (report.partition(" at ") for report in self.values("report"))
        ]

    def command(self, folder: Path, *arguments: str) -> list[str]:
        """Return what runs it. A C program is built into `folder` first, unless it is there. Raises ToolError."""
        if self.path.suffix == ".py":
            return [sys.executable, str(self.path), *arguments]
        program = folder / self.name
        if not program.exists():
            build(self.path, program)
        return [str(program), *arguments]


def build(source: Path, program: Path) -> None:
    """Compile a C program with lines for reports. Raises ToolError."""
    config = [sys.executable, "-m", "libnpu.capi.config", "--cflags", "--libs"]
    flags = shlex.split(_output(config))
    _output(["gcc", "-g", "-O1", "-Wall", "-Wextra", "-Werror", str(source), *flags, "-o", str(program)])


def _output(command: Sequence[str]) -> str:
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolError(f"{command[0]}: {error.strerror}") from None
    if run.returncode:
        raise ToolError(f"{command[0]}: {run.stderr.strip()}")
    return run.stdout


def exhibits() -> dict[str, Exhibit]:
    """Return the museum by name: programs with a bug; those of right_* have none. Raises ToolError when it is not there."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), None)
    if folder is None:
        raise ToolError(f"{FOLDERS[0]}: the museum is not installed")
    return {path.stem: Exhibit(path) for path in sorted(folder.iterdir()) if path.suffix in (".py", ".c")}


def exhibit(name: str) -> Exhibit:
    """Return a program by name. Raises ToolError."""
    known = exhibits()
    if name not in known:
        raise ToolError(f"{name!r} is not in the museum; npu museum list")
    return known[name]
