"""Make docs/device-spec.md, the device as a page of tables, from the comments of npu_hw.h.

    python scripts/device_spec.py            write the page
    python scripts/device_spec.py --print    print it

A test compares the page with the header and with what the device answers. Facts live in the header alone.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADER = ROOT / "include" / "npu_abi" / "npu_hw.h"
PAGE = ROOT / "docs" / "device-spec.md"
REGISTERS = "npu_hw_reg"
ACCESS = re.compile(r"(RO|RW|WO|W1C)\s+(.*)", re.S)
TOKEN = re.compile(
    r"/\*(?P<comment>.*?)\*/|enum\s*(?P<enum>\w*)\s*\{|(?P<end>\};)|#define\s+(?P<define>NPU_\w+)\s+(?P<literal>0x[0-9a-fA-F]+)"
    r"|(?P<name>NPU_\w+)\s*=\s*(?P<value>[^,}/\n]+?)\s*(?=[,}/\n])|(?P<line>\n)",
    re.S,
)


@dataclass
class Entry:
    """A constant, and what the comment behind it says."""

    name: str
    value: str
    text: str = ""

    @property
    def number(self) -> int:
        """Return the value, which is a literal or a shifted bit."""
        first, _, shift = self.value.partition("<<")
        return int(first, 0) << int(shift or "0", 0)


@dataclass
class Group:
    """Constants under one comment. `enum` is the name of their enumeration, "" where it has none, "#define" of macros.

    `title` is the comment in dashes before them, and `intro` the one without.
    """

    enum: str = ""
    title: str = ""
    intro: str = ""
    entries: list[Entry] = field(default_factory=list)


def groups(header: str) -> list[Group]:
    """Return what `header` defines, in its order."""
    found = [Group()]

    def following(enum: str) -> Group:
        if found[-1].entries:
            found.append(Group())
        found[-1].enum = enum
        return found[-1]

    before = True  # nothing stands before it on its line: then a comment is about what follows
    for token in TOKEN.finditer(header):
        kind, group = token.lastgroup, found[-1]
        if kind == "comment":
            text = " ".join(re.sub(r"\n\s*\*", " ", token["comment"]).split())
            if not before:
                if group.entries:
                    group.entries[-1].text = f"{group.entries[-1].text} {text}".strip()
            elif text.startswith("--"):
                group = following(group.enum)
                group.title, group.intro = text.strip("- "), ""
            else:
                following(group.enum).intro = text
        elif kind == "enum":
            following(token["enum"])
        elif kind == "end":
            following("")
        elif kind == "value":
            group.entries.append(Entry(token["name"], token["value"].strip()))
        elif kind == "literal":
            group = group if group.enum == "#define" else following("#define")
            group.entries.append(Entry(token["define"], token["literal"]))
        before = kind in ("line", "enum") or (before and kind == "comment")
    return [group for group in found if group.entries]


def registers(header: str) -> list[tuple[str, list[tuple[int, str, str, str]]]]:
    """Return (title, rows of offset, name, access, text) of each block of registers."""
    found = []
    for group in groups(header):
        if group.enum == REGISTERS:
            rows = []
            for entry in group.entries:
                match = ACCESS.match(entry.text)
                if match is None:
                    raise ValueError(f"{entry.name}: its comment does not begin with RO, RW, WO or W1C")
                rows.append((entry.number, entry.name.removeprefix("NPU_REG_"), match[1], match[2]))
            found.append((group.title or group.intro, rows))
    return found


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines] + [""]


def render(header: str) -> str:
    """Return the page."""
    rules = re.search(r"/\*.*?\n \* npu_hw\.h - .*?\n \*\n(.*?)\n \*\n", header, re.S)
    if rules is None:
        raise ValueError("npu_hw.h does not begin with the rules of access")
    lines = [
        "# Device specification",
        "",
        "Made from `npu_hw.h` by `python scripts/device_spec.py`; the header is the contract.",
        "",
    ]
    lines += [re.sub(r"^ \* ", "", line) for line in rules[1].splitlines()] + ["", "## Registers", ""]
    for title, rows in registers(header):
        lines += [f"### {title}", ""] if title else []
        cells = [(f"0x{offset:08x}", f"`{name}`", access, text) for offset, name, access, text in rows]
        lines += _table(("offset", "register NPU_REG_", "access", "what"), cells)
    lines += ["## Bits and counters", ""]
    for group in groups(header):
        if group.enum == REGISTERS:
            continue
        lines += [f"## {group.title}", ""] if group.title else []
        lines += [f"### enum {group.enum}", ""] if group.enum not in ("", "#define") else []
        lines += [group.intro, ""] if group.intro else []
        shown = [(f"`{e.name}`", e.value, e.text) for e in group.entries]
        lines += _table(("name", "value", "what"), shown)
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Write or print the page."""
    parser = argparse.ArgumentParser(description="Make docs/device-spec.md from npu_hw.h.")
    parser.add_argument("--print", action="store_true", help="print the page instead of writing it")
    page = render(HEADER.read_text())
    if parser.parse_args().print:
        print(page, end="")
    else:
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
