"""Parts that several pages use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autosbp.service.web.number_format import Unit, share


@dataclass(frozen=True, slots=True)
class Figure:
    """A key figure of a page; ``part`` is a fraction that a bar shows."""

    label: str
    value: str
    note: str = ""
    tone: str = ""
    part: float | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a stacked bar: ``start`` and ``part`` are fractions of the bar, ``amount`` omits the unit."""

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
        """Description of the bar for screen readers."""
        parts = ", ".join(f"{one.label} {one.amount} {self.unit} ({one.share})" for one in self.slices)
        return f"{self.label}: {parts}"


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts; the columns from ``first_number`` on are numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    first_number: int = 1


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart and the same data as a table, for people who cannot see it.

    ``static/js/charts.js`` draws ``data`` as a chart of type ``kind``.
    """

    name: str
    kind: str
    title: str
    spoken: str
    data: Mapping[str, Any]
    table: Table
    height: str = "medium"


@dataclass(frozen=True, slots=True)
class Fact:
    """A term with its value; ``href`` links the value."""

    term: str
    value: str
    href: str = ""
    note: str = field(default="")


def stack(
    label: str, parts: Sequence[tuple[str, float, str]], unit: Unit, whole: float | None = None, rest: str = ""
) -> Stack:
    """Build a stacked bar.

    Args:
        label: title of the bar.
        parts: (label, amount, tone) of each part.
        unit: unit of all numbers.
        whole: amount of the full length; None is the sum of the parts.
        rest: label of the free part; "" shows none.
    """
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
