"""AutoDDL's Figure 8 from our runs as SVG: cost relative to the optimum, over time and over evaluated assignments.

Both x axes are relative to exhaustive search.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 430, 250, 52, 34, 40, 14
COLOURS = {
    "random": "#7f7f7f",
    "metropolis_hastings": "#d94801",
    "coordinate_descent": "#2171b5",
    "exact": "#31a354",
    "exhaustive": "#000000",
}
AXES = (("search_s", "seconds"), ("evaluations", "evaluations"))
COST_TICKS = (1, 1.1, 1.5, 2, 3, 5, 10, 20)


@dataclass(frozen=True)
class _Scale:
    """Logarithmic map from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        part = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return round(self.start + (self.end - self.start) * min(max(part, 0.0), 1.0), 1)


def chart(results: Mapping[str, Mapping[str, Any]]) -> str:
    """One column per number of nodes: by wall time above, by evaluated assignments below. Bands hold 90 % of the seeds."""
    size = (len(results) * WIDTH, len(AXES) * HEIGHT + 26)
    panels = "".join(
        f'<g transform="translate({column * WIDTH},{row * HEIGHT})">{_panel(nodes, result, *axis)}</g>'
        for column, (nodes, result) in enumerate(results.items())
        for row, axis in enumerate(AXES)
    )
    legend = "".join(
        f'<circle cx="{LEFT + 150 * at}" cy="{size[1] - 12}" r="4" fill="{colour}"/>'
        f'<text x="{LEFT + 150 * at + 9}" y="{size[1] - 8}">{name.replace("_", " ")}</text>'
        for at, (name, colour) in enumerate(COLOURS.items())
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" viewBox="0 0 {size[0]} {size[1]}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>{panels}{legend}</svg>\n'
    )


def _panel(nodes: str, result: Mapping[str, Any], key: str, label: str) -> str:
    whole, optimum = float(result["searchers"]["exhaustive"][key]), float(result["optimum_s"])
    curves = {name: found["points"] for name, found in result["searchers"].items() if "points" in found}
    least = min(float(point[key]) / whole for points in curves.values() for point in points)
    dots = {name: float(result["searchers"][name][key]) / whole for name in ("exact", "exhaustive")}
    x = _Scale(10.0 ** floor(log10(min(least, *dots.values()))), 1.5, LEFT, WIDTH - RIGHT)
    top = max(point["cost_s"][2] for points in curves.values() for point in points) / optimum
    y = _Scale(0.97, 1.05 * top, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<text x="{LEFT}" y="16" font-weight="bold">{nodes} nodes: cost over {label}</text>',
        _grid(x, y),
        f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 8}" text-anchor="middle" fill="#555">{label} relative to '
        f"exhaustive search</text>",
    ]
    for name, points in curves.items():
        shown = [point for point in points if point[key] <= 1.5 * whole]
        places = [x(point[key] / whole) for point in shown]
        lines = [[y(point["cost_s"][at] / optimum) for point in shown] for at in range(3)]
        band = [*zip(places, lines[0], strict=True), *reversed(list(zip(places, lines[2], strict=True)))]
        parts.append(
            f"<g><title>{name.replace('_', ' ')}</title>"
            f'<polygon points="{_pairs(band)}" fill="{COLOURS[name]}" opacity="0.18"/>'
            f'<polyline points="{_pairs(list(zip(places, lines[1], strict=True)))}" fill="none" stroke="{COLOURS[name]}" '
            'stroke-width="1.8"/></g>'
        )
    for name, place in dots.items():
        parts.append(
            f'<circle cx="{x(place)}" cy="{y(1.0)}" r="4.5" fill="{COLOURS[name]}"><title>{name}: the optimum, proved'
            "</title></circle>"
        )
    return "".join(parts)


def _grid(x: _Scale, y: _Scale) -> str:
    parts = []
    for power in range(ceil(log10(x.low)), 1):
        at = x(10.0**power)
        parts.append(
            f'<line x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>'
            f'<text x="{at}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle" fill="#555">1e{power}</text>'
        )
    for cost in COST_TICKS:
        if cost <= y.high:
            parts.append(
                f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(cost)}" y2="{y(cost)}" stroke="#ddd"/>'
                f'<text x="{LEFT - 5}" y="{y(cost) + 4}" text-anchor="end" fill="#555">{cost:g}x</text>'
            )
    return "".join(parts)


def _pairs(points: list[tuple[float, float]]) -> str:
    return " ".join(f"{one},{two}" for one, two in points)
