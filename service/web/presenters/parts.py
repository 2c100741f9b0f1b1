"""Pieces that several pages are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from service.web.text import Unit, share


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that a page leads with. ``part`` is of a whole, where a bar shows it."""

    label: str
    value: str
    note: str = ""
    tone: str = ""
    part: float | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a stacked bar: ``start`` and ``part`` are of the bar's length, ``amount`` is without its unit."""

    label: str
    amount: str
    share: str
    start: float
    part: float
    tone: str


@dataclass(frozen=True, slots=True)
class Stack:
    """A stacked bar with its legend, whose numbers have one unit."""

    label: str
    unit: str
    slices: tuple[Slice, ...]
    total: str

    @property
    def spoken(self) -> str:
        """What a screen reader says of the bar."""
        parts = ", ".join(f"{one.label} {one.amount} {self.unit} ({one.share})" for one in self.slices)
        return f"{self.label}: {parts}"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts; the columns from ``first_number`` on are numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    first_number: int = 1


@dataclass(frozen=True, slots=True)
class Chart:
    """What ``static/js/charts.js`` draws as ``kind`` from ``data``, and the same as a table for those who cannot see it."""

    name: str
    kind: str
    title: str
    spoken: str
    data: Mapping[str, Any]
    table: Table
    height: str = "medium"


@dataclass(frozen=True, slots=True)
class Fact:
    """A term with its value; ``href`` where the value leads somewhere."""

    term: str
    value: str
    href: str = ""
    note: str = field(default="")


def stack(
    label: str, parts: Sequence[tuple[str, float, str]], unit: Unit, whole: float | None = None, rest: str = ""
) -> Stack:
    """A bar of (label, amount, tone); with ``whole`` it is as long as that, and ``rest`` names what is free."""
    used = sum(amount for _, amount, _ in parts)
    length = max(used, whole or 0.0)
    slices, start = [], 0.0
    shown = [part for part in parts if part[1] > 0]
    if rest and length > used:
        shown.append((rest, length - used, "free"))
    for name, amount, tone in shown:
        part = amount / length if length else 0.0
        slices.append(Slice(name, unit.of(amount), share(part), start, part, tone))
        start += part
    return Stack(label, unit.name, tuple(slices), unit.of(used))
