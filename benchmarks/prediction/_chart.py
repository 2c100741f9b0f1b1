"""AutoDDL's Figure 4 from our runs as SVG: strategies ranked by predicted step time, with measured times."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil
from typing import Any

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 460, 250, 58, 44, 40
COLUMNS = 3
PREDICTED, MEASURED, PLAN = "#9ecae1", "#d94801", "#31a354"


def chart(results: Sequence[dict[str, Any]]) -> str:
    """One panel per model and cluster; bars are predictions, dots measured medians with quartiles."""
    columns = min(COLUMNS, len(results))
    size = (columns * WIDTH, ceil(len(results) / columns) * HEIGHT + 20)
    panels = "".join(
        f'<g transform="translate({at % columns * WIDTH},{at // columns * HEIGHT})">{_panel(result)}</g>'
        for at, result in enumerate(results)
    )
    legend = (
        f'<g transform="translate({LEFT},{size[1] - 8})"><rect y="-9" width="10" height="10" fill="{PREDICTED}"/>'
        f'<text x="14">predicted</text><circle cx="84" cy="-4" r="3.5" fill="{MEASURED}"/><text x="92">measured: median '
        f'and quartiles</text><rect x="300" y="-9" width="10" height="10" fill="{PLAN}"/>'
        '<text x="314">predicted best</text></g>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" viewBox="0 0 {size[0]} {size[1]}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>{panels}{legend}</svg>\n'
    )


def _panel(result: dict[str, Any]) -> str:
    rows = sorted(result["rows"], key=lambda row: float(row["predicted_s"]))
    highest = 1.05 * max(float(seconds) for row in rows for seconds in (row["predicted_s"], row["quartiles_s"][1]))
    height, step = HEIGHT - TOP - BOTTOM, (WIDTH - LEFT - 12) / len(rows)

    def y(seconds: float) -> float:
        """Map seconds to pixels."""
        return round(TOP + height * (1 - seconds / highest), 1)

    parts = [
        f'<text x="{LEFT}" y="16" font-weight="bold">{escape(result["model"])} on {escape(result["cluster"])}</text>',
        f'<text x="{LEFT}" y="31" fill="#555">Kendall tau {result["kendall_tau"]:.3f}, error median '
        f"{result['median_error']:.1%}, p90 {result['p90_error']:.1%}</text>",
    ]
    for tick in _ticks(highest):
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 12}" y1="{y(tick)}" y2="{y(tick)}" stroke="#ddd"/>'
            f'<text x="{LEFT - 5}" y="{y(tick) + 4}" text-anchor="end" fill="#555">{1e3 * tick:g} ms</text>'
        )
    for at, row in enumerate(rows):
        x = round(LEFT + step * at, 1)
        middle, top = round(x + 0.45 * step, 1), y(row["predicted_s"])
        low, high = (y(seconds) for seconds in row["quartiles_s"])
        parts.append(
            f"<g><title>{escape(row['strategy'])}: predicted {1e3 * row['predicted_s']:.1f} ms, measured "
            f"{1e3 * row['measured_s']:.1f} ms</title>"
            f'<rect x="{x}" y="{top}" width="{round(0.9 * step, 1)}" height="{round(TOP + height - top, 1)}" '
            f'fill="{PLAN if at == 0 else PREDICTED}"/>'
            f'<line x1="{middle}" x2="{middle}" y1="{high}" y2="{low}" stroke="{MEASURED}"/>'
            f'<circle cx="{middle}" cy="{y(row["measured_s"])}" r="3" fill="{MEASURED}"/></g>'
        )
    parts.append(
        f'<text x="{LEFT}" y="{HEIGHT - BOTTOM + 15}" fill="#555">{len(rows)} strategies, ranked by predicted step time'
        "</text>"
    )
    return "".join(parts)


def _ticks(highest: float) -> list[float]:
    """Three to six round values up to the highest."""
    unit = next(
        digit * 10.0**power for power in range(-6, 9) for digit in (1, 2, 5) if highest <= 6 * digit * 10.0**power
    )
    return [unit * at for at in range(int(highest / unit) + 1)]
