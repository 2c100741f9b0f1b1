"""Formatting of numbers and times for people. A table column has one unit, so that its numbers line up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from autosbp.utils import formatting
from autosbp.utils.formatting import count, num_bytes, percent

_DASH = "–"
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit that fits some values; ``of`` formats a value without the unit."""

    scale: float
    name: str

    def of(self, value: float | None) -> str:
        """Format a value with the unit's fixed number of decimals."""
        return _DASH if value is None else f"{value / self.scale:,.{self._places}f}"

    @property
    def _places(self) -> int:
        return 0 if self.name == "B" else 2


def time_unit(values: Iterable[float | None]) -> Unit:
    """The unit in which the largest time has one to three digits before the point."""
    return _unit(values, _TIMES)


def size_unit(values: Iterable[float | None]) -> Unit:
    """The unit in which the largest size is at least 1."""
    return _unit(values, _SIZES)


def _unit(values: Iterable[float | None], units: tuple[tuple[float, str], ...]) -> Unit:
    largest = max((abs(value) for value in values if value is not None), default=0.0)
    return Unit(*next((unit for unit in units if largest >= unit[0]), units[-1] if largest else units[0]))


def seconds(value: float | None) -> str:
    """Format seconds, such as ``12.3 ms``, with µ for micro."""
    return _DASH if value is None else formatting.seconds(value).replace(" us", " µs")


def ratio(value: float | None) -> str:
    """Format a ratio, such as ``1.24 ×``."""
    return _DASH if value is None else f"{value:.2f} ×"


def share(value: float | None, places: int = 1) -> str:
    """Format a fraction from 0 to 1 as a percentage, such as ``12.5 %``."""
    return _DASH if value is None else f"{100 * value:.{places}f} %"


def signed_share(value: float | None) -> str:
    """Format a signed percentage, such as ``+12.5 %``."""
    return _DASH if value is None else f"{100 * value:+.1f} %".replace("-", "−")


def rate(bytes_per_s: float) -> str:
    """Format a bandwidth, such as ``25.0 GB/s``, in powers of ten as usual for networks."""
    return f"{count(bytes_per_s)}B/s"


def moment(value: datetime | None) -> Markup | str:
    """Format a time, such as ``22 Nov 2026, 01:50`` in UTC; browsers convert it to their zone (``static/js/page.js``)."""
    if value is None:
        return _DASH
    there = value.astimezone(UTC)
    shown = f"{there.day} {there:%b %Y, %H:%M}"
    return Markup('<time datetime="{}">{} UTC</time>').format(there.isoformat(), shown)


def lasted(begin: datetime | None, end: datetime | None) -> str:
    """Format the duration from ``begin`` to ``end``, or until now."""
    if begin is None:
        return _DASH
    return seconds(((end or datetime.now(UTC)) - begin).total_seconds())


def short(identifier: str) -> str:
    """Shorten an id to its kind and first digits: ``plan-29390869``."""
    kind, dash, digits = identifier.partition("-")
    return f"{kind}{dash}{digits[:8]}"


def title(name: str) -> str:
    """Format a name such as ``exposed_comm_s`` as ``Exposed comm``."""
    words = name.removesuffix("_s").replace("_", " ").replace("-", " ")
    return words[:1].upper() + words[1:]


def data(value: Any) -> Markup:
    """JSON for a script element that is not executed, with all characters escaped that could end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))  # noqa: S704


def named(rows: Iterable[Any]) -> list[tuple[str, str]]:
    """Ids and names of rows, for select elements."""
    return [(row.id, row.name) for row in rows]


def pairs(values: Iterable[str]) -> list[tuple[str, str]]:
    """Values and their labels, for select elements."""
    return [(value, value.replace("_", " ")) for value in values]


def number(value: float) -> str:
    """Format an integer, such as ``12,345``."""
    return f"{value:,}"


FILTERS: Mapping[str, Callable[..., Any]] = {
    "seconds": seconds,
    "num_bytes": num_bytes,
    "count": count,
    "percent": percent,
    "ratio": ratio,
    "share": share,
    "signed_share": signed_share,
    "rate": rate,
    "moment": moment,
    "short": short,
    "title_of": title,
    "data": data,
    "number": number,
    "pairs": pairs,
    "named": named,
}
