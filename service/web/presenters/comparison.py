"""Comparison of two strategies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autosbp.plan.plan import upgrade_document
from autosbp.report.findings import PURPOSES
from autosbp.report.plan_diff import COSTS
from autosbp.service.web.number_format import seconds, signed_share, time_unit
from autosbp.service.web.presenters.page_parts import Chart, Stack, Table
from autosbp.service.web.presenters.request_words import option_name, option_words
from autosbp.service.web.presenters.step_breakdown import HIDDEN, HIDDEN_WORDS, PARTS, chart_parts, time_stack
from autosbp.utils.formatting import num_bytes

_COSTS = {
    **dict(zip(COSTS, ("Step", "Traffic per device", "Memory per device"), strict=True)),
    **PARTS,
    HIDDEN: HIDDEN_WORDS,
}
MOST_CHANGES = 200


@dataclass(frozen=True, slots=True)
class CostLine:
    """One cost of both strategies; ``tone`` says whether the second is better."""

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
    """Build the page.

    Args:
        found: document of ``autosbp.report.plan_diff`` on the two plans.
        one, two: the plans, of any release.
    """
    one, two = upgrade_document(one), upgrade_document(two)
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
    """Lines of costs; exposed communication by purpose follows its sum. Hidden communication is not rated."""
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
    rows += [
        (option_name(name), _format_choice(name, pair["a"]), _format_choice(name, pair["b"]))
        for name, pair in found["choices"].items()
    ]
    return Table(("Choice", "First", "Second"), tuple(rows), 3) if rows else None


def _format_choice(name: str, value: Any) -> str:
    if isinstance(value, dict) and "num_stages" in value:
        return f"{value['num_stages']} stages, {value['schedule']}, {len(value['cuts']) + 1} chunks"
    if isinstance(value, list):
        return f"{len(value)} recomputed segments"
    return option_words(name, value)


def _changes(what: str, changes: Mapping[str, Mapping[str, str | None]]) -> Table:
    shown = list(changes.items())[:MOST_CHANGES]
    rows = tuple((name, pair["a"] or "absent", pair["b"] or "absent") for name, pair in shown)
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
    return Chart("comparison", "stacked", "Step time", spoken, data, table, "tiny")
