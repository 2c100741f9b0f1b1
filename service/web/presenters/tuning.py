"""Trials of a search: what they showed so far, with pictures and a table of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from autosbp.service.web.number_format import number, time_unit
from autosbp.service.web.presenters.page_parts import Table
from autosbp.tuning.charts import accuracy_chart, best_chart, hit_chart

_COLUMNS = ("Trial", "From", "Grid", "Parameters", "Microbatch", "Bucket", "Predicted", "Measured")


@dataclass(frozen=True, slots=True)
class TuningView:
    """A sentence, SVG pictures, a table of trials, and why trials failed (number, reason)."""

    sentence: str
    charts: tuple[Markup, ...]
    table: Table
    failures: tuple[tuple[str, str], ...]


def tuning_view(summary: Mapping[str, Any]) -> TuningView | None:
    """The view of a ``tuning_summary``; None before the first trial has ended."""
    trials, best, baseline = summary["trials"], summary["best"], summary["baseline"]
    if not trials:
        return None
    unit = time_unit([row[name] for row in trials for name in ("step_time_s", "predicted_step_time_s")])
    text = f"{number(summary['num_trials'])} trials, {number(summary['num_failed'])} failed."
    if best is not None:
        text += f" The fastest step took {unit.of(best['step_time_s'])} {unit.name} ({best['origin']})"
        text += "." if baseline is None else f", {summary['speedup']:.2f} times as fast as {baseline['origin']}."
    charts = best_chart([("", summary)]), hit_chart([("", summary)]), accuracy_chart(summary["ranking_accuracy"])
    columns = (*_COLUMNS[:-2], *(f"{name} ({unit.name})" for name in _COLUMNS[-2:]))
    rows = tuple(_row(row, unit.of) for row in reversed(trials))
    failures = tuple((number(row["index"] + 1), row["error"]) for row in trials if row["error"])
    return TuningView(text, tuple(map(Markup, charts)), Table(columns, rows, 4), failures)


def _row(row: Mapping[str, Any], shown: Any) -> tuple[str, ...]:
    choices = row["choices"]
    named = ("", "", "", "")
    if choices is not None:
        size = f"{number(choices['bucket_bytes'] >> 20)} MiB"
        named = choices["grid"], choices["storage"], number(choices["micro_batch"] + 1), size
    measured = "failed" if row["error"] else shown(row["step_time_s"])
    return number(row["index"] + 1), row["origin"], *named, shown(row["predicted_step_time_s"]), measured
