"""Use of each mesh axis: how many parameters and op results are split, partial or whole on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autosbp.sbp.layout import Sbp, parse_nd_sbp
from autosbp.service.web.number_format import Unit
from autosbp.service.web.presenters.page_parts import Stack, stack

_PLAIN = Unit(1.0, "B")


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of a tensor on one mesh axis: SBP letter and description."""

    letter: str
    words: str
    tone: str


@dataclass(frozen=True, slots=True)
class AxisUse:
    """A mesh axis with the layouts of results and parameters on it."""

    name: str
    size: int
    level: str
    results: Stack
    parameters: Stack


def layout_of(sbp: Sbp) -> Layout:
    """Describe a layout for a cell of the sharding map."""
    if sbp.is_split:
        return Layout(str(sbp), f"split along dim {sbp.dim}", f"s{min(sbp.dim, 3)}")
    if sbp.is_partial:
        joined = {"sum": "partial sums", "max": "partial maxima", "min": "partial minima"}[sbp.reduction]
        return Layout(str(sbp), joined, "p")
    if sbp.kind == "I":
        return Layout("I", "whole, the same work on every device", "i")
    return Layout("B", "whole on every device, work divided", "w")


def layouts_of(text: str) -> tuple[Layout, ...]:
    """Describe a formatted layout, one cell per mesh axis."""
    return tuple(layout_of(sbp) for sbp in parse_nd_sbp(text))


def named_axes(plan: Mapping[str, Any]) -> tuple[tuple[str, int, str], ...]:
    """Name, size and network level of each axis of a stage's mesh."""
    levels = [level["name"] for level in plan["cluster"]["levels"]]
    return tuple((name, size, _level(levels, at)) for name, size, at in plan["strategy"]["mesh"]["axes"])


def axis_uses(plan: Mapping[str, Any]) -> tuple[AxisUse, ...]:
    """Uses of all axes, outermost first."""
    strategy = plan["strategy"]
    results = [text.rpartition("->")[2].split()[0] for text in strategy["signatures"].values()]
    stored = list(strategy["parameters"].values())
    return tuple(
        AxisUse(
            name,
            size,
            level,
            _counted(f"Op outputs on {name}", (text.split(",")[at] for text in results)),
            _counted(f"Parameters on {name}", (text.split(",")[at] for text in stored)),
        )
        for at, (name, size, level) in enumerate(named_axes(plan))
    )


def _level(names: list[str], at: int) -> str:
    """Describe a level: of two levels, the outer one joins nodes and the inner one the devices of a node."""
    if len(names) == 1:
        return "between devices"
    return ("between nodes", "inside a node")[at]


_GROUPS = (
    ("Split, dim 0", "s0"),
    ("Split, dim 1", "s1"),
    ("Split, dim 2", "s2"),
    ("Split, other dims", "s3"),
    ("Partial sums", "p"),
    ("Whole", "w"),
)


def _counted(label: str, texts: Iterable[str]) -> Stack:
    tones = Counter(_group(text) for text in texts)
    parts = [(name, float(tones[tone]), tone) for name, tone in _GROUPS if tones[tone]]
    return stack(label, parts, _PLAIN)


def _group(text: str) -> str:
    if text.startswith("S"):
        return f"s{min(int(text[1:].partition('@')[0]), 3)}"
    return "p" if text.startswith("P") else "w"
