"""Two strategies side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autosbp.comparison import COSTS
from autosbp.findings import PURPOSES
from autosbp.plan import current_document
from autosbp.units import num_bytes
from service.web.presenters.parts import Chart, Stack, Table
from service.web.presenters.step import HIDDEN, HIDDEN_WORDS, PARTS, chart_parts, time_stack
from service.web.text import seconds, signed_share, time_unit, title

_COSTS = {
    **dict(zip(COSTS, ("Step", "Traffic of a device", "Memory of a device"), strict=True)),
    **PARTS,
    HIDDEN: HIDDEN_WORDS,
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
    """``found`` is of ``autosbp.comparison`` and of the two plans, whatever releases found them."""
    one, two = current_document(one), current_document(two)
    return ComparisonView(
        tuple(_costs(found)),
        _choices(found),
        (time_stack(one), time_stack(two)),
        found["same_graph"],
        found["same_mesh"],
        _changes("Parameter", found["parameters"]),
        _changes("Op", found["ops"]),
        len(found["parameters"]),
        len(found["ops"]),
        _chart(one, two),
    )


def _costs(found: Mapping[str, Any]) -> Iterator[CostLine]:
    """Exposed communication by purpose comes behind its sum; to hide more or less is neither better nor worse."""
    for name, pair in found["costs"].items():
        line = _cost(_COSTS[name], pair, seconds if name.endswith("_s") else num_bytes)
        yield replace(line, tone="") if name == HIDDEN else line
        if name == "exposed_comm_s":
            for purpose, times in found["exposed_comm_by_purpose_s"].items():
                yield _cost(f"Exposed: {PURPOSES.get(purpose, purpose)}", times, seconds)


def _cost(words: str, pair: Mapping[str, float | None], write: Callable[[float | None], str]) -> CostLine:
    a, b = pair["a"], pair["b"]
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
        "parts": chart_parts(plans, unit),
    }
    rows = tuple(
        (words, *(unit.of(plan["breakdown"].get(name, 0.0)) for plan in plans)) for name, words in PARTS.items()
    )
    table = Table(("Part", f"First ({unit.name})", f"Second ({unit.name})"), rows)
    ratio = two["step_time_s"] / one["step_time_s"]
    spoken = f"The second takes {ratio:.3g} × as long as the first."
    return Chart("comparison", "stacked", "Time of a step", spoken, data, table, "tiny")
