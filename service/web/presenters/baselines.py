"""A strategy beside what users would otherwise choose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autosbp.plan import simulated_s
from service.web.presenters.parts import Chart, Table
from service.web.text import ratio, size_unit, time_unit, title

_PARTS = ("compute_s", "exposed_comm_s", "bubble_s", "optimizer_s")
_FEW = 3
_NAMES = ("Computation", "Communication", "Waiting of stages", "Optimizer")


def baselines(plan: Mapping[str, Any]) -> tuple[Chart | None, tuple[tuple[str, str], ...]]:
    """The chart of the strategy and its feasible baselines, fastest first; and why others do not run, or are not known."""
    known = plan["baselines"]
    feasible = sorted(
        ((name, entry) for name, entry in known.items() if entry["feasible"]), key=lambda one: simulated_s(one[1])
    )
    others = tuple((title(name), entry["reason"]) for name, entry in known.items() if entry["reason"])
    return (_chart(plan, feasible) if feasible else None), others


def _chart(plan: Mapping[str, Any], feasible: list[tuple[str, Mapping[str, Any]]]) -> Chart:
    entries = [("This strategy", plan), *((title(name), entry) for name, entry in feasible)]
    own_s = simulated_s(plan)
    times = time_unit([entry["step_time_s"] for _, entry in entries])
    memory = size_unit([entry["memory_bytes_per_device"] for _, entry in entries])
    traffic = size_unit([entry["comm_bytes_per_device"] for _, entry in entries])
    rows = tuple(
        (
            name,
            times.of(simulated_s(entry)),
            ratio(simulated_s(entry) / own_s),
            *(times.of(entry["breakdown"].get(part, 0.0)) for part in _PARTS),
            memory.of(entry["memory_bytes_per_device"]),
            traffic.of(entry["comm_bytes_per_device"]),
        )
        for name, entry in entries
    )
    columns = (
        "Strategy",
        f"Step ({times.name})",
        "Against this",
        *(f"{name} ({times.name})" for name in _NAMES),
        f"Memory ({memory.name})",
        f"Traffic ({traffic.name})",
    )
    data = {
        "unit": times.name,
        "names": [name for name, _ in entries],
        "parts": [
            {
                "name": name,
                "values": [entry["breakdown"].get(part, 0.0) / times.scale for _, entry in entries],
            }
            for part, name in zip(_PARTS, _NAMES, strict=True)
        ],
        "markers": [simulated_s(entry) / times.scale for _, entry in entries],
        "marker": "Simulated step",
    }
    best = f"{entries[1][0]} takes {ratio(simulated_s(feasible[0][1]) / own_s)} as long as this strategy."
    height = "small" if len(entries) <= _FEW else "medium"
    return Chart("baselines", "stacked", "This strategy beside its baselines", best, data, Table(columns, rows), height)
