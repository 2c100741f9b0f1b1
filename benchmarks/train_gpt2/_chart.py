"""SVG of loss curves: losses of all cases over steps, and below, their relative differences from one device."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor, log10
from typing import Any

WIDTH, HEIGHT, LOW_HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 720, 300, 170, 56, 30, 22, 16
COLOURS = ("#999999", "#2171b5", "#d94801", "#31a354", "#756bb1")
DASHES = ("", "9 3", "2 4", "6 6", "")


def chart(cases: Mapping[str, Mapping[str, Any]]) -> str:
    """Draw the chart. The first case is one device, drawn as a broad line below the others."""
    curves = {name: {int(step): loss for step, loss in case["losses"].items()} for name, case in cases.items()}
    wanted = next(iter(curves.values()))
    steps = max(wanted)
    differences = {
        name: {step: abs(loss / wanted[step] - 1) for step, loss in curve.items() if loss != wanted[step]}
        for name, curve in list(curves.items())[1:]
    }
    size = (WIDTH, HEIGHT + LOW_HEIGHT + 22 * ((len(curves) + 2) // 3))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" viewBox="0 0 {size[0]} {size[1]}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        f"{_losses(curves, steps)}"
        f'<g transform="translate(0,{HEIGHT})">{_differences(differences, steps)}</g>{_legend(list(curves))}</svg>\n'
    )


def _x(step: float, steps: int) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * step / steps, 1)


def _losses(curves: Mapping[str, Mapping[int, float]], steps: int) -> str:
    top = ceil(max(loss for curve in curves.values() for loss in curve.values()))
    low = floor(min(loss for curve in curves.values() for loss in curve.values()))

    def y(loss: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (loss - low) / (top - low), 1)

    parts = [f'<text x="{LEFT}" y="18" font-weight="bold">loss over steps</text>']
    parts += [_row(y(loss), str(loss)) for loss in range(low, top + 1)]
    parts += [_column(step, steps, HEIGHT) for step in range(0, steps + 1, 50)]
    for at, (name, curve) in enumerate(curves.items()):
        parts.append(
            _line(at, name, [(_x(step, steps), y(loss)) for step, loss in curve.items()], 5 if at == 0 else 1.5)
        )
    return "".join(parts)


def _differences(curves: Mapping[str, Mapping[int, float]], steps: int) -> str:
    every = [value for curve in curves.values() for value in curve.values()]
    low, top = floor(log10(min(every))), ceil(log10(max(every)))

    def y(value: float) -> float:
        return round(LOW_HEIGHT - BOTTOM - (LOW_HEIGHT - BOTTOM - TOP) * (log10(value) - low) / (top - low), 1)

    parts = [f'<text x="{LEFT}" y="18" font-weight="bold">relative difference from one device</text>']
    parts += [_row(y(10.0**power), f"1e{power}") for power in range(low, top + 1)]
    parts += [_column(step, steps, LOW_HEIGHT) for step in range(0, steps + 1, 50)]
    for at, (name, curve) in enumerate(curves.items(), 1):
        parts.append(_line(at, name, [(_x(step, steps), y(value)) for step, value in curve.items()], 1))
    return "".join(parts)


def _row(at: float, label: str) -> str:
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}" stroke="#ddd"/>'
        f'<text x="{LEFT - 6}" y="{at + 4}" text-anchor="end" fill="#555">{label}</text>'
    )


def _column(step: int, steps: int, height: int) -> str:
    return f'<text x="{_x(step, steps)}" y="{height - BOTTOM + 15}" text-anchor="middle" fill="#555">{step}</text>'


def _line(at: int, name: str, points: list[tuple[float, float]], width: float) -> str:
    dash = f' stroke-dasharray="{DASHES[at]}"' if DASHES[at] else ""
    pairs = " ".join(f"{x},{y}" for x, y in points)
    return (
        f'<polyline points="{pairs}" fill="none" stroke="{COLOURS[at]}" stroke-width="{width}"{dash}>'
        f"<title>{name}</title></polyline>"
    )


def _legend(names: list[str]) -> str:
    parts = []
    for at, name in enumerate(names):
        x, y = LEFT + 220 * (at % 3), HEIGHT + LOW_HEIGHT + 10 + 20 * (at // 3)
        parts.append(_line(at, name, [(x, y), (x + 26, y)], 5 if at == 0 else 2))
        parts.append(f'<text x="{x + 32}" y="{y + 4}">{name}</text>')
    return "".join(parts)
