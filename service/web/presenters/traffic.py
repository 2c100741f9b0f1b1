"""What a device sends in a step, by collective and by level of the network."""

from __future__ import annotations

from dataclasses import dataclass

from service.services.insights import Traffic
from service.web.presenters.parts import Stack, Table, stack
from service.web.text import number, share, size_unit, time_unit

_TONES = ("a", "e", "d", "g", "f", "h")


@dataclass(frozen=True, slots=True)
class TrafficView:
    """Bytes by kind of collective, seconds by level where the calibration is known, and every kind of call."""

    kinds: Stack
    levels: Stack | None
    calls: Table


def traffic_view(found: Traffic) -> TrafficView:
    """``found`` is of a strategy and its graph."""
    totals: dict[str, float] = {}
    for entry in found.collectives:
        totals[entry["kind"]] = totals.get(entry["kind"], 0.0) + entry["bytes_per_device"]
    unit = size_unit(totals.values())
    every = sum(totals.values())
    largest = sorted(totals.items(), key=lambda item: -item[1])
    parts = [(kind.replace("_", "-"), size, _TONES[at % len(_TONES)]) for at, (kind, size) in enumerate(largest)]
    columns = ("Collective", "Phase", "Over", "Calls", f"Bytes of a device ({unit.name})", "Share")
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
    return TrafficView(stack("Sent in a step", parts, unit), _levels(found.links), Table(columns, rows, 3))


def _levels(links: dict[str, float]) -> Stack | None:
    if not any(links.values()):
        return None
    parts = [(f"Level {name}", seconds, _TONES[at % len(_TONES)]) for at, (name, seconds) in enumerate(links.items())]
    return stack("Time by the slowest link that is crossed", parts, time_unit(links.values()))
