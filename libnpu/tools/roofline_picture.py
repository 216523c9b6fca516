"""The picture of a roofline, and the page of one file that has its table too."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from libnpu.tools.console import format_bytes, format_count, format_time
from libnpu.tools.svg import Axis, Picture

if TYPE_CHECKING:
    from libnpu.tools.roofline_points import Point, Roofline

LAYER_COLUMNS = ("layer", "FLOP", "bytes", "FLOP/B", "first to last", "FLOP/s", "bound", "idle")


def layer_row(found: Roofline, p: Point) -> tuple[str, ...]:
    """Return the cells of LAYER_COLUMNS."""
    return (
        p.name,
        format_count(p.flop, ""),
        format_bytes(p.nbytes),
        f"{p.intensity:.4g}",
        format_time(p.time_ps),
        format_count(p.rate, ""),
        found.bound(p),
        f"{found.idle(p):.2%}",
    )


def picture(found: Roofline, before: Roofline | None = None) -> Picture:
    """Return the points under a roof for each type, on logarithmic axes; with the point of a run before, when there was one."""
    large = [("", found.whole), *([("before: ", before.whole)] if before else [])]
    large = [(when, p) for when, p in large if p.flop and p.nbytes]
    small = [p for p in found.layers if p.flop and p.nbytes]
    points = [*(p for _, p in large), *small]
    lows = [p.intensity for p in points]
    x_low = 10.0 ** math.floor(math.log10(min([*lows, 0.1])))
    x_high = 10.0 ** math.ceil(math.log10(max([*lows, 10 * max(found.roofs.values()) / found.memory])))
    y_high = 10.0 ** math.ceil(math.log10(max(found.roofs.values())) + 0.01)
    y_low = 10.0 ** math.floor(math.log10(min([p.rate for p in points if p.rate] + [x_low * found.memory])))
    title = f"{found.name} on {found.profile}: ridge {found.ridge:.4g} FLOP/B, {found.bound(found.whole)}-bound, idle {found.idle(found.whole):.2%}"
    plot = Picture(
        title,
        Axis("operations per byte of DDR", x_low, x_high, log=True),
        Axis("operations per second", y_low, y_high, log=True),
    )
    for kinds, peak in _merged(found.roofs):
        corner = peak / found.memory
        plot.curve(
            f"{kinds}: {format_count(peak, 'FLOP/s')}", [(x_low, x_low * found.memory), (corner, peak), (x_high, peak)]
        )
    for p in small:
        plot.point(f"{p.name}: {p.intensity:.4g} FLOP/B, {format_count(p.rate, 'FLOP/s')}", p.intensity, p.rate)
    for when, p in large:
        plot.point(f"{when}{p.name}", p.intensity, p.rate, large=True)
    return plot


def _merged(roofs: dict[str, int]) -> list[tuple[str, int]]:
    """Return the roofs, the types with the same one together, the highest first."""
    heights = sorted(set(roofs.values()), reverse=True)
    return [(", ".join(kind for kind, peak in roofs.items() if peak == height), height) for height in heights]


def page(found: Roofline, before: Roofline | None = None) -> str:
    """Return an HTML page with picture and table."""
    head = "".join(f"<th>{escape(column)}</th>" for column in LAYER_COLUMNS)
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in layer_row(found, p)) + "</tr>"
        for p in (found.whole, *found.layers)
    )
    title = escape(f"Roofline: {found.name} on {found.profile}")
    style = "body{font-family:sans-serif}td,th{padding:2px 10px;text-align:right}td:first-child,th:first-child{text-align:left}"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{style}</style></head>\n<body>\n'
        f"{picture(found, before).text()}<table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>\n</body></html>\n"
    )
