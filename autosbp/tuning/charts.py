"""SVG charts of a tuning search: best so far, hit rate, and ranking accuracy by phase (AutoDist, Figures 4 and 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 460, 240, 52, 14, 40, 40
COLORS = ("#d94801", "#2b6cb0", "#31a354", "#7b3294")
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_MOST_TICKS = 5


@dataclass(frozen=True, slots=True)
class Series:
    """A named line of a chart. ``values[i]`` is at x = i + 1; None leaves a gap."""

    name: str
    values: Sequence[float | None]


def search_charts(summary: Mapping[str, Any]) -> str:
    """All charts of one search side by side; ``summary`` is from ``tuning_summary``."""
    return joined(
        [best_chart([("", summary)]), hit_chart([("", summary)]), accuracy_chart(summary["ranking_accuracy"])]
    )


def best_chart(searches: Sequence[tuple[str, Mapping[str, Any]]], title: str = "Best so far") -> str:
    """Speed of the best strategy so far relative to the best baseline, over trials; one line per search."""
    lines = []
    for name, summary in searches:
        base_s = (summary["baseline"] or {}).get("step_time_s")
        lines.append(Series(name, [base_s / best if base_s and best else None for best in summary["best_so_far_s"]]))
    return line_chart(title, lines, "trials", "times the best baseline's speed")


def hit_chart(searches: Sequence[tuple[str, Mapping[str, Any]]], title: str = "Hit rate") -> str:
    """Share of proposed strategies that beat the best baseline, over trials; one line per search."""
    return line_chart(
        title, [Series(name, summary["hit_rate"]) for name, summary in searches], "trials", "", highest=1.0
    )


def accuracy_chart(phases: Sequence[Mapping[str, Any]], title: str = "Ranking accuracy") -> str:
    """Share of correctly ranked pairs by phase, for the ranking model (on trials it had not seen) and the cost model."""
    names = {"model": "ranking model", "cost_model": "cost model"}
    lines = [Series(text, [phase[name] for phase in phases]) for name, text in names.items()]
    return line_chart(title, lines, "phase", "share of pairs", highest=1.0)


def line_chart(title: str, series: Sequence[Series], x_text: str, y_text: str, highest: float | None = None) -> str:
    """Line chart as an SVG of ``WIDTH`` x ``HEIGHT`` pixels; the y axis starts at 0."""
    known = [value for each in series for value in each.values if value is not None]
    top = highest or 1.05 * max(known, default=1.0)
    count = max((len(each.values) for each in series), default=1)
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(at: int) -> float:
        return round(LEFT + inner_width * (at / max(1, count - 1) if count > 1 else 0.5), 1)

    def y(value: float) -> float:
        return round(TOP + inner_height * (1 - value / top), 1)

    parts = [f'<text x="{LEFT}" y="14" font-weight="bold">{escape(title)}</text>']
    for tick in _ticks(top):
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick)}" y2="{y(tick)}" stroke="#ddd"/>'
            f'<text x="{LEFT - 5}" y="{y(tick) + 4}" text-anchor="end" fill="#555">{tick:g}</text>'
        )
    for at in sorted({0, (count - 1) // 2, count - 1}):
        parts.append(f'<text x="{x(at)}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle" fill="#555">{at + 1}</text>')
    parts.append(
        f'<text x="{LEFT + inner_width / 2}" y="{HEIGHT - 8}" text-anchor="middle" fill="#555">{escape(x_text)}</text>'
    )
    parts.append(f'<text x="{WIDTH - RIGHT}" y="14" text-anchor="end" fill="#555">{escape(y_text)}</text>')
    named = [(each, COLORS[at % len(COLORS)]) for at, each in enumerate(series)]
    for at, (each, color) in enumerate(named):
        points = [(x(i), y(value)) for i, value in enumerate(each.values) if value is not None]
        line = " ".join(f"{left},{height}" for left, height in points)
        parts.append(f'<polyline fill="none" stroke="{color}" stroke-width="1.8" points="{line}"/>')
        if len(points) <= 10:
            parts += [f'<circle cx="{left}" cy="{height}" r="3" fill="{color}"/>' for left, height in points]
        if each.name:
            parts.append(f'<text x="{LEFT + 110 * at}" y="30" fill="{color}">{escape(each.name)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>'
    )


def joined(charts: Sequence[str], columns: int = 3) -> str:
    """Charts side by side in one SVG, row by row."""
    columns = min(columns, len(charts))
    width, height = columns * WIDTH, -(-len(charts) // columns) * HEIGHT
    placed = "".join(
        f'<g transform="translate({at % columns * WIDTH},{at // columns * HEIGHT})">{chart}</g>'
        for at, chart in enumerate(charts)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f"{placed}</svg>\n"
    )


def _ticks(top: float) -> list[float]:
    step = next((tick for tick in _TICKS if top / tick <= _MOST_TICKS), top)
    return [round(at * step, 6) for at in range(int(top / step) + 1)]
