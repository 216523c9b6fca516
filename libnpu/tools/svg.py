"""Pictures as SVG text: curves and points over two axes, linear or logarithmic. The same data give the same bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 520, 90, 20, 40, 60


@dataclass(slots=True)
class Axis:
    """An axis from `low` to `high`; a logarithmic one begins above 0."""

    label: str
    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """Return where `value` lies, 0 to 1, ends included."""
        low, high, value = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return (value - low) / (high - low) if high > low else 0.0

    def ticks(self) -> list[float]:
        """Return the values to write: powers of ten, or ten equal steps."""
        if self.log:
            return [10.0**n for n in range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)]
        return [self.low + (self.high - self.low) * n / 10 for n in range(11)]


@dataclass(slots=True)
class Picture:
    """Axes, and what is drawn on them in order."""

    title: str
    x: Axis
    y: Axis
    _parts: list[str] = field(default_factory=list)
    _legend: list[tuple[str, str]] = field(default_factory=list)

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + self.x.place(x) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - self.y.place(y) * (HEIGHT - TOP - BOTTOM),
        )

    def curve(self, name: str, points: list[tuple[float, float]]) -> None:
        """Draw a line through `points`, with a line in the legend."""
        colour = COLOURS[len(self._legend) % len(COLOURS)]
        places = " ".join("{:.2f},{:.2f}".format(*self._at(*point)) for point in points)
        self._parts.append(
            f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"><title>{escape(name)}</title></polyline>'
        )
        self._legend.append((name, colour))

    def point(self, name: str, x: float, y: float, large: bool = False) -> None:
        """Draw a point; its name shows when a pointer is on it, and beside it when it is large."""
        px, py = self._at(x, y)
        self._parts.append(
            f'<circle cx="{px:.2f}" cy="{py:.2f}" r="{6 if large else 3}" fill="{"#000" if large else "#888"}"><title>{escape(name)}</title></circle>'
        )
        if large:
            self._parts.append(f'<text x="{px + 9:.2f}" y="{py + 4:.2f}">{escape(name)}</text>')

    def text(self) -> str:
        """Return the picture as an SVG document."""
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
            f'<text x="{LEFT}" y="22" font-size="15">{escape(self.title)}</text>',
        ]
        for value in self.x.ticks():
            px = self._at(value, self.y.low)[0]
            lines.append(f'<line x1="{px:.2f}" x2="{px:.2f}" y1="{TOP}" y2="{bottom}" stroke="#ddd"/>')
            lines.append(f'<text x="{px:.2f}" y="{bottom + 16}" text-anchor="middle">{value:.4g}</text>')
        for value in self.y.ticks():
            py = self._at(self.x.low, value)[1]
            lines.append(f'<line x1="{LEFT}" x2="{right}" y1="{py:.2f}" y2="{py:.2f}" stroke="#ddd"/>')
            lines.append(f'<text x="{LEFT - 6}" y="{py + 4:.2f}" text-anchor="end">{value:.4g}</text>')
        lines.append(
            f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 14}" text-anchor="middle">{escape(self.x.label)}</text>'
        )
        middle = (TOP + bottom) / 2
        lines.append(
            f'<text x="18" y="{middle}" text-anchor="middle" transform="rotate(-90 18 {middle})">{escape(self.y.label)}</text>'
        )
        lines += self._parts
        for row, (name, colour) in enumerate(self._legend):
            py = TOP + 14 + 16 * row
            lines.append(
                f'<line x1="{LEFT + 10}" x2="{LEFT + 34}" y1="{py - 4}" y2="{py - 4}" stroke="{colour}" stroke-width="2"/>'
            )
            lines.append(f'<text x="{LEFT + 40}" y="{py}">{escape(name)}</text>')
        return "\n".join([*lines, "</svg>", ""])
