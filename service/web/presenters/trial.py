"""A trial: measurements next to predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autosbp.plan.plan import predicted_step_s
from autosbp.report.trial_gates import loss_gate, median_uncertainty_s
from autosbp.service.models import TrialRow
from autosbp.service.web.number_format import number, seconds, share, signed_share, time_unit
from autosbp.service.web.presenters.list_rows import State, trial_state
from autosbp.service.web.presenters.page_parts import Chart, Fact, Figure, Table
from autosbp.utils.formatting import num_bytes

_GOOD, _FAIR = 0.1, 0.25
_GATES = {
    "collectives_match": "Collectives",
    "max_step_time_s": "Step time",
    "max_loss_difference": "Losses",
    "max_regression": "Regression",
    "max_prediction_error": "Prediction error",
}


@dataclass(frozen=True, slots=True)
class TrialView:
    """Content of the page besides the job; charts exist once there is a result."""

    state: State
    figures: tuple[Figure, ...]
    gates: Table | None
    pairs: Table | None
    times: Chart | None
    losses: Chart | None
    facts: tuple[Fact, ...]


def trial_view(row: TrialRow) -> TrialView:
    """Build the page of a stored trial, with its result if it has one."""
    result = row.result
    options = row.options
    facts = (
        Fact("What", f"baseline {row.baseline}" if row.baseline else "the strategy"),
        Fact("Steps", f"{number(options['steps'])} after {number(options['warmup'])} warm-up steps"),
        Fact("Seed", str(options["seed"])),
        *(() if row.label is None else (Fact("Label", row.label),)),
        *(() if row.passed is None else (Fact("Gates", _gates(row)),)),
        *(() if result is None else (Fact("Ranks", number(result.get("num_ranks", 0))),)),
    )
    if result is None:
        return TrialView(trial_state(row), _predicted(row), None, None, None, None, facts)
    parts = _measured(row, result), _gate_table(row), _pairs(row, result), _times(row, result), _losses(result)
    return TrialView(trial_state(row), *parts, facts)


def _gates(row: TrialRow) -> str:
    """Outcome of the gates."""
    failed = [_GATES.get(gate["name"], gate["name"]).lower() for gate in row.gates or () if not gate["passed"]]
    return f"failed: {', '.join(failed)}" if failed else "passed"


def _predicted(row: TrialRow) -> tuple[Figure, ...]:
    return (
        Figure("Predicted step", seconds(predicted_step_s(row.predicted)), "communication overlaps computation"),
        Figure("Predicted memory", num_bytes(row.predicted["memory_bytes_per_device"]), "per device"),
        Figure("Predicted traffic", num_bytes(row.predicted["comm_bytes_per_device"]), "per device and step"),
    )


def _measured(row: TrialRow, result: Mapping[str, Any]) -> tuple[Figure, ...]:
    error = row.relative_error or 0.0
    tone = "good" if abs(error) <= _GOOD else "warn" if abs(error) <= _FAIR else "bad"
    times = result["step_time_s"]
    match = bool(result.get("collectives_match"))
    return (
        Figure("Measured step", median_words(times), "median and its uncertainty, from the spread of the steps"),
        Figure("Predicted step", seconds(predicted_step_s(row.predicted))),
        Figure("Error", signed_share(row.relative_error), "(measured − predicted) / measured", tone),
        Figure(
            "Collectives", "as predicted" if match else "not as predicted", "on every rank", "good" if match else "bad"
        ),
        _loss(result),
    )


def median_words(times: Mapping[str, Any]) -> str:
    """A measured median with half of its confidence interval, by which gates judge it."""
    return f"{seconds(times['median'])} ± {seconds(median_uncertainty_s(times))}"


def _loss(result: Mapping[str, Any]) -> Figure:
    difference, bound = result.get("loss_difference"), result.get("loss_bound")
    if difference is None:
        return Figure("Loss", "–", "not compared with one device")
    gate = loss_gate(result)
    tone = "" if gate is None else "good" if gate.passed else "bad"
    limit = "" if bound is None else f"; rounding explains {bound:.1e}"
    return Figure("Loss", f"{difference:.1e}", f"difference from one device{limit}", tone)


def _gate_table(row: TrialRow) -> Table | None:
    """Every gate with what was measured and its limit, in words."""
    if not row.gates:
        return None
    words = {True: "passed", False: "failed"}
    rows = tuple(
        (_GATES.get(gate["name"], gate["name"]), words[gate["passed"]], gate["sentence"]) for gate in row.gates
    )
    return Table(("Gate", "Outcome", "Measured and limit"), rows, 3)


def _pairs(row: TrialRow, result: Mapping[str, Any]) -> Table:
    predicted_s = predicted_step_s(row.predicted)
    memory, expected = result.get("memory_bytes"), row.predicted["memory_bytes_per_device"]
    sent, charged = result.get("comm_bytes_per_device"), row.predicted["comm_bytes_per_device"]
    return Table(
        ("Quantity", "Predicted", "Measured", "Error"),
        (
            ("Step", seconds(predicted_s), median_words(result["step_time_s"]), signed_share(row.relative_error)),
            ("Memory per device", num_bytes(expected), num_bytes(memory), _relative_error(expected, memory)),
            ("Traffic per device", num_bytes(charged), num_bytes(sent), _relative_error(charged, sent)),
        ),
    )


def _relative_error(predicted: float, measured: float | None) -> str:
    return signed_share((measured - predicted) / measured) if measured else "–"


def _times(row: TrialRow, result: Mapping[str, Any]) -> Chart:
    times = result["step_time_s"]
    shown = (
        ("Predicted", predicted_step_s(row.predicted)),
        ("Median", times["median"]),
        ("Fastest", times["min"]),
        ("Slowest", times["max"]),
    )
    unit = time_unit([value for _, value in shown])
    data = {
        "unit": unit.name,
        "names": [name for name, _ in shown],
        "series": [{"name": "Step", "values": [value / unit.scale for _, value in shown]}],
    }
    rows = tuple((name, unit.of(value)) for name, value in shown)
    spoken = (
        f"{number(times['steps'])} steps; interquartile range {share(times['iqr'] / times['median'])} of the median."
    )
    return Chart("times", "bars", "Predicted and measured", spoken, data, Table(("Step", unit.name), rows), "tiny")


def _losses(result: Mapping[str, Any]) -> Chart | None:
    losses, alone = result.get("losses") or [], result.get("reference_losses") or []
    if not losses:
        return None
    series = [{"name": "With the strategy", "points": [[at + 1, loss] for at, loss in enumerate(losses)]}]
    if alone:
        series.append({"name": "On one device", "points": [[at + 1, loss] for at, loss in enumerate(alone)]})
    columns = ("Step", *(str(one["name"]) for one in series))
    length = max(len(losses), len(alone))
    rows = tuple(
        (str(at + 1), *(f"{values[at]:.6f}" if at < len(values) else "–" for values in (losses, alone) if values))
        for at in range(length)
    )
    difference = result.get("loss_difference")
    spoken = "" if difference is None else f"The maximum difference is {difference:.1e}."
    data = {"x": "step", "y": "loss", "series": series}
    return Chart("losses", "lines", "Loss, compared with one device", spoken, data, Table(columns, rows, 0), "small")
