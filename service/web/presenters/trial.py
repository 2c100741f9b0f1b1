"""A trial: measurements next to predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autosbp.plan.plan import predicted_step_s
from autosbp.service.models import TrialRow
from autosbp.service.web.number_format import number, seconds, share, signed_share, size_unit, time_unit
from autosbp.service.web.presenters.page_parts import Chart, Fact, Figure, Table
from autosbp.utils.formatting import num_bytes

_GOOD, _FAIR = 0.1, 0.25


@dataclass(frozen=True, slots=True)
class TrialView:
    """Content of the page besides the job; charts exist once there is a result."""

    figures: tuple[Figure, ...]
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
        return TrialView(_predicted(row), None, None, None, facts)
    return TrialView(_measured(row, result), _pairs(row, result), _times(row, result), _losses(result), facts)


def _gates(row: TrialRow) -> str:
    """Outcome of the gates."""
    failed = [str(gate["name"]) for gate in row.gates or () if not gate["passed"]]
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
    difference = result.get("loss_difference")
    return (
        Figure("Measured step", seconds(times["median"]), f"median, spread {seconds(times['iqr'])}"),
        Figure("Predicted step", seconds(predicted_step_s(row.predicted))),
        Figure("Error", signed_share(row.relative_error), "(measured − predicted) / measured", tone),
        Figure(
            "Collectives", "as predicted" if match else "not as predicted", "on every rank", "good" if match else "bad"
        ),
        Figure("Loss", "–" if difference is None else f"{difference:.1e}", "difference from one device"),
    )


def _pairs(row: TrialRow, result: Mapping[str, Any]) -> Table:
    measured_s, predicted_s = result["step_time_s"]["median"], predicted_step_s(row.predicted)
    times = time_unit([measured_s, predicted_s])
    memory, expected = result.get("memory_bytes"), row.predicted["memory_bytes_per_device"]
    sent, charged = result.get("comm_bytes_per_device"), row.predicted["comm_bytes_per_device"]
    sizes, traffic = size_unit([memory, expected]), size_unit([sent, charged])
    return Table(
        ("Quantity", "Predicted", "Measured", "Error", "Unit"),
        (
            ("Step", times.of(predicted_s), times.of(measured_s), signed_share(row.relative_error), times.name),
            ("Memory per device", sizes.of(expected), sizes.of(memory), _relative_error(expected, memory), sizes.name),
            (
                "Traffic per device",
                traffic.of(charged),
                traffic.of(sent),
                _relative_error(charged, sent),
                traffic.name,
            ),
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
