"""`npu mem-analyze MODEL`: which weights of an ONNX file begin at a multiple of so many bytes, as bursts of memory do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from libnpu.tools import source
from libnpu.tools.console import print_json, print_table
from libnpu.tools.weight_places import places

if TYPE_CHECKING:
    import argparse

    from libnpu.tools.weight_places import Place

ALIGN = 128  # bytes: a burst of all channels of LPDDR5X of 64 bit (docs/memory.md)
MAX_ROWS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file")
    parser.add_argument(
        "--align", type=source.positive, metavar="BYTES", default=ALIGN, help=f"wanted (default {ALIGN})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print the share of weights that do not begin at a multiple of `options.align`, and these."""
    source.check_model(options.model)
    found = places(options.model)
    wrong = [place for place in found if not place.is_aligned(options.align)]
    total, size = sum(p.size_bytes for p in found), sum(p.size_bytes for p in wrong)
    if options.json:
        print_json(
            {"model": options.model, "align": options.align, "weights": [p._asdict() for p in found]}
            | {"unaligned": len(wrong), "unaligned_share": len(wrong) / len(found) if found else 0.0}
        )
        return 0
    rows = [("tensors", str(len(found)), str(len(wrong)), _share(len(wrong), len(found)))]
    rows += [("bytes", str(total), str(size), _share(size, total))]
    print_table(Path(options.model).name, ("weights", "all", f"not at multiples of {options.align}", "share"), rows)
    if wrong:
        more = f", the first {MAX_ROWS} of {len(wrong)}" if len(wrong) > MAX_ROWS else ""
        table = [_row(place, options.align) for place in wrong[:MAX_ROWS]]
        print_table(f"unaligned{more}", ("weight", "file", "offset", "bytes behind", "bytes"), table, left=2)
    return 0


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _row(place: Place, align: int) -> tuple[str, ...]:
    offset, behind = ("-", "-") if place.offset is None else (str(place.offset), str(place.offset % align))
    return place.name, place.file, offset, behind, str(place.size_bytes)
