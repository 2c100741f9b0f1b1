"""A strategy compared with common baselines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autosbp.service.web.number_format import ratio, size_unit, time_unit, title
from autosbp.service.web.presenters.page_parts import Chart, Table
from autosbp.service.web.presenters.step_breakdown import HIDDEN, HIDDEN_WORDS, PARTS, chart_parts

_FEW = 3
_TIMES = {**PARTS, HIDDEN: HIDDEN_WORDS}


def baselines(plan: Mapping[str, Any]) -> tuple[Chart | None, tuple[tuple[str, str], ...]]:
    """Return the chart of the strategy and its feasible baselines, fastest first, and the other baselines' reasons.

    The chart is None without a feasible baseline; reasons are pairs of a name and why it does not run.
    """
    known = plan["baselines"]
    feasible = sorted(
        ((name, entry) for name, entry in known.items() if entry["feasible"]), key=lambda one: one[1]["step_time_s"]
    )
    others = tuple((title(name), entry["reason"]) for name, entry in known.items() if entry["reason"])
    return (_chart(plan, feasible) if feasible else None), others


def _chart(plan: Mapping[str, Any], feasible: list[tuple[str, Mapping[str, Any]]]) -> Chart:
    entries = [("This strategy", plan), *((title(name), entry) for name, entry in feasible)]
    own_s = plan["step_time_s"]
    times = time_unit([entry["step_time_s"] for _, entry in entries])
    memory = size_unit([entry["memory_bytes_per_device"] for _, entry in entries])
    traffic = size_unit([entry["comm_bytes_per_device"] for _, entry in entries])
    rows = tuple(
        (
            name,
            times.of(entry["step_time_s"]),
            ratio(entry["step_time_s"] / own_s),
            *(times.of(entry["breakdown"].get(part, 0.0)) for part in _TIMES),
            memory.of(entry["memory_bytes_per_device"]),
            traffic.of(entry["comm_bytes_per_device"]),
        )
        for name, entry in entries
    )
    columns = (
        "Strategy",
        f"Step ({times.name})",
        "Compared with this",
        *(f"{name} ({times.name})" for name in _TIMES.values()),
        f"Memory ({memory.name})",
        f"Traffic ({traffic.name})",
    )
    data = {
        "unit": times.name,
        "names": [name for name, _ in entries],
        "parts": chart_parts([entry for _, entry in entries], times),
    }
    best = f"{entries[1][0]} takes {ratio(feasible[0][1]['step_time_s'] / own_s)} as long as this strategy."
    height = "small" if len(entries) <= _FEW else "medium"
    return Chart("baselines", "stacked", "This strategy and its baselines", best, data, Table(columns, rows), height)
