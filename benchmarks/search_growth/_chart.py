"""Search time as SVG: seconds over layers and over devices, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from typing import Any

from benchmarks.search_growth._measure import exponent

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 440, 290, 56, 34, 46, 16
LINES = {
    "all_s": ("one problem: folding, building, exact", "#2171b5"),
    "exact_s": ("exact alone, with proof", "#31a354"),
    "plan_s": ("whole plan, with baselines", "#d94801"),
}
SERIES = {"layers": "layers", "devices": "devices"}


def chart(result: Mapping[str, Any]) -> str:
    """One panel per series; complete plans are drawn if they were timed."""
    size = (len(SERIES) * WIDTH, HEIGHT + 26)
    panels = "".join(
        f'<g transform="translate({at * WIDTH},0)">{_panel(by, result[by], result.get(f"plans_{by}", ()), result)}</g>'
        for at, by in enumerate(SERIES)
    )
    drawn = [LINES[field] for field in LINES if field in result["exponents"]["layers"]]
    legend = "".join(
        f'<circle cx="{LEFT + 250 * at}" cy="{size[1] - 14}" r="4" fill="{colour}"/>'
        f'<text x="{LEFT + 250 * at + 9}" y="{size[1] - 10}">{name}</text>'
        for at, (name, colour) in enumerate(drawn)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" viewBox="0 0 {size[0]} {size[1]}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>{panels}{legend}</svg>\n'
    )


def _panel(
    by: str, rows: Sequence[Mapping[str, Any]], plans: Sequence[Mapping[str, Any]], result: Mapping[str, Any]
) -> str:
    every = [row[field] for group in (rows, plans) for row in group for field in LINES if field in row]
    low, high = floor(log10(min(every))), ceil(log10(max(every)))
    places = sorted({row[by] for row in (*rows, *plans)})
    left, right = log10(places[0]), log10(places[-1])

    def x(value: float) -> float:
        return round(LEFT + 10 + (WIDTH - LEFT - RIGHT - 20) * (log10(value) - left) / (right - left), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (log10(value) - low) / (high - low), 1)

    parts = [f'<text x="{LEFT}" y="16" font-weight="bold">CPU seconds over {SERIES[by]} ({_fixed(by, rows)})</text>']
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}" stroke="#ddd"/>'
            f'<text x="{LEFT - 5}" y="{at + 4}" text-anchor="end" fill="#555">{10.0**power:g} s</text>'
        )
    for place in places:
        parts.append(
            f'<text x="{x(place)}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle" fill="#555" font-size="9">{place:,}</text>'
        )
    for at_line, (field, (name, colour)) in enumerate(LINES.items()):
        points = [(x(row[by]), y(row[field])) for group in (rows, plans) for row in group if field in row]
        if not points:
            continue
        timed = [row for group in (rows, plans) for row in group if field in row]
        ends = exponent(timed[-2:], by, field)
        told = f"exponent {result['exponents'][by][field]:.2f}, {ends:.2f} between the last two"
        parts.append(
            f'<g><title>{name}: {told}</title><polyline points="{" ".join(f"{a},{b}" for a, b in points)}" fill="none" '
            f'stroke="{colour}" stroke-width="1.8"/>'
            + "".join(f'<circle cx="{a}" cy="{b}" r="3" fill="{colour}"/>' for a, b in points)
            + f'<text x="{LEFT + 8}" y="{TOP + 16 + 14 * at_line}" fill="{colour}">{told}</text></g>'
        )
    return "".join(parts)


def _fixed(by: str, rows: Sequence[Mapping[str, Any]]) -> str:
    other = "devices" if by == "layers" else "layers"
    return f"{rows[0][other]:,} {other}"
