"""Bytes that a device sends in a step, by collective and network level."""

from __future__ import annotations

from dataclasses import dataclass

from autosbp.service.services.strategy_timeline import Traffic
from autosbp.service.web.number_format import number, share, size_unit, time_unit
from autosbp.service.web.presenters.page_parts import Stack, Table, stack

_TONES = ("a", "e", "d", "g", "f", "h")


@dataclass(frozen=True, slots=True)
class TrafficView:
    """Bytes by kind of collective, seconds by network level if known, and a table of all calls."""

    kinds: Stack
    levels: Stack | None
    calls: Table


def traffic_view(found: Traffic) -> TrafficView:
    """Build the part of the page from a strategy's communication."""
    totals: dict[str, float] = {}
    for entry in found.collectives:
        totals[entry["kind"]] = totals.get(entry["kind"], 0.0) + entry["bytes_per_device"]
    unit = size_unit(totals.values())
    every = sum(totals.values())
    largest = sorted(totals.items(), key=lambda item: -item[1])
    parts = [(kind.replace("_", "-"), size, _TONES[at % len(_TONES)]) for at, (kind, size) in enumerate(largest)]
    columns = ("Collective", "Phase", "Over", "Calls", f"Bytes per device ({unit.name})", "Share")
    rows = tuple(
        (
            entry["kind"].replace("_", "-"),
            entry["phase"],
            ", ".join(entry["axes"]),
            number(entry["num_calls"]),
            unit.of(entry["bytes_per_device"]),
            share(entry["bytes_per_device"] / every if every else 0.0),
        )
        for entry in found.collectives
    )
    return TrafficView(stack("Sent per step", parts, unit), _levels(found.links), Table(columns, rows, 3))


def _levels(links: dict[str, float]) -> Stack | None:
    if not any(links.values()):
        return None
    parts = [(f"Level {name}", seconds, _TONES[at % len(_TONES)]) for at, (name, seconds) in enumerate(links.items())]
    return stack("Communication time by slowest link", parts, time_unit(links.values()))
