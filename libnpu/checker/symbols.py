"""Where in a C program a code address is, by the program's debug information (gcc -g), else by its file and offset."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARY = "libnpu.so"
Row = tuple[int, str]  # address in the file's own terms, "file:line"


class Piece(NamedTuple):
    """A part of a file that the process has mapped."""

    low: int
    high: int
    offset: int
    path: str


def place_of(address: int) -> str:
    """Return "file:line" of a return address in this process; "program+0x1234" without debug information."""
    piece = _piece_of(address)
    if piece is None:
        return f"{address:#x}"
    return line_of(address) or f"{Path(piece.path).name}+{address - piece.low + piece.offset:#x}"


def line_of(address: int) -> str:
    """Return "file:line" of a return address in this process, "" without debug information, and in this library."""
    piece = _piece_of(address)
    if piece is None or Path(piece.path).name == LIBRARY:
        return ""
    return _line(piece.path, address - piece.low + piece.offset - 1)  # the call, not what it returns to


def _piece_of(address: int) -> Piece | None:
    found = next((piece for piece in _pieces() if piece.low <= address < piece.high), None)
    return found if found is not None and found.path.startswith("/") else None


def _pieces() -> list[Piece]:
    found = []
    with open("/proc/self/maps") as lines:
        for line in lines:
            span, mode, offset, _, _, *path = line.split(maxsplit=5)
            if "x" in mode and path:
                low, high = (int(text, 16) for text in span.split("-"))
                found.append(Piece(low, high, int(offset, 16), path[0].strip()))
    return found


@lru_cache(maxsize=8)
def _table(path: str) -> tuple[list[int], list[str]]:
    """Return the line table of a file, by file offset of the code; empty without one."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    rows: dict[int, str] = {}
    try:
        with open(path, "rb") as file:
            elf = ELFFile(file)
            if not elf.has_dwarf_info():
                return [], []
            shifts = [(s["p_vaddr"], s["p_memsz"], s["p_offset"]) for s in elf.iter_segments("PT_LOAD")]
            for unit in elf.get_dwarf_info().iter_CUs():
                rows.update(_rows(elf.get_dwarf_info(), unit, shifts))
    except (OSError, ELFError):
        return [], []
    starts = sorted(rows)
    return starts, [rows[start] for start in starts]


def _rows(dwarf: Any, unit: Any, shifts: list[tuple[int, int, int]]) -> Iterator[Row]:
    """Yield (file offset, "file:line") of a compilation unit; "" where a sequence ends."""
    program = dwarf.line_program_for_CU(unit)
    if program is None:
        return
    version, files = program["version"], program["file_entry"]
    folder = unit.get_top_DIE().attributes.get("DW_AT_comp_dir")
    for entry in program.get_entries():
        state = entry.state
        if state is None:
            continue
        offset = next((state.address - low + at for low, size, at in shifts if low <= state.address < low + size), None)
        if offset is None:
            continue
        if state.end_sequence:
            yield offset, ""
        elif state.line:
            file = files[state.file - (version < 5)]
            parts = [folder.value] if folder is not None else []
            if version >= 5 or file.dir_index:
                parts.append(program["include_directory"][file.dir_index - (version < 5)])
            name = Path(*(part.decode("utf-8", "replace") for part in (*parts, file.name)))
            yield offset, f"{name}:{state.line}"


def _line(path: str, offset: int) -> str:
    starts, lines = _table(path)
    index = bisect_right(starts, offset) - 1
    return lines[index] if index >= 0 else ""
