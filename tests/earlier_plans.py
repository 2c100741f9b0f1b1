"""Plans as earlier releases wrote them (``autosbp.plan/1``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autosbp.plan.plan import OLDER_SCHEMA, plan_id_of

OVERLAP = 0.25
"""Of a step: what the sum of its parts was longer by."""


def earlier_plan(document: Mapping[str, Any]) -> dict[str, Any]:
    """The plan of a document of today, with the step as a sum in which nothing overlaps, its bound and its gap, and beside it
    the step that was simulated."""
    found = {
        **_costs({name: value for name, value in document.items() if name != "search_s"}),
        "schema": OLDER_SCHEMA,
        "baselines": {name: _costs(entry) for name, entry in document["baselines"].items()},
    }
    found |= {"lower_bound_s": 0.9 * found["step_time_s"], "gap": 0.1}
    return {**found, "plan_id": plan_id_of(found)}


def _costs(costs: Mapping[str, Any]) -> dict[str, Any]:
    step_s = costs["step_time_s"]
    if step_s is None:
        return {**costs, "simulated_step_time_s": None}
    parts = {
        name: value for name, value in costs["breakdown"].items() if name in ("compute_s", "bubble_s", "optimizer_s")
    }
    exposed_s = costs["breakdown"]["exposed_comm_s"] + OVERLAP * step_s
    return {
        **costs,
        "step_time_s": (1 + OVERLAP) * step_s,
        "simulated_step_time_s": step_s,
        "breakdown": {**parts, "exposed_comm_s": exposed_s},
    }
