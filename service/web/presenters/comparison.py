"""Two strategies side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autosbp.comparison import COSTS
from autosbp.plan import simulated_s
from autosbp.units import num_bytes
from service.web.presenters.parts import Chart, Stack, Table, stack
from service.web.text import seconds, signed_share, time_unit, title

_TONES = {"compute_s": "a", "exposed_comm_s": "b", "bubble_s": "c", "optimizer_s": "d"}
_NAMES = {
    "compute_s": "Computation",
    "exposed_comm_s": "Communication",
    "bubble_s": "Waiting of stages",
    "optimizer_s": "Optimizer",
}
MOST_CHANGES = 200


@dataclass(frozen=True, slots=True)
class CostLine:
    """One cost of both; ``tone`` says whether the second is better."""

    name: str
    a: str
    b: str
    difference: str
    tone: str


@dataclass(frozen=True, slots=True)
class ComparisonView:
    """Costs, choices, and the first layouts that differ."""

    costs: tuple[CostLine, ...]
    choices: Table | None
    times: tuple[Stack, Stack]
    same_graph: bool
    same_mesh: bool
    parameters: Table
    ops: Table
    num_parameters: int
    num_ops: int
    chart: Chart


def comparison_view(found: Mapping[str, Any], one: Mapping[str, Any], two: Mapping[str, Any]) -> ComparisonView:
    """``found`` is of ``autosbp.comparison`` and of the two plans."""
    return ComparisonView(
        tuple(_cost(name, pair["a"], pair["b"]) for name, pair in _all_costs(found, one, two).items()),
        _choices(found),
        (_time(one), _time(two)),
        found["same_graph"],
        found["same_mesh"],
        _changes("Parameter", found["parameters"]),
        _changes("Op", found["ops"]),
        len(found["parameters"]),
        len(found["ops"]),
        _chart(one, two),
    )


def _all_costs(found: Mapping[str, Any], one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    simulated = {"simulated_step_time_s": {"a": simulated_s(one), "b": simulated_s(two)}}
    return simulated | dict(found["costs"])


def _cost(name: str, a: float | None, b: float | None) -> CostLine:
    write = seconds if name.endswith("_s") else num_bytes
    words = {
        "simulated_step_time_s": "Step, simulated",
        "step_time_s": "Step, sum of its parts",
        COSTS[1]: "Traffic of a device",
        COSTS[2]: "Memory of a device",
    }.get(name, _NAMES.get(name, title(name)))
    if not a or b is None:
        return CostLine(words, write(a), write(b), "–", "")
    difference = (b - a) / a
    tone = "" if abs(difference) < 1e-3 else "better" if difference < 0 else "worse"
    return CostLine(words, write(a), write(b), signed_share(difference), tone)


def _choices(found: Mapping[str, Any]) -> Table | None:
    rows = [] if found["mesh"]["a"] == found["mesh"]["b"] else [("Mesh", found["mesh"]["a"], found["mesh"]["b"])]
    rows += [(title(name), _said(pair["a"]), _said(pair["b"])) for name, pair in found["choices"].items()]
    return Table(("Choice", "First", "Second"), tuple(rows), 3) if rows else None


def _said(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict) and "num_stages" in value:
        return f"{value['num_stages']} stages, {value['schedule']}, {len(value['cuts']) + 1} chunks"
    if isinstance(value, list):
        return f"{len(value)} runs of ops"
    return value if isinstance(value, str) else json.dumps(value)


def _time(plan: Mapping[str, Any]) -> Stack:
    parts = plan["breakdown"]
    named = [(words, parts.get(name, 0.0), _TONES[name]) for name, words in _NAMES.items()]
    return stack("Time of a step", named, time_unit(parts.values()))


def _changes(what: str, changes: Mapping[str, Mapping[str, str | None]]) -> Table:
    shown = list(changes.items())[:MOST_CHANGES]
    rows = tuple((name, pair["a"] or "not there", pair["b"] or "not there") for name, pair in shown)
    return Table((what, "First", "Second"), rows, 3)


def _chart(one: Mapping[str, Any], two: Mapping[str, Any]) -> Chart:
    unit = time_unit([one["step_time_s"], two["step_time_s"]])
    plans = (one, two)
    data = {
        "unit": unit.name,
        "names": ["First", "Second"],
        "parts": [
            {"name": words, "values": [plan["breakdown"].get(name, 0.0) / unit.scale for plan in plans]}
            for name, words in _NAMES.items()
        ],
        "markers": [simulated_s(plan) / unit.scale for plan in plans],
        "marker": "Simulated step",
    }
    rows = tuple(
        (words, *(unit.of(plan["breakdown"].get(name, 0.0)) for plan in plans)) for name, words in _NAMES.items()
    )
    table = Table(("Part", f"First ({unit.name})", f"Second ({unit.name})"), rows)
    ratio = simulated_s(two) / simulated_s(one)
    spoken = f"The second takes {ratio:.3g} × as long as the first."
    return Chart("comparison", "stacked", "Time of a step", spoken, data, table, "tiny")
